/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_adam.cu: Adam's step in one pass over the gradient, both moments and the weights. It is limited by memory
 * bandwidth, so it processes four entries at a time where alignment allows.
 */
#include "backend/cuda/cuda_backend.cuh"

#include <math.h>

/* Mean: type of the mean of gradients. */
template <typename Mean> struct adam_numbers {
	const float *g;
	Mean *m;
	float *v, *w;
	__nv_bfloat16 *narrow; /* NULL: none */
	int64_t gs, ms, vs, ws, ns;
	/* rate and root include the bias corrections */
	float rate, beta1, beta2, epsilon, root;
	bool keep_zeros;
};

template <typename Mean>
__device__ static inline void update(const adam_numbers<Mean> &n, float g, float &m, float &v, float &w)
{
	if (n.keep_zeros && w == 0.0f) {
		w = 0.0f; /* not −0.0 */
		return;
	}
	m = n.beta1 * m + (1.0f - n.beta1) * g;
	v = n.beta2 * v + (1.0f - n.beta2) * g * g;
	w -= n.rate * m / (n.root * sqrtf(v) + n.epsilon);
}

template <typename Mean> static adam_numbers<Mean> numbers_of(const fp_adam *rule)
{
	adam_numbers<Mean> n = {};
	n.beta1 = rule->beta1;
	n.beta2 = rule->beta2;
	n.epsilon = rule->epsilon;
	n.rate = (float)((double)rule->rate / (1 - pow((double)rule->beta1, (double)rule->step)));
	n.root = (float)(1 / sqrt(1 - pow((double)rule->beta2, (double)rule->step)));
	n.keep_zeros = rule->keep_zeros;
	return n;
}

template <typename Mean>
static fp_status step_as(fp_backend *be, const fp_adam *rule, fp_matrix G, fp_matrix M, fp_matrix V, fp_matrix W)
{
	const fp_matrix all[] = {G, M, V, W, rule->narrow};
	bool flat = true, fours = fp_matrix_size(G) % 4 == 0;
	for (const fp_matrix &m : all) {
		flat = flat && fp_cuda_is_flat(m);
		fours = fours && fp_cuda_in_fours(fp_matrix_is_absent(m) ? m : fp_matrix_reshape(m, 1, fp_matrix_size(m)));
	}
	adam_numbers<Mean> n = numbers_of<Mean>(rule);
	n.g = fp_cuda_floats(G);
	n.m = fp_cuda_at<Mean>(M);
	n.v = fp_cuda_floats(V);
	n.w = fp_cuda_floats(W);
	n.gs = G.stride;
	n.ms = M.stride;
	n.vs = V.stride;
	n.ws = W.stride;
	if (!fp_matrix_is_absent(rule->narrow)) {
		n.narrow = fp_cuda_at<__nv_bfloat16>(rule->narrow);
		n.ns = rule->narrow.stride;
	}
	if (flat && fours)
		return fp_cuda_map(be, 1, fp_matrix_size(G) / 4, true, [=] __device__(int64_t, int64_t i) {
			float4 g = fp_cuda_load4(n.g + 4 * i), m = fp_cuda_load4(n.m + 4 * i), v = fp_cuda_load4(n.v + 4 * i);
			float4 w = fp_cuda_load4(n.w + 4 * i);
			update(n, g.x, m.x, v.x, w.x);
			update(n, g.y, m.y, v.y, w.y);
			update(n, g.z, m.z, v.z, w.z);
			update(n, g.w, m.w, v.w, w.w);
			fp_cuda_store4(n.m + 4 * i, m);
			fp_cuda_store4(n.v + 4 * i, v);
			fp_cuda_store4(n.w + 4 * i, w);
			if (n.narrow)
				fp_cuda_store4(n.narrow + 4 * i, w);
		});
	return fp_cuda_map(be, G.rows, G.cols, flat, [=] __device__(int64_t i, int64_t j) {
		float m = fp_cuda_load(n.m + i * n.ms + j);
		update(n, n.g[i * n.gs + j], m, n.v[i * n.vs + j], n.w[i * n.ws + j]);
		fp_cuda_store(n.m + i * n.ms + j, m);
		if (n.narrow)
			fp_cuda_store(n.narrow + i * n.ns + j, n.w[i * n.ws + j]);
	});
}

fp_status fp_cuda_adam_step(fp_backend *be, const fp_adam *rule, fp_matrix G, fp_matrix M, fp_matrix V, fp_matrix W)
{
	FP_REQUIRE(be, rule->step >= 1);
	FP_REQUIRE(be, fp_cuda_is_f32(G) && fp_cuda_is_f32_or_bf16(M) && fp_cuda_is_f32(V) && fp_cuda_is_f32(W));
	FP_REQUIRE(be, fp_cuda_same_shape(G, M) && fp_cuda_same_shape(G, V) && fp_cuda_same_shape(G, W));
	FP_REQUIRE(be, fp_matrix_is_absent(rule->narrow) ||
					   (fp_cuda_is_view(rule->narrow, FP_BF16) && fp_cuda_same_shape(rule->narrow, G)));
	return M.dtype == FP_BF16 ? step_as<__nv_bfloat16>(be, rule, G, M, V, W) : step_as<float>(be, rule, G, M, V, W);
}
