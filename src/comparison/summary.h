/* SPDX-License-Identifier: Apache-2.0 */
/* summary.h: mean and standard deviation over rows that differ only in the seed. */
#ifndef FP_COMPARISON_SUMMARY_H
#define FP_COMPARISON_SUMMARY_H

#include <jansson.h>

/* A new array with an object for each group of at least two rows: method, preset, correction, pattern,
 * samples, seeds, and mean and deviation (n − 1) of the perplexity. NULL if memory runs out. */
json_t *fp_comparison_summary(const json_t *rows);

#endif
