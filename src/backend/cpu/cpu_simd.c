/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_simd.c: compiles cpu_simd_loops.h for each instruction set and chooses between them. */
#include "backend/cpu/cpu_simd.h"

#include <math.h>
#include <string.h>

#if defined(__clang__)
/* clang warns of loops that it does not vectorise; they are slower, but right */
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

/* Floats as integers, for loops that compare bits. */
static inline int32_t bits_of(float value)
{
	int32_t bits;
	memcpy(&bits, &value, sizeof bits);
	return bits;
}

static inline float float_of(int32_t bits)
{
	float value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

/* Maps the bits of floats to integers of the same order; its own inverse. */
static inline int32_t ordered(int32_t bits)
{
	return bits ^ (bits < 0 ? 0x7fffffff : 0);
}

#define LOOP(name) scalar_##name
#define TARGET
#define LOOPS_NAME "scalar"
#include "backend/cpu/cpu_simd_loops.h"
#undef LOOP
#undef TARGET
#undef LOOPS_NAME

#if defined(__x86_64__)
#define LOOP(name) avx2_##name
#define TARGET __attribute__((target("avx2,fma")))
#define LOOPS_NAME "avx2"
#include "backend/cpu/cpu_simd_loops.h"
#undef LOOP
#undef TARGET
#undef LOOPS_NAME

#define LOOP(name) avx512_##name
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define LOOPS_NAME "avx512"
#include "backend/cpu/cpu_simd_loops.h"
#undef LOOP
#undef TARGET
#undef LOOPS_NAME

static bool has_avx2(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
	return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

const fp_cpu_loops *fp_cpu_loops_best(void)
{
#if defined(__x86_64__)
	if (has_avx512())
		return &avx512_table;
	if (has_avx2())
		return &avx2_table;
#endif
	return &scalar_table;
}

const fp_cpu_loops *fp_cpu_loops_named(const char *name)
{
	if (strcmp(name, scalar_table.name) == 0)
		return &scalar_table;
#if defined(__x86_64__)
	if (strcmp(name, avx2_table.name) == 0 && has_avx2())
		return &avx2_table;
	if (strcmp(name, avx512_table.name) == 0 && has_avx512())
		return &avx512_table;
#endif
	return NULL;
}
