/* SPDX-License-Identifier: Apache-2.0 */
/* corpus.h: the documents of a text file: plain text or JSON lines ({"text": …}), optionally compressed with gzip or
 * zstd. */
#ifndef FP_TEXT_CORPUS_H
#define FP_TEXT_CORPUS_H

#include "base/context.h"

typedef struct fp_document {
	const char *text; /* borrowed from the corpus; may hold NUL bytes */
	int64_t length;
} fp_document;

typedef struct fp_corpus fp_corpus;

/* A file is JSON lines, one document each, when its name (without .gz or .zst) ends in .jsonl or .json or its first
 * byte that is not blank is '{'. Any other file is one document of plain text. The caller frees it with
 * fp_corpus_free(). */
fp_status fp_corpus_read(fp_corpus **out, fp_context *ctx, const char *path);
void fp_corpus_free(fp_corpus *corpus); /* NULL is allowed */
int64_t fp_corpus_count(const fp_corpus *corpus);
fp_document fp_corpus_document(const fp_corpus *corpus, int64_t index);
bool fp_corpus_is_plain(const fp_corpus *corpus); /* whether it is plain text */

#endif
