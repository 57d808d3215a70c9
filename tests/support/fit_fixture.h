/* SPDX-License-Identifier: Apache-2.0 */
/* fit_fixture.h: layer 0 of a model fixture with random windows, pruned by size and fitted. */
#ifndef FP_TESTS_FIT_FIXTURE_H
#define FP_TESTS_FIT_FIXTURE_H

#include "model_fixture.h"

#include "fitting/layer_fit.h"

/* Models to fit, with checkpoints of bf16, f32, f16 and f16. */
enum { FIT_MODEL_COUNT = 4 };
extern const char *const fit_models[FIT_MODEL_COUNT];

enum { FIT_LENGTH = 24, FIT_BATCH = 3, FIT_TENSORS = 2 * FP_ROLE_COUNT };

typedef struct fit_fixture {
	model_fixture f;
	fp_settings *settings;
	fp_windows windows;
	fp_layer *layer;
	fp_matrix input, target;
	fp_matrix gradients;      /* of a token loss; absent: there are none */
	int64_t gradient_windows; /* 0: the metric is plain; the fit reads gradients only with adapt > 0 */
	fp_share share;           /* of the windows; all zero: not divided */
	fp_workspace *workspace;
	fp_fit_result result;
} fit_fixture;

void open_fit(fit_fixture *fit, const char *model, int64_t windows, const char *const *assignments);
void close_fit(fit_fixture *fit);

/* out ← layer(input) */
void forward_fit(fit_fixture *fit, const fp_layer *layer, fp_matrix out);
/* target ← the output of the dense layer; then removes half of each operator's weights, the smallest. */
void prune_by_size(fit_fixture *fit);
/* Random gradients for the first windows: a direction that all tokens share, and noise. */
void make_token_gradients(fit_fixture *fit, int64_t windows);
/* A task for fp_fit_layer(); it borrows the fixture. */
fp_fit_task fit_task(fit_fixture *fit);
/* Fits the layer and sets the result. */
void run_fit(fit_fixture *fit);

/* ‖layer(input) − target‖² / ‖target − input‖² of windows [first, end) */
double relative_loss(fit_fixture *fit, int64_t first, int64_t end);

/* A matrix as floats; the caller frees it with free(). */
float *download_floats(fit_fixture *fit, fp_matrix matrix);
/* The layer's weights (even) and biases (odd); NULL where it has none. Freed with free_weights(). */
void read_weights(fit_fixture *fit, float *out[FIT_TENSORS]);
void free_weights(float *weights[FIT_TENSORS]);
fp_matrix layer_tensor(const fit_fixture *fit, int index);
/* Every number has the checkpoint's type; zeros of `before` are +0.0 in `after`, which are the layer's now. */
void check_weights(fit_fixture *fit, float *before[FIT_TENSORS], float *after[FIT_TENSORS]);

#endif
