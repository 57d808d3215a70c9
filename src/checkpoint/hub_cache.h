/* SPDX-License-Identifier: Apache-2.0 */
/* hub_cache.h: finds models that the Hugging Face tools have downloaded. */
#ifndef FP_CHECKPOINT_HUB_CACHE_H
#define FP_CHECKPOINT_HUB_CACHE_H

#include "base/context.h"

/* *out ← `model` if it is a directory, else the snapshot of org/name[@revision] in the cache. The cache is the first of
 * HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub and ~/.cache/huggingface/hub whose
 * variable is set. The caller frees *out with fp_free(). */
fp_status fp_find_model(char **out, fp_context *ctx, const char *model);

#endif
