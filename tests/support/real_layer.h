/* SPDX-License-Identifier: Apache-2.0 */
/* real_layer.h: inputs and weights of one operator of a trained model on real text. */
#ifndef FP_TESTS_REAL_LAYER_H
#define FP_TESTS_REAL_LAYER_H

#include "model_fixture.h"

#include "text/windows.h"

typedef struct real_source {
	const char *name;
	const char *model, *text; /* in the shared folder or in the project */
	int shared;
} real_source;
extern const real_source real_sources[]; /* those of the project itself */
extern const int real_source_count;
extern const real_source shared_source;

/* Opens the model and cuts windows of its calibration text; skips the test if shared files are missing. */
void open_real(model_fixture *f, fp_windows *windows, const real_source *source, int64_t samples, int64_t length);

typedef struct real_operator {
	int64_t m, n, p;
	double *W, *X; /* m × n; p × n */
} real_operator;
/* The operator and its inputs in the dense model. The caller frees W and X with free(). */
void capture_real(real_operator *out, model_fixture *f, const fp_windows *windows, int64_t layer, fp_role role);

#endif
