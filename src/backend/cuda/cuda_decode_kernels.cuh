/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_decode_kernels.cuh: products of up to eight rows with held weights; cuda_decode_layout.cuh says how they lie. */
#ifndef FP_BACKEND_CUDA_DECODE_KERNELS_CUH
#define FP_BACKEND_CUDA_DECODE_KERNELS_CUH

#include "backend/cuda/cuda_decode_layout.cuh"
#include "backend/cuda/cuda_decode_stream.cuh"
#include "backend/cuda/cuda_entries.cuh"

enum {
	DECODE_UNITS = 8,
	DECODE_WARP_RING = DECODE_UNITS * DECODE_UNIT, /* bytes */
	DECODE_PARTS = 4,
};

/* The rows of all parts are divided evenly among the blocks, those of a block among its warps: where a warp begins. */
template <int WARPS> __device__ static inline int64_t decode_first_row(int64_t rows, int block, int blocks, int warp)
{
	int64_t begin = rows * block / blocks;
	int count = (int)(rows * (block + 1) / blocks - begin);
	return begin + count * warp / WARPS;
}

/* One matrix. */
struct decode_part {
	const char *values;
	const uint32_t *offsets; /* of rows, in units of 16 bytes; or null, and all rows have row_bytes */
	int64_t row_bytes;
	float *y;
	__nv_bfloat16 *narrow_y; /* instead of y */
	int64_t y_stride;
	int rows;
	int first_row; /* among the rows of all parts */
	__device__ const char *row_at(int64_t row) const
	{
		return values + (offsets ? (int64_t)offsets[row] * 16 : row * row_bytes);
	}
};

struct decode_arguments {
	decode_part part[DECODE_PARTS];
	int parts;
	int64_t rows; /* of all parts */
	const float *x;
	const __nv_bfloat16 *narrow_x; /* instead of x */
	int64_t x_stride;
	int batch; /* rows of x, at most the kernel's */
	bool add;  /* to y */
	int cols;
	bool resident; /* all of x is in shared memory at once, not one chunk */
};

