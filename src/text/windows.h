/* SPDX-License-Identifier: Apache-2.0 */
/* windows.h: documents to windows of tokens, for evaluation (protocols) and for calibration (samplers). What each one
 * does is in docs/protocols.md. */
#ifndef FP_TEXT_WINDOWS_H
#define FP_TEXT_WINDOWS_H

#include "text/corpus.h"
#include "tokenizer/tokenizer.h"

typedef struct fp_windows { /* freed with fp_windows_free() */
	int32_t *ids;           /* count × length */
	int64_t count, length;
} fp_windows;
void fp_windows_free(fp_windows *windows);

/* Windows of `length` tokens that do not overlap; the rest of the text is dropped. Fails when the text is shorter than
 * one window. */
fp_status fp_windows_evaluation(fp_windows *out, fp_context *ctx, fp_tokenizer *tokenizer, const char *path,
								const char *protocol, int64_t length);
/* `samples` windows from one or several files. samples == 0: all windows (sampler packed only). */
fp_status fp_windows_calibration(fp_windows *out, fp_context *ctx, fp_tokenizer *tokenizer, const char *const *paths,
								 int path_count, const char *sampler, int64_t samples, int64_t length, uint64_t seed);
/* Up to `most` windows of the same files that fp_windows_calibration() does not take with these arguments; the count
 * may be 0. */
fp_status fp_windows_held_out(fp_windows *out, fp_context *ctx, fp_tokenizer *tokenizer, const char *const *paths,
							  int path_count, const char *sampler, int64_t samples, int64_t length, uint64_t seed,
							  int64_t most);

#endif
