/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_decode_kernels.cuh: products of up to eight rows with held weights; cuda_decode_layout.cuh says how they lie. */
#ifndef FP_BACKEND_CUDA_DECODE_KERNELS_CUH
#define FP_BACKEND_CUDA_DECODE_KERNELS_CUH

#include "backend/cuda/cuda_decode_layout.cuh"
#include "backend/cuda/cuda_entries.cuh"

enum {
	DECODE_THREADS = 512,
	DECODE_WARPS = DECODE_THREADS / 32,
	DECODE_PARTS = 4,
	DECODE_DEPTH = 4, /* loads of a lane on their way at once */
	DECODE_PAD = 8,   /* rows of 32 zeros behind x, which the zeros of a last granule read */
};

/* One matrix. Pointers of the forms that it has not are null. */
struct decode_part {
	const uint4 *values;
	const uint2 *half_values;
	const uint8_t *counts;
	const uint32_t *positions;
	const uint16_t *half_gaps;
	const decode_offsets *offsets;
	float *y;
	__nv_bfloat16 *narrow_y; /* instead of y */
	int64_t y_stride;
	int64_t vectors; /* of a dense row */
	int rows;
	int first_task; /* of DECODE_WARPS × rows of a warp */
};

struct decode_arguments {
	decode_part part[DECODE_PARTS];
	int parts, tasks;
	const float *x;
	const __nv_bfloat16 *narrow_x; /* instead of x */
	int64_t x_stride;
	int batch; /* rows of x, at most the kernel's */
	bool add;  /* to y */
	int cols;
	bool resident; /* all of x is in shared memory at once, not one chunk */
};

/*
 * A kernel may begin before the one before it on the stream has ended (sm_90 and newer): it then waits for its end and
 * its results here. Only weights may be read before.
 */
__device__ static inline void decode_wait_for_inputs()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* Lets the next kernel begin as soon as there is room for it. */
__device__ static inline void decode_let_next_begin()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Brings a line to the L2 cache. */
__device__ static inline void decode_prefetch(const void *line)
{
#if defined(__CUDA_ARCH__)
	asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
#else
	(void)line;
#endif
}

/* B floats of x at a byte offset of shared memory. */
template <int B> struct decode_inputs {
	float x[B];
	__device__ explicit decode_inputs(const char *at)
	{
		if constexpr (B == 1) {
			x[0] = *(const float *)at;
		} else if constexpr (B == 2) {
			float2 v = *(const float2 *)at;
			x[0] = v.x, x[1] = v.y;
		} else {
			for (int i = 0; i < B; i += 4) {
				float4 v = *(const float4 *)(at + 4 * i);
				x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
			}
		}
	}
};

template <int B> __device__ static inline void decode_add(float sums[B], float w, const char *at)
{
	decode_inputs<B> in(at);
#pragma unroll
	for (int b = 0; b < B; b++)
		sums[b] = fmaf(w, in.x[b], sums[b]);
}

/* Entry i of a 16-byte vector of T as float. */
__device__ static inline float decode_entry(const uint4 &v, int i, const __nv_bfloat16 *)
{
	unsigned word = i / 2 == 0 ? v.x : i / 2 == 1 ? v.y : i / 2 == 2 ? v.z : v.w;
	return __uint_as_float(i % 2 ? word & 0xffff0000U : word << 16);
}
__device__ static inline float decode_entry(const uint4 &v, int i, const __half *)
{
	unsigned word = i / 2 == 0 ? v.x : i / 2 == 1 ? v.y : i / 2 == 2 ? v.z : v.w;
	return __half2float(__ushort_as_half((unsigned short)(i % 2 ? word >> 16 : word & 0xffffU)));
}
__device__ static inline float decode_entry(const uint4 &v, int i, const float *)
{
	return __uint_as_float(i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w);
}

/* Eight values of T: one vector or two. */
template <typename T> struct decode_granule {
	uint4 v[sizeof(T) / 2];
	__device__ void load(const uint4 *values, int64_t index)
	{
#pragma unroll
		for (int i = 0; i < (int)sizeof(T) / 2; i++)
			v[i] = __ldcs(values + index * (int64_t)(sizeof(T) / 2) + i);
	}
	__device__ float entry(int i) const
	{
		const int in_vector = 16 / (int)sizeof(T);
		return decode_entry(v[i / in_vector], i % in_vector, (const T *)nullptr);
	}
};

