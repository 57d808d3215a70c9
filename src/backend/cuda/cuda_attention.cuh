/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_attention.cuh: shared by the two passes of attention: products, and blocks of scores.
 *
 * A block holds the scores of `count` queries of one sequence against the keys that any of them sees, for all heads.
 * Query head g·group + j, which uses key head g, is part j·kv_heads + g of the block. Products take one call per j,
 * batched over g.
 */
#ifndef FP_BACKEND_CUDA_ATTENTION_CUH
#define FP_BACKEND_CUDA_ATTENTION_CUH

#include "backend/cuda/cuda_flash.cuh"

#include <type_traits>

enum { FP_CUDA_ATTENTION_THREADS = 256 };

/* A matrix of heads as an operand of cuBLAS. */
struct fp_cuda_heads {
	const char *data;
	int64_t stride, size; /* elements from one row to the next, bytes of an element */
	cudaDataType_t type;
	const void *at(int64_t row, int64_t col) const
	{
		return data + (row * stride + col) * size;
	}
};

/* One call of attention. */
struct fp_cuda_attention_plan {
	fp_backend *be;
	const fp_attention_shape *shape;
	bool round; /* operands are rounded to bf16 */
	cublasComputeType_t compute;
	int64_t queries; /* in a block */
	int64_t entries; /* scores in the largest block */
};

/* Queries at positions [first, first + count) of a sequence against its keys at [begin, end). The first query is row
 * `query_row` of Q and the output, and the key of position 0 row `key_row` of K and V. */
struct fp_cuda_score_block {
	int64_t query_row, key_row, first, count, begin, end, window;
	int64_t rows; /* heads · count */
	/* Keys that a row sees, counted from begin: [from, to) */
	__device__ int64_t from(int64_t row) const
	{
		int64_t query = first + row % count;
		return window > 0 && query - window + 1 > begin ? query - window + 1 - begin : 0;
	}
	__device__ int64_t to(int64_t row) const
	{
		return first + row % count + 1 - begin;
	}
};

/* Checks the shapes and chooses the arithmetic by be->use. */
fp_status fp_cuda_attention_plan_of(fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K,
									fp_matrix V, fp_matrix out, fp_cuda_attention_plan *plan);
/* *out ← a packed bf16 copy of m in `space` if the plan rounds, else m itself. */
fp_status fp_cuda_heads_of(const fp_cuda_attention_plan *plan, fp_matrix m, fp_cuda_scratch *space, fp_cuda_heads *out);
/* True if one kernel may do all of it: bf16 operands, plain scores of whole sequences. */
bool fp_cuda_is_flash(const fp_cuda_attention_plan *plan);
/* Its operands, without the result. */
fp_cuda_flash fp_cuda_flash_of(const fp_cuda_attention_plan *plan, const fp_cuda_heads *queries,
							   const fp_cuda_heads *keys, const fp_cuda_heads *values);
fp_cuda_score_block fp_cuda_score_block_at(const fp_cuda_attention_plan *plan, int64_t sequence, int64_t first);

/* out (a block, of `type`) ← alpha · left[queries] · right[keys]ᵀ */
fp_status fp_cuda_score(const fp_cuda_attention_plan *plan, const fp_cuda_score_block *block, float alpha,
						const fp_cuda_heads *left, const fp_cuda_heads *right, void *out, cudaDataType_t type);
/* Caps the scores of a block and adds the keys' bias, as the shape says. slopes: ← the cap's derivatives, unless NULL. */
fp_status fp_cuda_shape_scores(const fp_cuda_attention_plan *plan, const fp_cuda_score_block *block, float *scores,
							   float *slopes);
/* out[queries] ← block · right[keys]; the block's entries have right's type */
fp_status fp_cuda_apply_block(const fp_cuda_attention_plan *plan, const fp_cuda_score_block *block, const void *weights,
							  const fp_cuda_heads *right, fp_matrix out);
/* out[keys] ← out[keys] + blockᵀ · left[queries] */
fp_status fp_cuda_apply_block_transposed(const fp_cuda_attention_plan *plan, const fp_cuda_score_block *block,
										 const void *weights, const fp_cuda_heads *left, fp_matrix out);

/* Calls f(block) for every block, sequence by sequence. */
template <typename F> static inline fp_status fp_cuda_each_block(const fp_cuda_attention_plan *plan, F f)
{
	for (int64_t s = 0; s < plan->shape->sequences; s++)
		for (int64_t first = 0; first < plan->shape->length; first += plan->queries)
			FP_OR_RETURN(f(fp_cuda_score_block_at(plan, s, first)));
	return FP_OK;
}

