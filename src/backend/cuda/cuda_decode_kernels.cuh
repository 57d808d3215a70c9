/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_decode_kernels.cuh: products of up to eight rows with held weights; cuda_decode_layout.cuh says how they lie. */
#ifndef FP_BACKEND_CUDA_DECODE_KERNELS_CUH
#define FP_BACKEND_CUDA_DECODE_KERNELS_CUH

#include "backend/cuda/cuda_decode_layout.cuh"
#include "backend/cuda/cuda_decode_stream.cuh"
#include "backend/cuda/cuda_entries.cuh"

#include <type_traits>

enum {
	DECODE_UNITS = 8,
	DECODE_PARTS = 4,
};

/* One matrix. */
struct decode_part {
	const char *values;
	int64_t row_bytes;             /* unless it is a mask */
	const decode_counts *counts;   /* of a mask: before each chunk of each row, and all */
	const char *strays;            /* of a mask */
	uint8_t granules[DECODE_SAME]; /* of a mask: of each chunk of all rows */
	int row_granules;              /* their sum; 0: as `counts` says */
	int copies;                    /* of a mask: of x in shared memory */
	float *y;
	__nv_bfloat16 *narrow_y; /* instead of y */
	int64_t y_stride;
	int rows;
	int first_row; /* among the rows of all parts */
};

