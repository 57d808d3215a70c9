/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_decode_stream.cuh: a warp's part of the weights as a stream of bytes through a ring in shared memory.
 *
 * A product of one row computes little and reads much, so it is as fast as the memory only if enough is on its way at
 * all times: 4.8 TB/s times almost a microsecond are 4.5 MB, 34 KB for each of 132 processors. Loads into registers
 * would be used up before the next ones are asked for, and where a row begins or ends, or a form's counts must be known
 * first, nothing would be on its way. Here a warp asks for its bytes one after the other, UNITS × 512 ahead of what it
 * reads, whatever they mean; 16 warps with 8 units have 64 KB of ring. With one row of x two blocks share a processor:
 * 32 warps also hide what a warp waits for while it unpacks. What a kernel asks for first does not depend on the kernel
 * before it, so its ring fills while that one ends.
 */
#ifndef FP_BACKEND_CUDA_DECODE_STREAM_CUH
#define FP_BACKEND_CUDA_DECODE_STREAM_CUH

#include <stdint.h>

enum { DECODE_UNIT = 512 }; /* 16 bytes of each lane */

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

/* The address of shared memory as instructions take it. */
__device__ static inline unsigned decode_shared_address(const void *at)
{
	return (unsigned)__cvta_generic_to_shared(at);
}
/* Loads by such addresses: with pointers the compiler finds the base of shared memory again before each. */
__device__ static inline void decode_shared_load(unsigned at, float &v)
{
	asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at));
}
__device__ static inline void decode_shared_load(unsigned at, float2 &v)
{
	asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at));
}
__device__ static inline void decode_shared_load(unsigned at, float4 &v)
{
	asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at));
}
__device__ static inline void decode_shared_load(unsigned at, uint8_t &v)
{
	unsigned wide;
	asm volatile("ld.shared.u8 %0, [%1];" : "=r"(wide) : "r"(at));
	v = (uint8_t)wide;
}
__device__ static inline void decode_shared_load(unsigned at, uint16_t &v)
{
	asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
}
__device__ static inline void decode_shared_load(unsigned at, uint32_t &v)
{
	asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
}
__device__ static inline void decode_shared_load(unsigned at, uint2 &v)
{
	asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
}
__device__ static inline void decode_shared_load(unsigned at, uint4 &v)
{
	asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
}

/* All lanes call all functions together. fetch() makes at least (WINDOW − 1) units + 1 byte readable. */
template <int UNITS, int WINDOW> struct decode_stream {
	static const unsigned RING = UNITS * DECODE_UNIT;
	static_assert(WINDOW < UNITS, "a part of the ring is read, the rest is on its way");
	unsigned ring;     /* address of RING bytes of shared memory */
	const char *next;  /* what the lane asks for next */
	unsigned bytes;    /* of the stream, less those of the lanes before this one */
	unsigned asked;    /* bytes, whole units */
	unsigned asked_at; /* the place of the next unit in the ring */
	unsigned read;     /* bytes */
	unsigned read_at;  /* the place of the next byte in the ring */
	int lane;

	__device__ decode_stream(unsigned memory, int in_warp) : ring(memory), lane(in_warp)
	{
		asm volatile("" : "+r"(ring)); /* keeps it in a register */
	}
	/* Starts to read [from, to), multiples of 16. */
	__device__ void begin(const char *from, const char *to)
	{
		asm volatile("cp.async.wait_all;" ::: "memory");
		next = from + lane * 16;
		bytes = (unsigned)max((int64_t)(to - from) - lane * 16, (int64_t)0);
		asked = asked_at = read = read_at = 0;
		ask();
	}
	/* Before what comes next is read. */
	__device__ void fetch()
	{
		ask();
		asm volatile("cp.async.wait_group %0;" ::"n"(UNITS - WINDOW) : "memory");
		__syncwarp();
	}
	__device__ void advance(unsigned count)
	{
		read += count;
		read_at = in_ring(read_at + count);
	}
	/* What stands `offset` bytes ahead, aligned to its size. */
	template <typename T> __device__ T load(unsigned offset) const
	{
		T v;
		decode_shared_load(ring + in_ring(read_at + offset), v);
		return v;
	}

  private:
	__device__ static unsigned in_ring(unsigned at)
	{
		return (UNITS & (UNITS - 1)) == 0 ? at & (RING - 1) : min(at, at - RING); /* less than zero is large */
	}
	__device__ void ask()
	{
		__syncwarp(); /* all lanes have read what is overwritten now */
#pragma unroll 1
		for (; asked < read / DECODE_UNIT * DECODE_UNIT + RING; asked += DECODE_UNIT, next += DECODE_UNIT) {
			if (asked < bytes) {
				unsigned to = ring + asked_at + lane * 16;
				asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(next) : "memory");
			}
			asm volatile("cp.async.commit_group;" ::: "memory");
			asked_at = in_ring(asked_at + DECODE_UNIT);
		}
	}
};

/*
 * A stream of blocks of BYTES bytes, the last of which may be shorter, through some slots: as soon as a block is read,
 * its slot is asked for again. No byte's place has to be computed, and asking takes a third of the instructions.
 */
template <int BYTES, int SLOTS> struct decode_blocks {
	static const int PIECES = (BYTES + DECODE_UNIT - 1) / DECODE_UNIT;
	unsigned ring;    /* address of SLOTS × BYTES of shared memory */
	const char *next; /* what the lane asks for next */
	int left;         /* bytes of the stream that were not asked for, less those of the lanes before this one */
	unsigned slot;    /* that is read or asked for, in bytes */
	int lane;

	__device__ decode_blocks(unsigned memory, int in_warp) : ring(memory), lane(in_warp)
	{
	}
	/* Starts to read `bytes` bytes; from: a multiple of 16. Asks for all slots but the last; begin_last() must follow. */
	__device__ void begin(const char *from, int bytes)
	{
		asm volatile("cp.async.wait_all;" ::: "memory");
		__syncwarp(); /* all lanes have read what is overwritten now */
		next = from + lane * 16;
		left = bytes - lane * 16;
		for (slot = 0; slot < (SLOTS - 1) * BYTES; slot += BYTES)
			ask();
	}
	__device__ void begin_last()
	{
		ask();
	}
	/* Makes the next block readable, at ring + slot. */
	__device__ void advance()
	{
		asm volatile("cp.async.wait_group %0;" ::"n"(SLOTS - 1) : "memory");
		__syncwarp(); /* all lanes have their bytes */
		slot = slot == (SLOTS - 1) * BYTES ? 0 : slot + BYTES;
	}
	/* The block was read: asks for the one that takes its slot. */
	__device__ void release()
	{
		__syncwarp();
		ask();
	}
	template <typename T> __device__ T load(unsigned offset) const
	{
		T v;
		decode_shared_load(ring + slot + offset, v);
		return v;
	}

  private:
	__device__ void ask()
	{
		unsigned to = ring + slot + lane * 16;
#pragma unroll
		for (int i = 0; i < PIECES; i++)
			if (left > i * DECODE_UNIT && ((i + 1) * DECODE_UNIT <= BYTES || lane < (BYTES - i * DECODE_UNIT) / 16))
				asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to + i * DECODE_UNIT),
							 "l"(next + i * DECODE_UNIT)
							 : "memory");
		asm volatile("cp.async.commit_group;" ::: "memory");
		next += BYTES;
		left -= BYTES;
	}
};

#endif
