/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grid_format.h: the number formats of quantised weights, one row each, and the arithmetic of one group of weights.
 *
 * Entries of a row that share a scale form a group. A weight is
 *
 *     v = round((q − z)·s)
 *
 * in the checkpoint's type, with the code q (an integer of so many bits, or E4M3), the scale s of the group, which is
 * a number of that type too, and the zero point z (0 if the format is symmetric). This is what compressed-tensors computes
 * when it dequantises, so that the weights of this program and those of a runtime are the same. v determines q.
 */
#ifndef FP_TENSOR_GRID_FORMAT_H
#define FP_TENSOR_GRID_FORMAT_H

#include "tensor/grid_numbers.h"

typedef struct fp_grid_format {
	const char *name;   /* of the setting `quantize` */
	const char *layout; /* compressed-tensors' name for how it is stored */
	int bits;
	bool is_float;       /* codes are E4M3 in place of −2^(bits−1) … 2^(bits−1) − 1 */
	bool symmetric;      /* without zero points */
	bool rounds_inputs;  /* runtimes round the operator's inputs too, with a scale for each token */
	int64_t group;       /* entries of a group; 0: the whole row */
	const char *summary; /* for people */
} fp_grid_format;

/* The rows; NULL behind the last. Borrowed. */
const fp_grid_format *fp_grid_format_at(int index);
/* NULL: no such format; also for "none". */
const fp_grid_format *fp_grid_format_named(const char *name);

/* Entries that share a scale in rows of n > 0 entries. Loaders want groups that divide the row: where the format's does
 * not, it is halved down to 32, and then it is the whole row. */
int64_t fp_grid_group(const fp_grid_format *format, int64_t n);
/* The format as grid_numbers.h takes it. */
static inline fp_grid_rule fp_grid_rule_of(const fp_grid_format *format, fp_dtype dtype)
{
	const float half = (float)(1 << (format->bits - 1));
	fp_grid_rule rule = {-half, half - 1.0F, format->is_float, dtype};
	if (format->is_float) {
		rule.first = -FP_LARGEST_E4M3;
		rule.last = FP_LARGEST_E4M3;
	}
	return rule;
}

/* *scale, *zero ← of a group: the largest magnitude just fits (asymmetric: the largest and the smallest entry). Zeros are
 * always on the grid, so entries that are pruned do not matter. A scale is never 0: that of a group of zeros is the type's
 * epsilon, as in compressed-tensors, and one that underflows is the type's smallest number. */
void fp_grid_fit_group(const fp_grid_format *format, fp_dtype dtype, const float *v, int64_t count, float *scale,
					   float *zero);
/* The nearest code to x / scale, as a number: an integer, or a value of E4M3. */
float fp_grid_code(const fp_grid_format *format, float scale, float zero, float x);
/* The same for `count` numbers; in place is allowed. */
void fp_grid_codes(const fp_grid_format *format, float scale, float zero, const float *x, float *codes, int64_t count);
/* What a code means: a number of the type. */
float fp_grid_value(fp_dtype dtype, float scale, float zero, float code);

/* The byte of an E4M3 value, which must be one. */
uint8_t fp_grid_e4m3(float value);

#endif
