/* SPDX-License-Identifier: Apache-2.0 */
/* summary.h: rows that differ in their seed only, as mean and deviation. */
#ifndef FP_COMPARISON_SUMMARY_H
#define FP_COMPARISON_SUMMARY_H

#include <jansson.h>

/* A new array: method, preset, correction, pattern, samples, seeds, mean, deviation (of the sample, n − 1) of the
 * perplexity, for every group of two rows or more; empty where no group has two. NULL when there is no memory. */
json_t *fp_comparison_summary(const json_t *rows);

#endif
