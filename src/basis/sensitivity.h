/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sensitivity.h: how much the loss of the model feels an error in each operator's output: E‖∂loss/∂y‖² per output, by
 * one pass forward and one back through the dense model with a few thousand tokens.
 */
#ifndef FP_BASIS_SENSITIVITY_H
#define FP_BASIS_SENSITIVITY_H

#include "model/layer_backward.h"
#include "sharing/share.h"
#include "text/windows.h"

/* out[layer · fp_model_operators() + number] ← the mean of squares over outputs and tokens; 0 for an operator that the
 * layer lacks. share: of ranks that have some of the windows each, divided or all zero. */
fp_status fp_sensitivities(double *out, fp_model *model, const fp_windows *windows, const fp_share *share);
/* Operations of its matrix products, with so many weights in a layer. */
double fp_sensitivities_flops(const fp_model *model, const fp_windows *windows, int64_t weights);
int64_t fp_sensitivities_bytes(const fp_model *model, const fp_windows *windows);

#endif
