/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_decode_plain.c: the loops of cpu_decode.h in plain C, for processors without AVX2. */
#include "backend/cpu/cpu_decode.h"

#include "tensor/dtype.h"
#include <string.h>

enum { LANES = 8 }; /* independent sums of a row */

/* w ← a row's piece with its zeros; returns the place behind its values. */
static const char *expand(float w[FP_CPU_PIECE], const char *values, uint32_t mask, fp_dtype dtype)
{
	float packed[FP_CPU_PIECE];
	int count = __builtin_popcount(mask), next = 0;
	fp_to_float(packed, values, dtype, count);
	for (int j = 0; j < FP_CPU_PIECE; j++)
		w[j] = mask >> j & 1 ? packed[next++] : 0.0F;
	return values + count * fp_dtype_size(dtype);
}

static void multiply(fp_held_form form, fp_dtype dtype, const fp_cpu_block *block, const float *x, int64_t x_stride,
					 int batch, float y[][FP_CPU_BLOCK])
{
	float sums[FP_CPU_TOGETHER][FP_CPU_BLOCK][LANES];
	const char *values = block->values;
	const uint8_t *positions = block->positions;
	memset(sums, 0, sizeof sums);
	for (int64_t i = 0; i < block->pieces; i++)
		for (int r = 0; r < FP_CPU_BLOCK; r++) {
			float w[FP_CPU_PIECE];
			if (form == FP_HELD_DENSE) {
				fp_to_float(w, values + r * block->stride + i * FP_CPU_PIECE * fp_dtype_size(dtype), dtype,
							FP_CPU_PIECE);
			} else {
				uint32_t mask;
				memcpy(&mask, positions, sizeof mask);
				positions += sizeof mask;
				values = expand(w, values, mask, dtype);
			}
			for (int b = 0; b < batch; b++)
				for (int j = 0; j < FP_CPU_PIECE; j++)
					sums[b][r][j % LANES] += w[j] * x[b * x_stride + i * FP_CPU_PIECE + j];
		}
	for (int b = 0; b < batch; b++)
		for (int r = 0; r < FP_CPU_BLOCK; r++) {
			const float *s = sums[b][r];
			y[b][r] = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
		}
}

#define LOOP(name, form, dtype)                                                                                        \
	static void name(const fp_cpu_block *block, const float *x, int64_t x_stride, int batch, float y[][FP_CPU_BLOCK])  \
	{                                                                                                                  \
		multiply(form, dtype, block, x, x_stride, batch, y);                                                           \
	}
FP_CPU_EACH_LOOP(LOOP)

const fp_cpu_decode_loops fp_cpu_decode_plain = {
	"plain",
	false,
	FP_CPU_LOOP_TABLE,
};
