/* SPDX-License-Identifier: Apache-2.0 */
/* corpus.h: documents from a file: plain text, JSON lines ({"text": …} a line), either one plain, gzip or zstd (by
 * magic bytes). */
#ifndef FP_TEXT_CORPUS_H
#define FP_TEXT_CORPUS_H

#include "base/context.h"

typedef struct fp_document {
	const char *text; /* borrowed from the corpus; may hold NUL bytes */
	int64_t length;
} fp_document;

typedef struct fp_corpus fp_corpus;

/* JSON lines when the name (without .gz/.zst) ends in .jsonl or .json or the first non-blank byte is '{'; then each
 * line is one document. Plain text otherwise: one document, the whole file. Freed with fp_corpus_free(). */
fp_status fp_corpus_read(fp_corpus **out, fp_context *ctx, const char *path);
void fp_corpus_free(fp_corpus *corpus); /* NULL is allowed */
int64_t fp_corpus_count(const fp_corpus *corpus);
fp_document fp_corpus_document(const fp_corpus *corpus, int64_t index);
bool fp_corpus_is_plain(const fp_corpus *corpus); /* one document, from a plain text file */

#endif