/* Four values of T. */
template <typename T> struct decode_half {
	uint2 v[sizeof(T) / 2];
	__device__ void load(const uint2 *values, int64_t index)
	{
#pragma unroll
		for (int i = 0; i < (int)sizeof(T) / 2; i++)
			v[i] = __ldcs(values + index * (int64_t)(sizeof(T) / 2) + i);
	}
	__device__ float entry(int i) const
	{
		const int in_pair = 8 / (int)sizeof(T);
		uint2 pair = v[i / in_pair];
		return decode_entry(uint4{pair.x, pair.y, 0, 0}, i % in_pair, (const T *)nullptr);
	}
};

/* --- x in shared memory ------------------------------------------------------------------------------------------ */

/* V columns of a row of x, of which `there` exist; zeros behind them. */
template <int V, typename T> __device__ static inline void decode_read_x(float in[V], const T *row, int there)
{
	if (there >= V && (uintptr_t)row % (4 * sizeof(T)) == 0) {
#pragma unroll
		for (int j = 0; j < V; j += 4) {
			float4 four = fp_cuda_load4(row + j);
			in[j] = four.x, in[j + 1] = four.y, in[j + 2] = four.z, in[j + 3] = four.w;
		}
		return;
	}
#pragma unroll
	for (int j = 0; j < V; j++)
		in[j] = j < there ? fp_cuda_load(row + j) : 0.0f;
}

/* xs[(q·32 + lane)·B + b] ← columns [first, first + cols) of x, where a lane owns every 32nd group of V columns; zeros
 * behind them up to a whole step, and DECODE_PAD rows more. */
template <int B, int V> __device__ static void decode_load_x(float *xs, const decode_arguments &a, int first, int cols)
{
	int groups = (cols + DECODE_STEP - 1) / DECODE_STEP * (DECODE_STEP / V);
	for (int group = threadIdx.x; group < groups; group += DECODE_THREADS) {
		int q = group / 32 * V, lane = group % 32;
#pragma unroll
		for (int b = 0; b < B; b++) {
			float in[V];
			int64_t at = b * a.x_stride + first + group * V;
			int there = b < a.batch ? cols - group * V : 0;
			if (a.narrow_x)
				decode_read_x<V>(in, a.narrow_x + at, there);
			else
				decode_read_x<V>(in, a.x + at, there);
#pragma unroll
			for (int j = 0; j < V; j++)
				xs[((q + j) * 32 + lane) * B + b] = in[j];
		}
	}
	int end = groups * V * B;
	for (int i = threadIdx.x; i < DECODE_PAD * 32 * B; i += DECODE_THREADS)
		xs[end + i] = 0.0f;
}

/* --- a row of each form ------------------------------------------------------------------------------------------ */

/* A form says how a row's part of a chunk is added to the lane's sums. `q` is the first of the chunk's rows of lanes in
 * shared memory. */
template <typename T> struct decode_dense {
	static const int V = 16 / sizeof(T);
	/* Brings the first 32 lines of what a warp is about to read to the L2 cache while x is on its way. */
	__device__ static void announce(const decode_part &p, int row, int, int lane)
	{
		if (lane * 8 < p.vectors)
			decode_prefetch(p.values + row * p.vectors + lane * 8);
	}
	template <int B>
	__device__ static void add(float sums[B], const decode_part &p, int row, int chunk, int cols, const float *xs,
							   int q, int lane)
	{
		const uint4 *values = p.values + row * p.vectors;
		int64_t first = (int64_t)chunk * (DECODE_CHUNK / V);
		int64_t end = min(first + DECODE_CHUNK / V, p.vectors);
		const char *at = (const char *)(xs + (q * 32 + lane) * B);
		for (int64_t i = first + lane; i < end; i += 32 * DECODE_DEPTH) {
			uint4 v[DECODE_DEPTH];
#pragma unroll
			for (int u = 0; u < DECODE_DEPTH; u++)
				v[u] = i + u * 32 < end ? __ldcs(values + i + u * 32) : uint4{0, 0, 0, 0};
#pragma unroll
			for (int u = 0; u < DECODE_DEPTH; u++) {
				if (i + u * 32 < end) {
#pragma unroll
					for (int j = 0; j < V; j++)
						decode_add<B>(sums, decode_entry(v[u], j, (const T *)nullptr), at + j * 128 * B);
				}
				at += V * 128 * B;
			}
		}
		(void)cols;
	}
};

