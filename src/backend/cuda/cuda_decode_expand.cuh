/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_decode_expand.cuh: held weights back to dense ones, and how fast memory is read. */
#ifndef FP_BACKEND_CUDA_DECODE_EXPAND_CUH
#define FP_BACKEND_CUDA_DECODE_EXPAND_CUH

#include "backend/cuda/cuda_decode_kernels.cuh"

/* Writes an entry unless its bits are zero; the row was filled with zeros before. */
template <typename T, typename U>
__device__ static inline void decode_put(U *out, const T *entry, int64_t column, int cols)
{
	bool stored = sizeof(T) == 2 ? *(const uint16_t *)entry != 0 : *(const uint32_t *)entry != 0;
	if (stored && column < cols)
		fp_cuda_store(out + column, fp_cuda_load(entry));
}

/* Chunk number `unit` of all rows' chunks, of `cols` columns. */
template <typename T, typename U>
__device__ static void decode_expand_mask(const decode_part &p, int64_t unit, int lane, int cols, U *out)
{
	decode_counts before = p.counts[unit], end = p.counts[unit + 1];
	int next = 0;
	for (unsigned g = before.granules; g < end.granules; g++) {
		const char *from = p.values + g * decode_granule_bytes(sizeof(T));
		unsigned gaps = ((const uint32_t *)(const void *)from)[lane];
		const T *values = (const T *)(const void *)(from + 128) + lane * DECODE_GRANULE;
		for (int i = 0; i < DECODE_GRANULE; i++, next++) {
			next += gaps >> (4 * i) & 15;
			decode_put(out, values + i, decode_column(lane, next, p.copies), cols);
		}
	}
	const decode_stray<T> *strays = (const decode_stray<T> *)p.strays;
	for (unsigned i = before.strays + lane; i < end.strays; i += 32) {
		int place = strays[i].place;
		decode_put(out, &strays[i].value, decode_column(place % 32, place / 32, p.copies), cols);
	}
}

template <typename T, typename U>
__device__ static void decode_expand_pairs(const char *from, int lane, int cols, U *out)
{
	const int values = 32 * DECODE_GRANULE * (int)sizeof(T);
	for (int step = 0; step * DECODE_STEP < cols; step++) {
		const char *both = from + (int64_t)(step / 2) * (128 + 2 * values);
		unsigned bits = ((const uint16_t *)(const void *)both)[lane * 2 + step % 2];
		const T *granule = (const T *)(const void *)(both + 128 + step % 2 * values) + lane * DECODE_GRANULE;
		for (int i = 0; i < DECODE_GRANULE; i++)
			decode_put(out, granule + i, (int64_t)step * DECODE_STEP + i / 2 * 128 + lane * 4 + (bits >> (2 * i) & 3),
					   cols);
	}
}

template <typename T, typename U>
__global__ void decode_expand_kernel(decode_part p, int form, int cols, U *out, int64_t stride)
{
	int lane = threadIdx.x % 32, row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
	if (row >= p.rows)
		return;
	const char *from = p.values + row * p.row_bytes;
	out += row * stride;
	for (int c = lane; c < cols; c += 32)
		fp_cuda_store(out + c, form == 0 ? fp_cuda_load((const T *)(const void *)from + c) : 0.0f);
	__syncwarp();
	int chunks = (cols + DECODE_CHUNK - 1) / DECODE_CHUNK;
	for (int chunk = 0; form == 1 && chunk < chunks; chunk++)
		decode_expand_mask<T>(p, (int64_t)row * chunks + chunk, lane,
							  min((int)DECODE_CHUNK, cols - chunk * DECODE_CHUNK), out + (int64_t)chunk * DECODE_CHUNK);
	if (form == 2)
		decode_expand_pairs<T>(from, lane, cols, out);
}

/* Sums all vectors, so that they must be read; only a sum that no data gives is written. */
__global__ static void decode_read_kernel(const uint4 *values, int64_t count, unsigned *out)
{
	unsigned sum = 0;
	int64_t step = (int64_t)gridDim.x * blockDim.x;
	int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
	for (; i + 3 * step < count; i += 4 * step) {
		uint4 v[4];
#pragma unroll
		for (int u = 0; u < 4; u++)
			v[u] = __ldcs(values + i + u * step);
#pragma unroll
		for (int u = 0; u < 4; u++)
			sum += v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
	}
	for (; i < count; i += step)
		sum += values[i].x;
	if (sum == 0x9e3779b9U)
		*out = sum;
}

#endif
