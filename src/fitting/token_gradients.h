/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token_gradients.h: the gradients of the dense model's cross-entropy on the calibration text with respect to the
 * output of each layer. They say what an error in that output does to the loss. They come from one pass forward and one
 * back through the whole model, before anything is pruned. One layer is in memory at a time; hidden states and
 * gradients are in an unnamed temporary file.
 */
#ifndef FP_FITTING_TOKEN_GRADIENTS_H
#define FP_FITTING_TOKEN_GRADIENTS_H

#include "base/settings.h"
#include "model/layer_backward.h"
#include "text/windows.h"

typedef struct fp_token_gradients fp_token_gradients; /* freed with fp_token_gradients_free() */

/* For the layers from `first` on. The temporary file is in `folder`. If the gradients of all windows would exceed a
 * fixed size, only the first windows have gradients; their number does not depend on the machine. */
fp_status fp_token_gradients_new(fp_token_gradients **out, fp_model *model, const fp_windows *windows, int64_t first,
								 const char *folder);
void fp_token_gradients_free(fp_token_gradients *gradients); /* NULL is allowed */

/* The first windows have gradients: how many. */
int64_t fp_token_gradients_count(const fp_token_gradients *gradients);
/* out (windows · length × hidden) ← the gradients of a layer for windows [first, first + windows) */
fp_status fp_token_gradients_read(const fp_token_gradients *gradients, int64_t layer, int64_t first, int64_t windows,
								  fp_matrix out);

/* For planning: the number of windows that will have gradients, and the bytes that the passes allocate at their peak on
 * the device, with `held` bytes for the weights of a layer. */
int64_t fp_token_gradients_windows(const fp_model *model, const fp_windows *windows);
int64_t fp_token_gradients_bytes(const fp_model *model, const fp_windows *windows, int64_t held);

/* True when the settings ask for token gradients. */
bool fp_token_gradients_wanted(const fp_settings *settings, const fp_windows *windows);

#endif
