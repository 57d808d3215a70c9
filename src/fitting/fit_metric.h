/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fit_metric.h: how a layer fit weighs the errors e of a layer's output (rows: tokens). With g the gradients of the
 * token loss by that output in the dense model, the loss changes by about
 *     Σ g·e + ½ eᵀHe,   H ≈ E[ggᵀ]  (Fisher's matrix)
 * so that the fit minimises  Σ eᵀFe + 2κ/m Σ g·e  with F = E[ggᵀ]/m + δI and m = mean of diag E[ggᵀ]. Plain: Σ‖e‖².
 */
#ifndef FP_FITTING_FIT_METRIC_H
#define FP_FITTING_FIT_METRIC_H

#include "backend/backend.h"

typedef struct fp_fit_metric { /* all zero: plain; freed with fp_fit_metric_free() */
	fp_matrix F;               /* hidden × hidden; absent: the identity */
	fp_matrix product;         /* room for eF */
	double slope;              /* κ/m */
	double squares, entries;   /* of the gradients so far: Σ g², and how many */
} fp_fit_metric;

/* For errors of up to `rows` tokens; then the gradients of all tokens that have some, in parts; then the end, with
 * κ = descent. Gradients that are all zero leave it plain. */
fp_status fp_fit_metric_new(fp_fit_metric *out, fp_backend *be, int64_t hidden, int64_t rows);
fp_status fp_fit_metric_add(fp_fit_metric *metric, fp_backend *be, fp_matrix gradients);
fp_status fp_fit_metric_finish(fp_fit_metric *metric, fp_backend *be, double descent);
void fp_fit_metric_free(fp_backend *be, fp_fit_metric *metric);
/* Bytes of it, for planning. */
int64_t fp_fit_metric_bytes(int64_t hidden, int64_t rows);

/* *quadratic ← Σ eᵀFe, *linear ← 2κ/m Σ g·e; g (rows as e) may be absent: zero. */
fp_status fp_fit_metric_measure(const fp_fit_metric *metric, fp_backend *be, fp_matrix e, fp_matrix g,
								double *quadratic, double *linear);
/* e ← scale·(eF + κ/m·g): half the gradient, times scale. Not for a plain one. */
fp_status fp_fit_metric_gradient(const fp_fit_metric *metric, fp_backend *be, float scale, fp_matrix e, fp_matrix g);

#endif
