/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_attention.cu: causal softmax attention, one block of scores at a time.
 *
 *     out[i] = Σⱼ softmax(f(scale · Q[i] Kᵀ))[j] V[j]    over j ≤ i, with a window also j > i − window
 *
 * where f caps the scores and adds the keys' bias, if the shape has them.
 *
 * For a block of queries of one sequence, batched products compute S = scale·Q Kᵀ for all heads, a kernel takes the
 * softmax of the rows of S in place, and batched products compute out = S V. Keys after the block's last query are
 * skipped, which saves about half of the work. A few queries over kept keys have a kernel of their own
 * (cuda_few_queries.cu). Scores take at most FP_SCORE_BYTES. When operands are rounded to bf16 and
 * the shape allows it, one kernel does everything (cuda_flash.cu).
 */
#include "backend/cuda/cuda_attention.cuh"
#include "backend/cuda/cuda_few_queries.cuh"

enum { THREADS = FP_CUDA_ATTENTION_THREADS };

/* --- shared with the backward pass -------------------------------------------------------------------------------- */

fp_status fp_cuda_attention_plan_of(fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K,
									fp_matrix V, fp_matrix out, fp_cuda_attention_plan *plan)
{
	FP_REQUIRE(be, fp_cuda_is_f32_or_bf16(Q) && fp_cuda_is_view(K, Q.dtype) && fp_cuda_is_view(V, Q.dtype));
	FP_REQUIRE(be, fp_cuda_is_view(out, Q.dtype));
	FP_REQUIRE(be, shape->head_dim > 0 && shape->kv_heads > 0 && shape->heads % shape->kv_heads == 0);
	int64_t tokens = shape->sequences * shape->length, keys = shape->sequences * fp_attention_key_rows(shape);
	FP_REQUIRE(be, Q.rows == tokens && K.rows == keys && V.rows == keys && out.rows == tokens);
	FP_REQUIRE(be, shape->past >= 0 && fp_attention_key_rows(shape) >= fp_attention_keys(shape));
	FP_REQUIRE(be, Q.cols == shape->heads * shape->head_dim && out.cols == Q.cols);
	FP_REQUIRE(be, K.cols == shape->kv_heads * shape->head_dim && V.cols == K.cols && shape->window >= 0);
	fp_matrix bias = shape->key_bias;
	FP_REQUIRE(be, fp_matrix_is_absent(bias) ||
					   (fp_cuda_is_f32(bias) && bias.rows == shape->heads && bias.cols >= fp_attention_keys(shape)));
	/* split operands are not worth it: the layer's other products are much larger */
	fp_cuda_product how = Q.dtype == FP_BF16 ? PRODUCT_BF16 : fp_cuda_product_of(be);
	*plan = fp_cuda_attention_plan{};
	plan->be = be;
	plan->shape = shape;
	plan->round = how == PRODUCT_BF16;
	plan->compute = how == PRODUCT_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
	plan->queries = fp_query_block(shape, &plan->entries);
	return FP_OK;
}

fp_status fp_cuda_heads_of(const fp_cuda_attention_plan *plan, fp_matrix m, fp_cuda_scratch *space, fp_cuda_heads *out)
{
	if (m.dtype == FP_BF16) {
		*out = fp_cuda_heads{(const char *)fp_cuda_at<__nv_bfloat16>(m), m.stride, 2, CUDA_R_16BF};
		return FP_OK;
	}
	*out = fp_cuda_heads{(const char *)fp_cuda_floats(m), m.stride, 4, CUDA_R_32F};
	if (!plan->round)
		return FP_OK;
	FP_OR_RETURN(space->take(plan->be, fp_matrix_size(m) * 2));
	*out = fp_cuda_heads{space->as<char>(), m.cols, 2, CUDA_R_16BF};
	return fp_cuda_round(plan->be, m, space->as<__nv_bfloat16>());
}

bool fp_cuda_is_flash(const fp_cuda_attention_plan *plan)
{
	const fp_attention_shape *s = plan->shape;
	return plan->round && fp_attention_is_plain(s) && s->past == 0 && fp_attention_key_rows(s) == s->length;
}

fp_cuda_flash fp_cuda_flash_of(const fp_cuda_attention_plan *plan, const fp_cuda_heads *queries,
							   const fp_cuda_heads *keys, const fp_cuda_heads *values)
{
	const fp_attention_shape *s = plan->shape;
	fp_cuda_flash flash = {};
	flash.q = (const __nv_bfloat16 *)queries->data;
	flash.k = (const __nv_bfloat16 *)keys->data;
	flash.v = (const __nv_bfloat16 *)values->data;
	flash.q_stride = queries->stride;
	flash.k_stride = keys->stride;
	flash.v_stride = values->stride;
	flash.length = (int)s->length;
	flash.group = (int)(s->heads / s->kv_heads);
	flash.window = (int)s->window;
	flash.scale = s->scale;
	return flash;
}

fp_cuda_score_block fp_cuda_score_block_at(const fp_cuda_attention_plan *plan, int64_t sequence, int64_t first)
{
	const fp_attention_shape *s = plan->shape;
	fp_cuda_score_block block = {};
	block.query_row = sequence * s->length + first;
	block.key_row = sequence * fp_attention_key_rows(s);
	block.first = s->past + first;
	block.count = fp_smaller(plan->queries, s->length - first);
	block.begin = s->window > 0 && block.first - s->window + 1 > 0 ? block.first - s->window + 1 : 0;
	block.end = block.first + block.count;
	block.window = s->window;
	block.rows = s->heads * block.count;
	return block;
}

/* Byte offset of part j of a block. */
static int64_t part_at(const fp_cuda_attention_plan *plan, const fp_cuda_score_block *b, int64_t j, int64_t size)
{
	return j * plan->shape->kv_heads * b->count * (b->end - b->begin) * size;
}

fp_status fp_cuda_score(const fp_cuda_attention_plan *plan, const fp_cuda_score_block *b, float alpha,
						const fp_cuda_heads *left, const fp_cuda_heads *right, void *out, cudaDataType_t type)
{
	const fp_attention_shape *s = plan->shape;
	fp_backend *be = plan->be;
	int64_t d = s->head_dim, group = s->heads / s->kv_heads, keys = b->end - b->begin;
	int64_t size = type == CUDA_R_32F ? 4 : 2;
	const float zero = 0.0f;
	for (int64_t j = 0; j < group; j++)
		FP_BLAS(be,
				cublasGemmStridedBatchedEx_64(fp_cuda_state_of(be)->blas, CUBLAS_OP_T, CUBLAS_OP_N, keys, b->count, d,
											  &alpha, right->at(b->key_row + b->begin, 0), right->type, right->stride,
											  d, left->at(b->query_row, j * d), left->type, left->stride, group * d,
											  &zero, (char *)out + part_at(plan, b, j, size), type, keys,
											  b->count * keys, s->kv_heads, plan->compute, CUBLAS_GEMM_DEFAULT));
	return FP_OK;
}

fp_status fp_cuda_shape_scores(const fp_cuda_attention_plan *plan, const fp_cuda_score_block *b, float *scores,
							   float *slopes)
{
	const fp_attention_shape *s = plan->shape;
	fp_matrix bias = s->key_bias;
	const float *added = fp_matrix_is_absent(bias) ? nullptr : fp_cuda_floats(bias);
	float cap = s->soft_cap;
	int64_t keys = b->end - b->begin, count = b->count, begin = b->begin, stride = bias.stride;
	int64_t kv_heads = s->kv_heads, group = s->heads / s->kv_heads;
	return fp_cuda_map(plan->be, b->rows, keys, false, [=] __device__(int64_t r, int64_t j) {
		float x = scores[r * keys + j];
		if (cap > 0) {
			float share = tanhf(x / cap);
			x = cap * share;
			if (slopes)
				slopes[r * keys + j] = 1.0f - share * share;
		}
		int64_t part = r / count, head = part % kv_heads * group + part / kv_heads;
		scores[r * keys + j] = added ? x + added[head * stride + begin + j] : x;
	});
}

fp_status fp_cuda_apply_block(const fp_cuda_attention_plan *plan, const fp_cuda_score_block *b, const void *weights,
							  const fp_cuda_heads *right, fp_matrix out)
{
	const fp_attention_shape *s = plan->shape;
	fp_backend *be = plan->be;
	int64_t d = s->head_dim, group = s->heads / s->kv_heads, keys = b->end - b->begin;
	int64_t row = b->query_row * out.stride;
	const float zero = 0.0f, one = 1.0f;
	bool narrow = out.dtype == FP_BF16;
	char *to = narrow ? (char *)(fp_cuda_at<__nv_bfloat16>(out) + row) : (char *)(fp_cuda_floats(out) + row);
	for (int64_t j = 0; j < group; j++)
		FP_BLAS(be, cublasGemmStridedBatchedEx_64(
						fp_cuda_state_of(be)->blas, CUBLAS_OP_N, CUBLAS_OP_N, d, b->count, keys, &one,
						right->at(b->key_row + b->begin, 0), right->type, right->stride, d,
						(const char *)weights + part_at(plan, b, j, right->size), right->type, keys, b->count * keys,
						&zero, to + j * d * (narrow ? 2 : 4), narrow ? CUDA_R_16BF : CUDA_R_32F, out.stride, group * d,
						s->kv_heads, plan->compute, CUBLAS_GEMM_DEFAULT));
	return FP_OK;
}

