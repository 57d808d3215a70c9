/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hopper_mma.cuh: instructions that only sm_90a has, and barriers in shared memory.
 *
 * wgmma multiplies 64 rows held by the four warps of a group, 16 each, in the layout of mma.sync, by a matrix in shared
 * memory. That is stored in columns of 128 bytes ("tiles"): row r of a tile is 128 bytes at 128·r, and its 16-byte pieces
 * are permuted, piece p lies at p ^ (r % 8). A tile begins at a multiple of 1024 bytes.
 */
#ifndef FP_BACKEND_CUDA_HOPPER_MMA_CUH
#define FP_BACKEND_CUDA_HOPPER_MMA_CUH

#include <stdint.h>

enum { HOPPER_TILE_ROW = 128, HOPPER_TILE_COLUMNS = 64 }; /* bytes, and numbers of 16 bits */

/* How wgmma finds a matrix from `address` on. stride: from 8 rows to the next 8; between: from a tile to the next one, for
 * matrices that are read across their rows; all in bytes. */
__device__ static inline uint64_t hopper_matrix(unsigned address, unsigned between, unsigned stride)
{
	return (uint64_t)(address >> 4 & 0x3fffU) | (uint64_t)(between >> 4) << 16 | (uint64_t)(stride >> 4) << 32 |
		   (uint64_t)1 << 62;
}

__device__ static inline void hopper_mma_begin(void)
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ static inline void hopper_mma_commit(void)
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits until at most N of the groups committed last are unfinished. */
template <int N> __device__ static inline void hopper_mma_wait(void)
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

#define HOPPER_FOUR(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define HOPPER_32(c, i)                                                                                                \
	HOPPER_FOUR(c, i), HOPPER_FOUR(c, (i) + 1), HOPPER_FOUR(c, (i) + 2), HOPPER_FOUR(c, (i) + 3),                      \
		HOPPER_FOUR(c, (i) + 4), HOPPER_FOUR(c, (i) + 5), HOPPER_FOUR(c, (i) + 6), HOPPER_FOUR(c, (i) + 7)

/* c ← a·b, or c + a·b if `adds`, for a 64 × 16 and b 16 × 8N in shared memory, in bf16. ACROSS: b's rows, not its columns,
 * lie along the rows of tiles. */
template <int ACROSS>
__device__ static inline void hopper_mma(float (&c)[16][4], const unsigned (&a)[4], uint64_t b, int adds)
{
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
				 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
				 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
				 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
				 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
				 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
				 "{%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
				 : HOPPER_32(c, 0), HOPPER_32(c, 8)
				 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds), "n"(ACROSS));
}
template <int ACROSS>
__device__ static inline void hopper_mma(float (&c)[8][4], const unsigned (&a)[4], uint64_t b, int adds)
{
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
				 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
				 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
				 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
				 "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
				 : HOPPER_32(c, 0)
				 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds), "n"(ACROSS));
}

/* c ← a·bᵀ, or c + a·bᵀ if `adds`, for a and b 64 × 16, both in shared memory. */
__device__ static inline void hopper_mma_shared(float (&c)[8][4], uint64_t a, uint64_t b, int adds)
{
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
				 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
				 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
				 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
				 "%32, %33, p, 1, 1, 0, 0;\n}"
				 : HOPPER_32(c, 0)
				 : "l"(a), "l"(b), "r"(adds));
}
/* Keeps the compiler from reading c before this place, where its product has been waited for. */
template <int N> __device__ static inline void hopper_ready(float (&c)[N][4])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : HOPPER_FOUR(c, i)::"memory");
}

/* A group of warps that needs fewer registers gives them to one that needs more. */
template <int N> __device__ static inline void hopper_fewer_registers(void)
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ static inline void hopper_more_registers(void)
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* --- barriers ------------------------------------------------------------------------------------------------------ */

__device__ static inline void hopper_barrier_init(unsigned barrier, unsigned arrivals)
{
	asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ static inline void hopper_barrier_arrive(unsigned barrier)
{
	asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Waits until the barrier's phase of this parity has ended. */
__device__ static inline void hopper_barrier_wait(unsigned barrier, unsigned parity)
{
	asm volatile(
		"{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra again;\n}" ::"r"(barrier),
		"r"(parity)
		: "memory");
}
/* What this thread wrote to shared memory is visible to wgmma. */
__device__ static inline void hopper_publish(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif
