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

/* O and dO, for rowsum(dO∘O). */
struct output_pair {
	const float *out, *dout;
	int64_t out_stride, dout_stride, head_dim, kv_heads, group;
	float scale;
};

/* Pointers to O and dO for one row of scores. */
__device__ static inline void row_outputs(const fp_cuda_score_block &b, const output_pair &o, int64_t row,
										  const float **out, const float **dout)
{
	int64_t part = row / b.count, token = b.query_row + row % b.count;
	int64_t head = part % o.kv_heads * o.group + part / o.kv_heads;
	*out = o.out + token * o.out_stride + head * o.head_dim;
	*dout = o.dout + token * o.dout_stride + head * o.head_dim;
}

/* weights ← P, dscores (dP) ← dS; weights may be the scores themselves. */
template <typename T>
__global__ static void softmax_backward_kernel(fp_cuda_score_block b, output_pair o, const float *scores, T *weights,
											   T *dscores)
{
	__shared__ float shared[33];
	__shared__ double wide[33];
	int64_t keys = b.end - b.begin;
	for (int64_t r = blockIdx.x; r < b.rows; r += gridDim.x) {
		int64_t from = b.from(r), to = b.to(r);
		const float *out, *dout, *x = scores + r * keys;
		row_outputs(b, o, r, &out, &dout);
		double sum = 0;
		for (int64_t e = threadIdx.x; e < o.head_dim; e += THREADS)
			sum += (double)out[e] * (double)dout[e];
		float centre = (float)fp_cuda_block_sum(sum, wide);
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
__global__ static void softmax_backward_rows_kernel(fp_cuda_score_block b, output_pair o, const float *scores,
													T *weights, T *dscores)
{
	int64_t keys = b.end - b.begin, step = (int64_t)gridDim.x * (THREADS / 32);
	for (int64_t r = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; r < b.rows; r += step) {
		const float *out, *dout;
		row_outputs(b, o, r, &out, &dout);
		double sum = 0;
		for (int64_t e = threadIdx.x % 32; e < o.head_dim; e += 32)
			sum += (double)out[e] * (double)dout[e];
		float centre = (float)fp_cuda_warp_sum(sum);
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
static fp_status softmax_backward(fp_backend *be, fp_cuda_score_block b, output_pair o, const float *scores, T *weights,
								  T *dscores)
{
	cudaStream_t stream = fp_cuda_stream(be);
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

/* Operands, results and workspace of all blocks. */
struct backward_space {
	fp_cuda_heads Q, K, V, dO;
	output_pair outputs;
	fp_matrix dQ, dK, dV;
	float *scores;
	float *slopes;           /* of the soft cap; NULL without */
	void *weights, *dscores; /* weights: the same memory as scores unless rounded */
};

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
	FP_OR_RETURN(
		plan->round
			? softmax_backward(be, b, w->outputs, w->scores, (__nv_bfloat16 *)w->weights, (__nv_bfloat16 *)w->dscores)
			: softmax_backward(be, b, w->outputs, w->scores, (float *)w->weights, (float *)w->dscores));
	if (w->slopes)
		FP_OR_RETURN(plan->round ? apply_slopes(be, &b, w->slopes, (__nv_bfloat16 *)w->dscores)
								 : apply_slopes(be, &b, w->slopes, (float *)w->dscores));
	FP_OR_RETURN(fp_cuda_apply_block_transposed(plan, &b, w->weights, &w->dO, w->dV));
	FP_OR_RETURN(fp_cuda_apply_block_transposed(plan, &b, w->dscores, &w->Q, w->dK));
	return fp_cuda_apply_block(plan, &b, w->dscores, &w->K, w->dQ);
}

#ifdef FP_HAS_HOPPER
/* True if the kernels for Hopper can do all of it. */
static bool is_for_hopper(const fp_cuda_attention_plan *plan, const fp_cuda_flash *f, const backward_space *w,
						  fp_matrix out, fp_matrix dout)
{
	const fp_matrix floats[] = {out, dout, w->dQ, w->dK, w->dV};
	bool aligned = true;
	for (const fp_matrix &m : floats)
		aligned = aligned && fp_cuda_in_fours(m);
	return fp_cuda_state_of(plan->be)->is_hopper && fp_cuda_is_flash(plan) && aligned &&
		   fp_cuda_flash_supports(f, plan->shape);
}

static fp_status backward_on_hopper(const fp_cuda_attention_plan *plan, const fp_cuda_flash *f, const backward_space *w,
									fp_matrix out, fp_matrix dout)
{
	fp_cuda_flash_gradients g = {(const __nv_bfloat16 *)w->dO.data,
								 fp_cuda_floats(out),
								 fp_cuda_floats(dout),
								 fp_cuda_floats(w->dQ),
								 fp_cuda_floats(w->dK),
								 fp_cuda_floats(w->dV),
								 w->dO.stride,
								 out.stride,
								 dout.stride,
								 w->dQ.stride,
								 w->dK.stride,
								 w->dV.stride};
	return fp_cuda_flash_backward_hopper(plan->be, f, &g, plan->shape);
}
#endif

fp_status fp_cuda_attention_backward(fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K,
									 fp_matrix V, fp_matrix out, fp_matrix dout, fp_matrix dQ, fp_matrix dK,
									 fp_matrix dV)
{
	fp_cuda_attention_plan plan;
	FP_OR_RETURN(fp_cuda_attention_plan_of(be, shape, Q, K, V, out, &plan));
	FP_REQUIRE(be, fp_cuda_is_f32(Q) && fp_cuda_is_f32(dout) && fp_cuda_is_f32(dQ) && fp_cuda_is_f32(dK) &&
					   fp_cuda_is_f32(dV));
	FP_REQUIRE(be, fp_cuda_same_shape(dout, Q) && fp_cuda_same_shape(dQ, Q));
	FP_REQUIRE(be, shape->past == 0 && shape->key_rows == 0);
	FP_REQUIRE(be, fp_cuda_same_shape(dK, K) && fp_cuda_same_shape(dV, K));
	if (Q.rows == 0 || shape->heads == 0)
		return FP_OK;
	fp_cuda_scratch q, k, v, d, scores, weights, dscores, slopes;
	backward_space w = {};
	FP_OR_RETURN(fp_cuda_heads_of(&plan, Q, &q, &w.Q));
	FP_OR_RETURN(fp_cuda_heads_of(&plan, K, &k, &w.K));
	FP_OR_RETURN(fp_cuda_heads_of(&plan, V, &v, &w.V));
	FP_OR_RETURN(fp_cuda_heads_of(&plan, dout, &d, &w.dO));
	w.dQ = dQ;
	w.dK = dK;
	w.dV = dV;
#ifdef FP_HAS_HOPPER
	fp_cuda_flash flash = fp_cuda_flash_of(&plan, &w.Q, &w.K, &w.V);
	if (is_for_hopper(&plan, &flash, &w, out, dout))
		return backward_on_hopper(&plan, &flash, &w, out, dout);
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
	w.outputs =
		output_pair{fp_cuda_floats(out), fp_cuda_floats(dout),           out.stride,  dout.stride, shape->head_dim,
					shape->kv_heads,     shape->heads / shape->kv_heads, shape->scale};
	FP_OR_RETURN(fp_cuda_fill(be, dK, 0.0f));
	FP_OR_RETURN(fp_cuda_fill(be, dV, 0.0f));
	return fp_cuda_each_block(&plan, [&](fp_cuda_score_block b) { return backward_block(&plan, &w, b); });
}
