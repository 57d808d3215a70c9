/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_flash_parts.cuh: what the kernels of cuda_flash.cu and cuda_flash_hopper.cu have in common. */
#ifndef FP_BACKEND_CUDA_FLASH_PARTS_CUH
#define FP_BACKEND_CUDA_FLASH_PARTS_CUH

#include "backend/cuda/cuda_flash.cuh"

static const float LOG2_E = 1.4426950408889634f; /* exponentials are powers of two */

__device__ static inline unsigned shared_address(const void *p)
{
	return (unsigned)__cvta_generic_to_shared(p);
}

/* Copies 16 bytes to shared memory asynchronously; zeros unless valid. */
__device__ static inline void copy_async(unsigned to, const void *from, bool valid)
{
	int bytes = valid ? 16 : 0;
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ static inline void copy_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> __device__ static inline void copy_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

__device__ static inline unsigned pack(float low, float high)
{
	__nv_bfloat162 both = __floats2bfloat162_rn(low, high);
	return *(const unsigned *)&both;
}

/* Maximum and sum of a thread's two rows so far. */
struct running {
	float largest[2], sum[2];
};

__device__ static inline float power_of_two(float x)
{
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* s ← 2^(scale·(s − the maximum so far)); factor ← what earlier sums are to be multiplied by. scale > 0. */
template <int TILES>
__device__ static inline void softmax(float (&s)[TILES][4], float scale, running &r, float (&factor)[2])
{
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float largest = r.largest[h];
#pragma unroll
		for (int n = 0; n < TILES; n++)
			largest = fmaxf(largest, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
		largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, 1));
		largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, 2));
		float base = largest == -INFINITY ? 0.0f : largest * scale; /* a row without visible keys so far */
		factor[h] = power_of_two(fmaf(r.largest[h], scale, -base));
		float sum = 0;
#pragma unroll
		for (int n = 0; n < TILES; n++)
#pragma unroll
			for (int e = 2 * h; e < 2 * h + 2; e++) {
				s[n][e] = power_of_two(fmaf(s[n][e], scale, -base));
				sum += s[n][e];
			}
		r.largest[h] = largest;
		/* of this lane's columns; the four lanes of a row are added at the end */
		r.sum[h] = r.sum[h] * factor[h] + sum;
	}
}

/* out ← factor·out, for what was summed with an earlier maximum */
template <int TILES> __device__ static inline void scale_rows(float (&out)[TILES][4], const float (&factor)[2])
{
#pragma unroll
	for (int n = 0; n < TILES; n++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			out[n][e] *= factor[e / 2];
}

/* The sum over the four lanes that share a row. */
__device__ static inline float sum_of_row(float sum)
{
	sum += __shfl_xor_sync(0xffffffffU, sum, 1);
	return sum + __shfl_xor_sync(0xffffffffU, sum, 2);
}

/* Loads the warp's 16 queries as left operands, directly from memory: they are read once. */
template <int D>
__device__ static inline void load_queries(unsigned (&q)[D / 16][4], const __nv_bfloat16 *from, int64_t stride, int row,
										   int length)
{
	int lane = threadIdx.x % 32, column = lane % 4 * 2;
	int low = min(row + lane / 4, length - 1), high = min(row + lane / 4 + 8, length - 1);
#pragma unroll
	for (int k = 0; k < D / 16; k++) {
		q[k][0] = *(const unsigned *)(from + low * stride + k * 16 + column);
		q[k][1] = *(const unsigned *)(from + high * stride + k * 16 + column);
		q[k][2] = *(const unsigned *)(from + low * stride + k * 16 + column + 8);
		q[k][3] = *(const unsigned *)(from + high * stride + k * 16 + column + 8);
	}
}

/* s ← −∞ for keys that a query does not see. `row` is the thread's first query, `key` the tile's first key. */
template <int TILES> __device__ static inline void mask_scores(float (&s)[TILES][4], int row, int key, int window)
{
	int column = key + threadIdx.x % 4 * 2;
#pragma unroll
	for (int n = 0; n < TILES; n++)
#pragma unroll
		for (int e = 0; e < 4; e++) {
			int query = row + e / 2 * 8, at = column + n * 8 + e % 2;
			if (at > query || (window > 0 && at <= query - window))
				s[n][e] = -INFINITY;
		}
}

/* Writes the thread's two rows, `row` and the eighth after it, divided by their sums. start: the sequence's first token. */
template <int D>
__device__ static inline void write_rows(const fp_cuda_flash &f, int64_t start, int row, int head,
										 const float (&out)[D / 8][4], const running &r)
{
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float sum = sum_of_row(r.sum[h]);
		int query = row + h * 8;
		int64_t to = (start + query) * f.out_stride + head * D + threadIdx.x % 4 * 2;
		if (query < f.length && f.narrow)
#pragma unroll
			for (int n = 0; n < D / 8; n++)
				*(unsigned *)(f.narrow + to + n * 8) = pack(out[n][2 * h] / sum, out[n][2 * h + 1] / sum);
		else if (query < f.length)
#pragma unroll
			for (int n = 0; n < D / 8; n++)
				*(float2 *)(f.out + to + n * 8) = float2{out[n][2 * h] / sum, out[n][2 * h + 1] / sum};
	}
}

#endif
