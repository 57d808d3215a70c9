/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_adam.cu: Adam's step in one pass over the gradient, both moments and the weights. It is limited by memory
 * bandwidth, so it processes four entries at a time where alignment allows.
 */
#include "backend/cuda/cuda_backend.cuh"

#include <math.h>

struct adam_numbers {
	const float *g;
	float *m, *v, *w;
	__nv_bfloat16 *narrow; /* NULL: none */
	int64_t gs, ms, vs, ws, ns;
	/* rate and root include the bias corrections */
	float rate, beta1, beta2, epsilon, root;
	bool keep_zeros;
};

__device__ static inline void update(const adam_numbers &n, float g, float &m, float &v, float &w)
{
	if (n.keep_zeros && w == 0.0f) {
		w = 0.0f; /* not −0.0 */
		return;
	}
	m = n.beta1 * m + (1.0f - n.beta1) * g;
	v = n.beta2 * v + (1.0f - n.beta2) * g * g;
	w -= n.rate * m / (n.root * sqrtf(v) + n.epsilon);
}

static adam_numbers numbers_of(const fp_adam *rule)
{
	adam_numbers n = {};
	n.beta1 = rule->beta1;
	n.beta2 = rule->beta2;
	n.epsilon = rule->epsilon;
	n.rate = (float)((double)rule->rate / (1 - pow((double)rule->beta1, (double)rule->step)));
	n.root = (float)(1 / sqrt(1 - pow((double)rule->beta2, (double)rule->step)));
	n.keep_zeros = rule->keep_zeros;
	return n;
}

fp_status fp_cuda_adam_step(fp_backend *be, const fp_adam *rule, fp_matrix G, fp_matrix M, fp_matrix V, fp_matrix W)
{
	const fp_matrix all[] = {G, M, V, W};
	bool flat = true, aligned = true;
	FP_REQUIRE(be, rule->step >= 1);
	for (const fp_matrix &m : all) {
		FP_REQUIRE(be, fp_cuda_is_f32(m) && fp_cuda_same_shape(m, G));
		flat = flat && fp_cuda_is_contiguous(m);
		aligned = aligned && (uintptr_t)fp_cuda_floats(m) % 16 == 0;
	}
	adam_numbers n = numbers_of(rule);
	n.g = fp_cuda_floats(G);
	n.m = fp_cuda_floats(M);
	n.v = fp_cuda_floats(V);
	n.w = fp_cuda_floats(W);
	n.gs = G.stride;
	n.ms = M.stride;
	n.vs = V.stride;
	n.ws = W.stride;
	if (!fp_matrix_is_absent(rule->narrow)) {
		FP_REQUIRE(be, fp_cuda_is_view(rule->narrow, FP_BF16) && fp_cuda_same_shape(rule->narrow, G));
		n.narrow = fp_cuda_at<__nv_bfloat16>(rule->narrow);
		n.ns = rule->narrow.stride;
		flat = flat && fp_cuda_is_contiguous(rule->narrow);
		aligned = aligned && (uintptr_t)n.narrow % 8 == 0;
	}
	int64_t size = fp_matrix_size(G);
	if (flat && aligned && size % 4 == 0)
		return fp_cuda_map(be, 1, size / 4, true, [=] __device__(int64_t, int64_t i) {
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
		update(n, n.g[i * n.gs + j], n.m[i * n.ms + j], n.v[i * n.vs + j], n.w[i * n.ws + j]);
		if (n.narrow)
			fp_cuda_store(n.narrow + i * n.ns + j, n.w[i * n.ws + j]);
	});
}