struct decode_arguments {
	decode_part part[DECODE_PARTS];
	int parts;
	int64_t rows;                  /* of all parts */
	int block_rows, longer_blocks; /* rows of a block; so many of the first blocks have one more */
	const float *x;
	const __nv_bfloat16 *narrow_x; /* instead of x */
	int64_t x_stride;
	int copies; /* of x in shared memory */
	bool fours; /* every row of x begins at a multiple of four entries, and ends at one */
	int batch;  /* rows of x, at most the kernel's */
	bool add;   /* to y */
	int cols;
	int chunks;    /* of a row */
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

/* Four columns of x, as they lie in memory. */
template <typename T> struct decode_four {
	typename std::conditional<sizeof(T) == 2, uint2, uint4>::type bits;
	__device__ float entry(int i) const
	{
		if constexpr (sizeof(T) == 2)
			return decode_entry(uint4{bits.x, bits.y, 0, 0}, i, (const T *)nullptr);
		else
			return decode_entry(bits, i, (const T *)nullptr);
	}
};

/* Entry of lane and q to where it stands in shared memory, once or twice (cuda_decode_layout.cuh). */
template <int B, bool TWICE>
__device__ static inline void decode_store_x(float *xs, const decode_arguments &a, int q, int lane, int b, float value)
{
	if (TWICE && a.copies == 2) {
		xs[(2 * q * 32 + lane) * B + b] = value;
		xs[((2 * q + 1) * 32 + (lane + q) % 32) * B + b] = value;
	} else {
		xs[(q * 32 + lane) * B + b] = value;
	}
}

/* xs ← columns [first, first + cols) of x, where a lane owns every 32nd group of V columns; zeros behind them up to a
 * whole step. Rows of x begin and end at multiples of four entries. A thread asks for several groups before it waits for
 * the first, because each takes about half a microsecond to arrive; it calls meanwhile() once before it waits. */
template <int B, int V, bool TWICE, typename T, typename Meanwhile>
__device__ static void decode_load_fours(float *xs, const T *x, const decode_arguments &a, int first, int cols,
										 Meanwhile meanwhile)
{
	const int registers = TWICE ? 16 : 24; /* if T is float; with more the kernel of a mask would spill */
	const int at_once = B * V < registers ? registers / (B * V) : 1;
	int groups = (cols + DECODE_STEP - 1) / DECODE_STEP * (DECODE_STEP / V), threads = (int)blockDim.x;
	int begin = (int)threadIdx.x;
	do {
		decode_four<T> in[at_once * B * V / 4] = {};
#pragma unroll
		for (int i = 0; i < at_once * B * V / 4; i++) {
			int b = i / (V / 4) % B, column = (begin + i / (B * V / 4) * threads) * V + i % (V / 4) * 4;
			if (column < cols && b < a.batch)
				in[i] = *(const decode_four<T> *)(x + b * a.x_stride + first + column);
		}
		if (begin == (int)threadIdx.x)
			meanwhile();
#pragma unroll
		for (int u = 0; u < at_once; u++) {
			int group = begin + u * threads, q = group / 32 * V, lane = group % 32;
#pragma unroll
			for (int i = 0; i < V * B && group < groups; i++)
				decode_store_x<B, TWICE>(xs, a, q + i / B, lane, i % B,
										 in[(u * B + i % B) * (V / 4) + i / B / 4].entry(i / B % 4));
		}
		begin += at_once * threads;
	} while (begin < groups);
}

/* The same, for any x. */
template <int B, int V, bool TWICE, typename T>
__device__ static void decode_load_entries(float *xs, const T *x, const decode_arguments &a, int first, int cols)
{
	int all = (cols + DECODE_STEP - 1) / DECODE_STEP * DECODE_STEP;
	for (int column = (int)threadIdx.x; column < all; column += (int)blockDim.x) {
		int group = column / V, q = group / 32 * V + column % V, lane = group % 32;
		for (int b = 0; b < B; b++)
			decode_store_x<B, TWICE>(xs, a, q, lane, b,
									 column < cols && b < a.batch ? fp_cuda_load(x + b * a.x_stride + first + column)
																  : 0.0f);
	}
}

template <int B, int V, bool TWICE, typename Meanwhile>
__device__ static void decode_load_x(float *xs, const decode_arguments &a, int first, int cols, Meanwhile meanwhile)
{
	if (a.narrow_x && a.fours) {
		decode_load_fours<B, V, TWICE>(xs, a.narrow_x, a, first, cols, meanwhile);
	} else if (a.fours) {
		decode_load_fours<B, V, TWICE>(xs, a.x, a, first, cols, meanwhile);
	} else {
		meanwhile();
		if (a.narrow_x)
			decode_load_entries<B, V, TWICE>(xs, a.narrow_x, a, first, cols);
		else
			decode_load_entries<B, V, TWICE>(xs, a.x, a, first, cols);
	}
}

/* --- a row of each form ------------------------------------------------------------------------------------------ */

/* Rows of a part that all have row_bytes. */
template <int WINDOW> struct decode_equal_rows : decode_stream<DECODE_UNITS, WINDOW> {
	using decode_stream<DECODE_UNITS, WINDOW>::decode_stream;
	/* Rows [row, end) of a part. */
	__device__ void begin_rows(const decode_part &p, int row, int end, int)
	{
		this->begin(p.values + row * p.row_bytes, p.values + end * p.row_bytes);
	}
	__device__ void begin_rest()
	{
	}
};

/*
 * A form says how the bytes of rows come (`reader`) and how a row's part of a chunk is added to the lane's sums. `at` is
 * the shared address of the lane's first place in the chunk. WINDOW: units of a stream that it reads at once, and one
 * more. A reader's RING: bytes of shared memory of a warp. ONE_BLOCK: if x is long, one block on a processor, which
 * reads x once, was measured faster than two. TWICE: x may be in shared memory twice.
 *
 * Instructions: at 4.8 TB/s each of 132 processors gets 20 bytes in a cycle of 1.75 GHz, in which it issues 4
 * instructions of a warp: 100 for 512 bytes. Eight entries of each lane, 512 bytes if dense, take 24 instructions
 * (unpack, read x, multiply) and some twenty for the stream; eight nonzeros of each lane with their gaps, 640 bytes,
 * about 80; the same of 2:4, 576 bytes, 60. Dense rows wait for the memory. Sparse ones, which are not far below the
 * limit, were measured to wait for their instructions too.
 */
template <typename T> struct decode_dense {
	static const int V = 16 / sizeof(T);
	static const bool ONE_BLOCK = false, TWICE = false;
	template <int B> using reader = decode_equal_rows<3>;
	template <int B> __device__ static void vector(float sums[B], const uint4 &v, unsigned at)
	{
#pragma unroll
		for (int j = 0; j < V; j++)
			decode_add<B>(sums, decode_entry(v, j, (const T *)nullptr), at + j * 128 * B);
	}
	template <int B>
	__device__ static void add(float sums[B], reader<B> &stream, int chunk, int cols, unsigned at, int lane)
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

/* The chunks of rows of a mask, one after the other. */
template <typename T, int SLOTS> struct decode_mask_rows {
	static const int AT_ONCE = sizeof(T) == 2 ? 2 : 1; /* granules of a block */
	static const int GRANULE_BYTES = (int)decode_granule_bytes(sizeof(T));
	static const int RING = SLOTS * AT_ONCE * GRANULE_BYTES;
	decode_blocks<AT_ONCE * GRANULE_BYTES, SLOTS> blocks;
	bool half; /* of the block at hand one granule was read */
	const decode_part *part;
	decode_counts before, behind;       /* the chunk at hand */
	const decode_counts *counts, *last; /* of `behind`, and at the end of the rows */

	__device__ decode_mask_rows(unsigned memory, int lane) : blocks(memory, lane)
	{
	}
	__device__ void begin_rows(const decode_part &p, int row, int end, int chunks)
	{
		counts = p.counts + (int64_t)row * chunks;
		last = p.counts + (int64_t)end * chunks;
		part = &p;
		int64_t first = (int64_t)row * p.row_granules;
		int count = (end - row) * p.row_granules;
		if (p.row_granules == 0) {
			first = counts->granules;
			count = (int)(last->granules - counts->granules);
		}
		blocks.begin(p.values + first * GRANULE_BYTES, count * GRANULE_BYTES);
		half = false;
		behind = *counts;
		go_on();
	}
	/* Follows begin_rows(). */
	__device__ void begin_rest()
	{
		blocks.begin_last();
	}
	/* Of the chunk at hand, which has this number in its row. */
	__device__ int granules(int chunk) const
	{
		return part->row_granules > 0 ? part->granules[chunk] : (int)(behind.granules - before.granules);
	}
	/* To the next chunk: its counts are on their way while the one before is multiplied. */
	__device__ void go_on()
	{
		before = behind;
		if (counts < last)
			behind = *++counts;
	}
};

template <typename T> struct decode_mask {
	static const int V = 4;
	static const bool ONE_BLOCK = true, TWICE = true;
	/* four rows of x, twice, and 32 warps leave no room for a third slot */
	template <int B> using reader = decode_mask_rows<T, B == 4 ? 2 : 3>;
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
	/* The next granule; sums and others change places, so that each sum gets every second one of a chunk. */
	template <int B>
	__device__ static unsigned single(float sums[B], float others[B], reader<B> &r, unsigned at, int lane)
	{
		unsigned offset = r.half ? reader<B>::GRANULE_BYTES : 0;
		decode_granule<T> v;
		v.load(r.blocks, offset + 128 + lane * decode_granule<T>::BYTES);
		at = granule<B>(sums, v, r.blocks.template load<uint32_t>(offset + lane * 4), at);
#pragma unroll
		for (int b = 0; b < B; b++) {
			float sum = sums[b];
			sums[b] = others[b];
			others[b] = sum;
		}
		r.half = reader<B>::AT_ONCE == 2 && !r.half;
		if (!r.half)
			r.blocks.release();
		return at;
	}
	/* A stray's bits; at: the address of the chunk's first column. */
	template <int B> __device__ static void add_stray(float sums[B], uint32_t bits, unsigned at)
	{
		decode_add<B>(sums, decode_entry(uint4{bits, 0, 0, 0}, 0, (const T *)nullptr), at + (bits >> 16) * (4 * B));
	}
	template <int B> __device__ static void add_stray(float sums[B], uint2 bits, unsigned at)
	{
		decode_add<B>(sums, __uint_as_float(bits.x), at + (bits.y & 0xffffU) * (4 * B));
	}
	template <int B> __device__ static void add(float sums[B], reader<B> &r, int chunk, int, unsigned at, int lane)
	{
		typedef typename std::conditional<sizeof(T) == 2, uint32_t, uint2>::type stray_bits;
		const int all_bytes = reader<B>::GRANULE_BYTES, bytes = decode_granule<T>::BYTES,
				  early = B == 4 ? 1 : DECODE_EARLY / 32;
		int granules = r.granules(chunk);
		float others[B] = {}; /* two chains of sums */
		unsigned first = at - lane * 4 * B;
		if (reader<B>::AT_ONCE == 2 && r.half && granules > 0) {
			at = single<B>(sums, others, r, at, lane);
			granules--;
		}
		auto multiply = [&](int count) {
			for (; count > 0; count--) {
				r.blocks.advance();
				if constexpr (reader<B>::AT_ONCE == 1) {
					at = single<B>(sums, others, r, at, lane);
				} else {
					decode_granule<T> v[2];
					unsigned gaps[2];
#pragma unroll
					for (int u = 0; u < 2; u++) {
						gaps[u] = r.blocks.template load<uint32_t>(u * all_bytes + lane * 4);
						v[u].load(r.blocks, u * all_bytes + 128 + lane * bytes);
					}
					r.blocks.release();
					at = granule<B>(sums, v[0], gaps[0], at);
					at = granule<B>(others, v[1], gaps[1], at);
				}
			}
		};
		/* The strays are on their way while the second half of the blocks is multiplied; the first half does not wait for
		 * their number. */
		int blocks = granules / reader<B>::AT_ONCE;
		multiply(blocks / 2);
		int strays = (int)(r.behind.strays - r.before.strays);
		const stray_bits *from = (const stray_bits *)(const void *)r.part->strays + r.before.strays + lane;
		stray_bits stray[early];
#pragma unroll
		for (int u = 0; u < early; u++)
			if (u * 32 + lane < strays)
				stray[u] = __ldg(from + u * 32);
		r.go_on();
		multiply(blocks - blocks / 2);
		if (granules > blocks * reader<B>::AT_ONCE) {
			r.blocks.advance();
			at = single<B>(sums, others, r, at, lane);
		}
#pragma unroll
		for (int u = 0; u < early; u++)
			if (u * 32 + lane < strays)
				add_stray<B>(others, stray[u], first);
		for (int i = early * 32 + lane; i < strays; i += 32)
			add_stray<B>(others, __ldg(from + i - lane), first);
#pragma unroll
		for (int b = 0; b < B; b++)
			sums[b] += others[b];
	}
};

template <typename T> struct decode_pairs {
	static const int V = 4;
	static const bool ONE_BLOCK = false, TWICE = false;
	static_assert(DECODE_UNITS * DECODE_UNIT % 512 == 0, "granule() needs it");
	template <int B> using reader = decode_equal_rows<sizeof(T) == 2 ? 4 : 6>;
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
	template <int B>
	__device__ static void add(float sums[B], reader<B> &stream, int chunk, int cols, unsigned at, int lane)
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

__device__ static inline const decode_part &decode_part_of(const decode_arguments &a, int row)
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

/* A warp multiplies a row with all rows of x. WARPS: the most of a block. */
template <typename Form, int B, int WARPS>
__global__ void __launch_bounds__(WARPS * 32, B <= 2 ? 32 / WARPS : 1)
	decode_kernel(const __grid_constant__ decode_arguments a)
{
	extern __shared__ __align__(512) char decode_shared[];
	const int warps = (int)blockDim.x / 32;
	const int ring = (int)Form::template reader<B>::RING;
	float *xs = (float *)(decode_shared + warps * ring);
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	/* the rows of all parts are divided evenly among the blocks, those of a block among its warps */
	int block = (int)blockIdx.x, count = a.block_rows + (block < a.longer_blocks ? 1 : 0);
	int block_row = block * a.block_rows + min(block, a.longer_blocks);
	int row = block_row + count * warp / warps, end = block_row + count * (warp + 1) / warps;
	int part_end = row;                                    /* of the rows of this part */
	unsigned first = decode_shared_address(xs + lane * B); /* column of the lane */
	const int chunk_bytes = DECODE_CHUNK * (Form::TWICE ? a.copies : 1) * B * (int)sizeof(float);
	const decode_part *p = a.part;
	typename Form::template reader<B> reader(decode_shared_address(decode_shared + warp * ring), lane);
	auto begin_part = [&] {
		p = &decode_part_of(a, row);
		part_end = min(end, p->first_row + p->rows);
		reader.begin_rows(*p, row - p->first_row, part_end - p->first_row, a.chunks);
	};
	auto begin_rest = [&] {
		if (row < end)
			reader.begin_rest();
	};
	if (row < end)
		begin_part();
	decode_let_next_begin();
	decode_wait_for_inputs();
	if (a.resident) {
		decode_load_x<B, Form::V, Form::TWICE>(xs, a, 0, a.cols, begin_rest);
		__syncthreads();
	} else {
		begin_rest();
	}
	for (int round = 0; round * warps < count; round++, row++) { /* as many for each warp, because of x */
		float sums[B] = {};
		if (row < end && row == part_end) {
			begin_part();
			begin_rest();
		}
		for (int chunk = 0; chunk < a.chunks; chunk++) {
			if (!a.resident) {
				__syncthreads();
				decode_load_x<B, Form::V, Form::TWICE>(xs, a, chunk * DECODE_CHUNK,
													   min((int)DECODE_CHUNK, a.cols - chunk * DECODE_CHUNK), [] {});
				__syncthreads();
			}
			if (row < end)
				Form::template add<B>(sums, reader, chunk, a.cols, first + (a.resident ? chunk * chunk_bytes : 0),
									  lane);
		}
		if (row < end)
			decode_put_sums<B>(a, *p, row - p->first_row, sums, lane);
	}
}

#endif