template <typename T> struct decode_gaps {
	static const int V = 4;
	__device__ static void announce(const decode_part &p, int row, int chunks, int lane)
	{
		int64_t begin = p.offsets[(int64_t)row * chunks].whole, end = p.offsets[(int64_t)(row + 1) * chunks].whole;
		const int64_t bytes = DECODE_GRANULE * sizeof(T);
		if (lane * 128 < (end - begin) * bytes)
			decode_prefetch((const char *)p.values + begin * bytes + lane * 128);
		if (begin + lane * 32 < end)
			decode_prefetch(p.positions + begin + lane * 32);
	}
	/* The lane's eight columns: sums of gaps by a multiplication, in the bytes of `odd` for entries 1, 3, 5, 7 and of
	 * `even` for the others. Returns the byte offset behind the last one. */
	template <int B>
	__device__ static unsigned whole(float sums[B], const decode_granule<T> &v, unsigned gaps, const char *xs,
									 unsigned at)
	{
		unsigned second = gaps >> 4 & 0x0f0f0f0fU;
		unsigned odd = ((gaps & 0x0f0f0f0fU) + second) * 0x01010101U, even = odd - second;
#pragma unroll
		for (int i = 0; i < DECODE_GRANULE; i++) {
			unsigned place = __dp4a(i % 2 ? odd : even, 0x80U << (8 * (i / 2)), at) + i * 128;
			decode_add<B>(sums, v.entry(i), xs + place * B);
		}
		return at + (odd >> 24) * 128 + DECODE_GRANULE * 128;
	}
	/* The same for four. */
	template <int B>
	__device__ static void half(float sums[B], const decode_half<T> &v, unsigned gaps, const char *xs, unsigned at)
	{
		unsigned spread = (gaps | gaps << 8) & 0x00ff00ffU;
		unsigned places = ((spread | spread << 4) & 0x0f0f0f0fU) * 0x01010101U;
#pragma unroll
		for (int i = 0; i < DECODE_GRANULE / 2; i++)
			decode_add<B>(sums, v.entry(i), xs + (__dp4a(places, 0x80U << (8 * i), at) + i * 128) * B);
	}
	template <int B>
	__device__ static void add(float sums[B], const decode_part &p, int row, int chunk, int cols, const float *xs,
							   int q, int lane)
	{
		int64_t index = (int64_t)row * decode_chunks_of(cols) + chunk;
		decode_offsets before = p.offsets[index];
		int counts = p.counts[index * 32 + lane], count = counts & ~DECODE_HALF;
		int most = __reduce_max_sync(0xffffffffU, count);
		unsigned below = (1U << lane) - 1, with_half = __ballot_sync(0xffffffffU, counts & DECODE_HALF);
		unsigned next = before.whole, at = q * 128 + lane * 4, last_gaps = 0;
		decode_half<T> last;
		if (counts & DECODE_HALF) {
			unsigned i = before.half + __popc(with_half & below);
			last.load(p.half_values, i);
			last_gaps = p.half_gaps[i];
		}
		for (int g = 0; g < most; g += DECODE_DEPTH) {
			decode_granule<T> v[DECODE_DEPTH];
			unsigned gaps[DECODE_DEPTH];
#pragma unroll
			for (int u = 0; u < DECODE_DEPTH; u++) {
				unsigned active = __ballot_sync(0xffffffffU, g + u < count);
				if (g + u < count) {
					unsigned i = next + __popc(active & below);
					v[u].load(p.values, i);
					gaps[u] = __ldcs(p.positions + i);
				}
				next += __popc(active);
			}
#pragma unroll
			for (int u = 0; u < DECODE_DEPTH; u++)
				if (g + u < count)
					at = whole<B>(sums, v[u], gaps[u], (const char *)xs, at);
		}
		if (counts & DECODE_HALF)
			half<B>(sums, last, last_gaps, (const char *)xs, at);
	}
	__device__ static int decode_chunks_of(int cols)
	{
		return (cols + DECODE_CHUNK - 1) / DECODE_CHUNK;
	}
};

