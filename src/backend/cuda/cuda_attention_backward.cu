/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_attention_backward.cu: gradients of causal softmax attention, one block of scores at a time.
 *
 *     P  = softmax(scale·QKᵀ)
 *     dV = PᵀdO
 *     dP = dO Vᵀ
 *     dS = scale·P∘(dP − rowsum(dO∘O))
 *     dQ = dS K
 *     dK = dSᵀQ
 *
 * The blocks are those of the forward pass. Each holds all keys that its queries see, so P is recomputed from its scores
 * alone and dQ is written once. dK and dV are summed over the blocks in the order of the queries. dS overwrites dP, in
 * bf16 if the operands are. A soft cap multiplies dS by its derivative; the keys' bias changes P only. On Hopper, bf16
 * operands without either have kernels of their own (hopper/cuda_flash_backward_hopper.cu).
 */
#include "backend/cuda/cuda_attention.cuh"

enum { THREADS = FP_CUDA_ATTENTION_THREADS };

/* Operands, all of one type, results and workspace of all blocks. */
struct backward_space {
	fp_cuda_heads Q, K, V, O, dO;
	fp_matrix dQ, dK, dV;
	float *scores;
	float *slopes;           /* of the soft cap; NULL without */
	void *weights, *dscores; /* weights: the same memory as scores unless rounded */
};

/* O and dO, for rowsum(dO∘O). */
template <typename T> struct output_pair {
	const T *out, *dout;
	int64_t out_stride, dout_stride, head_dim, kv_heads, group;
	float scale;

	/* The terms of one row of scores that are `lane` of every `lanes`. */
	__device__ double sum(const fp_cuda_score_block &b, int64_t row, int64_t lane, int64_t lanes) const
	{
		int64_t part = row / b.count, token = b.query_row + row % b.count;
		int64_t at = (part % kv_heads * group + part / kv_heads) * head_dim;
		double sum = 0;
		for (int64_t e = at + lane; e < at + head_dim; e += lanes)
			sum += (double)fp_cuda_load(out + token * out_stride + e) *
				   (double)fp_cuda_load(dout + token * dout_stride + e);
		return sum;
	}
};

/* weights ← P, dscores (dP) ← dS; weights may be the scores themselves. */
template <typename T>
__global__ static void softmax_backward_kernel(fp_cuda_score_block b, output_pair<T> o, const float *scores, T *weights,
											   T *dscores)
{
	__shared__ float shared[33];
	__shared__ double wide[33];
	int64_t keys = b.end - b.begin;
	for (int64_t r = blockIdx.x; r < b.rows; r += gridDim.x) {
		int64_t from = b.from(r), to = b.to(r);
		const float *x = scores + r * keys;
		float centre = (float)fp_cuda_block_sum(o.sum(b, r, threadIdx.x, THREADS), wide);
		fp_cuda_row_scale scale = fp_cuda_scale_row(x, from, to, shared);
		for (int64_t j = threadIdx.x; j < keys; j += THREADS) {
			bool seen = j >= from && j < to;
			float weight = seen ? expf(x[j] - scale.largest) * scale.factor : 0.0f;
			float slope = seen ? o.scale * weight * (fp_cuda_load(dscores + r * keys + j) - centre) : 0.0f;
			fp_cuda_store(weights + r * keys + j, weight);
			fp_cuda_store(dscores + r * keys + j, slope);
		}
	}
}

/* The same with a warp for each row. Keys that a query does not see have P = 0 and a finite dP, so dS is 0 there. */
template <int FOURS, typename T>
__global__ static void softmax_backward_rows_kernel(fp_cuda_score_block b, output_pair<T> o, const float *scores,
													T *weights, T *dscores)
{
	int64_t keys = b.end - b.begin, step = (int64_t)gridDim.x * (THREADS / 32);
	for (int64_t r = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; r < b.rows; r += step) {
		float centre = (float)fp_cuda_warp_sum(o.sum(b, r, threadIdx.x % 32, 32));
		fp_cuda_row<FOURS> row;
		row.softmax(scores + r * keys, keys, b.from(r), b.to(r));
#pragma unroll
		for (int k = 0; k < FOURS; k++) {
			int64_t j = row.at(k);
			if (j >= keys)
				continue;
			float4 p = row.part[k], d = fp_cuda_load4(dscores + r * keys + j);
			fp_cuda_store4(weights + r * keys + j, p);
			fp_cuda_store4(dscores + r * keys + j,
						   float4{o.scale * p.x * (d.x - centre), o.scale * p.y * (d.y - centre),
								  o.scale * p.z * (d.z - centre), o.scale * p.w * (d.w - centre)});
		}
	}
}

