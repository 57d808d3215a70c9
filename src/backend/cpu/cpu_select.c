/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/cpu/cpu_select.h"

#include "base/memory.h"
#include <omp.h>

enum { DIGITS = 3, BINS = 2048, PARALLEL_FROM = 32768 };

static const int digit_shift[DIGITS] = {20, 10, 0};
static const uint32_t digit_bins[DIGITS] = {2048, 1024, 1024};

/* What is known of the threshold so far. */
typedef struct selection {
	uint32_t prefix; /* the digits found so far, in place */
	uint32_t known;  /* the bits of these digits */
	int64_t left;    /* entries to prune among those that match the prefix */
} selection;

static void count_digit(const float *x, int64_t n, const selection *s, int digit, int64_t *bins)
{
	int shift = digit_shift[digit];
	uint32_t last = digit_bins[digit] - 1;
	if (s->known == 0) {
		for (int64_t i = 0; i < n; i++)
			bins[fp_cpu_key(x[i]) >> shift & last]++;
		return;
	}
	for (int64_t i = 0; i < n; i++) {
		uint32_t key = fp_cpu_key(x[i]);
		if ((key & s->known) == s->prefix)
			bins[key >> shift & last]++;
	}
}

/* Finds the bin in which the left-th smallest of the matching entries lies. */
static void take_digit(selection *s, int digit, const int64_t *bins)
{
	uint32_t bin = 0;
	while (bin + 1 < digit_bins[digit] && bins[bin] < s->left)
		s->left -= bins[bin++];
	s->prefix |= bin << digit_shift[digit];
	s->known |= (digit_bins[digit] - 1) << digit_shift[digit];
}

/* Writes 0 below the threshold and at the first *ties entries equal to it, else 1. */
static void write_mask(const float *x, int64_t n, uint32_t threshold, int64_t *ties, uint8_t *mask)
{
	for (int64_t i = 0; i < n; i++) {
		uint32_t key = fp_cpu_key(x[i]);
		bool pruned = key < threshold;
		if (key == threshold && *ties > 0) {
			pruned = true;
			--*ties;
		}
		mask[i] = pruned ? 0 : 1;
	}
}

static int64_t count_equal(const float *x, int64_t n, uint32_t threshold)
{
	int64_t count = 0;
	for (int64_t i = 0; i < n; i++)
		count += fp_cpu_key(x[i]) == threshold;
	return count;
}

static bool prune_trivial(fp_cpu_scores scores, int64_t zeros, uint8_t *mask, int64_t mask_stride)
{
	if (zeros > 0 && zeros < scores.rows * scores.cols)
		return false;
	for (int64_t i = 0; i < scores.rows; i++)
		memset(mask + i * mask_stride, zeros > 0 ? 0 : 1, (size_t)scores.cols);
	return true;
}

fp_status fp_cpu_prune_smallest(fp_context *ctx, int threads, fp_cpu_scores scores, int64_t zeros, uint8_t *mask,
								int64_t mask_stride)
{
	if (prune_trivial(scores, zeros, mask, mask_stride))
		return FP_OK;
	if (threads > scores.rows)
		threads = (int)scores.rows;
	if (scores.rows * scores.cols < PARALLEL_FROM)
		threads = 1;
	int64_t *bins;
	fp_status status = FP_NEW(ctx, &bins, (int64_t)threads * BINS);
	if (status != FP_OK)
		return status;
	selection s = {.left = zeros};
#pragma omp parallel num_threads(threads)
	{
		/* Each thread has the same rows in every pass, so the ties before its rows are those that lower threads
		 * found. */
		int team = omp_get_num_threads(), self = omp_get_thread_num();
		int64_t first = scores.rows * self / team, last = scores.rows * (self + 1) / team;
		int64_t *own = bins + (int64_t)self * BINS;
		for (int digit = 0; digit < DIGITS; digit++) {
			memset(own, 0, BINS * sizeof *own);
			for (int64_t i = first; i < last; i++)
				count_digit(scores.data + i * scores.stride, scores.cols, &s, digit, own);
#pragma omp barrier
#pragma omp single
			{
				for (int t = 1; t < team; t++) {
					for (int b = 0; b < BINS; b++)
						bins[b] += bins[(int64_t)t * BINS + b];
				}
				take_digit(&s, digit, bins);
			}
		}
		own[0] = 0;
		for (int64_t i = first; i < last; i++)
			own[0] += count_equal(scores.data + i * scores.stride, scores.cols, s.prefix);
#pragma omp barrier
		int64_t ties = s.left;
		for (int t = 0; t < self; t++)
			ties -= bins[(int64_t)t * BINS];
		for (int64_t i = first; i < last; i++)
			write_mask(scores.data + i * scores.stride, scores.cols, s.prefix, &ties, mask + i * mask_stride);
	}
	fp_free(bins);
	return FP_OK;
}

void fp_cpu_prune_row(const float *scores, int64_t count, int64_t zeros, uint8_t *mask)
{
	fp_cpu_scores row = {.data = scores, .rows = 1, .cols = count, .stride = count};
	if (prune_trivial(row, zeros, mask, count))
		return;
	int64_t bins[BINS];
	selection s = {.left = zeros};
	for (int digit = 0; digit < DIGITS; digit++) {
		memset(bins, 0, sizeof bins);
		count_digit(scores, count, &s, digit, bins);
		take_digit(&s, digit, bins);
	}
	write_mask(scores, count, s.prefix, &s.left, mask);
}

/* Entry i of a group is kept if fewer than `keep` entries precede it in the order "largest first, then by position".
 * Counting has no branches, and with a constant size the compiler unrolls it. */
static inline __attribute__((always_inline)) void prune_group(const float *x, int64_t size, int64_t keep, uint8_t *mask)
{
	for (int64_t i = 0; i < size; i++) {
		uint32_t key = fp_cpu_key(x[i]);
		int32_t ahead = 0;
		for (int64_t j = 0; j < i; j++)
			ahead += fp_cpu_key(x[j]) >= key;
		for (int64_t j = i + 1; j < size; j++)
			ahead += fp_cpu_key(x[j]) > key;
		mask[i] = ahead < keep;
	}
}

void fp_cpu_prune_groups(const float *scores, int64_t count, int64_t kept, int64_t group, uint8_t *mask)
{
	int64_t begin = 0;
	if (group == 4) {
		for (; begin + 4 <= count; begin += 4)
			prune_group(scores + begin, 4, kept, mask + begin);
	} else if (group == 8) {
		for (; begin + 8 <= count; begin += 8)
			prune_group(scores + begin, 8, kept, mask + begin);
	}
	for (; begin < count; begin += group) {
		int64_t size = count - begin < group ? count - begin : group;
		prune_group(scores + begin, size, (kept * size + group - 1) / group, mask + begin);
	}
}