fp_status fp_cuda_apply_block_transposed(const fp_cuda_attention_plan *plan, const fp_cuda_score_block *b,
										 const void *weights, const fp_cuda_heads *left, fp_matrix out)
{
	const fp_attention_shape *s = plan->shape;
	fp_backend *be = plan->be;
	int64_t d = s->head_dim, group = s->heads / s->kv_heads, keys = b->end - b->begin;
	const float one = 1.0f;
	for (int64_t j = 0; j < group; j++)
		FP_BLAS(be, cublasGemmStridedBatchedEx_64(
						fp_cuda_state_of(be)->blas, CUBLAS_OP_N, CUBLAS_OP_T, d, keys, b->count, &one,
						left->at(b->query_row, j * d), left->type, left->stride, group * d,
						(const char *)weights + part_at(plan, b, j, left->size), left->type, keys, b->count * keys,
						&one, fp_cuda_floats(out) + (b->key_row + b->begin) * out.stride, CUDA_R_32F, out.stride, d,
						s->kv_heads, plan->compute, CUBLAS_GEMM_DEFAULT));
	return FP_OK;
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* weights ← softmax of the rows of scores, 0 where a query does not see a key; may be the scores themselves. */
template <typename T> __global__ static void softmax_kernel(fp_cuda_score_block b, const float *scores, T *weights)
{
	__shared__ float shared[33];
	int64_t keys = b.end - b.begin;
	for (int64_t r = blockIdx.x; r < b.rows; r += gridDim.x) {
		int64_t from = b.from(r), to = b.to(r);
		const float *x = scores + r * keys;
		fp_cuda_row_scale scale = fp_cuda_scale_row(x, from, to, shared);
		for (int64_t j = threadIdx.x; j < keys; j += THREADS)
			fp_cuda_store(weights + r * keys + j,
						  j >= from && j < to ? expf(x[j] - scale.largest) * scale.factor : 0.0f);
	}
}

/* The same with a warp for each row. */
template <int FOURS, typename T>
__global__ static void softmax_rows_kernel(fp_cuda_score_block b, const float *scores, T *weights)
{
	int64_t keys = b.end - b.begin, step = (int64_t)gridDim.x * (THREADS / 32);
	for (int64_t r = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; r < b.rows; r += step) {
		fp_cuda_row<FOURS> row;
		row.softmax(scores + r * keys, keys, b.from(r), b.to(r));
#pragma unroll
		for (int k = 0; k < FOURS; k++)
			if (row.at(k) < keys)
				fp_cuda_store4(weights + r * keys + row.at(k), row.part[k]);
	}
}

template <typename T> static fp_status softmax(fp_backend *be, fp_cuda_score_block b, const float *scores, T *weights)
{
	cudaStream_t stream = fp_cuda_stream(be);
	fp_cuda_by_row(
		b.end - b.begin,
		[&](auto fours) {
			softmax_rows_kernel<decltype(fours)::value>
				<<<fp_cuda_row_blocks(b.rows), THREADS, 0, stream>>>(b, scores, weights);
		},
		[&] { softmax_kernel<<<(unsigned)fp_smaller(b.rows, 1 << 20), THREADS, 0, stream>>>(b, scores, weights); });
	FP_LAUNCHED(be);
	return FP_OK;
}

fp_status fp_cuda_attention(fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K, fp_matrix V,
							fp_matrix out)
{
	fp_cuda_attention_plan plan;
	FP_OR_RETURN(fp_cuda_attention_plan_of(be, shape, Q, K, V, out, &plan));
	if (Q.rows == 0 || shape->heads == 0)
		return FP_OK;
	if (fp_cuda_few_queries_supports(shape))
		return fp_cuda_few_queries(be, shape, Q, K, V, out);
	fp_cuda_scratch q, k, v, space, narrow;
	fp_cuda_heads queries, keys, values;
	FP_OR_RETURN(fp_cuda_heads_of(&plan, Q, &q, &queries));
	FP_OR_RETURN(fp_cuda_heads_of(&plan, K, &k, &keys));
	FP_OR_RETURN(fp_cuda_heads_of(&plan, V, &v, &values));
	if (fp_cuda_is_flash(&plan)) {
		fp_cuda_flash flash = fp_cuda_flash_of(&plan, &queries, &keys, &values);
		flash.out = out.dtype == FP_F32 ? fp_cuda_floats(out) : nullptr;
		flash.narrow = out.dtype == FP_BF16 ? fp_cuda_at<__nv_bfloat16>(out) : nullptr;
		flash.out_stride = out.stride;
		if (fp_cuda_flash_supports(&flash, shape))
			return fp_cuda_flash_attention(be, &flash, shape);
	}
	FP_OR_RETURN(space.take(be, plan.entries * 4));
	if (plan.round)
		FP_OR_RETURN(narrow.take(be, plan.entries * 2));
	float *scores = space.as<float>();
	__nv_bfloat16 *rounded = plan.round ? narrow.as<__nv_bfloat16>() : nullptr;
	return fp_cuda_each_block(&plan, [&](fp_cuda_score_block b) {
		FP_OR_RETURN(fp_cuda_score(&plan, &b, shape->scale, &queries, &keys, scores, CUDA_R_32F));
		if (!fp_attention_is_plain(shape))
			FP_OR_RETURN(fp_cuda_shape_scores(&plan, &b, scores, nullptr));
		FP_OR_RETURN(rounded ? softmax(be, b, scores, rounded) : softmax(be, b, scores, scores));
		return fp_cuda_apply_block(&plan, &b, rounded ? (const void *)rounded : (const void *)scores, &values, out);
	});
}
