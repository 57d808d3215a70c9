/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row_importance.h: how much an error in each output (row) of an operator changes the layer's output. An unstructured
 * pattern distributes its zeros over the rows of a matrix, and rows with little effect can take more of them.
 */
#ifndef FP_PRUNING_ROW_IMPORTANCE_H
#define FP_PRUNING_ROW_IMPORTANCE_H

#include "base/settings.h"
#include "pruning/selection.h"
#include "pruning/streams.h"
#include "solver/method.h"

/* By the operators' numbers; 1 × outputs; absent if unknown. Freed with fp_row_importance_free(). */
typedef struct fp_row_importance {
	int count;
	fp_matrix *weight;  /* mean square 1; NULL: all unknown */
	fp_matrix *inverse; /* reciprocals */
} fp_row_importance;

/* True if the settings ask for it and the pattern is unstructured. */
bool fp_row_importance_wanted(const fp_settings *settings, const fp_pattern *pattern, const fp_selection *selection,
							  const fp_backend *be);
/* For the dense layer whose inputs are in the dense stream. */
fp_status fp_row_importance_new(fp_row_importance *out, const fp_layer *dense, fp_streams *streams);
void fp_row_importance_free(fp_backend *be, fp_row_importance *importance); /* may be all zero, and is afterwards */
/* Bytes that fp_row_importance_new() uses at its peak; an estimate. */
int64_t fp_row_importance_bytes(const fp_model *model, int64_t length);

#endif
