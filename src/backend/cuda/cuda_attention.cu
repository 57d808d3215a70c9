/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_attention.cu: causal softmax attention, one block of scores at a time.
 *
 *   out[i] = Σⱼ softmax(scale · Q[i] Kᵀ)[j] V[j]      over j ≤ i, and j > i − window where there is one
 *
 * For a block of queries of one sequence: S = scale·Q Kᵀ for all heads by one product per head of a group, the rows of
 * S softened in place, out = S V likewise. Keys after the block's last query are never touched, so about half of the
 * square is computed. Scores never take more than SCORE_BYTES.
 */
#include "backend/cuda/cuda_backend.cuh"

#include <cuda_bf16.h>

enum { THREADS = 256, QUERY_BLOCK = 512, SCORE_BYTES = 1 << 30 };

/* The rows of a block of scores: row r belongs to query first + r % count, its columns to keys begin … end − 1. */
struct score_block {
	float *scores;
	__nv_bfloat16 *rounded; /* NULL: the weights go back to `scores` */
	int64_t rows, count, first, begin, end, window;
};

__device__ static inline float block_max(float value, float *shared)
{
	for (int offset = 16; offset > 0; offset /= 2)
		value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, offset));
	if (threadIdx.x % 32 == 0)
		shared[threadIdx.x / 32] = value;
	__syncthreads();
	value = shared[0];
	for (int w = 1; w < THREADS / 32; w++)
		value = fmaxf(value, shared[w]);
	__syncthreads();
	return value;
}

__global__ static void soften_kernel(score_block b)
{
	__shared__ float shared[33];
	int64_t keys = b.end - b.begin;
	for (int64_t r = blockIdx.x; r < b.rows; r += gridDim.x) {
		int64_t query = b.first + r % b.count;
		int64_t from = b.window > 0 && query - b.window + 1 > b.begin ? query - b.window + 1 - b.begin : 0;
		int64_t to = query + 1 - b.begin;
		float *x = b.scores + r * keys, largest = -INFINITY, sum = 0;
		for (int64_t j = from + threadIdx.x; j < to; j += THREADS)
			largest = fmaxf(largest, x[j]);
		largest = block_max(largest, shared);
		for (int64_t j = from + threadIdx.x; j < to; j += THREADS)
			sum += expf(x[j] - largest);
		float factor = 1.0f / fp_cuda_block_sum(sum, shared);
		for (int64_t j = threadIdx.x; j < keys; j += THREADS) {
			float weight = j >= from && j < to ? expf(x[j] - largest) * factor : 0.0f;
			if (b.rounded)
				b.rounded[r * keys + j] = __float2bfloat16_rn(weight);
			else
				x[j] = weight;
		}
	}
}

/* One of Q, K, V as the products take it. */
struct stream {
	const char *data;
	int64_t stride, size; /* elements from row to row, bytes of an element */
	cudaDataType_t type;
	const void *at(int64_t row, int64_t col) const
	{
		return data + (row * stride + col) * size;
	}
};

struct attention {
	fp_backend *be;
	const fp_attention_shape *shape;
	stream Q, K, V;
	fp_matrix out;
	cublasComputeType_t compute;
	float *scores;
	__nv_bfloat16 *rounded;
	int64_t queries; /* positions in a block */
};

/* Bf16 copies, packed; or the matrix itself. */
static fp_status stream_of(fp_backend *be, fp_matrix m, bool round, fp_cuda_scratch *space, stream *out)
{
	const float *x = fp_cuda_floats(m);
	*out = stream{(const char *)x, m.stride, 4, CUDA_R_32F};
	if (!round)
		return FP_OK;
	FP_OR_RETURN(space->take(be, fp_matrix_size(m) * 2));
	__nv_bfloat16 *y = space->as<__nv_bfloat16>();
	int64_t stride = m.stride, cols = m.cols;
	*out = stream{(const char *)y, cols, 2, CUDA_R_16BF};
	return fp_cuda_map(be, m.rows, m.cols, fp_cuda_is_contiguous(m), [=] __device__(int64_t i, int64_t j) {
		y[i * cols + j] = __float2bfloat16_rn(x[i * stride + j]);
	});
}

