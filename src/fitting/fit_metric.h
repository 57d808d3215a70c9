/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fit_metric.h: how a layer fit weighs the errors e of a layer's output (one row per token). With g the gradients of
 * the token loss with respect to that output in the dense model, the token loss changes by about
 *     Σ g·e + ½ Σ eᵀHe,       H ≈ E[ggᵀ]   (Fisher information)
 * The fit therefore minimises
 *     Σ eᵀFe + 2κ/m Σ g·e,    F = E[ggᵀ]/m + δI,    m = mean of diag E[ggᵀ]
 * The plain metric is Σ‖e‖².
 */
#ifndef FP_FITTING_FIT_METRIC_H
#define FP_FITTING_FIT_METRIC_H

#include "backend/backend.h"

typedef struct fp_fit_metric { /* all zero: the plain metric; freed with fp_fit_metric_free() */
	fp_matrix F;               /* hidden × hidden; absent: the identity */
	fp_matrix product;         /* work space for eF */
	double slope;              /* κ/m */
} fp_fit_metric;

/* For errors of up to `rows` tokens. After it, the caller sets the upper triangle of F to Σ ggᵀ over `tokens` tokens,
 * and fp_fit_metric_finish() computes F and the slope, with κ = descent. If all gradients are zero, the metric is
 * plain. */
fp_status fp_fit_metric_new(fp_fit_metric *out, fp_backend *be, int64_t hidden, int64_t rows);
fp_status fp_fit_metric_finish(fp_fit_metric *metric, fp_backend *be, int64_t tokens, double descent);
void fp_fit_metric_free(fp_backend *be, fp_fit_metric *metric);
/* Bytes that fp_fit_metric_new() allocates. */
int64_t fp_fit_metric_bytes(int64_t hidden, int64_t rows);

/* *quadratic ← Σ eᵀFe, *linear ← 2κ/m Σ g·e. g has the shape of e; absent: zero. */
fp_status fp_fit_metric_measure(const fp_fit_metric *metric, fp_backend *be, fp_matrix e, fp_matrix g,
								double *quadratic, double *linear);
/* e ← scale·(eF + κ/m·g), half the gradient times scale. Not for the plain metric. */
fp_status fp_fit_metric_gradient(const fp_fit_metric *metric, fp_backend *be, float scale, fp_matrix e, fp_matrix g);

#endif
