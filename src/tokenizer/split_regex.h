/* SPDX-License-Identifier: Apache-2.0 */
/* split_regex.h: the regular expressions of tokenizer files, in Oniguruma's syntax, matched with PCRE2. */
#ifndef FP_TOKENIZER_SPLIT_REGEX_H
#define FP_TOKENIZER_SPLIT_REGEX_H

#include "base/context.h"

typedef struct fp_split_regex fp_split_regex;

/* literal: the pattern is plain text. The caller frees *out with fp_split_regex_free(). */
fp_status fp_split_regex_compile(fp_split_regex **out, fp_context *ctx, const char *pattern, bool literal);
void fp_split_regex_free(fp_split_regex *regex); /* NULL is allowed */

/* The first match at or after `from` in valid UTF-8; *found ← whether there is one. */
fp_status fp_split_regex_find(fp_split_regex *regex, fp_context *ctx, const char *text, int64_t length, int64_t from,
							  bool *found, int64_t *start, int64_t *end);

#endif
