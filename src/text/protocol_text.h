/* SPDX-License-Identifier: Apache-2.0 */
/* protocol_text.h: the text that an evaluation protocol tokenizes as a whole (docs/protocols.md). */
#ifndef FP_TEXT_PROTOCOL_TEXT_H
#define FP_TEXT_PROTOCOL_TEXT_H

#include "text/corpus.h"
#include "tokenizer/unicode_text.h"

/* Rows joined with "\n\n". A row of a plain file is a line with its newline, or "" if the line is blank. */
fp_status fp_join_wikitext2(fp_context *ctx, const fp_corpus *corpus, fp_text_buffer *out);
/* Sentences joined with " ". A sentence of a plain file is a line without leading and trailing white space. */
fp_status fp_join_ptb(fp_context *ctx, const fp_corpus *corpus, fp_text_buffer *out);
/* The first 1,100 documents joined with " ". */
fp_status fp_join_c4(fp_context *ctx, const fp_corpus *corpus, fp_text_buffer *out);

#endif
