/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_flash_backward_hopper.cu: gradients of causal softmax attention on Hopper; scores never leave the chip.
 *
 *     P  = softmax(scale·QKᵀ)
 *     dP = dO Vᵀ
 *     dS = P∘(dP − rowsum(dO∘O))
 *     dQ = scale·dS K          dK = scale·dSᵀQ          dV = PᵀdO
 *
 * A sum has one fixed order if one block makes all of it. So there are two kernels, and both compute P and dP: one has a
 * block for 128 queries, walks through the keys and sums dQ; the other has a block for 128 keys, walks through the queries
 * of all heads that use them, and sums dK and dV. The first one takes the softmax on the way, as the forward pass does, and
 * leaves log₂ Σ 2^(scale·QKᵀ) and rowsum(dO∘O) of each query for the second, which computes Pᵀ and dPᵀ: these have the
 * layout of a left operand.
 *
 * The two matrices of the block's own rows (Q and dO, or K and V) stay in shared memory; those of the other rows come
 * through a ring in tiles of 64. One group of four warps loads, two groups multiply, 64 own rows each.
 */
#include "backend/cuda/hopper/hopper_ring.cuh"

#include <type_traits>

enum {
	GROUP = HOPPER_GROUP,
	GROUPS = 2,                     /* that multiply */
	OWN = GROUPS * 64,              /* rows of a block */
	OTHERS = 64,                    /* rows of a tile */
	STAGES = 4,                     /* tiles in the ring */
	THREADS = (GROUPS + 1) * GROUP, /* of a block */
	LOADER_REGISTERS = 40,          /* for each thread; together all that a processor has */
	GROUP_REGISTERS = 232
};

/* Rows of a matrix of heads, from some row and column on. */
template <typename T> struct rows_of_head {
	T *at;
	int64_t stride;

	__device__ rows_of_head from(int64_t row, int column) const
	{
		return rows_of_head{at + row * stride + column, stride};
	}
};
using operand = rows_of_head<const __nv_bfloat16>;

/* T: type of the gradients. */
template <typename T> struct backward_work {
	fp_cuda_flash f; /* scale: of powers of two */
	operand q, k, v, out, dout;
	rows_of_head<T> dq, dk, dv;
	float *log_sum, *centre; /* of each head and query */
	int64_t tokens;
	float scale;
};

template <int D> using own_tile = hopper_tile<D, OWN>;
template <int D> using other_ring = hopper_ring<D, OTHERS, STAGES>;

/* What both kernels have in shared memory. */
template <int D> struct backward_space {
	unsigned own[2], ready; /* the two own matrices, and the barrier that tells that they are there */
	other_ring<D> ring;
	float *log_sum, *centre; /* of the queries of each tile; OTHERS numbers for each place of the ring */

	static constexpr unsigned bytes =
		1024 + 2 * own_tile<D>::bytes + other_ring<D>::bytes + 2 * STAGES * OTHERS * sizeof(float);

	/* readers: threads that tell when they have read a tile */
	__device__ backward_space(char *memory, uint64_t *barriers, unsigned readers)
	{
		unsigned base = (shared_address(memory) + 1023) & ~1023U; /* tiles begin at multiples of 1024 */
		own[0] = base;
		own[1] = base + own_tile<D>::bytes;
		ring = {own[1] + own_tile<D>::bytes, shared_address(barriers), shared_address(barriers + STAGES), 0};
		ready = shared_address(barriers + 2 * STAGES);
		log_sum = (float *)(memory + (ring.base + other_ring<D>::bytes - shared_address(memory)));
		centre = log_sum + STAGES * OTHERS;
		ring.init_barriers(readers);
		if (threadIdx.x == 0)
			hopper_barrier_init(ready, GROUP);
		__syncthreads();
	}
};

template <int D>
__device__ static inline void load_own(const backward_space<D> &space, operand a, operand b, int first, int length,
									   hopper_announcer &announcer)
{
	own_tile<D>::load(space.own[0], a.at, a.stride, first, length);
	own_tile<D>::load(space.own[1], b.at, b.stride, first, length);
	announcer.asked(space.ready);
}

/* s ← A·Bᵀ, the group's 64 rows of an own matrix with a tile */
template <int D> __device__ static inline void multiply_rows(float (&s)[OTHERS / 8][4], unsigned own, unsigned other)
{
	own += threadIdx.x / GROUP * 64 * HOPPER_TILE_ROW;
#pragma unroll
	for (int step = 0; step < D / 16; step++)
		hopper_mma_shared(s, own_tile<D>::columns(own, step), other_ring<D>::tile::columns(other, step), step > 0);
	hopper_mma_commit();
}

__device__ static inline void store_pair(float *out, float a, float b)
{
	*(float2 *)out = float2{a, b};
}
__device__ static inline void store_pair(__nv_bfloat16 *out, float a, float b)
{
	*(unsigned *)out = pack(a, b);
}