template <typename T>
static fp_status softmax_backward(const fp_cuda_attention_plan *plan, fp_cuda_score_block b, const backward_space *w)
{
	const fp_attention_shape *s = plan->shape;
	fp_backend *be = plan->be;
	cudaStream_t stream = fp_cuda_stream(be);
	const float *scores = w->scores;
	T *weights = (T *)w->weights, *dscores = (T *)w->dscores;
	output_pair<T> o = {(const T *)w->O.data, (const T *)w->dO.data,  w->O.stride, w->dO.stride, s->head_dim,
						s->kv_heads,          s->heads / s->kv_heads, s->scale};
	fp_cuda_by_row(
		b.end - b.begin,
		[&](auto fours) {
			softmax_backward_rows_kernel<decltype(fours)::value>
				<<<fp_cuda_row_blocks(b.rows), THREADS, 0, stream>>>(b, o, scores, weights, dscores);
		},
		[&] {
			softmax_backward_kernel<<<(unsigned)fp_smaller(b.rows, 1 << 20), THREADS, 0, stream>>>(b, o, scores,
																								   weights, dscores);
		});
	FP_LAUNCHED(be);
	return FP_OK;
}

/* dscores ← dscores∘slopes */
template <typename T>
static fp_status apply_slopes(fp_backend *be, const fp_cuda_score_block *b, const float *slopes, T *dscores)
{
	return fp_cuda_map(be, b->rows, b->end - b->begin, true, [=] __device__(int64_t, int64_t j) {
		fp_cuda_store(dscores + j, fp_cuda_load(dscores + j) * slopes[j]);
	});
}

static fp_status backward_block(const fp_cuda_attention_plan *plan, const backward_space *w, fp_cuda_score_block b)
{
	fp_backend *be = plan->be;
	FP_OR_RETURN(fp_cuda_score(plan, &b, plan->shape->scale, &w->Q, &w->K, w->scores, CUDA_R_32F));
	if (!fp_attention_is_plain(plan->shape))
		FP_OR_RETURN(fp_cuda_shape_scores(plan, &b, w->scores, w->slopes));
	FP_OR_RETURN(fp_cuda_score(plan, &b, 1.0f, &w->dO, &w->V, w->dscores, w->dO.type));
	FP_OR_RETURN(plan->round ? softmax_backward<__nv_bfloat16>(plan, b, w) : softmax_backward<float>(plan, b, w));
	if (w->slopes)
		FP_OR_RETURN(plan->round ? apply_slopes(be, &b, w->slopes, (__nv_bfloat16 *)w->dscores)
								 : apply_slopes(be, &b, w->slopes, (float *)w->dscores));
	FP_OR_RETURN(fp_cuda_apply_block_transposed(plan, &b, w->weights, &w->dO, w->dV));
	FP_OR_RETURN(fp_cuda_apply_block_transposed(plan, &b, w->dscores, &w->Q, w->dK));
	return fp_cuda_apply_block(plan, &b, w->dscores, &w->K, w->dQ);
}

#ifdef FP_HAS_HOPPER
/* True if the kernels for Hopper can do all of it. */
static bool is_for_hopper(const fp_cuda_attention_plan *plan, const fp_cuda_flash *f, const backward_space *w)
{
	const fp_matrix results[] = {w->dQ, w->dK, w->dV};
	const fp_cuda_heads outputs[] = {w->O, w->dO};
	bool aligned = true;
	for (const fp_matrix &m : results)
		aligned = aligned && fp_cuda_in_fours(m);
	for (const fp_cuda_heads &h : outputs)
		aligned = aligned && h.stride % 8 == 0 && (uintptr_t)h.data % 16 == 0; /* tiles are copied in 16 bytes */
	return fp_cuda_state_of(plan->be)->is_hopper && fp_cuda_is_flash(plan) && aligned &&
		   fp_cuda_flash_supports(f, plan->shape);
}