template <typename T> struct decode_pairs {
	static const int V = 4;
	__device__ static void announce(const decode_part &p, int row, int, int lane)
	{
		if (lane * 8 < p.vectors)
			decode_prefetch(p.values + row * p.vectors + lane * 8);
	}
	/* `at`: the lane's first column of the step; bits 7 and 8 are zero. */
	template <int B>
	__device__ static void granule(float sums[B], const decode_granule<T> &v, unsigned bits, const char *xs,
								   unsigned at)
	{
#pragma unroll
		for (int i = 0; i < DECODE_GRANULE; i++) {
			unsigned place = ((2 * i < 7 ? bits << (7 - 2 * i) : bits >> (2 * i - 7)) & 0x180U) | at;
			decode_add<B>(sums, v.entry(i), xs + (place + i / 2 * 512) * B);
		}
	}
	template <int B>
	__device__ static void add(float sums[B], const decode_part &p, int row, int chunk, int cols, const float *xs,
							   int q, int lane)
	{
		const int per_chunk = DECODE_CHUNK / DECODE_STEP;
		int steps = (cols + DECODE_STEP - 1) / DECODE_STEP, words = (steps + 1) / 2;
		int first = chunk * per_chunk, end = min(first + per_chunk, steps);
		const uint32_t *positions = p.positions + (int64_t)row * words * 32 + lane;
		int64_t index = (int64_t)row * steps * 32 + lane;
		unsigned at = q * 128 + lane * 4;
		for (int step = first; step < end; step += DECODE_DEPTH) {
			decode_granule<T> v[DECODE_DEPTH];
			unsigned bits[DECODE_DEPTH / 2];
#pragma unroll
			for (int u = 0; u < DECODE_DEPTH; u++) {
				if (step + u < end) {
					v[u].load(p.values, index + (int64_t)(step + u) * 32);
					if (u % 2 == 0)
						bits[u / 2] = __ldcs(positions + (step + u) / 2 * 32);
				}
			}
#pragma unroll
			for (int u = 0; u < DECODE_DEPTH; u++) {
				if (step + u < end)
					granule<B>(sums, v[u], u % 2 ? bits[u / 2] >> 16 : bits[u / 2], (const char *)xs, at);
				at += DECODE_STEP / 32 * 128;
			}
		}
	}
};

/* --- products ---------------------------------------------------------------------------------------------------- */

__device__ static inline int decode_part_of(const decode_arguments &a, int task)
{
	int part = 0;
	while (part + 1 < a.parts && task >= a.part[part + 1].first_task)
		part++;
	return part;
}

/* A warp takes R rows of W at a time, each with all rows of x. */
template <typename Form, int B, int R>
__global__ void __launch_bounds__(DECODE_THREADS, R == 1 && B <= 2 ? 2 : 1)
	decode_kernel(const __grid_constant__ decode_arguments a)
{
	extern __shared__ __align__(16) float decode_xs[];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	int chunks = (a.cols + DECODE_CHUNK - 1) / DECODE_CHUNK;
	if (blockIdx.x < (unsigned)a.tasks) {
		const decode_part &p = a.part[decode_part_of(a, blockIdx.x)];
		int row = ((int)blockIdx.x - p.first_task) * DECODE_WARPS * R + warp * R;
		if (row < p.rows)
			Form::announce(p, row, chunks, lane);
	}
	decode_let_next_begin();
	decode_wait_for_inputs();
	if (a.resident) {
		decode_load_x<B, Form::V>(decode_xs, a, 0, a.cols);
		__syncthreads();
	}
	for (int task = blockIdx.x; task < a.tasks; task += gridDim.x) {
		const decode_part &p = a.part[decode_part_of(a, task)];
		int row = (task - p.first_task) * DECODE_WARPS * R + warp * R;
		float sums[R][B] = {};
		for (int chunk = 0; chunk < chunks; chunk++) {
			if (!a.resident) {
				__syncthreads();
				decode_load_x<B, Form::V>(decode_xs, a, chunk * DECODE_CHUNK,
										  min((int)DECODE_CHUNK, a.cols - chunk * DECODE_CHUNK));
				__syncthreads();
			}
#pragma unroll
			for (int r = 0; r < R; r++)
				if (row + r < p.rows)
					Form::template add<B>(sums[r], p, row + r, chunk, a.cols, decode_xs,
										  a.resident ? chunk * DECODE_LANE_COLUMNS : 0, lane);
		}
#pragma unroll
		for (int r = 0; r < R; r++) {
#pragma unroll
			for (int b = 0; b < B; b++) {
				float sum = sums[r][b];
				for (int offset = 16; offset > 0; offset /= 2)
					sum += __shfl_xor_sync(0xffffffffU, sum, offset);
				int64_t at = b * p.y_stride + row + r;
				if (lane == 0 && row + r < p.rows && b < a.batch) {
					if (p.narrow_y)
						fp_cuda_store(p.narrow_y + at, a.add ? fp_cuda_load(p.narrow_y + at) + sum : sum);
					else
						p.y[at] = a.add ? p.y[at] + sum : sum;
				}
			}
		}
	}
}

