/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_amx.c: the engine for AMX, the matrix unit of Xeons since Sapphire Rapids. It has eight registers, tiles of 16 rows
 * of 64 bytes. One instruction adds to a tile of 16 × 16 floats the product of a left tile and a right tile
 * (cpu_bf16_tiles.h). 2 × 2 tiles of C stay in registers.
 */
#include "backend/cpu/cpu_bf16_tiles.h"

#include <stddef.h>

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FP_AMX __attribute__((target("amx-tile,amx-bf16")))

enum { SIDE = FP_BF16_SIDE, STEP = FP_BF16_STEP, TILE = FP_BF16_TILE };

/* Eight tiles of 16 rows of 64 bytes. The compiler believes that _tile_loadconfig() reads eight bytes only, so that the
 * numbers must not be made on the stack. */
static const struct {
	uint8_t palette, start, zero[14];
	uint16_t bytes[16];
	uint8_t rows[16];
} tile_shapes = {
	.palette = 1, .bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE}};

FP_AMX static void begin(void)
{
	_tile_loadconfig(&tile_shapes);
}

FP_AMX static void end(void)
{
	_tile_release();
}

/* Tiles 0 to 3, 2 × 2 tiles of C, += the product of two panels over `steps` steps. */
FP_AMX static inline void add_rounded(const uint16_t *a, const uint16_t *b, int64_t steps)
{
	for (int64_t s = 0; s < steps; s++, a += 2 * TILE, b += 2 * TILE) {
		_tile_loadd(4, a, 64);
		_tile_loadd(6, b, 64);
		_tile_loadd(7, b + TILE, 64);
		_tile_dpbf16ps(0, 4, 6);
		_tile_dpbf16ps(1, 4, 7);
		_tile_loadd(5, a + TILE, 64);
		_tile_dpbf16ps(2, 5, 6);
		_tile_dpbf16ps(3, 5, 7);
	}
}

/* The same of split operands: high·high + low·high + high·low. */
FP_AMX static inline void add_split(const uint16_t *a, const uint16_t *a_low, const uint16_t *b, const uint16_t *b_low,
									int64_t steps)
{
	for (int64_t at = 0; at < steps * 2 * TILE; at += 2 * TILE) {
		_tile_loadd(6, b + at, 64);
		_tile_loadd(7, b + at + TILE, 64);
		_tile_loadd(4, a_low + at, 64);
		_tile_dpbf16ps(0, 4, 6);
		_tile_dpbf16ps(1, 4, 7);
		_tile_loadd(5, a_low + at + TILE, 64);
		_tile_dpbf16ps(2, 5, 6);
		_tile_dpbf16ps(3, 5, 7);
		_tile_loadd(4, a + at, 64);
		_tile_dpbf16ps(0, 4, 6);
		_tile_dpbf16ps(1, 4, 7);
		_tile_loadd(5, a + at + TILE, 64);
		_tile_dpbf16ps(2, 5, 6);
		_tile_dpbf16ps(3, 5, 7);
		_tile_loadd(6, b_low + at, 64);
		_tile_dpbf16ps(0, 4, 6);
		_tile_dpbf16ps(2, 5, 6);
		_tile_loadd(7, b_low + at + TILE, 64);
		_tile_dpbf16ps(1, 4, 7);
		_tile_dpbf16ps(3, 5, 7);
	}
}

FP_AMX static void multiply(fp_bf16_square *s)
{
	int64_t line = s->stride * (int64_t)sizeof(float);
	const int64_t start_line = STEP * sizeof(float);
	fp_bf16_ask(s, fp_bf16_count_soon(s));
	if (s->start) {
		_tile_loadd(0, s->start, start_line);
		_tile_loadd(1, s->start + SIDE, start_line);
		_tile_loadd(2, s->start + SIDE * STEP, start_line);
		_tile_loadd(3, s->start + SIDE * STEP + SIDE, start_line);
	} else {
		_tile_zero(0);
		_tile_zero(1);
		_tile_zero(2);
		_tile_zero(3);
	}
	if (s->a_low)
		add_split(s->a, s->a_low, s->b, s->b_low, s->steps);
	else
		add_rounded(s->a, s->b, s->steps);
	_tile_stored(0, s->out, line);
	_tile_stored(1, s->out + SIDE, line);
	_tile_stored(2, s->out + SIDE * s->stride, line);
	_tile_stored(3, s->out + SIDE * s->stride + SIDE, line);
}

static bool has_amx(void)
{
	unsigned a, b, c, d, more;
	if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !__get_cpuid_count(7, 1, &more, &b, &c, &a))
		return false;
	return d >> 22 & 1 && d >> 24 & 1 && more >> 5 & 1 && __builtin_cpu_supports("avx512bw") &&
		   __builtin_cpu_supports("avx512vl");
}

/* Linux gives a process the large registers when it asks for them. */
static bool may_use_tiles(void)
{
	enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
	return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static const char *missing(void)
{
	if (!has_amx())
		return "this processor has no AMX";
	return may_use_tiles() ? NULL : "the system does not let this process use AMX";
}

/* two panels of so many steps fill the L1 cache of 48 KB, and what leaves it comes from the L2 cache in time */
static const fp_bf16_kernel kernel = {.chunk = 16, .tasks = 4, .begin = begin, .end = end, .multiply = multiply};

const fp_cpu_bf16_engine fp_cpu_amx = {
	.name = "AMX",
	.missing = missing,
	.speed = 4,
	.splits = true,
	.multiply = fp_bf16_multiply,
	.multiply_alone = fp_bf16_multiply_alone,
	.space = fp_bf16_space,
	.kernel = &kernel,
};

#endif
