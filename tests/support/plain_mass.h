/* SPDX-License-Identifier: Apache-2.0 */
/* plain_mass.h: what a pattern removes of an operator, by plain loops in double: the sum of w²h over the smallest entries. */
#ifndef FP_TESTS_PLAIN_MASS_H
#define FP_TESTS_PLAIN_MASS_H

#include "backend/backend.h"

/* removed ← 1 for the entries of W (m × n) that the pattern removes when entries of column j count w²h_j. Groups divide
 * n. */
void plain_removed(unsigned char *removed, const double *W, const double *h, int64_t m, int64_t n,
				   const fp_pattern *pattern);
/* Σ w²h over the entries with removed = 1; NULL: over all */
double plain_sum(const unsigned char *removed, const double *W, const double *h, int64_t m, int64_t n);
/* Both: the mass that the pattern removes. */
double plain_mass(const double *W, const double *h, int64_t m, int64_t n, const fp_pattern *pattern);

#endif
