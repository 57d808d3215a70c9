/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_support.cu: a step of the support search, all of it but the product.
 *
 *   S ← G + W + u;   mask ← the pattern of S;   S ← shrink·S where the mask is 0;   T ← penalty·(Z − u − W) + R
 * Bound by memory. The pattern that hardware runs goes in one pass, a group of four to a thread; others choose the mask
 * between two passes.
 */
#include "backend/cuda/cuda_keys.cuh"

struct support_numbers {
	const float *g, *w, *r; /* r may be NULL */
	float *s, *t;
	uint8_t *mask;
	int64_t gs, ws, rs, ss, ts, ms;
	float penalty, shrink;
	int kept; /* of a group of four */
};

/* s and t of one entry once its mask is known. */
__device__ static inline void settle(const support_numbers &n, bool kept, float w, float r, float *s, float *t)
{
	*s = kept ? *s : n.shrink * *s;
	*t = n.penalty * ((kept ? *s : -*s) - w) + r;
}

__device__ static inline void step_four(const support_numbers &n, int64_t i, int64_t j)
{
	float4 g = ((const float4 *)(n.g + i * n.gs))[j], w = ((const float4 *)(n.w + i * n.ws))[j];
	float4 s = ((const float4 *)(n.s + i * n.ss))[j], t;
	float4 r = n.r ? ((const float4 *)(n.r + i * n.rs))[j] : float4{0, 0, 0, 0};
	unsigned old = *(const unsigned *)(n.mask + i * n.ms + 4 * j);
	s.x = g.x + w.x + (old & 0xffU ? 0.0f : s.x);
	s.y = g.y + w.y + (old & 0xff00U ? 0.0f : s.y);
	s.z = g.z + w.z + (old & 0xff0000U ? 0.0f : s.z);
	s.w = g.w + w.w + (old & 0xff000000U ? 0.0f : s.w);
	unsigned bytes = fp_cuda_keep_of_four(s, n.kept);
	settle(n, bytes & 0xffU, w.x, r.x, &s.x, &t.x);
	settle(n, bytes & 0xff00U, w.y, r.y, &s.y, &t.y);
	settle(n, bytes & 0xff0000U, w.z, r.z, &s.z, &t.z);
	settle(n, bytes & 0xff000000U, w.w, r.w, &s.w, &t.w);
	((float4 *)(n.s + i * n.ss))[j] = s;
	((float4 *)(n.t + i * n.ts))[j] = t;
	*(unsigned *)(n.mask + i * n.ms + 4 * j) = bytes;
}

static fp_status check_step(fp_backend *be, const fp_support_rule *rule, fp_matrix G, fp_matrix S, fp_matrix mask,
							fp_matrix T)
{
	fp_matrix W = rule->W, R = rule->R;
	FP_REQUIRE(be, fp_cuda_is_f32(G) && fp_cuda_is_f32(S) && fp_cuda_is_f32(T) && fp_cuda_is_f32(W));
	FP_REQUIRE(be, fp_cuda_is_u8(mask) && (fp_matrix_is_absent(R) || fp_cuda_is_f32(R)));
	FP_REQUIRE(be, fp_cuda_same_shape(G, S) && fp_cuda_same_shape(G, T) && fp_cuda_same_shape(G, W));
	FP_REQUIRE(be, fp_cuda_same_shape(G, mask) && (fp_matrix_is_absent(R) || fp_cuda_same_shape(G, R)));
	return FP_OK;
}

fp_status fp_cuda_support_step(fp_backend *be, const fp_support_rule *rule, fp_matrix G, fp_matrix S, fp_matrix mask,
							   fp_matrix T)
{
	fp_matrix W = rule->W, R = rule->R;
	FP_OR_RETURN(check_step(be, rule, G, S, mask, T));
	support_numbers n = {};
	n.g = fp_cuda_floats(G);
	n.w = fp_cuda_floats(W);
	n.r = fp_matrix_is_absent(R) ? nullptr : fp_cuda_floats(R);
	n.s = fp_cuda_floats(S);
	n.t = fp_cuda_floats(T);
	n.mask = fp_cuda_bytes(mask);
	n.gs = G.stride;
	n.ws = W.stride;
	n.rs = R.stride;
	n.ss = S.stride;
	n.ts = T.stride;
	n.ms = mask.stride;
	n.penalty = rule->penalty;
	n.shrink = rule->shrink;
	n.kept = (int)rule->pattern.kept;
	const fp_matrix all[] = {G, W, R, S, T, mask};
	bool fours = true, flat = true;
	for (const fp_matrix &m : all) {
		fours = fours && fp_cuda_in_fours(m);
		flat = flat && fp_cuda_is_flat(m);
	}
	if (rule->pattern.group == 4 && fours)
		return fp_cuda_map(be, G.rows, G.cols / 4, flat, [=] __device__(int64_t i, int64_t j) { step_four(n, i, j); });
	FP_OR_RETURN(fp_cuda_map(be, G.rows, G.cols, flat, [=] __device__(int64_t i, int64_t j) {
		float *s = n.s + i * n.ss + j;
		*s = n.g[i * n.gs + j] + n.w[i * n.ws + j] + (n.mask[i * n.ms + j] ? 0.0f : *s);
	}));
	FP_OR_RETURN(fp_cuda_mask_smallest(be, S, &rule->pattern, mask));
	return fp_cuda_map(be, G.rows, G.cols, flat, [=] __device__(int64_t i, int64_t j) {
		settle(n, n.mask[i * n.ms + j], n.w[i * n.ws + j], n.r ? n.r[i * n.rs + j] : 0.0f, n.s + i * n.ss + j,
			   n.t + i * n.ts + j);
	});
}
