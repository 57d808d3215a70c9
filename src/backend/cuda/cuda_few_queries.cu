/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_few_queries.cu: causal softmax attention of a few queries over kept keys and values, as text is generated: one
 * launch for all sequences, heads and queries.
 *
 * A block handles one query of one head. Its warps take turns at the keys, KEYS at a time: a lane holds entries lane,
 * lane + 32, … of the query and of the running output. Each warp keeps its largest score, its sum of exponentials and its
 * output, which are rescaled whenever a larger score appears, and at the end the warps' results are combined in the order
 * of the warps.
 */
#include "backend/cuda/cuda_few_queries.cuh"

enum { WARPS = 16, THREADS = 32 * WARPS, KEYS = 4, FEW = 8, MOST_ENTRIES = 512 };

struct few_queries {
	const float *bias; /* or NULL */
	int64_t q_stride, k_stride, v_stride, out_stride, bias_stride;
	int64_t length, past, key_rows, group, window;
	int head_dim;
	float scale, soft_cap;
};

/* One warp's share of a query. */
template <int PARTS> struct running {
	float largest, sum, out[PARTS];
};

template <int PARTS, typename T>
__device__ static inline void load_row(float (&row)[PARTS], const T *from, int head_dim, bool valid)
{
#pragma unroll
	for (int p = 0; p < PARTS; p++) {
		int e = p * 32 + (int)threadIdx.x % 32;
		row[p] = valid && e < head_dim ? fp_cuda_load(from + e) : 0.0f;
	}
}

/* Scores of KEYS keys from `first` on against the query; −∞ from `end` on. */
template <int PARTS, typename T>
__device__ static inline void score_keys(const few_queries &f, const float (&q)[PARTS], const T *k, const float *bias,
										 int64_t first, int64_t end, float (&score)[KEYS])
{
#pragma unroll
	for (int i = 0; i < KEYS; i++) {
		float row[PARTS], sum = 0;
		load_row(row, k + (first + i) * f.k_stride, f.head_dim, first + i < end);
#pragma unroll
		for (int p = 0; p < PARTS; p++)
			sum += q[p] * row[p];
		score[i] = fp_cuda_warp_sum(sum);
	}
#pragma unroll
	for (int i = 0; i < KEYS; i++) {
		if (f.soft_cap > 0)
			score[i] = f.soft_cap * tanhf(score[i] / f.soft_cap);
		if (bias && first + i < end)
			score[i] += bias[first + i];
		if (first + i >= end)
			score[i] = -INFINITY;
	}
}

/* Adds the values of the keys, weighted by the exponentials of their scores. At least one score is finite. */
template <int PARTS, typename T>
__device__ static inline void add_values(const few_queries &f, const T *v, int64_t first, int64_t end,
										 const float (&score)[KEYS], running<PARTS> &r)
{
	float largest = r.largest;
#pragma unroll
	for (int i = 0; i < KEYS; i++)
		largest = fmaxf(largest, score[i]);
	float factor = expf(r.largest - largest); /* 0 at first: exp(−∞) */
	r.largest = largest;
	r.sum *= factor;
#pragma unroll
	for (int p = 0; p < PARTS; p++)
		r.out[p] *= factor;
#pragma unroll
	for (int i = 0; i < KEYS; i++) {
		float row[PARTS], weight = expf(score[i] - largest);
		load_row(row, v + (first + i) * f.v_stride, f.head_dim, first + i < end);
		r.sum += weight;
#pragma unroll
		for (int p = 0; p < PARTS; p++)
			r.out[p] += weight * row[p];
	}
}

/* out ← the combination of the warps' results; `shared` has WARPS · (2 + head_dim) numbers. */
template <int PARTS, typename T>
__device__ static inline void combine(const few_queries &f, const running<PARTS> &r, float *shared, T *out)
{
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	float *largest = shared, *sum = shared + WARPS, *parts = shared + 2 * WARPS;
	if (lane == 0) {
		largest[warp] = r.largest;
		sum[warp] = r.sum;
	}
#pragma unroll
	for (int p = 0; p < PARTS; p++)
		if (p * 32 + lane < f.head_dim)
			parts[warp * f.head_dim + p * 32 + lane] = r.out[p];
	__syncthreads();
	float most = largest[0], total = 0;
	for (int w = 1; w < WARPS; w++)
		most = fmaxf(most, largest[w]);
	for (int w = 0; w < WARPS; w++)
		total += sum[w] * expf(largest[w] - most);
	for (int e = threadIdx.x; e < f.head_dim; e += THREADS) {
		float all = 0;
		for (int w = 0; w < WARPS; w++)
			all += parts[w * f.head_dim + e] * expf(largest[w] - most);
		fp_cuda_store(out + e, all / total);
	}
}