/* Queries [first, first + count) of the sequence that starts at row `start`. */
static fp_status attend_block(const attention *a, int64_t start, int64_t first, int64_t count)
{
	const fp_attention_shape *s = a->shape;
	fp_backend *be = a->be;
	fp_cuda_state *state = fp_cuda_state_of(be);
	int64_t d = s->head_dim, group = s->heads / s->kv_heads, end = first + count;
	int64_t begin = s->window > 0 && first - s->window + 1 > 0 ? first - s->window + 1 : 0, keys = end - begin;
	const float zero = 0.0f, one = 1.0f;
	for (int64_t j = 0; j < group; j++)
		FP_BLAS(be, cublasGemmStridedBatchedEx_64(state->blas, CUBLAS_OP_T, CUBLAS_OP_N, keys, count, d, &s->scale,
												  a->K.at(start + begin, 0), a->K.type, a->K.stride, d,
												  a->Q.at(start + first, j * d), a->Q.type, a->Q.stride, group * d,
												  &zero, a->scores + j * s->kv_heads * count * keys, CUDA_R_32F, keys,
												  count * keys, s->kv_heads, a->compute, CUBLAS_GEMM_DEFAULT));
	score_block b = {a->scores, a->rounded, s->heads * count, count, first, begin, end, s->window};
	soften_kernel<<<(unsigned)fp_cuda_smaller(b.rows, 1 << 20), THREADS, 0, state->stream>>>(b);
	FP_LAUNCHED(be);
	const char *weights = a->rounded ? (const char *)a->rounded : (const char *)a->scores;
	for (int64_t j = 0; j < group; j++)
		FP_BLAS(be, cublasGemmStridedBatchedEx_64(
						state->blas, CUBLAS_OP_N, CUBLAS_OP_N, d, count, keys, &one, a->V.at(start + begin, 0),
						a->V.type, a->V.stride, d, weights + j * s->kv_heads * count * keys * a->V.size, a->V.type,
						keys, count * keys, &zero, fp_cuda_floats(a->out) + (start + first) * a->out.stride + j * d,
						CUDA_R_32F, a->out.stride, group * d, s->kv_heads, a->compute, CUBLAS_GEMM_DEFAULT));
	return FP_OK;
}

static fp_status check_shape(fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K, fp_matrix V,
							 fp_matrix out)
{
	FP_REQUIRE(be, fp_cuda_is_f32(Q) && fp_cuda_is_f32(K) && fp_cuda_is_f32(V) && fp_cuda_is_f32(out));
	FP_REQUIRE(be, shape->head_dim > 0 && shape->kv_heads > 0 && shape->heads % shape->kv_heads == 0);
	int64_t tokens = shape->sequences * shape->length;
	FP_REQUIRE(be, Q.rows == tokens && K.rows == tokens && V.rows == tokens && out.rows == tokens);
	FP_REQUIRE(be, Q.cols == shape->heads * shape->head_dim && out.cols == Q.cols);
	FP_REQUIRE(be, K.cols == shape->kv_heads * shape->head_dim && V.cols == K.cols && shape->window >= 0);
	return FP_OK;
}

fp_status fp_cuda_attention(fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K, fp_matrix V,
							fp_matrix out)
{
	FP_OR_RETURN(check_shape(be, shape, Q, K, V, out));
	if (Q.rows == 0 || shape->heads == 0)
		return FP_OK;
	/* split operands would not pay here: the scores are few beside the layer's other products */
	fp_cuda_product how = fp_cuda_product_of(be);
	bool round = how == PRODUCT_BF16;
	attention a = {};
	fp_cuda_scratch q, k, v, scores, rounded;
	a.be = be;
	a.shape = shape;
	a.out = out;
	a.compute = how == PRODUCT_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
	FP_OR_RETURN(stream_of(be, Q, round, &q, &a.Q));
	FP_OR_RETURN(stream_of(be, K, round, &k, &a.K));
	FP_OR_RETURN(stream_of(be, V, round, &v, &a.V));
	/* a window shortens the rows of scores, and a long context takes fewer queries at a time */
	int64_t reach = shape->window > 0 ? fp_cuda_smaller(shape->length, shape->window + QUERY_BLOCK) : shape->length;
	a.queries = fp_cuda_smaller(QUERY_BLOCK, shape->length);
	while (a.queries > 16 && a.queries * reach * shape->heads * 4 > SCORE_BYTES)
		a.queries /= 2;
	int64_t entries = a.queries * reach * shape->heads;
	FP_OR_RETURN(scores.take(be, entries * 4));
	a.scores = scores.as<float>();
	if (round) {
		FP_OR_RETURN(rounded.take(be, entries * 2));
		a.rounded = rounded.as<__nv_bfloat16>();
	}
	for (int64_t s = 0; s < shape->sequences; s++)
		for (int64_t first = 0; first < shape->length; first += a.queries)
			FP_OR_RETURN(attend_block(&a, s * shape->length, first, fp_cuda_smaller(a.queries, shape->length - first)));
	return FP_OK;
}
