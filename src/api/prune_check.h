/* SPDX-License-Identifier: Apache-2.0 */
/* prune_check.h: prune --check: measures the written checkpoint on windows of the calibration text that the run did not
 * use. */
#ifndef FP_API_PRUNE_CHECK_H
#define FP_API_PRUNE_CHECK_H

#include "base/settings.h"
#include "model/model.h"
#include "text/windows.h"

#include <fistapruner/fistapruner.h>
#include <jansson.h>

/* The number of windows that a check uses, if there are enough: 65,536 tokens. */
int64_t fp_prune_check_count(int64_t length);
/* *out ← up to so many held-out windows. Fails if the run uses all windows of the text. */
fp_status fp_prune_check_windows(fp_windows *out, fp_context *ctx, fp_tokenizer *tokenizer,
								 const fp_prune_request *request, const fp_settings *settings, int64_t length);
/* Sets document.check: perplexity of the checkpoint `output` and its divergence from the dense model. */
fp_status fp_prune_check(json_t *document, fp_model *dense, const char *output, const fp_windows *windows,
						 const fp_settings *settings);

#endif
