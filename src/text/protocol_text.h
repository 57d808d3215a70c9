/* SPDX-License-Identifier: Apache-2.0 */
/* protocol_text.h: the one long text that an evaluation protocol tokenises (docs/protocols.md). */
#ifndef FP_TEXT_PROTOCOL_TEXT_H
#define FP_TEXT_PROTOCOL_TEXT_H

#include "text/corpus.h"
#include "tokenizer/unicode_text.h"

/* Rows joined with "\n\n". The rows of a plain file are its lines, newline included, and "" for a blank one. */
fp_status fp_join_wikitext2(fp_context *ctx, const fp_corpus *corpus, fp_text_buffer *out);
/* Sentences joined with " ". The sentences of a plain file are its lines without the white space around them. */
fp_status fp_join_ptb(fp_context *ctx, const fp_corpus *corpus, fp_text_buffer *out);
/* The first 1,100 documents joined with " ". */
fp_status fp_join_c4(fp_context *ctx, const fp_corpus *corpus, fp_text_buffer *out);

#endif
