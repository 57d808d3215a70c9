/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hopper_ring.cuh: pairs of tiles of two matrices, such as keys and values, that one group of four warps copies into a
 * ring in shared memory for the groups that multiply.
 *
 * A tile is stored for wgmma (hopper_mma.cuh). Each place of the ring has two barriers: `full` ends a phase when all
 * threads of the loading group have their part of a pair in place, `empty` when all that multiply have read it: the first
 * thread of each warp tells it after the products, or every thread if they read more than the tiles.
 */
#ifndef FP_BACKEND_CUDA_HOPPER_RING_CUH
#define FP_BACKEND_CUDA_HOPPER_RING_CUH

#include "backend/cuda/cuda_flash_parts.cuh"
#include "backend/cuda/hopper/hopper_mma.cuh"

enum { HOPPER_GROUP = 128 }; /* threads of a group */

/* ROWS rows of D numbers. */
template <int D, int ROWS> struct hopper_tile {
	static constexpr unsigned part = ROWS * HOPPER_TILE_ROW; /* bytes of 64 columns */
	static constexpr unsigned bytes = D / HOPPER_TILE_COLUMNS * part;

	/* Starts to copy rows from `first` on; those from `length` on are zeros. */
	__device__ static void load(unsigned to, const __nv_bfloat16 *from, int64_t stride, int first, int length)
	{
		constexpr int pieces = D / 8;
#pragma unroll 2
		for (int i = 0; i < ROWS * pieces / HOPPER_GROUP; i++) {
			int at = i * HOPPER_GROUP + (int)threadIdx.x % HOPPER_GROUP, row = at / pieces, piece = at % pieces;
			bool valid = first + row < length;
			unsigned place = (unsigned)(piece / 8) * part + (unsigned)(row * HOPPER_TILE_ROW) +
							 (unsigned)((piece % 8 ^ (row & 7)) * 16);
			copy_async(to + place, from + (valid ? first + row : 0) * stride + piece * 8, valid);
		}
	}
	/* The 16 columns from 16·step on, as an operand whose rows are multiplied; `at` may be any eighth row. */
	__device__ static uint64_t columns(unsigned at, int step)
	{
		constexpr int steps = HOPPER_TILE_COLUMNS / 16; /* in a part */
		return hopper_matrix(at + (unsigned)(step / steps) * part + (unsigned)(step % steps) * 32, 16,
							 8 * HOPPER_TILE_ROW);
	}
	/* The 16 rows from 16·step on, as an operand whose columns are multiplied. */
	__device__ static uint64_t rows(unsigned at, int step)
	{
		return hopper_matrix(at + (unsigned)step * 16 * HOPPER_TILE_ROW, part, 8 * HOPPER_TILE_ROW);
	}
};

template <int D, int ROWS, int STAGES> struct hopper_ring {
	using tile = hopper_tile<D, ROWS>;
	static constexpr unsigned bytes = STAGES * 2 * tile::bytes;
	unsigned base, full, empty; /* addresses; STAGES barriers each */
	unsigned count;             /* of pairs so far */

	/* By the first threads of a block, before it synchronises. */
	__device__ void init_barriers(unsigned readers) const
	{
		if (threadIdx.x < STAGES) {
			hopper_barrier_init(full + threadIdx.x * 8, HOPPER_GROUP);
			hopper_barrier_init(empty + threadIdx.x * 8, readers);
		}
	}
	__device__ unsigned place() const
	{
		return count % STAGES;
	}
	__device__ unsigned first() const
	{
		return base + place() * 2 * tile::bytes;
	}
	__device__ unsigned second() const
	{
		return first() + tile::bytes;
	}
	__device__ unsigned full_barrier() const
	{
		return full + place() * 8;
	}
	__device__ unsigned empty_barrier() const
	{
		return empty + place() * 8;
	}
	__device__ unsigned parity() const
	{
		return count / STAGES & 1;
	}
	__device__ void wait_until_full() const
	{
		hopper_barrier_wait(full_barrier(), parity());
	}
	__device__ void wait_until_empty() const
	{
		if (count >= STAGES)
			hopper_barrier_wait(empty_barrier(), parity() ^ 1);
	}
};

/* Announces the copies of the loading group, each when the next one has been asked for. That one waits for a place; the
 * groups that multiply give back the place of a pair when they have the first product of the next, so a ring must have at
 * least three. */
struct hopper_announcer {
	unsigned before; /* the barrier to be told; 0: none */

	__device__ void announce()
	{
		hopper_publish();
		hopper_barrier_arrive(before);
	}
	/* What was asked for since the last call is for `barrier`. */
	__device__ void asked(unsigned barrier)
	{
		copy_commit();
		if (before) {
			copy_wait<1>();
			announce();
		}
		before = barrier;
	}
	__device__ void finish()
	{
		if (before) {
			copy_wait<0>();
			announce();
		}
	}
};

/* out ← out + p·B, or p·B for the first tile: p holds 64 × ROWS numbers, B is a tile. */
template <int D, int ROWS>
__device__ static inline void hopper_apply(float (&out)[D / 8][4], const unsigned (&p)[ROWS / 16][4], unsigned tile,
										   bool first)
{
#pragma unroll
	for (int step = 0; step < ROWS / 16; step++)
		hopper_mma<1>(out, p[step], hopper_tile<D, ROWS>::rows(tile, step), !first || step > 0);
	hopper_mma_commit();
}

/* p ← s as left operands in bf16 */
template <int ROWS>
__device__ static inline void hopper_pack(unsigned (&p)[ROWS / 16][4], const float (&s)[ROWS / 8][4])
{
#pragma unroll
	for (int step = 0; step < ROWS / 16; step++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			p[step][i] = pack(s[2 * step + i / 2][i % 2 * 2], s[2 * step + i / 2][i % 2 * 2 + 1]);
}

#endif
