/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row_importance.h: what an error in each output of a layer's operators does to the layer's output. Where zeros are
 * counted over a whole matrix, its rows share them, and a row that the layer hardly hears can spare more of them.
 */
#ifndef FP_PRUNING_ROW_IMPORTANCE_H
#define FP_PRUNING_ROW_IMPORTANCE_H

#include "base/settings.h"
#include "pruning/streams.h"
#include "solver/method.h"

/* By role; 1 × outputs; absent where it is not known. Freed with fp_row_importance_free(). */
typedef struct fp_row_importance {
	fp_matrix weight[FP_ROLE_COUNT];  /* 1 in the mean square */
	fp_matrix inverse[FP_ROLE_COUNT]; /* one over each */
} fp_row_importance;

/* True when the settings ask for it and the pattern leaves the rows a choice. */
bool fp_row_importance_wanted(const fp_settings *settings, const fp_pattern *pattern, const fp_backend *be);
/* Of the dense layer whose inputs the dense stream holds. */
fp_status fp_row_importance_new(fp_row_importance *out, const fp_layer *dense, fp_streams *streams);
void fp_row_importance_free(fp_backend *be, fp_row_importance *importance); /* all zero is allowed; leaves that */
/* Bytes that fp_row_importance_new() takes meanwhile, for planning. */
int64_t fp_row_importance_bytes(const fp_model *model, int64_t length);

#endif
