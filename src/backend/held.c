/* SPDX-License-Identifier: Apache-2.0 */
/* held.c: the form of a matrix that is held for decoding. */
#include "backend/backend.h"

#include <string.h>

void fp_held_count(fp_held_counts *counts, const void *row, int64_t cols, int64_t size)
{
	const uint16_t *half = row;
	const uint32_t *full = row;
	int in_group = 0;
	for (int64_t j = 0; j < cols; j++) {
		if (j % 4 == 0)
			in_group = 0;
		in_group += size == 2 ? half[j] != 0 : full[j] != 0;
		if (j % 4 == 3 || j == cols - 1) {
			counts->nonzeros += in_group;
			counts->two_of_four &= in_group <= 2;
		}
	}
}

fp_held_form fp_held_choose(const fp_held_counts *counts, int64_t rows, int64_t cols, int64_t size)
{
	double entries = (double)rows * (double)cols;
	double dense = entries * (double)size;
	double mask = (double)counts->nonzeros * (double)size + entries / 8;
	double pairs = counts->two_of_four ? entries / 2 * (double)size + entries / 8 : dense;
	double least = pairs <= mask ? pairs : mask;
	if (least > 0.9 * dense)
		return FP_HELD_DENSE;
	return pairs <= mask ? FP_HELD_TWO_OF_FOUR : FP_HELD_MASK;
}

const char *fp_held_form_name(fp_held_form form)
{
	static const char *const names[FP_HELD_FORMS] = {"dense", "mask", "2:4"};
	return (int)form < FP_HELD_FORMS ? names[form] : "smallest";
}

void fp_held_free(fp_backend *be, fp_held *held)
{
	fp_matrix_free(be, &held->values);
	fp_matrix_free(be, &held->positions);
	fp_matrix_free(be, &held->offsets);
	memset(held, 0, sizeof *held);
}
