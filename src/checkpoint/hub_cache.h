/* SPDX-License-Identifier: Apache-2.0 */
/* hub_cache.h: where the Hugging Face tools keep a model that was downloaded. */
#ifndef FP_CHECKPOINT_HUB_CACHE_H
#define FP_CHECKPOINT_HUB_CACHE_H

#include "base/context.h"

/* The directory that `model` means: itself, or the snapshot of org/name[@revision] in the cache, which is looked for in
 * HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub and ~/.cache/huggingface/hub: the
 * first one that is set counts. The caller frees *out with fp_free(). */
fp_status fp_find_model(char **out, fp_context *ctx, const char *model);

#endif
