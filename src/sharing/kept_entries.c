/* SPDX-License-Identifier: Apache-2.0 */
#include "sharing/kept_entries.h"

#include "base/memory.h"

#include <string.h>

/* before and column ← of the entries of m that are not zero, or of all */
static fp_status find_kept(fp_kept_matrix *kept, fp_backend *be, fp_matrix m, bool all)
{
	const float *entries = fp_matrix_on_host(be, m);
	int64_t count = 0;
	fp_status status;
	FP_REQUIRE(be, entries && m.dtype == FP_F32 && m.cols <= INT32_MAX);
	for (int64_t i = 0; i < m.rows; i++) {
		for (int64_t j = 0; j < m.cols; j++)
			count += all || entries[i * m.cols + j] != 0.0F;
		kept->before[i + 1] = count;
	}
	FP_TRY(fp_allocate_undefined(be->ctx, (void **)&kept->column, (count + 1) * (int64_t)sizeof *kept->column));
	count = 0;
	for (int64_t i = 0; i < m.rows; i++)
		for (int64_t j = 0; j < m.cols; j++) { /* no branch, which would be guessed wrong for every other entry */
			kept->column[count] = (int32_t)j;
			count += all || entries[i * m.cols + j] != 0.0F;
		}
cleanup:
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
	float *row = fp_matrix_on_host(be, m);
	FP_REQUIRE(be, row && m.dtype == FP_F32 && m.cols == kept->cols && first + m.rows <= kept->rows);
	for (int64_t i = first; i < first + m.rows; i++, row += m.cols) {
		const int32_t *column = kept->column + kept->before[i];
		int64_t count = fp_kept_count(kept, i, 1);
		if (!packs)
			memset(row, 0, (size_t)m.cols * sizeof *row);
		for (int64_t k = 0; k < count && packs; k++)
			packed[k] = row[column[k]];
		for (int64_t k = 0; k < count && !packs; k++)
			row[column[k]] = packed[k];
		packed += count;
	}
	return FP_OK;
}