template <int PARTS, typename T>
__global__ static void __launch_bounds__(THREADS)
	few_queries_kernel(few_queries f, const T *Q, const T *K, const T *V, T *out)
{
	extern __shared__ float shared[];
	int64_t head = blockIdx.x, row = blockIdx.y, sequence = row / f.length, query = f.past + row % f.length;
	int64_t from = f.window > 0 && query - f.window + 1 > 0 ? query - f.window + 1 : 0, end = query + 1;
	const T *k = K + sequence * f.key_rows * f.k_stride + head / f.group * f.head_dim;
	const T *v = V + sequence * f.key_rows * f.v_stride + head / f.group * f.head_dim;
	const float *bias = f.bias ? f.bias + head * f.bias_stride : nullptr;
	float q[PARTS];
	load_row(q, Q + row * f.q_stride + head * f.head_dim, f.head_dim, true);
#pragma unroll
	for (int p = 0; p < PARTS; p++)
		q[p] *= f.scale;
	running<PARTS> r = {-INFINITY, 0, {}};
	for (int64_t key = from + (int64_t)(threadIdx.x / 32) * KEYS; key < end; key += WARPS * KEYS) {
		float score[KEYS];
		score_keys(f, q, k, bias, key, end, score);
		add_values(f, v, key, end, score, r);
	}
	combine(f, r, shared, out + row * f.out_stride + head * f.head_dim);
}

template <typename T>
static void launch(fp_backend *be, const few_queries &f, dim3 grid, const T *Q, const T *K, const T *V, T *out)
{
	size_t bytes = (size_t)(WARPS * (2 + f.head_dim)) * sizeof(float);
	cudaStream_t stream = fp_cuda_stream(be);
	if (f.head_dim <= 64)
		few_queries_kernel<2><<<grid, THREADS, bytes, stream>>>(f, Q, K, V, out);
	else if (f.head_dim <= 128)
		few_queries_kernel<4><<<grid, THREADS, bytes, stream>>>(f, Q, K, V, out);
	else if (f.head_dim <= 256)
		few_queries_kernel<8><<<grid, THREADS, bytes, stream>>>(f, Q, K, V, out);
	else
		few_queries_kernel<MOST_ENTRIES / 32><<<grid, THREADS, bytes, stream>>>(f, Q, K, V, out);
}

bool fp_cuda_few_queries_supports(const fp_attention_shape *shape)
{
	return shape->length <= FEW && shape->head_dim <= MOST_ENTRIES && shape->heads <= INT32_MAX &&
		   shape->sequences * shape->length <= 65535;
}

fp_status fp_cuda_few_queries(fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K, fp_matrix V,
							  fp_matrix out)
{
	fp_matrix bias = shape->key_bias;
	few_queries f = {};
	f.bias = fp_matrix_is_absent(bias) ? nullptr : fp_cuda_floats(bias);
	f.q_stride = Q.stride;
	f.k_stride = K.stride;
	f.v_stride = V.stride;
	f.out_stride = out.stride;
	f.bias_stride = bias.stride;
	f.length = shape->length;
	f.past = shape->past;
	f.key_rows = fp_attention_key_rows(shape);
	f.group = shape->heads / shape->kv_heads;
	f.window = shape->window;
	f.head_dim = (int)shape->head_dim;
	f.scale = shape->scale;
	f.soft_cap = shape->soft_cap;
	dim3 grid((unsigned)shape->heads, (unsigned)Q.rows);
	if (Q.dtype == FP_BF16)
		launch(be, f, grid, fp_cuda_at<__nv_bfloat16>(Q), fp_cuda_at<__nv_bfloat16>(K), fp_cuda_at<__nv_bfloat16>(V),
			   fp_cuda_at<__nv_bfloat16>(out));
	else
		launch(be, f, grid, fp_cuda_floats(Q), fp_cuda_floats(K), fp_cuda_floats(V), fp_cuda_floats(out));
	FP_LAUNCHED(be);
	return FP_OK;
}
