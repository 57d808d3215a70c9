/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_flash_hopper.cu: the attention of cuda_flash.cu for Hopper, whose large products read shared memory by themselves.
 *
 * A block has a group of four warps that loads tiles of 128 keys and values into a ring, and two groups that each handle
 * 64 queries. Such a group asks for the scores of the next tile, then for the product of the current weights with their
 * values, and takes the exponentials of the new scores while that product runs. One block runs on each processor and
 * handles one piece of work after the other, the longest first, so that the ring is filled for the next piece while the
 * last one ends.
 */
#include "backend/cuda/hopper/hopper_ring.cuh"

enum {
	GROUP = HOPPER_GROUP,
	GROUPS = 2,                     /* that multiply, besides the one that loads */
	QUERIES = GROUPS * 64,          /* of a block */
	KEYS = 128,                     /* of a tile */
	STAGES = 3,                     /* tiles in the ring */
	THREADS = (GROUPS + 1) * GROUP, /* of a block */
	LOADER_REGISTERS = 40,          /* for each thread; together all that a processor has */
	GROUP_REGISTERS = 232
};

/* All queries, by sequence, head and blocks of QUERIES. */
struct flash_work {
	fp_cuda_flash f;
	int heads, sequences, items;
};

/* Block `first` of queries of one head; its keys are [begin, begin + tiles·KEYS). */
struct flash_item {
	int64_t start; /* of the sequence */
	int head, first, begin, tiles;
};

__device__ static inline flash_item item_at(const flash_work &w, int number)
{
	int blocks = (w.f.length + QUERIES - 1) / QUERIES, each = w.heads * w.sequences;
	flash_item item;
	item.first = (blocks - 1 - number / each) * QUERIES;
	item.head = number % each % w.heads;
	item.start = (int64_t)(number % each / w.heads) * w.f.length;
	item.begin = w.f.window > 0 && item.first - w.f.window + 1 > 0 ? (item.first - w.f.window + 1) / KEYS * KEYS : 0;
	item.tiles = (min(item.first + QUERIES, w.f.length) - item.begin + KEYS - 1) / KEYS;
	return item;
}

template <int D> using flash_ring = hopper_ring<D, KEYS, STAGES>;

/* The loading group: every tile of every piece of work. */
template <int D> __device__ static inline void load_all(const flash_work &w, flash_ring<D> ring)
{
	using tile = typename flash_ring<D>::tile;
	const fp_cuda_flash &f = w.f;
	hopper_announcer announcer = {0};
	for (int number = blockIdx.x; number < w.items; number += gridDim.x) {
		flash_item item = item_at(w, number);
		const __nv_bfloat16 *k = f.k + item.start * f.k_stride + item.head / f.group * D;
		const __nv_bfloat16 *v = f.v + item.start * f.v_stride + item.head / f.group * D;
		for (int j = 0; j < item.tiles; j++, ring.count++) {
			ring.wait_until_empty();
			tile::load(ring.first(), k, f.k_stride, item.begin + j * KEYS, f.length);
			tile::load(ring.second(), v, f.v_stride, item.begin + j * KEYS, f.length);
			announcer.asked(ring.full_barrier());
		}
	}
	announcer.finish();
}

/* s ← the scores of the tile at `keys` */
template <int D>
__device__ static inline void score(float (&s)[KEYS / 8][4], const unsigned (&q)[D / 16][4], unsigned keys)
{
#pragma unroll
	for (int step = 0; step < D / 16; step++)
		hopper_mma<0>(s, q[step], flash_ring<D>::tile::columns(keys, step), step > 0);
	hopper_mma_commit();
}

/* One piece of work of a group. row: the first of the warp's 16 queries. */
template <int D>
__device__ static inline void attend(const fp_cuda_flash &f, const flash_item &item, int row, flash_ring<D> &ring)
{
	int lane = threadIdx.x % 32;
	unsigned q[D / 16][4], p[KEYS / 16][4], values = 0, empty = 0;
	float s[KEYS / 8][4], out[D / 8][4], factor[2];
	running r = {{-INFINITY, -INFINITY}, {0, 0}};
	load_queries<D>(q, f.q + item.start * f.q_stride + item.head * D, f.q_stride, row, f.length);
	for (int j = 0; j < item.tiles; j++) {
		int key = item.begin + j * KEYS;
		ring.wait_until_full();
		hopper_mma_begin();
		score<D>(s, q, ring.first());
		if (j > 0) {
			hopper_apply<D, KEYS>(out, p, values, j == 1);
			hopper_mma_wait<1>();
		} else {
			hopper_mma_wait<0>();
		}
		if (key + KEYS > row || f.window > 0)
			mask_scores(s, row + lane / 4, key, f.window);
		softmax(s, f.scale, r, factor);
		if (j > 0) {
			hopper_mma_wait<0>();
			if (lane == 0)
				hopper_barrier_arrive(empty);
			scale_rows(out, factor);
		}
		hopper_pack<KEYS>(p, s);
		values = ring.second();
		empty = ring.empty_barrier();
		ring.count++;
	}
	hopper_mma_begin();
	hopper_apply<D, KEYS>(out, p, values, item.tiles == 1);
	hopper_mma_wait<0>();
	if (lane == 0)
		hopper_barrier_arrive(empty);
	write_rows<D>(f, item.start, row + lane / 4, item.head, out, r);
}

template <int D> __global__ static void __launch_bounds__(THREADS, 1) flash_kernel(const __grid_constant__ flash_work w)
{
	extern __shared__ char space[];
	__shared__ uint64_t barriers[2 * STAGES];
	flash_ring<D> ring = {(shared_address(space) + 1023) & ~1023U, shared_address(barriers),
						  shared_address(barriers + STAGES), 0};
	ring.init_barriers(GROUPS * GROUP / 32);
	__syncthreads();
	int group = (int)threadIdx.x / GROUP;
	if (group == GROUPS) {
		hopper_fewer_registers<LOADER_REGISTERS>();
		load_all<D>(w, ring);
	} else {
		hopper_more_registers<GROUP_REGISTERS>();
		for (int number = blockIdx.x; number < w.items; number += gridDim.x) {
			flash_item item = item_at(w, number);
			attend<D>(w.f, item, item.first + (int)threadIdx.x / 32 * 16, ring);
		}
	}
}

template <int D> static fp_status launch(fp_backend *be, const flash_work *work)
{
	const unsigned bytes = flash_ring<D>::bytes + 1024; /* tiles begin at multiples of 1024 */
	FP_CUDA(be, cudaFuncSetAttribute(flash_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
	unsigned blocks = (unsigned)fp_smaller(fp_cuda_state_of(be)->processors, work->items);
	flash_kernel<D><<<blocks, THREADS, bytes, fp_cuda_stream(be)>>>(*work);
	FP_LAUNCHED(be);
	return FP_OK;
}

fp_status fp_cuda_flash_hopper(fp_backend *be, const fp_cuda_flash *f, const fp_attention_shape *shape)
{
	flash_work work = {*f, (int)shape->heads, (int)shape->sequences, 0};
	work.f.scale *= LOG2_E;
	work.items = work.heads * work.sequences * ((f->length + QUERIES - 1) / QUERIES);
	return shape->head_dim == 64 ? launch<64>(be, &work) : launch<128>(be, &work);
}