/* --- softmax ------------------------------------------------------------------------------------------------------ */

/* The softmax of a row of up to 128·FOURS keys in a warp's registers: a lane has entries 4·(32k + lane) … + 3, k < FOURS.
 * Entries outside [from, to) become 0. Rows must be aligned to four entries. */
template <int FOURS> struct fp_cuda_row {
	float4 part[FOURS];
	__device__ static int64_t at(int k)
	{
		return 4 * (32 * (int64_t)k + threadIdx.x % 32);
	}
	__device__ static float seen(float x, int64_t j, int64_t from, int64_t to)
	{
		return j >= from && j < to ? x : -INFINITY;
	}
	__device__ void softmax(const float *x, int64_t keys, int64_t from, int64_t to)
	{
		float largest = -INFINITY, sum = 0;
#pragma unroll
		for (int k = 0; k < FOURS; k++) {
			int64_t j = at(k);
			float4 v = j < keys ? fp_cuda_load4(x + j) : float4{0, 0, 0, 0};
			part[k] = float4{seen(v.x, j, from, to), seen(v.y, j + 1, from, to), seen(v.z, j + 2, from, to),
							 seen(v.w, j + 3, from, to)};
			largest = fmaxf(largest, fmaxf(fmaxf(part[k].x, part[k].y), fmaxf(part[k].z, part[k].w)));
		}
		for (int offset = 16; offset > 0; offset /= 2)
			largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, offset));
#pragma unroll
		for (int k = 0; k < FOURS; k++) {
			part[k] = float4{expf(part[k].x - largest), expf(part[k].y - largest), expf(part[k].z - largest),
							 expf(part[k].w - largest)};
			sum += (part[k].x + part[k].y) + (part[k].z + part[k].w);
		}
		float factor = 1.0f / fp_cuda_warp_sum(sum);
#pragma unroll
		for (int k = 0; k < FOURS; k++)
			part[k] = float4{part[k].x * factor, part[k].y * factor, part[k].z * factor, part[k].w * factor};
	}
};

/* Calls f with FOURS as a std::integral_constant if rows of `keys` fit into registers, else otherwise(). */
template <typename F, typename G> static inline void fp_cuda_by_row(int64_t keys, F f, G otherwise)
{
	if (keys % 4 != 0 || keys > 2048)
		otherwise();
	else if (keys <= 256)
		f(std::integral_constant<int, 2>());
	else if (keys <= 512)
		f(std::integral_constant<int, 4>());
	else if (keys <= 1024)
		f(std::integral_constant<int, 8>());
	else if (keys <= 1536)
		f(std::integral_constant<int, 12>());
	else
		f(std::integral_constant<int, 16>());
}
/* Blocks for so many rows, a warp each. */
static inline unsigned fp_cuda_row_blocks(int64_t rows)
{
	const int64_t warps = FP_CUDA_ATTENTION_THREADS / 32;
	return (unsigned)fp_smaller((rows + warps - 1) / warps, 1 << 20);
}

/* The softmax of a row is exp(x − largest)·factor. */
struct fp_cuda_row_scale {
	float largest, factor;
};

/* Of x[from, to), for a block of FP_CUDA_ATTENTION_THREADS; `shared` holds 33 numbers. */
__device__ static inline fp_cuda_row_scale fp_cuda_scale_row(const float *x, int64_t from, int64_t to, float *shared)
{
	const int threads = FP_CUDA_ATTENTION_THREADS;
	float largest = -INFINITY, sum = 0;
	for (int64_t j = from + threadIdx.x; j < to; j += threads)
		largest = fmaxf(largest, x[j]);
	for (int offset = 16; offset > 0; offset /= 2)
		largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, offset));
	if (threadIdx.x % 32 == 0)
		shared[threadIdx.x / 32] = largest;
	__syncthreads();
	largest = shared[0];
	for (int w = 1; w < threads / 32; w++)
		largest = fmaxf(largest, shared[w]);
	__syncthreads();
	for (int64_t j = from + threadIdx.x; j < to; j += threads)
		sum += expf(x[j] - largest);
	return fp_cuda_row_scale{largest, 1.0f / fp_cuda_block_sum(sum, shared)};
}

#endif
