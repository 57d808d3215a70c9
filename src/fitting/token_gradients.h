/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token_gradients.h: what an error in a layer's output does to the tokens' loss: the gradients of the dense model's
 * cross-entropy on the calibration text by the output of each layer. One pass forward and one back through the whole
 * model, before anything is pruned; one layer in memory at a time, everything else in a file without a name.
 */
#ifndef FP_FITTING_TOKEN_GRADIENTS_H
#define FP_FITTING_TOKEN_GRADIENTS_H

#include "base/settings.h"
#include "model/layer_backward.h"
#include "text/windows.h"

typedef struct fp_token_gradients fp_token_gradients; /* freed with fp_token_gradients_free() */

/* For the layers from `first` on. Many layers of many windows would fill the disk: then the gradients are those of the
 * first windows only, as many as fit into a fixed size (that of the file does not depend on the machine). */
fp_status fp_token_gradients_new(fp_token_gradients **out, fp_model *model, const fp_windows *windows, int64_t first,
								 const char *folder);
void fp_token_gradients_free(fp_token_gradients *gradients); /* NULL is allowed */

/* How many windows have gradients: the first ones. */
int64_t fp_token_gradients_count(const fp_token_gradients *gradients);
/* out (windows · length × hidden) ← those by the output of a layer, of windows [first, first + windows). */
fp_status fp_token_gradients_read(const fp_token_gradients *gradients, int64_t layer, int64_t first, int64_t windows,
								  fp_matrix out);

/* Windows that would have gradients, and bytes of device memory that the pass takes with a layer's weights held in so
 * many; for planning. */
int64_t fp_token_gradients_windows(const fp_model *model, const fp_windows *windows);
int64_t fp_token_gradients_bytes(const fp_model *model, const fp_windows *windows, int64_t held);

/* True when the settings ask for them. */
bool fp_token_gradients_wanted(const fp_settings *settings, const fp_windows *windows);

#endif
