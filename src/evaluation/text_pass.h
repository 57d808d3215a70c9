/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text_pass.h: the hidden states of a text behind a model's last layer, a chunk of windows at a time and with one layer
 * in memory at a time. A chunk, as many windows as fit into memory, passes through a layer in batches of a few thousand
 * tokens, enough for fast matrix products.
 */
#ifndef FP_EVALUATION_TEXT_PASS_H
#define FP_EVALUATION_TEXT_PASS_H

#include "model/model.h"
#include "text/windows.h"

/* Progress of the stage "evaluating", in windows through a layer or a head. */
typedef struct fp_evaluation_progress {
	int64_t done, total;
} fp_evaluation_progress;

typedef struct fp_text_pass {
	fp_model *model;           /* borrowed */
	const fp_windows *windows; /* borrowed */
	fp_evaluation_progress *progress;
	int64_t chunk, batch; /* windows in memory; windows through a layer at a time */
	fp_matrix hidden;     /* chunk·length × hidden */
} fp_text_pass;

/* Checks the windows and plans a pass that needs about `memory` bytes of hidden states and workspace. A model's batches
 * depend on `batch_memory` only, so that the same batches give the same figures whatever the chunks are. */
fp_status fp_text_pass_plan(fp_text_pass *pass, fp_model *model, const fp_windows *windows, int64_t memory,
							int64_t batch_memory);
/* Rows 0… of `hidden` (allocated by the first call) ← the hidden states of `count` ≤ chunk windows from `first` on. */
fp_status fp_text_pass_run(fp_text_pass *pass, int64_t first, int64_t count);
/* The hidden states of windows of the chunk that is in memory. */
fp_matrix fp_text_pass_hidden(const fp_text_pass *pass, int64_t first, int64_t count);
void fp_text_pass_free(fp_text_pass *pass);

/* What the head's products are for. Logits are what figures are made of, so they are exact; in bf16 they are rounded like
 * all else, and a CPU's other precisions split them, which leaves 16 bits. */
fp_use fp_head_use(const fp_backend *be);

/* Adds `windows` to the progress; fails if the run is to be interrupted. */
fp_status fp_evaluation_step(fp_context *ctx, fp_evaluation_progress *progress, int64_t windows);
/* targets ← the next token of every token; −1 behind the last one of a window. */
void fp_next_tokens(int32_t *targets, const int32_t *ids, int64_t windows, int64_t length);

#endif
