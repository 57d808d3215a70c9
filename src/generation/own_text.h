/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own_text.h: calibration windows that the model writes itself: it starts behind its start token and draws token by token
 * as it predicts them (Williams, Chrysostomou and Aletras, 2024). Of a window
 *
 *     the first tokens of a text     are drawn at a higher temperature, so that texts differ;
 *     a stop token                   becomes the start token of the next text in the window, as in packed text;
 *     four tokens that come again    count as repeated: a window of which most are is drawn again, hotter.
 */
#ifndef FP_GENERATION_OWN_TEXT_H
#define FP_GENERATION_OWN_TEXT_H

#include "generation/stop_tokens.h"
#include "model/model.h"
#include "text/windows.h"

typedef struct fp_own_text_task {
	fp_model *model;
	int32_t start; /* the token that begins a text */
	fp_stop_tokens stop;
	uint64_t seed;
	int64_t count, length; /* of the windows */
	int64_t described;     /* the first ones, of which the statistics are; 0: all */
	int64_t memory;        /* limit in bytes; 0: what is free */
} fp_own_text_task;

/* No pointers: it is stored as it is. */
typedef struct fp_own_text_statistics {
	int64_t texts;          /* that begin in the windows */
	int64_t drawn_again;    /* windows */
	int64_t repetitive;     /* windows that stayed so */
	int64_t drawn_tokens;   /* with those that were dropped */
	double distinct, least; /* share of distinct runs of four tokens: mean over the windows, and the least */
	double perplexity;      /* by the model, of the tokens drawn at temperature 1; 0: none were */
	double temperature;     /* the highest at which a window was drawn, behind the first tokens of a text */
	double seconds;
} fp_own_text_statistics;

/* Fails if samples is 0, which means all windows of a text: the model's own text has no end. */
fp_status fp_own_text_check_count(fp_context *ctx, int64_t samples);
/* Holds the whole model in memory and frees it again. The same task on the same device gives the same windows. */
fp_status fp_own_text(fp_windows *out, fp_own_text_statistics *statistics, const fp_own_text_task *task);

#endif
