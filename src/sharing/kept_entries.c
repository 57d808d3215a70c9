/* SPDX-License-Identifier: Apache-2.0 */
#include "sharing/kept_entries.h"

#include "base/memory.h"

#include <string.h>

static fp_status read_row(fp_backend *be, fp_matrix m, int64_t row, float *out)
{
	return be->memory->download(be, out, FP_F32, m.cols, fp_matrix_rows(m, row, 1));
}

/* before and column ← of the entries of m that are not zero, or of all */
static fp_status find_kept(fp_kept_matrix *kept, fp_backend *be, fp_matrix m, bool all)
{
	float *numbers = NULL;
	int64_t capacity = 0, count = 0;
	fp_status status;
	FP_REQUIRE(be, m.cols <= INT32_MAX);
	FP_TRY(FP_NEW(be->ctx, &numbers, m.cols));
	for (int64_t i = 0; i < m.rows; i++) {
		FP_TRY(read_row(be, m, i, numbers));
		FP_TRY(FP_GROW(be->ctx, &kept->column, &capacity, count + m.cols));
		for (int64_t j = 0; j < m.cols; j++)
			if (all || numbers[j] != 0.0F)
				kept->column[count++] = (int32_t)j;
		kept->before[i + 1] = count;
	}
cleanup:
	fp_free(numbers);
	return status;
}

fp_status fp_kept_entries_add(fp_kept_entries *kept, fp_backend *be, fp_matrix m, bool all)
{
	fp_kept_matrix one = {.rows = m.rows, .cols = m.cols};
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(m))
		return FP_OK;
	FP_TRY(FP_NEW(be->ctx, &one.before, m.rows + 1));
	FP_TRY(find_kept(&one, be, m, all));
	FP_TRY(FP_GROW(be->ctx, &kept->list, &kept->capacity, kept->count + 1));
	kept->list[kept->count++] = one;
	return FP_OK;
cleanup:
	fp_free(one.column);
	fp_free(one.before);
	return status;
}

void fp_kept_entries_free(fp_kept_entries *kept)
{
	for (int64_t i = 0; i < kept->count; i++) {
		fp_free(kept->list[i].column);
		fp_free(kept->list[i].before);
	}
	fp_free(kept->list);
	*kept = (fp_kept_entries){0};
}

fp_status fp_kept_copy(const fp_kept_matrix *kept, fp_backend *be, int64_t first, fp_matrix m, float *packed,
					   bool packs)
{
	float *numbers = NULL;
	fp_status status;
	FP_REQUIRE(be, m.cols == kept->cols && first + m.rows <= kept->rows);
	FP_TRY(FP_NEW(be->ctx, &numbers, m.cols));
	for (int64_t i = 0; i < m.rows; i++) {
		const int32_t *column = kept->column + kept->before[first + i];
		int64_t count = fp_kept_count(kept, first + i, 1);
		if (packs) {
			FP_TRY(read_row(be, m, i, numbers));
			for (int64_t k = 0; k < count; k++)
				packed[k] = numbers[column[k]];
		} else {
			memset(numbers, 0, (size_t)m.cols * sizeof *numbers);
			for (int64_t k = 0; k < count; k++)
				numbers[column[k]] = packed[k];
			FP_TRY(be->memory->upload(be, fp_matrix_rows(m, i, 1), numbers, FP_F32, m.cols));
		}
		packed += count;
	}
cleanup:
	fp_free(numbers);
	return status;
}