/* --- back to dense ----------------------------------------------------------------------------------------------- */

/* Writes an entry unless its bits are zero; the row was filled with zeros before. */
template <typename T, typename U>
__device__ static inline void decode_put(U *out, const T *entry, int64_t column, int cols)
{
	bool stored = sizeof(T) == 2 ? *(const uint16_t *)entry != 0 : *(const uint32_t *)entry != 0;
	if (stored && column < cols)
		fp_cuda_store(out + column, fp_cuda_load(entry));
}

/* The lane's entries of a granule, whose gaps begin at column q of the lane; returns the q behind them. */
template <typename T, typename U>
__device__ static inline int decode_put_granule(U *out, const T *values, unsigned gaps, int count, int q, int lane,
												int cols)
{
	for (int i = 0; i < count; i++, q++) {
		q += gaps >> (4 * i) & 15;
		decode_put(out, values + i, (int64_t)(q / 4) * 128 + lane * 4 + q % 4, cols);
	}
	return q;
}

template <typename T, typename U>
__device__ static void decode_expand_gaps(const decode_part &p, int row, int chunk, int lane, int cols, U *out)
{
	int64_t index = (int64_t)row * ((cols + DECODE_CHUNK - 1) / DECODE_CHUNK) + chunk;
	decode_offsets next = p.offsets[index];
	int counts = p.counts[index * 32 + lane], count = counts & ~DECODE_HALF, q = 0;
	int most = __reduce_max_sync(0xffffffffU, count);
	unsigned below = (1U << lane) - 1, with_half = __ballot_sync(0xffffffffU, counts & DECODE_HALF);
	out += (int64_t)chunk * DECODE_CHUNK;
	cols -= chunk * DECODE_CHUNK;
	for (int g = 0; g < most; g++) {
		unsigned active = __ballot_sync(0xffffffffU, g < count);
		int64_t i = next.whole + __popc(active & below);
		if (g < count)
			q = decode_put_granule(out, (const T *)p.values + i * DECODE_GRANULE, p.positions[i], DECODE_GRANULE, q,
								   lane, cols);
		next.whole += __popc(active);
	}
	int64_t i = next.half + __popc(with_half & below);
	if (counts & DECODE_HALF)
		decode_put_granule(out, (const T *)p.half_values + i * (DECODE_GRANULE / 2), p.half_gaps[i], DECODE_GRANULE / 2,
						   q, lane, cols);
}

template <typename T, typename U>
__global__ void decode_expand_kernel(decode_part p, int form, int cols, U *out, int64_t stride)
{
	int lane = threadIdx.x % 32, row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
	if (row >= p.rows)
		return;
	out += row * stride;
	for (int c = lane; c < cols; c += 32)
		fp_cuda_store(out + c, form == 0 ? fp_cuda_load((const T *)(p.values + row * p.vectors) + c) : 0.0f);
	__syncwarp();
	int chunks = (cols + DECODE_CHUNK - 1) / DECODE_CHUNK, steps = (cols + DECODE_STEP - 1) / DECODE_STEP;
	for (int chunk = 0; form == 1 && chunk < chunks; chunk++)
		decode_expand_gaps<T>(p, row, chunk, lane, cols, out);
	for (int step = 0; form == 2 && step < steps; step++) {
		uint32_t bits = p.positions[((int64_t)row * ((steps + 1) / 2) + step / 2) * 32 + lane] >> (16 * (step % 2));
		const T *values = (const T *)p.values + (((int64_t)row * steps + step) * 32 + lane) * DECODE_GRANULE;
		for (int i = 0; i < DECODE_GRANULE; i++)
			decode_put(out, values + i, (int64_t)step * DECODE_STEP + i / 2 * 128 + lane * 4 + (bits >> (2 * i) & 3),
					   cols);
	}
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
