/* SPDX-License-Identifier: Apache-2.0 */
#include "plain_mass.h"

#include <stdlib.h>

typedef struct entry {
	double score;
	int64_t place;
} entry;

static int by_score(const void *a, const void *b)
{
	const entry *x = a, *y = b;
	return (x->score > y->score) - (x->score < y->score);
}

void plain_removed(unsigned char *removed, const double *W, const double *h, int64_t m, int64_t n,
				   const fp_pattern *pattern)
{
	int64_t group = pattern->group ? pattern->group : m * n;
	int64_t zeros = pattern->group ? group - pattern->kept : (int64_t)(pattern->sparsity * (double)(m * n));
	entry *entries = malloc((size_t)group * sizeof *entries);
	for (int64_t first = 0; first < m * n; first += group) {
		for (int64_t k = 0; k < group; k++) {
			int64_t i = first + k;
			entries[k] = (entry){W[i] * W[i] * h[i % n], i};
			removed[i] = 0;
		}
		qsort(entries, (size_t)group, sizeof *entries, by_score);
		for (int64_t k = 0; k < zeros; k++)
			removed[entries[k].place] = 1;
	}
	free(entries);
}

double plain_sum(const unsigned char *removed, const double *W, const double *h, int64_t m, int64_t n)
{
	double sum = 0;
	for (int64_t i = 0; i < m * n; i++)
		sum += !removed || removed[i] ? W[i] * W[i] * h[i % n] : 0;
	return sum;
}

double plain_mass(const double *W, const double *h, int64_t m, int64_t n, const fp_pattern *pattern)
{
	unsigned char *removed = malloc((size_t)(m * n));
	plain_removed(removed, W, h, m, n, pattern);
	double sum = plain_sum(removed, W, h, m, n);
	free(removed);
	return sum;
}
