/* SPDX-License-Identifier: Apache-2.0 */
/* layer_line.h: logs one line for a finished layer: its error, λ and fit, and the time left. */
#ifndef FP_RUN_LAYER_LINE_H
#define FP_RUN_LAYER_LINE_H

#include "run/prune_model.h"

/* layers: of the model. seconds: for this layer. left: estimated seconds for the remaining layers. */
void fp_log_layer(fp_context *ctx, const fp_prune_result *result, int64_t layer, int64_t layers, double seconds,
				  double left);

#endif