static fp_status backward_on_hopper(const fp_cuda_attention_plan *plan, const fp_cuda_flash *f, const backward_space *w)
{
	fp_cuda_flash_gradients g = {(const __nv_bfloat16 *)w->O.data,
								 (const __nv_bfloat16 *)w->dO.data,
								 w->O.stride,
								 w->dO.stride,
								 w->dQ,
								 w->dK,
								 w->dV};
	return fp_cuda_flash_backward_hopper(plan->be, f, &g, plan->shape);
}
#endif

/* *sum ← zeros, in F32: in its own place or, if that is narrow, in `space` */
static fp_status take_sum(fp_backend *be, fp_cuda_scratch *space, fp_matrix *sum)
{
	if (sum->dtype != FP_F32) {
		FP_OR_RETURN(space->take(be, fp_matrix_size(*sum) * (int64_t)sizeof(float)));
		sum->buffer = space->buffer;
		sum->offset = 0;
		sum->stride = sum->cols;
		sum->dtype = FP_F32;
	}
	return fp_cuda_fill(be, *sum, 0.0f);
}

fp_status fp_cuda_attention_backward(fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K,
									 fp_matrix V, fp_matrix out, fp_matrix dout, fp_matrix dQ, fp_matrix dK,
									 fp_matrix dV)
{
	fp_cuda_attention_plan plan;
	FP_OR_RETURN(fp_cuda_attention_plan_of(be, shape, Q, K, V, out, &plan));
	FP_REQUIRE(be, fp_cuda_is_view(dout, Q.dtype) && fp_cuda_is_f32_or_bf16(dQ));
	FP_REQUIRE(be, fp_cuda_is_view(dK, dQ.dtype) && fp_cuda_is_view(dV, dQ.dtype));
	FP_REQUIRE(be, fp_cuda_same_shape(dout, Q) && fp_cuda_same_shape(dQ, Q));
	FP_REQUIRE(be, shape->past == 0 && shape->key_rows == 0);
	FP_REQUIRE(be, fp_cuda_same_shape(dK, K) && fp_cuda_same_shape(dV, K));
	if (Q.rows == 0 || shape->heads == 0)
		return FP_OK;
	fp_cuda_scratch q, k, v, o, d, scores, weights, dscores, slopes, keys, values;
	backward_space w = {};
	FP_OR_RETURN(fp_cuda_heads_of(&plan, Q, &q, &w.Q));
	FP_OR_RETURN(fp_cuda_heads_of(&plan, K, &k, &w.K));
	FP_OR_RETURN(fp_cuda_heads_of(&plan, V, &v, &w.V));
	FP_OR_RETURN(fp_cuda_heads_of(&plan, out, &o, &w.O));
	FP_OR_RETURN(fp_cuda_heads_of(&plan, dout, &d, &w.dO));
	w.dQ = dQ;
	w.dK = dK;
	w.dV = dV;
#ifdef FP_HAS_HOPPER
	fp_cuda_flash flash = fp_cuda_flash_of(&plan, &w.Q, &w.K, &w.V);
	if (is_for_hopper(&plan, &flash, &w))
		return backward_on_hopper(&plan, &flash, &w);
#endif
	FP_OR_RETURN(scores.take(be, plan.entries * 4));
	FP_OR_RETURN(dscores.take(be, plan.entries * w.dO.size));
	if (plan.round)
		FP_OR_RETURN(weights.take(be, plan.entries * w.dO.size));
	if (shape->soft_cap > 0)
		FP_OR_RETURN(slopes.take(be, plan.entries * 4));
	w.slopes = shape->soft_cap > 0 ? slopes.as<float>() : nullptr;
	w.scores = scores.as<float>();
	w.dscores = dscores.as<void>();
	w.weights = plan.round ? weights.as<void>() : (void *)w.scores;
	FP_OR_RETURN(take_sum(be, &keys, &w.dK));
	FP_OR_RETURN(take_sum(be, &values, &w.dV));
	FP_OR_RETURN(fp_cuda_each_block(&plan, [&](fp_cuda_score_block b) { return backward_block(&plan, &w, b); }));
	if (dK.dtype == FP_F32)
		return FP_OK;
	FP_OR_RETURN(be->memory->copy(be, dK, w.dK));
	return be->memory->copy(be, dV, w.dV);
}
