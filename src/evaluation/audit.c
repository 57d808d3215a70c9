/* SPDX-License-Identifier: Apache-2.0 */
#include "evaluation/audit.h"

#include "base/memory.h"
#include "checkpoint/tensor_part.h"

#include <math.h>
#include <string.h>

enum { PIECE = 8192 }; /* entries per step; 64 KiB */

/* Masks of an entry's sign and exponent. From the top, all float types have sign, exponent, mantissa;
 * in infinities and NaNs all bits of the exponent are set. */
typedef struct bit_layout {
	int64_t size;
	uint64_t sign, exponent;
} bit_layout;

static bool layout_of(fp_dtype dtype, bit_layout *out)
{
	switch (dtype) {
	case FP_F32:
		*out = (bit_layout){4, 0x80000000U, 0x7F800000U};
		return true;
	case FP_F16:
		*out = (bit_layout){2, 0x8000U, 0x7C00U};
		return true;
	case FP_BF16:
		*out = (bit_layout){2, 0x8000U, 0x7F80U};
		return true;
	case FP_F64:
		*out = (bit_layout){8, 0x8000000000000000U, 0x7FF0000000000000U};
		return true;
	default:
		return false;
	}
}

/* The bits of an entry, which may be unaligned. */
static uint64_t bits_at(const unsigned char *in, int64_t size)
{
	uint64_t wide = 0;
	uint32_t word = 0;
	uint16_t half = 0;
	if (size == 2)
		memcpy(&half, in, sizeof half);
	else if (size == 4)
		memcpy(&word, in, sizeof word);
	else
		memcpy(&wide, in, sizeof wide);
	return wide | word | half;
}

/* Widens the bits of `count` entries of a tensor, from entry `first` on. */
static void read_bits(uint64_t *out, const fp_tensor_info *tensor, const unsigned char *bytes, int64_t size,
					  int64_t first, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		out[i] = bits_at(bytes + (tensor->whole ? fp_tensor_part_entry(tensor, first + i) : first + i) * size, size);
}

static void count_zeros(fp_audit_result *result, const uint64_t *bits, const bit_layout *layout, int64_t count)
{
	int64_t zeros = 0;
	int64_t negative = 0;
	int64_t not_finite = 0;
	for (int64_t i = 0; i < count; i++) {
		zeros += (bits[i] & ~layout->sign) == 0;
		negative += bits[i] == layout->sign;
		not_finite += (bits[i] & layout->exponent) == layout->exponent;
	}
	result->zeros += zeros;
	result->negative_zeros += negative;
	result->not_finite += not_finite;
}

/* The position in a row and in its current group. Pieces may end inside a group. */
typedef struct group_position {
	int64_t column, members, nonzeros; /* members, nonzeros: of the group so far */
} group_position;

static void check_groups(fp_audit_result *result, group_position *at, const uint64_t *bits, const bit_layout *layout,
						 int64_t count, int64_t columns, const fp_audit_rule *rule)
{
	for (int64_t i = 0; i < count; i++) {
		at->nonzeros += (bits[i] & ~layout->sign) != 0;
		at->members++;
		at->column++;
		bool row_ends = at->column == columns;
		if (at->members < rule->group && !row_ends)
			continue;
		int64_t allowed = (rule->kept * at->members + rule->group - 1) / rule->group;
		result->violations += at->nonzeros > allowed;
		at->members = 0;
		at->nonzeros = 0;
		if (row_ends)
			at->column = 0;
	}
}

/* The position in a row; short_rows counts the rows with fewer zeros than required. */
typedef struct row_position {
	int64_t column, zeros, required, short_rows;
} row_position;

static void check_rows(row_position *at, const uint64_t *bits, const bit_layout *layout, int64_t count, int64_t columns)
{
	for (int64_t i = 0; i < count; i++) {
		at->zeros += (bits[i] & ~layout->sign) == 0;
		if (++at->column < columns)
			continue;
		at->short_rows += at->zeros < at->required;
		at->column = 0;
		at->zeros = 0;
	}
}

static int64_t required_zeros(double sparsity, int64_t entries)
{
	return (int64_t)floor(sparsity * (double)entries);
}

fp_status fp_audit_tensor(fp_audit_result *out, fp_context *ctx, const fp_checkpoint *checkpoint,
						  const fp_tensor_info *tensor, const fp_audit_rule *rule)
{
	bit_layout layout;
	uint64_t bits[PIECE];
	group_position group = {0, 0, 0};
	row_position row = {0, 0, 0, 0};
	memset(out, 0, sizeof *out);
	if (!layout_of(tensor->dtype, &layout))
		return FP_OK;
	out->counted = true;
	int64_t columns = tensor->rank > 0 ? tensor->shape[tensor->rank - 1] : 1;
	if (rule && rule->group == 0)
		row.required = required_zeros(rule->sparsity, columns);
	const fp_tensor_info *stored = tensor->whole ? tensor->whole : tensor;
	const void *bytes;
	void *own;
	fp_status status;
	FP_TRY(fp_checkpoint_read(&bytes, &own, ctx, checkpoint, stored));
	for (int64_t first = 0; first < tensor->elements; first += PIECE) {
		int64_t count = tensor->elements - first < PIECE ? tensor->elements - first : PIECE;
		read_bits(bits, tensor, bytes, layout.size, first, count);
		count_zeros(out, bits, &layout, count);
		if (rule && rule->group > 0)
			check_groups(out, &group, bits, &layout, count, columns, rule);
		else if (rule)
			check_rows(&row, bits, &layout, count, columns);
		FP_TRY(fp_check_interrupt(ctx));
	}
	if (rule && rule->group == 0)
		out->violations = out->zeros < required_zeros(rule->sparsity, tensor->elements) && row.short_rows > 0;
	fp_checkpoint_forget(checkpoint, stored);
cleanup:
	fp_free(own);
	return status;
}
