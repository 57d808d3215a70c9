/* SPDX-License-Identifier: Apache-2.0 */
/* perplexity.h: perplexity over windows, with one layer in memory at a time. */
#ifndef FP_EVALUATION_PERPLEXITY_H
#define FP_EVALUATION_PERPLEXITY_H

#include "model/model.h"
#include "text/windows.h"

typedef struct fp_perplexity_result {
	double perplexity, mean_loss;
	int64_t windows, tokens; /* tokens: predicted tokens, windows × (length − 1) */
} fp_perplexity_result;

/* memory: bytes for hidden states and workspace (0: the default of chunk_memory.h). Each chunk of
 * windows that fits passes through all layers. Progress stage: "evaluating". */
fp_status fp_perplexity(fp_perplexity_result *out, fp_model *model, const fp_windows *windows, int64_t memory);

#endif