/* out[row] ← factor·sums for the thread's two rows, `row` and the eighth after it */
template <int D, typename T>
__device__ static inline void write_sums(rows_of_head<T> out, int row, int length, const float (&factor)[2],
										 const float (&sums)[D / 8][4])
{
#pragma unroll
	for (int h = 0; h < 2; h++)
		if (row + h * 8 < length)
#pragma unroll
			for (int n = 0; n < D / 8; n++)
				store_pair(out.at + (row + h * 8) * out.stride + n * 8 + threadIdx.x % 4 * 2,
						   factor[h] * sums[n][2 * h], factor[h] * sums[n][2 * h + 1]);
}

/* --- by the queries ------------------------------------------------------------------------------------------------ */

/* rowsum(dO∘O) of one query; four lanes share it */
template <int D> __device__ static inline float centre_of(const __nv_bfloat16 *out, const __nv_bfloat16 *dout)
{
	float sum = 0;
#pragma unroll
	for (int e = (int)threadIdx.x % 4 * 4; e < D; e += 16) {
		float4 a = fp_cuda_load4(out + e), b = fp_cuda_load4(dout + e);
		sum += (a.x * b.x + a.y * b.y) + (a.z * b.z + a.w * b.w);
	}
	return sum_of_row(sum);
}

/* dQ of the thread's two queries, `row` and the eighth after it; tiles of keys begin at `begin`. */
template <int D, typename T>
__device__ static inline void sum_queries(const backward_work<T> &w, backward_space<D> &space, int64_t start, int head,
										  int row, int begin, int tiles)
{
	const fp_cuda_flash &f = w.f;
	other_ring<D> &ring = space.ring;
	float s[OTHERS / 8][4], t[OTHERS / 8][4], dq[D / 8][4], factor[2], centre[2];
	unsigned ds[OTHERS / 16][4], empty = 0;
	running r = {{-INFINITY, -INFINITY}, {0, 0}};
#pragma unroll
	for (int h = 0; h < 2; h++) {
		int64_t token = start + min(row + h * 8, f.length - 1);
		centre[h] = centre_of<D>(w.out.from(token, head * D).at, w.dout.from(token, head * D).at);
	}
	hopper_barrier_wait(space.ready, 0);
	for (int j = 0; j < tiles; j++, ring.count++) {
		int key = begin + j * OTHERS;
		ring.wait_until_full();
		hopper_mma_begin();
		multiply_rows<D>(s, space.own[0], ring.first());
		multiply_rows<D>(t, space.own[1], ring.second());
		hopper_mma_wait<0>();
		hopper_ready(s);
		hopper_ready(t);
		if (j > 0 && threadIdx.x % 32 == 0)
			hopper_barrier_arrive(empty);
		empty = ring.empty_barrier();
		if (key + OTHERS > row - threadIdx.x % 32 / 4 || f.window > 0)
			mask_scores(s, row, key, f.window);
		softmax(s, f.scale, r, factor);
		if (j > 0) {
			hopper_ready(dq);
			scale_rows(dq, factor);
		}
#pragma unroll
		for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				s[n][e] *= t[n][e] - centre[e / 2];
		hopper_pack<OTHERS>(ds, s);
		hopper_mma_begin();
		hopper_apply<D, OTHERS>(dq, ds, ring.first(), j == 0);
	}
	hopper_mma_wait<0>();
	hopper_ready(dq);
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float sum = sum_of_row(r.sum[h]);
		factor[h] = w.scale / sum;
		if (threadIdx.x % 4 == 0 && row + h * 8 < f.length) {
			int64_t at = head * w.tokens + start + row + h * 8;
			w.log_sum[at] = fmaf(r.largest[h], f.scale, log2f(sum));
			w.centre[at] = centre[h];
		}
	}
	write_sums<D>(w.dq.from(start, head * D), row, f.length, factor, dq);
}