/* sums[b] + w · x[b], where x[0…B) stand at an address of shared memory. */
template <int B> __device__ static inline void decode_add(float sums[B], float w, unsigned at)
{
	if constexpr (B == 1) {
		float x;
		decode_shared_load(at, x);
		sums[0] = fmaf(w, x, sums[0]);
	} else if constexpr (B == 2) {
		float2 x;
		decode_shared_load(at, x);
		sums[0] = fmaf(w, x.x, sums[0]), sums[1] = fmaf(w, x.y, sums[1]);
	} else {
#pragma unroll
		for (int b = 0; b < B; b += 4) {
			float4 x;
			decode_shared_load(at + 4 * b, x);
			sums[b] = fmaf(w, x.x, sums[b]), sums[b + 1] = fmaf(w, x.y, sums[b + 1]);
			sums[b + 2] = fmaf(w, x.z, sums[b + 2]), sums[b + 3] = fmaf(w, x.w, sums[b + 3]);
		}
	}
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

/* Eight values of T, one vector or two, at an offset of the stream. */
template <typename T> struct decode_granule {
	static const int BYTES = DECODE_GRANULE * sizeof(T);
	uint4 v[sizeof(T) / 2];
	template <typename S> __device__ void load(const S &stream, unsigned offset)
	{
#pragma unroll
		for (int i = 0; i < (int)sizeof(T) / 2; i++)
			v[i] = stream.template load<uint4>(offset + i * 16);
	}
	__device__ float entry(int i) const
	{
		const int in_vector = 16 / (int)sizeof(T);
		return decode_entry(v[i / in_vector], i % in_vector, (const T *)nullptr);
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
 * behind them up to a whole step. */
template <int B, int V> __device__ static void decode_load_x(float *xs, const decode_arguments &a, int first, int cols)
{
	int groups = (cols + DECODE_STEP - 1) / DECODE_STEP * (DECODE_STEP / V);
	for (int group = threadIdx.x; group < groups; group += blockDim.x) {
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
}

/* --- a row of each form ------------------------------------------------------------------------------------------ */

/*
 * A form says how a row's part of a chunk is added to the lane's sums. `at` is the shared address of the lane's first
 * column of the chunk. WINDOW: units of the stream that it reads at once, and one more.
 *
 * Instructions: at 4.8 TB/s each of 132 processors gets 20 bytes in a cycle of 1.75 GHz, in which it issues 4
 * instructions of a warp: 100 for 512 bytes. Eight entries of each lane, 512 bytes if dense, take 24 instructions
 * (unpack, read x, multiply) and some twenty for the stream; eight nonzeros of each lane with their gaps, 640 bytes,
 * about 80; the same of 2:4, 576 bytes, 60. Dense rows wait for the memory. Sparse ones, which are not far below the
 * limit, were measured to wait for their instructions too.
 */
template <typename T> struct decode_dense {
	static const int V = 16 / sizeof(T), WINDOW = 3;
	__device__ static int chunk_columns(int)
	{
		return DECODE_CHUNK;
	}
	template <int B> __device__ static void vector(float sums[B], const uint4 &v, unsigned at)
	{
#pragma unroll
		for (int j = 0; j < V; j++)
			decode_add<B>(sums, decode_entry(v, j, (const T *)nullptr), at + j * 128 * B);
	}
	template <int B, typename S>
	__device__ static void add(float sums[B], S &stream, int chunk, int cols, unsigned at, int lane)
	{
		const int per_chunk = DECODE_CHUNK / V;
		int vectors = min(per_chunk, (cols + V - 1) / V - chunk * per_chunk);
		for (; vectors >= 64; vectors -= 64, at += 2 * V * 128 * B) {
			stream.fetch();
			uint4 v = stream.template load<uint4>(lane * 16), w = stream.template load<uint4>(DECODE_UNIT + lane * 16);
			vector<B>(sums, v, at);
			vector<B>(sums, w, at + V * 128 * B);
			stream.advance(2 * DECODE_UNIT);
		}
		for (; vectors > 0; vectors -= 32, at += V * 128 * B) {
			stream.fetch();
			if (lane < vectors)
				vector<B>(sums, stream.template load<uint4>(lane * 16), at);
			stream.advance(min(32, vectors) * 16);
		}
	}
};

template <typename T> struct decode_mask {
	static const int V = 4, WINDOW = sizeof(T) == 2 ? 4 : 6;
	__device__ static int chunk_columns(int cols)
	{
		return decode_mask_chunk(cols);
	}
	/* Address of the entry behind the gaps whose sum is in byte i of `sums_of_gaps`. */
	template <int B> __device__ static unsigned place(unsigned sums_of_gaps, int i, unsigned at)
	{
		if constexpr (B == 1) /* 128 in byte i */
			return __dp4a(sums_of_gaps, 0x80U << (8 * i), at);
		else
			return at + (sums_of_gaps >> (8 * i) & 0xffU) * (128 * B);
	}
	/* The lane's eight columns: sums of gaps by a multiplication, in the bytes of `odd` for entries 1, 3, 5, 7 and of
	 * `even` for the others. Returns the address behind the last one. */
	template <int B>
	__device__ static unsigned granule(float sums[B], const decode_granule<T> &v, unsigned gaps, unsigned at)
	{
		unsigned second = gaps >> 4 & 0x0f0f0f0fU;
		unsigned odd = ((gaps & 0x0f0f0f0fU) + second) * 0x01010101U, even = odd - second;
#pragma unroll
		for (int i = 0; i < DECODE_GRANULE; i++)
			decode_add<B>(sums, v.entry(i), place<B>(i % 2 ? odd : even, i / 2, at) + i * 128 * B);
		return at + (odd >> 24) * (128 * B) + DECODE_GRANULE * 128 * B;
	}
	/* `at` is the address of the chunk's first column. */
	template <int B, typename S>
	__device__ static void strays(float sums[B], S &stream, unsigned count, unsigned at, int lane)
	{
		const int at_once = 4;
		for (unsigned done = 0; done < count; done += 32 * at_once) {
			stream.fetch();
#pragma unroll
			for (int u = 0; u < at_once; u++) {
				unsigned i = u * 32 + lane, offset = i * 2 * sizeof(T);
				if (done + i >= count)
					continue;
				if constexpr (sizeof(T) == 2) {
					uint32_t both = stream.template load<uint32_t>(offset);
					decode_add<B>(sums, decode_entry(uint4{both, 0, 0, 0}, 0, (const T *)nullptr),
								  at + (both >> 16) * (4 * B));
				} else {
					uint2 both = stream.template load<uint2>(offset);
					decode_add<B>(sums, __uint_as_float(both.x), at + (both.y & 0xffffU) * (4 * B));
				}
			}
			stream.advance((min(32U * at_once, count - done) * 2 * (unsigned)sizeof(T) + 15) & ~15U);
		}
	}
	template <int B, typename S> __device__ static void add(float sums[B], S &stream, int, int, unsigned at, int lane)
	{
		const int bytes = decode_granule<T>::BYTES, all_bytes = 128 + 32 * bytes;
		float others[B] = {}; /* two chains of sums */
		unsigned first = at - lane * 4 * B;
		stream.fetch();
		uint2 head = stream.template load<uint2>(0); /* decode_chunk_head */
		stream.advance(DECODE_HEADER);
		int granules = (int)head.x;
		for (; granules >= 2; granules -= 2) {
			decode_granule<T> v[2];
			unsigned gaps[2];
			stream.fetch();
#pragma unroll
			for (int u = 0; u < 2; u++) {
				gaps[u] = stream.template load<uint32_t>(u * all_bytes + lane * 4);
				v[u].load(stream, u * all_bytes + 128 + lane * bytes);
			}
			at = granule<B>(sums, v[0], gaps[0], at);
			at = granule<B>(others, v[1], gaps[1], at);
			stream.advance(2 * all_bytes);
		}
		if (granules > 0) {
			decode_granule<T> v;
			stream.fetch();
			v.load(stream, 128 + lane * bytes);
			granule<B>(sums, v, stream.template load<uint32_t>(lane * 4), at);
			stream.advance(all_bytes);
		}
		strays<B>(others, stream, head.y, first, lane);
#pragma unroll
		for (int b = 0; b < B; b++)
			sums[b] += others[b];
	}
};

template <typename T> struct decode_pairs {
	static const int V = 4, WINDOW = sizeof(T) == 2 ? 4 : 6;
	__device__ static int chunk_columns(int)
	{
		return DECODE_CHUNK;
	}
	/* Bits 7 and 8 of `at` are zero if B is 1: shared memory and the rings before x are aligned to 512. */
	template <int B>
	__device__ static void granule(float sums[B], const decode_granule<T> &v, unsigned bits, unsigned at)
	{
#pragma unroll
		for (int i = 0; i < DECODE_GRANULE; i++) {
			unsigned bit = 2 * i < 7 ? bits << (7 - 2 * i) : bits >> (2 * i - 7); /* the position times 128 */
			unsigned place = B == 1 ? (bit & 0x180U) | at : at + (bit & 0x180U) * B;
			decode_add<B>(sums, v.entry(i), place + i / 2 * 512 * B);
		}
	}
	template <int B, typename S>
	__device__ static void add(float sums[B], S &stream, int chunk, int cols, unsigned at, int lane)
	{
		const int per_chunk = DECODE_CHUNK / DECODE_STEP, bytes = decode_granule<T>::BYTES;
		int steps = min(per_chunk, (cols + DECODE_STEP - 1) / DECODE_STEP - chunk * per_chunk);
		for (int step = 0; step < steps; step += 2) {
			decode_granule<T> v[2];
			bool two = step + 1 < steps;
			stream.fetch();
			unsigned bits = stream.template load<uint32_t>(lane * 4);
			v[0].load(stream, 128 + lane * bytes);
			if (two)
				v[1].load(stream, 128 + 32 * bytes + lane * bytes);
			granule<B>(sums, v[0], bits, at);
			if (two)
				granule<B>(sums, v[1], bits >> 16, at + DECODE_STEP * 4 * B);
			at += 2 * DECODE_STEP * 4 * B;
			stream.advance(128 + (two ? 2 : 1) * 32 * bytes);
		}
	}
};

/* --- products ---------------------------------------------------------------------------------------------------- */

__device__ static inline const decode_part &decode_part_of(const decode_arguments &a, int64_t row)
{
	int part = 0;
	while (part + 1 < a.parts && row >= a.part[part + 1].first_row)
		part++;
	return a.part[part];
}

/* y[b][row] ← or + the lanes' sums. */
template <int B>
__device__ static inline void decode_put_sums(const decode_arguments &a, const decode_part &p, int64_t row,
											  const float sums[B], int lane)
{
#pragma unroll
	for (int b = 0; b < B; b++) {
		float sum = sums[b];
		for (int offset = 16; offset > 0; offset /= 2)
			sum += __shfl_xor_sync(0xffffffffU, sum, offset);
		int64_t at = b * p.y_stride + row;
		if (lane == 0 && b < a.batch) {
			if (p.narrow_y)
				fp_cuda_store(p.narrow_y + at, a.add ? fp_cuda_load(p.narrow_y + at) + sum : sum);
			else
				p.y[at] = a.add ? p.y[at] + sum : sum;
		}
	}
}

/* A warp multiplies a row with all rows of x. */
template <typename Form, int B, int WARPS>
__global__ void __launch_bounds__(WARPS * 32, B <= 2 ? 32 / WARPS : 1)
	decode_kernel(const __grid_constant__ decode_arguments a)
{
	extern __shared__ __align__(512) char decode_shared[];
	static_assert(DECODE_WARP_RING % 512 == 0, "decode_pairs needs it");
	float *xs = (float *)(decode_shared + WARPS * DECODE_WARP_RING);
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	int64_t row = decode_first_row<WARPS>(a.rows, blockIdx.x, gridDim.x, warp);
	int64_t end = decode_first_row<WARPS>(a.rows, blockIdx.x, gridDim.x, warp + 1);
	int count = (int)(a.rows * (blockIdx.x + 1) / gridDim.x - a.rows * blockIdx.x / gridDim.x);
	int64_t stream_end = row; /* of the rows of this part */
	int chunk_columns = Form::chunk_columns(a.cols), chunks = (a.cols + chunk_columns - 1) / chunk_columns;
	unsigned first = decode_shared_address(xs + lane * B); /* column of the lane */
	const decode_part *p = a.part;
	decode_stream<DECODE_UNITS, Form::WINDOW> stream(decode_shared_address(decode_shared + warp * DECODE_WARP_RING),
													 lane);
	auto begin_part = [&] {
		p = &decode_part_of(a, row);
		stream_end = min(end, (int64_t)p->first_row + p->rows);
		stream.begin(p->row_at(row - p->first_row), p->row_at(stream_end - p->first_row));
	};
	if (row < end)
		begin_part();
	decode_let_next_begin();
	decode_wait_for_inputs();
	if (a.resident) {
		decode_load_x<B, Form::V>(xs, a, 0, a.cols);
		__syncthreads();
	}
	for (int round = 0; round * WARPS < count; round++, row++) { /* as many for each warp, because of x */
		float sums[B] = {};
		if (row < end && row == stream_end)
			begin_part();
		for (int chunk = 0; chunk < chunks; chunk++) {
			if (!a.resident) {
				__syncthreads();
				decode_load_x<B, Form::V>(xs, a, chunk * chunk_columns,
										  min(chunk_columns, a.cols - chunk * chunk_columns));
				__syncthreads();
			}
			if (row < end)
				Form::template add<B>(sums, stream, chunk, a.cols,
									  first + (a.resident ? chunk * chunk_columns * 4 * B : 0), lane);
		}
		if (row < end)
			decode_put_sums<B>(a, *p, row - p->first_row, sums, lane);
	}
}

#endif
