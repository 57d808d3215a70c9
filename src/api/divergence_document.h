/* SPDX-License-Identifier: Apache-2.0 */
/* divergence_document.h: the figures of a divergence under the keys that all commands use for them. */
#ifndef FP_API_DIVERGENCE_DOCUMENT_H
#define FP_API_DIVERGENCE_DOCUMENT_H

#include "evaluation/divergence.h"
#include <jansson.h>

/* Sets perplexity, reference_perplexity, perplexity_ratio, kl, kl_stderr, kl_median, kl_p99 and top1. What is not
 * finite becomes null. */
fp_status fp_divergence_document(json_t *document, fp_context *ctx, const fp_divergence_result *result);

#endif
