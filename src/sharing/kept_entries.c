/* SPDX-License-Identifier: Apache-2.0 */
#include "sharing/kept_entries.h"

#include "base/memory.h"

#include <string.h>

enum { WORD = 64, ALONE = 1 << 16 /* entries that one thread copies faster than several */ };

static int64_t words_of(const fp_kept_matrix *kept)
{
	return (kept->cols + WORD - 1) / WORD;
}

/* Whether the bits of an entry are not all zero: −0.0 is kept too, so that a copy gives back every bit. */
static bool is_kept(const float *entry)
{
	uint32_t bits;
	memcpy(&bits, entry, sizeof bits);
	return bits != 0;
}

/* bits and before ← of the entries */
static void mark(fp_kept_matrix *kept, const float *entries)
{
	for (int64_t i = 0; i < kept->rows; i++) {
		uint64_t *row = kept->bits + i * words_of(kept);
		int64_t count = 0;
		for (int64_t j = 0; j < kept->cols; j++) {
			uint64_t keeps = !entries || is_kept(entries + i * kept->cols + j);
			row[j / WORD] |= keeps << (j % WORD);
			count += (int64_t)keeps;
		}
		kept->before[i + 1] = kept->before[i] + count;
	}
}

fp_status fp_kept_entries_add(fp_kept_entries *kept, fp_context *ctx, int64_t rows, int64_t cols, const float *entries)
{
	fp_kept_matrix one = {.rows = rows, .cols = cols};
	fp_status status;
	FP_TRY(FP_NEW(ctx, &one.before, rows + 1));
	FP_TRY(FP_NEW(ctx, &one.bits, rows * words_of(&one)));
	FP_TRY(FP_GROW(ctx, &kept->list, &kept->capacity, kept->count + 1));
	mark(&one, entries);
	kept->list[kept->count++] = one;
	return FP_OK;
cleanup:
	fp_free(one.bits);
	fp_free(one.before);
	return status;
}

void fp_kept_entries_free(fp_kept_entries *kept)
{
	for (int64_t i = 0; i < kept->count; i++) {
		fp_free(kept->list[i].bits);
		fp_free(kept->list[i].before);
	}
	fp_free(kept->list);
	*kept = (fp_kept_entries){0};
}

int64_t fp_kept_bytes(const fp_kept_matrix *kept)
{
	return kept->rows * words_of(kept) * (int64_t)sizeof *kept->bits + (kept->rows + 1) * (int64_t)sizeof *kept->before;
}

/* One row. The compiler makes a copy of this for each size. */
static inline void copy_row(const uint64_t *bits, int64_t words, char *row, char *packed, size_t size, bool packs)
{
	for (int64_t w = 0; w < words; w++, row += WORD * size)
		for (uint64_t left = bits[w]; left; left &= left - 1, packed += size) {
			char *entry = row + (size_t)__builtin_ctzll(left) * size;
			if (packs)
				memcpy(packed, entry, size);
			else
				memcpy(entry, packed, size);
		}
}

void fp_kept_copy(const fp_kept_matrix *kept, int64_t first, int64_t count, void *rows, void *packed, int64_t size,
				  bool packs, int threads)
{
	int64_t words = words_of(kept), bytes = kept->cols * size;
	(void)threads; /* a build without OpenMP, as of the fuzz targets, has no use for it */
#pragma omp parallel for num_threads(threads) if (count * kept->cols > ALONE)
	for (int64_t i = 0; i < count; i++) {
		const uint64_t *bits = kept->bits + (first + i) * words;
		char *row = (char *)rows + i * bytes, *entries = (char *)packed + fp_kept_count(kept, first, i) * size;
		if (!packs)
			memset(row, 0, (size_t)bytes);
		if (size == 2)
			copy_row(bits, words, row, entries, 2, packs);
		else
			copy_row(bits, words, row, entries, 4, packs);
	}
}
