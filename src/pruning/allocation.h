/* SPDX-License-Identifier: Apache-2.0 */
/*
 * allocation.h: one share of zeros for the whole model, spread over its operators by how much the loss feels each.
 *
 * Each operator alone is pruned to the share by Wanda's rule, and the model's loss L on a few windows measured. With Δ
 * = L − L(dense) > 0 the loss of an operator at another share s' is taken to be Δ·exp(β(s' − s)), one β for all, and
 * the sum of these is made least while the zeros of the whole model stay what they are: s' = s + ln(μ·entries/Δ)/β,
 * within a limit around s, and μ such that the zeros are right
 */
#ifndef FP_PRUNING_ALLOCATION_H
#define FP_PRUNING_ALLOCATION_H

#include "base/settings.h"
#include "model/layer.h"
#include "text/windows.h"

typedef struct fp_allocation fp_allocation;

typedef struct fp_allocation_request {
	fp_model *model;
	const fp_settings *settings; /* `allocate` is the limit */
	const fp_windows *windows;   /* of which the first few are used */
	fp_pattern pattern;          /* unstructured */
	int64_t first, end;          /* layers to prune */
} fp_allocation_request;

/* The caller frees *out with fp_allocation_free(). Without text, or with N:M: FP_ERROR_USAGE. */
fp_status fp_allocation_new(fp_allocation **out, const fp_allocation_request *request);
void fp_allocation_free(fp_allocation *allocation); /* NULL is allowed */
/* The operator's own pattern; without an allocation (NULL) the given one. */
fp_pattern fp_allocation_pattern(const fp_allocation *allocation, fp_pattern pattern, int64_t layer, fp_role role);

/* zeros[i] ← how many of entries[i] are pruned: ⌊share·Σ entries⌋ in all, each at most `limit` (and the rounding of
 * one) from its share. loss[i] = Δ > 0. */
void fp_spread_zeros(int64_t *zeros, const double *loss, const int64_t *entries, int64_t count, double share,
					 double limit);

#endif
