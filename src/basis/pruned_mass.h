/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pruned_mass.h: what a pattern removes of an operator, which a good basis makes small.
 *
 * An entry w of column j counts w²h, where h is the cost of the operator's input j (input_cost.h). The pattern removes the
 * smallest entries. With S the entries w√h and P those of S that it removes,
 *
 *     mass = ‖P‖²     gradient by w: 2P√h     by h: the sums of P² over the rows, over h
 *
 * where the removed set is held fixed.
 */
#ifndef FP_BASIS_PRUNED_MASS_H
#define FP_BASIS_PRUNED_MASS_H

#include "backend/backend.h"

typedef struct fp_mass_space { /* for operators of up to `entries` entries; freed with fp_mass_space_free() */
	fp_matrix S, P;            /* 1 × entries */
	fp_matrix mask;            /* U8 */
	fp_matrix root;            /* 1 × the most columns */
	float *host;               /* 2 × the most columns */
} fp_mass_space;

fp_status fp_mass_space_new(fp_mass_space *out, fp_backend *be, int64_t entries, int64_t columns);
void fp_mass_space_free(fp_backend *be, fp_mass_space *space);
int64_t fp_mass_space_bytes(int64_t entries, int64_t columns);

/* What the pattern removes, and all that there is: ‖P‖² and ‖S‖². */
typedef struct fp_mass {
	double removed, all;
} fp_mass;

/* Adds weight times the mass of the operator W with the costs h (1 × n) of its inputs to *out, unless NULL. W ← weight times the
 * gradient by W; unless absent, gradient_h (1 × n) ← weight times that by h. */
fp_status fp_pruned_mass(fp_mass_space *space, fp_backend *be, const fp_pattern *pattern, double weight, fp_matrix W,
						 fp_matrix h, fp_matrix gradient_h, fp_mass *out);

#endif
