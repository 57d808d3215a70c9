/* SPDX-License-Identifier: Apache-2.0 */
/* windows.h: protocols that turn documents into windows of tokens, for evaluation and for calibration
 * (docs/algorithm.md, Protocols). */
#ifndef FP_TEXT_WINDOWS_H
#define FP_TEXT_WINDOWS_H

#include "text/corpus.h"
#include "tokenizer/tokenizer.h"

typedef struct fp_windows { /* freed with fp_windows_free() */
	int32_t *ids;           /* count × length */
	int64_t count, length;
} fp_windows;
void fp_windows_free(fp_windows *windows);

/* Names of the evaluation protocols ("documents", "wikitext2", "ptb", "c4") and the samplers ("packed", "c4"), NULL at
 * the end. */
extern const char *const fp_protocol_names[];
extern const char *const fp_sampler_names[];

/* Non-overlapping windows of `length` tokens by a protocol; the tail is dropped. Fails when the text is shorter than a
 * window. */
fp_status fp_windows_evaluation(fp_windows *out, fp_context *ctx, fp_tokenizer *tokenizer, const char *path,
								const char *protocol, int64_t length);
/* `samples` windows for calibration from one or several files. samples == 0: all there are (packed only). */
fp_status fp_windows_calibration(fp_windows *out, fp_context *ctx, fp_tokenizer *tokenizer, const char *const *paths,
								 int path_count, const char *sampler, int64_t samples, int64_t length, uint64_t seed);

#endif
