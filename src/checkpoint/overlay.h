/* SPDX-License-Identifier: Apache-2.0 */
/* overlay.h: new bytes for some of a checkpoint's tensors, in memory: a pruned model that is only evaluated need not be
 * written. */
#ifndef FP_CHECKPOINT_OVERLAY_H
#define FP_CHECKPOINT_OVERLAY_H

#include "checkpoint/checkpoint.h"

typedef struct fp_overlay fp_overlay;

fp_status fp_overlay_new(fp_overlay **out, fp_context *ctx);
void fp_overlay_free(fp_overlay *overlay); /* NULL is allowed */
/* Copies the tensor's new bytes, of the same type and shape. A second call for a tensor overwrites the first. */
fp_status fp_overlay_replace(fp_overlay *overlay, const fp_tensor_info *tensor, const void *bytes);
/* The new bytes, or NULL if the tensor was not replaced. Borrowed until the overlay is freed. */
const void *fp_overlay_data(const fp_overlay *overlay, const fp_tensor_info *tensor);

#endif
