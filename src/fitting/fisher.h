/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fisher.h: what an error in a layer's output does to the token loss. With g the gradient of the dense model's
 * cross-entropy on a token of the calibration text with respect to the output of a layer, each layer has Fisher's
 * matrix Σ ggᵀ; with `adapt`, the gradients themselves are kept too. They come from one pass forward and one back
 * through the whole model, before anything is pruned. One layer is in memory at a time, and the results are on the device
 * or in an unnamed temporary file. Ranks that share the windows of a text compute the gradients of some of them each, and
 * all have the same matrices in the end.
 */
#ifndef FP_FITTING_FISHER_H
#define FP_FITTING_FISHER_H

#include "base/settings.h"
#include "model/layer_backward.h"
#include "sharing/share.h"
#include "text/windows.h"

typedef struct fp_fisher fp_fisher; /* freed with fp_fisher_free() */

/* Where the passes have hidden states: on the device or in the file, and how much they may take before some are computed
 * twice instead; and whether the matrices stay on the device. With `adapt`, hidden states become gradients, which stay
 * where they are. All zero: in the file, with the usual limit. The result does not depend on it. */
typedef struct fp_fisher_room {
	bool on_device, keeps;
	int64_t bytes;
} fp_fisher_room;

typedef struct fp_fisher_request {
	fp_model *model;
	const fp_settings *settings;
	const fp_windows *windows;
	int64_t first, end; /* layers that will be read */
	const char *folder; /* for the temporary file */
	fp_fisher_room room;
	fp_share share; /* of the windows whose gradients will be read; all zero: this process has all of them */
} fp_fisher_request;

fp_status fp_fisher_new(fp_fisher **out, const fp_fisher_request *request);
void fp_fisher_free(fp_fisher *fisher); /* NULL is allowed */

/* Σ ggᵀ is over so many tokens. */
int64_t fp_fisher_tokens(const fp_fisher *fisher);
/* out (hidden × hidden) ← the upper triangle of a layer's Σ ggᵀ; the lower one is undefined */
fp_status fp_fisher_read(const fp_fisher *fisher, int64_t layer, fp_matrix out);

/* The first windows of the text have gradients: how many; 0 without `adapt`. */
int64_t fp_fisher_gradient_windows(const fp_fisher *fisher);
/* out (windows · length × hidden) ← the gradients of a layer for windows [first, first + windows), all of this rank */
fp_status fp_fisher_read_gradients(const fp_fisher *fisher, int64_t layer, int64_t first, int64_t windows,
								   fp_matrix out);

/* True when the settings ask for Fisher matrices, and for the gradients too. */
bool fp_fisher_wanted(const fp_settings *settings, const fp_windows *windows);
bool fp_fisher_keeps_gradients(const fp_settings *settings);

/* For planning: the windows that the passes read (the first ones; their number does not depend on the machine). */
int64_t fp_fisher_windows(const fp_model *model, const fp_settings *settings, const fp_windows *windows);
/* The bytes that the passes allocate at their peak on the device with hidden states in the file, with `held` bytes for the
 * weights of a layer and so many sums in registers (sharing/part_sum.h). */
int64_t fp_fisher_bytes(const fp_model *model, const fp_settings *settings, const fp_windows *windows, int64_t held,
						int registers);
/* The bytes of all that is kept after the passes. */
int64_t fp_fisher_kept_bytes(const fp_model *model, const fp_settings *settings, const fp_windows *windows);
/* The room to use if so many bytes more are free on the device during the passes, and so many are spare all the time. */
fp_fisher_room fp_fisher_choose_room(const fp_model *model, const fp_settings *settings, const fp_windows *windows,
									 int64_t free_bytes, int64_t spare_bytes);
/* The operations of their matrix products, with so many weights in a layer. */
double fp_fisher_flops(const fp_model *model, const fp_settings *settings, const fp_windows *windows, int64_t weights);

#endif
