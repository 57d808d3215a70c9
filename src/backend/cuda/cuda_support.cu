/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_support.cu: a step of the support search, except for the product.
 *
 *     S    ← G + W + u
 *     mask ← the pattern of S
 *     S    ← shrink·S where the mask is 0
 *     T    ← penalty·(Z − u − W) + R
 *
 * The step is limited by memory bandwidth. N:4 patterns take one pass, one group per thread. Other patterns take two
 * passes, with the choice of the mask between them.
 */
#include "backend/cuda/cuda_keys.cuh"

template <typename X> struct support_numbers {
	const float *w, *r; /* r may be NULL */
	const X *g;
	float *s;
	X *t;
	uint8_t *mask;
	int64_t gs, ws, rs, ss, ts, ms;
	float penalty, shrink;
	float scale, inverse_scale; /* of the numbers in g and t; 1 for floats */
	int kept;                   /* of a group of four */
};

/* Updates s once the mask of the entry is known; returns the entry of t. */
template <typename X>
__device__ static inline float finish_entry(const support_numbers<X> &n, bool kept, float w, float r, float *s)
{
	*s = kept ? *s : n.shrink * *s;
	return fp_cuda_clamp(n.t, n.scale * (n.penalty * ((kept ? *s : -*s) - w) + r));
}

template <typename X> __device__ static inline void step_four(const support_numbers<X> &n, int64_t i, int64_t j)
{
	float4 g = fp_cuda_load4(n.g + i * n.gs + 4 * j), w = fp_cuda_load4(n.w + i * n.ws + 4 * j);
	float4 s = fp_cuda_load4(n.s + i * n.ss + 4 * j), t;
	float4 r = n.r ? fp_cuda_load4(n.r + i * n.rs + 4 * j) : float4{0, 0, 0, 0};
	unsigned old = *(const unsigned *)(n.mask + i * n.ms + 4 * j);
	s.x = n.inverse_scale * g.x + w.x + (old & 0xffU ? 0.0f : s.x);
	s.y = n.inverse_scale * g.y + w.y + (old & 0xff00U ? 0.0f : s.y);
	s.z = n.inverse_scale * g.z + w.z + (old & 0xff0000U ? 0.0f : s.z);
	s.w = n.inverse_scale * g.w + w.w + (old & 0xff000000U ? 0.0f : s.w);
	unsigned bytes = fp_cuda_keep_of_four(s, n.kept);
	t.x = finish_entry(n, bytes & 0xffU, w.x, r.x, &s.x);
	t.y = finish_entry(n, bytes & 0xff00U, w.y, r.y, &s.y);
	t.z = finish_entry(n, bytes & 0xff0000U, w.z, r.z, &s.z);
	t.w = finish_entry(n, bytes & 0xff000000U, w.w, r.w, &s.w);
	fp_cuda_store4(n.s + i * n.ss + 4 * j, s);
	fp_cuda_store4(n.t + i * n.ts + 4 * j, t);
	*(unsigned *)(n.mask + i * n.ms + 4 * j) = bytes;
}

static fp_status check_step(fp_backend *be, const fp_support_rule *rule, fp_matrix G, fp_matrix S, fp_matrix mask,
							fp_matrix T)
{
	fp_matrix W = rule->W, R = rule->R;
	FP_REQUIRE(be, fp_cuda_is_f32(S) && fp_cuda_is_f32(W) && fp_cuda_is_u8(mask));
	FP_REQUIRE(be, G.dtype == T.dtype && (G.dtype == FP_F32 || (G.dtype == FP_F16 && rule->scale > 0)));
	FP_REQUIRE(be, fp_cuda_is_weight(G) && fp_cuda_is_weight(T) && (fp_matrix_is_absent(R) || fp_cuda_is_f32(R)));
	FP_REQUIRE(be, fp_cuda_same_shape(G, S) && fp_cuda_same_shape(G, T) && fp_cuda_same_shape(G, W));
	FP_REQUIRE(be, fp_cuda_same_shape(G, mask) && (fp_matrix_is_absent(R) || fp_cuda_same_shape(G, R)));
	return FP_OK;
}

template <typename X>
static fp_status step_as(fp_backend *be, const fp_support_rule *rule, fp_matrix G, fp_matrix S, fp_matrix mask,
						 fp_matrix T)
{
	fp_matrix W = rule->W, R = rule->R;
	support_numbers<X> n = {};
	n.g = fp_cuda_at<X>(G);
	n.w = fp_cuda_floats(W);
	n.r = fp_matrix_is_absent(R) ? nullptr : fp_cuda_floats(R);
	n.s = fp_cuda_floats(S);
	n.t = fp_cuda_at<X>(T);
	n.mask = fp_cuda_bytes(mask);
	n.gs = G.stride;
	n.ws = W.stride;
	n.rs = R.stride;
	n.ss = S.stride;
	n.ts = T.stride;
	n.ms = mask.stride;
	n.penalty = rule->penalty;
	n.shrink = rule->shrink;
	n.scale = G.dtype == FP_F16 ? rule->scale : 1.0f;
	n.inverse_scale = 1.0f / n.scale;
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
		float *s = n.s + i * n.ss + j, g = n.inverse_scale * fp_cuda_load(n.g + i * n.gs + j);
		*s = g + n.w[i * n.ws + j] + (n.mask[i * n.ms + j] ? 0.0f : *s);
	}));
	FP_OR_RETURN(fp_cuda_mask_smallest(be, S, &rule->pattern, mask));
	return fp_cuda_map(be, G.rows, G.cols, flat, [=] __device__(int64_t i, int64_t j) {
		float r = n.r ? n.r[i * n.rs + j] : 0.0f;
		fp_cuda_store(n.t + i * n.ts + j,
					  finish_entry(n, n.mask[i * n.ms + j], n.w[i * n.ws + j], r, n.s + i * n.ss + j));
	});
}

fp_status fp_cuda_support_step(fp_backend *be, const fp_support_rule *rule, fp_matrix G, fp_matrix S, fp_matrix mask,
							   fp_matrix T)
{
	FP_OR_RETURN(check_step(be, rule, G, S, mask, T));
	return G.dtype == FP_F16 ? step_as<__half>(be, rule, G, S, mask, T) : step_as<float>(be, rule, G, S, mask, T);
}