/* A block for each head, sequence and OWN queries, those with the most keys first. */
template <int D, typename T>
__global__ static void __launch_bounds__(THREADS, 1) query_kernel(const __grid_constant__ backward_work<T> w)
{
	extern __shared__ char memory[];
	__shared__ uint64_t barriers[2 * STAGES + 1];
	const fp_cuda_flash &f = w.f;
	backward_space<D> space(memory, barriers, GROUPS * GROUP / 32);
	int head = blockIdx.x, first = (int)(gridDim.z - 1 - blockIdx.z) * OWN;
	int begin = f.window > 0 && first - f.window + 1 > 0 ? (first - f.window + 1) / OTHERS * OTHERS : 0;
	int tiles = (min(first + OWN, f.length) - begin + OTHERS - 1) / OTHERS;
	int64_t start = (int64_t)blockIdx.y * f.length;
	if (threadIdx.x / GROUP == GROUPS) {
		hopper_fewer_registers<LOADER_REGISTERS>();
		hopper_announcer announcer = {0};
		other_ring<D> &ring = space.ring;
		operand k = w.k.from(start, head / f.group * D), v = w.v.from(start, head / f.group * D);
		load_own<D>(space, w.q.from(start, head * D), w.dout.from(start, head * D), first, f.length, announcer);
		for (int j = 0; j < tiles; j++, ring.count++) {
			ring.wait_until_empty();
			other_ring<D>::tile::load(ring.first(), k.at, k.stride, begin + j * OTHERS, f.length);
			other_ring<D>::tile::load(ring.second(), v.at, v.stride, begin + j * OTHERS, f.length);
			announcer.asked(ring.full_barrier());
		}
		announcer.finish();
	} else {
		hopper_more_registers<GROUP_REGISTERS>();
		sum_queries<D>(w, space, start, head, first + (int)(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4), begin,
					   tiles);
	}
}

/* --- by the keys --------------------------------------------------------------------------------------------------- */

/* s ← P of a thread's keys, `key` and the eighth after it, and the queries from `query` on; 0 where a query does not see a key */
__device__ static inline void weights_of_keys(const fp_cuda_flash &f, float (&s)[OTHERS / 8][4], int key, int query,
											  const float *log_sum)
{
	bool all = query >= key + 8 && f.window == 0;
#pragma unroll
	for (int n = 0; n < OTHERS / 8; n++) {
		int column = n * 8 + (int)threadIdx.x % 4 * 2;
		float2 sums = *(const float2 *)(log_sum + column);
#pragma unroll
		for (int e = 0; e < 4; e++) {
			int from = key + e / 2 * 8, to = query + column + e % 2;
			bool seen = all || (from <= to && (f.window == 0 || from > to - f.window));
			float weight = power_of_two(fmaf(s[n][e], f.scale, e % 2 ? -sums.y : -sums.x));
			s[n][e] = seen ? weight : 0.0f;
		}
	}
}

/* dK and dV of the thread's two keys, `row` and the eighth after it; tiles of each head's queries begin at `begin`. */
template <int D, typename T>
__device__ static inline void sum_keys(const backward_work<T> &w, backward_space<D> &space, int64_t start, int head,
									   int row, int begin, int tiles)
{
	const fp_cuda_flash &f = w.f;
	other_ring<D> &ring = space.ring;
	float s[OTHERS / 8][4], t[OTHERS / 8][4], dk[D / 8][4], dv[D / 8][4];
	unsigned p[OTHERS / 16][4], ds[OTHERS / 16][4];
	int query = begin;
	hopper_barrier_wait(space.ready, 0);
	for (int j = 0; j < tiles * f.group; j++, ring.count++) {
		const float *centre = space.centre + ring.place() * OTHERS;
		ring.wait_until_full();
		hopper_mma_begin();
		multiply_rows<D>(s, space.own[0], ring.first());
		multiply_rows<D>(t, space.own[1], ring.second());
		hopper_mma_wait<1>();
		hopper_ready(s);
		weights_of_keys(f, s, row, query, space.log_sum + ring.place() * OTHERS);
		hopper_pack<OTHERS>(p, s);
		hopper_mma_begin();
		hopper_apply<D, OTHERS>(dv, p, ring.second(), j == 0);
		hopper_mma_wait<1>();
		hopper_ready(t);
		/* from P as it was rounded: s would need registers of its own */
#pragma unroll
		for (int n = 0; n < OTHERS / 8; n++) {
			float2 mean = *(const float2 *)(centre + n * 8 + threadIdx.x % 4 * 2);
#pragma unroll
			for (int h = 0; h < 2; h++) {
				unsigned both = p[n / 2][n % 2 * 2 + h];
				t[n][2 * h] = __uint_as_float(both << 16) * (t[n][2 * h] - mean.x);
				t[n][2 * h + 1] = __uint_as_float(both & 0xffff0000U) * (t[n][2 * h + 1] - mean.y);
			}
		}
		hopper_pack<OTHERS>(ds, t);
		hopper_mma_begin();
		hopper_apply<D, OTHERS>(dk, ds, ring.first(), j == 0);
		hopper_mma_wait<0>();                        /* there are no registers for the next scores yet */
		hopper_barrier_arrive(ring.empty_barrier()); /* every thread has read numbers of this tile's queries */
		query = (j + 1) % tiles == 0 ? begin : query + OTHERS;
	}
	hopper_ready(dk);
	hopper_ready(dv);
	const float one[2] = {1, 1}, scale[2] = {w.scale, w.scale};
	write_sums<D>(w.dk.from(start, head * D), row, f.length, scale, dk);
	write_sums<D>(w.dv.from(start, head * D), row, f.length, one, dv);
}

