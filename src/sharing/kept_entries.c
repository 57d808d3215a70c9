/* SPDX-License-Identifier: Apache-2.0 */
#include "sharing/kept_entries.h"

#include "base/memory.h"
#include "base/numbers.h"

#include <string.h>

enum { BLOCK_ENTRIES = 1 << 15 }; /* of a matrix at once: few calls of the backend, and the block stays in the cache */

static int64_t block_rows(int64_t cols)
{
	return fp_larger(BLOCK_ENTRIES / fp_larger(cols, 1), 1);
}

/* before and column ← of the entries of m that are not zero, or of all */
static fp_status find_kept(fp_kept_matrix *kept, fp_backend *be, fp_matrix m, bool all)
{
	float *block = NULL;
	int64_t rows = block_rows(m.cols), capacity = 0, count = 0;
	fp_status status;
	FP_REQUIRE(be, m.cols <= INT32_MAX);
	FP_TRY(FP_NEW(be->ctx, &block, rows * m.cols));
	for (int64_t i = 0; i < m.rows; i++) {
		const float *row = block + i % rows * m.cols;
		if (i % rows == 0)
			FP_TRY(be->memory->download(be, block, FP_F32, m.cols, fp_matrix_rows(m, i, fp_smaller(rows, m.rows - i))));
		FP_TRY(FP_GROW(be->ctx, &kept->column, &capacity, count + m.cols));
		for (int64_t j = 0; j < m.cols; j++)
			if (all || row[j] != 0.0F)
				kept->column[count++] = (int32_t)j;
		kept->before[i + 1] = count;
	}
cleanup:
	fp_free(block);
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

/* The kept entries of some rows, which lie one after the other in `block`. */
static void pack(const fp_kept_matrix *kept, int64_t first, int64_t rows, const float *block, float *packed)
{
	for (int64_t i = first; i < first + rows; i++, block += kept->cols)
		for (int64_t k = kept->before[i]; k < kept->before[i + 1]; k++)
			*packed++ = block[kept->column[k]];
}

/* The reverse; all other entries become zero. */
static void unpack(const fp_kept_matrix *kept, int64_t first, int64_t rows, const float *packed, float *block)
{
	memset(block, 0, (size_t)(rows * kept->cols) * sizeof *block);
	for (int64_t i = first; i < first + rows; i++, block += kept->cols)
		for (int64_t k = kept->before[i]; k < kept->before[i + 1]; k++)
			block[kept->column[k]] = *packed++;
}

fp_status fp_kept_copy(const fp_kept_matrix *kept, fp_backend *be, int64_t first, fp_matrix m, float *packed,
					   bool packs)
{
	float *block = NULL;
	int64_t most = block_rows(m.cols);
	fp_status status;
	FP_REQUIRE(be, m.cols == kept->cols && first + m.rows <= kept->rows);
	FP_TRY(FP_NEW(be->ctx, &block, fp_smaller(most, m.rows) * m.cols));
	for (int64_t done = 0; done < m.rows; done += most) {
		fp_matrix some = fp_matrix_rows(m, done, fp_smaller(most, m.rows - done));
		if (packs) {
			FP_TRY(be->memory->download(be, block, FP_F32, m.cols, some));
			pack(kept, first + done, some.rows, block, packed);
		} else {
			unpack(kept, first + done, some.rows, packed, block);
			FP_TRY(be->memory->upload(be, some, block, FP_F32, m.cols));
		}
		packed += fp_kept_count(kept, first + done, some.rows);
	}
cleanup:
	fp_free(block);
	return status;
}
