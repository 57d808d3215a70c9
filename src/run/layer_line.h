/* SPDX-License-Identifier: Apache-2.0 */
/* layer_line.h: one line about a layer that is done: its errors, its λ, its fit, and how long the rest will take. */
#ifndef FP_RUN_LAYER_LINE_H
#define FP_RUN_LAYER_LINE_H

#include "run/prune_model.h"

/* layers: of the model. seconds: this layer's; left: of the layers to come, by those that are done. */
void fp_log_layer(fp_context *ctx, const fp_prune_result *result, int64_t layer, int64_t layers, double seconds,
				  double left);

#endif
