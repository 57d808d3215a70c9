/* SPDX-License-Identifier: Apache-2.0 */
/*
 * allocation.h: distributes the zeros of a model over its operators by how much pruning each one raises the loss.
 *
 * Each operator i alone is pruned to the sparsity s by Wanda, and the loss of the model is measured on a few windows:
 *
 *     Δᵢ = loss − loss of the dense model
 *
 * At another sparsity sᵢ the loss is assumed to rise by Δᵢ·exp(β(sᵢ − s)), with one β for all operators. Minimising the
 * sum for a given number of zeros in the model gives
 *
 *     sᵢ = s + ln(μ·entriesᵢ/Δᵢ)/β
 *
 * limited to an interval around s, where the multiplier μ makes the number of zeros right.
 *
 * The experts of a layer share one sparsity for each role: gate, up or down of all of them count as one operator, whose
 * zeros they share as evenly as possible.
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
	const fp_windows *windows;   /* only the first few are used */
	fp_pattern pattern;          /* unstructured */
	int64_t first, end;          /* layers to prune */
} fp_allocation_request;

/* The caller frees *out with fp_allocation_free(). Without text, or with N:M: FP_ERROR_USAGE. */
fp_status fp_allocation_new(fp_allocation **out, const fp_allocation_request *request);
void fp_allocation_free(fp_allocation *allocation); /* NULL is allowed */
/* Returns the pattern with the operator's own sparsity, or unchanged if allocation is NULL. */
fp_pattern fp_allocation_pattern(const fp_allocation *allocation, fp_pattern pattern, int64_t layer, int number);

/* zeros[i] ← how many of entries[i] to prune: ⌊share·Σ entries⌋ in total. No operator's sparsity differs from `share` by
 * more than `limit`, apart from rounding. loss[i] = Δᵢ > 0. */
void fp_spread_zeros(int64_t *zeros, const double *loss, const int64_t *entries, int64_t count, double share,
					 double limit);

#endif