/* Starts to copy numbers[first …] of OTHERS queries; those from `length` on are zeros, and so are their products. */
__device__ static inline void load_numbers(float *to, const float *numbers, int first, int length)
{
	int i = (int)threadIdx.x % OTHERS;
	bool valid = first + i < length;
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to + i)),
				 "l"(numbers + (valid ? first + i : 0)), "r"(valid ? 4 : 0)
				 : "memory");
}

/* A block for each head of keys, sequence and OWN keys, those with the most queries first. */
template <int D, typename T>
__global__ static void __launch_bounds__(THREADS, 1) key_kernel(const __grid_constant__ backward_work<T> w)
{
	extern __shared__ char memory[];
	__shared__ uint64_t barriers[2 * STAGES + 1];
	const fp_cuda_flash &f = w.f;
	backward_space<D> space(memory, barriers, GROUPS * GROUP);
	int head = blockIdx.x, first = (int)blockIdx.z * OWN;
	int end = f.window > 0 ? min(first + OWN - 1 + f.window, f.length) : f.length;
	int tiles = (end - first + OTHERS - 1) / OTHERS;
	int64_t start = (int64_t)blockIdx.y * f.length;
	if (threadIdx.x / GROUP == GROUPS) {
		hopper_fewer_registers<LOADER_REGISTERS>();
		hopper_announcer announcer = {0};
		other_ring<D> &ring = space.ring;
		load_own<D>(space, w.k.from(start, head * D), w.v.from(start, head * D), first, f.length, announcer);
		for (int i = head * f.group; i < (head + 1) * f.group; i++) {
			operand q = w.q.from(start, i * D), d = w.dout.from(start, i * D);
			bool sums = threadIdx.x % GROUP < OTHERS; /* the other half of the threads copies the centres */
			const float *numbers = (sums ? w.log_sum : w.centre) + i * w.tokens + start;
			for (int j = 0; j < tiles; j++, ring.count++) {
				ring.wait_until_empty();
				other_ring<D>::tile::load(ring.first(), q.at, q.stride, first + j * OTHERS, f.length);
				other_ring<D>::tile::load(ring.second(), d.at, d.stride, first + j * OTHERS, f.length);
				load_numbers((sums ? space.log_sum : space.centre) + ring.place() * OTHERS, numbers, first + j * OTHERS,
							 f.length);
				announcer.asked(ring.full_barrier());
			}
		}
		announcer.finish();
	} else {
		hopper_more_registers<GROUP_REGISTERS>();
		sum_keys<D>(w, space, start, head, first + (int)(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4), first, tiles);
	}
}

template <int D, typename T>
static fp_status launch(fp_backend *be, const backward_work<T> *w, const fp_attention_shape *shape)
{
	const int bytes = backward_space<D>::bytes;
	unsigned sequences = (unsigned)shape->sequences, blocks = (unsigned)((shape->length + OWN - 1) / OWN);
	dim3 queries((unsigned)shape->heads, sequences, blocks), keys((unsigned)shape->kv_heads, sequences, blocks);
	FP_CUDA(be, cudaFuncSetAttribute(query_kernel<D, T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
	FP_CUDA(be, cudaFuncSetAttribute(key_kernel<D, T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
	query_kernel<D><<<queries, THREADS, (size_t)bytes, fp_cuda_stream(be)>>>(*w);
	FP_LAUNCHED(be);
	key_kernel<D><<<keys, THREADS, (size_t)bytes, fp_cuda_stream(be)>>>(*w);
	FP_LAUNCHED(be);
	return FP_OK;
}

fp_status fp_cuda_flash_backward_hopper(fp_backend *be, const fp_cuda_flash *f, const fp_cuda_flash_gradients *g,
										const fp_attention_shape *shape)
{
	int64_t tokens = shape->sequences * shape->length;
	fp_cuda_scratch numbers;
	FP_OR_RETURN(numbers.take(be, 2 * shape->heads * tokens * (int64_t)sizeof(float)));
	return fp_cuda_by_type(g->dQ, [&](auto *dq) {
		using T = std::remove_pointer_t<decltype(dq)>;
		backward_work<T> w = {*f,
							  {f->q, f->q_stride},
							  {f->k, f->k_stride},
							  {f->v, f->v_stride},
							  {g->out, g->out_stride},
							  {g->dout, g->dout_stride},
							  {dq, g->dQ.stride},
							  {fp_cuda_at<T>(g->dK), g->dK.stride},
							  {fp_cuda_at<T>(g->dV), g->dV.stride},
							  numbers.as<float>(),
							  numbers.as<float>() + shape->heads * tokens,
							  tokens,
							  f->scale};
		w.f.scale *= LOG2_E;
		return shape->head_dim == 64 ? launch<64>(be, &w, shape) : launch<128>(be, &w, shape);
	});
}
