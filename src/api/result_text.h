/* SPDX-License-Identifier: Apache-2.0 */
/* result_text.h: turns JSON documents into the text that API calls return. */
#ifndef FP_API_RESULT_TEXT_H
#define FP_API_RESULT_TEXT_H

#include "base/context.h"

#include <jansson.h>

/* The document as text, for fp_text_free(). `document` is consumed, also on failure; NULL counts as out of memory. */
fp_status fp_result_text(char **out, fp_context *ctx, json_t *document);
/* The same on one line, for JSON lines and long lists of numbers. */
fp_status fp_result_line(char **out, fp_context *ctx, json_t *document);

#endif
