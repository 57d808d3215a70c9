/* SPDX-License-Identifier: Apache-2.0 */
/* writer_config.h: config.json of an output whose tensors have another form than the source's: it says how they are, not
 * how they were. */
#ifndef FP_CHECKPOINT_WRITER_CONFIG_H
#define FP_CHECKPOINT_WRITER_CONFIG_H

#include "checkpoint/checkpoint.h"

/* The source's config with quantization_config (NULL: without) and with `entries` (NULL: none) in place of its own. NULL:
 * out of memory. Freed with free(). */
char *fp_output_config(const fp_checkpoint *source, const json_t *quantisation, const json_t *entries);
/* *out ← the text for an output without new entries: of a packed source that it had before it was packed, if it is still
 * there; exact: any other text is an error. Freed with fp_free(). */
fp_status fp_output_config_new(char **out, fp_context *ctx, const fp_checkpoint *source, const json_t *quantisation,
							   bool exact);

#endif
