/* SPDX-License-Identifier: Apache-2.0 */
/* perplexity.h: exp(mean token cross-entropy) over windows, one layer in memory at a time. */
#ifndef FP_EVALUATION_PERPLEXITY_H
#define FP_EVALUATION_PERPLEXITY_H

#include "model/model.h"
#include "text/windows.h"

typedef struct fp_perplexity_result {
	double perplexity, mean_loss;
	int64_t windows, tokens; /* tokens: targets scored, windows × (length − 1) */
} fp_perplexity_result;

/* memory: bytes that hidden states and work space may take (0: the usual, room.h). Windows are taken through the model
 * in chunks that fit; each chunk passes all layers. Progress stage: "evaluating". */
fp_status fp_perplexity(fp_perplexity_result *out, fp_model *model, const fp_windows *windows, int64_t memory);

#endif
