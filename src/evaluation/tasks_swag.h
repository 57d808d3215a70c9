/* SPDX-License-Identifier: Apache-2.0 */
/* tasks_swag.h: preprocessing of HellaSwag's texts. */
#ifndef FP_EVALUATION_TASKS_SWAG_H
#define FP_EVALUATION_TASKS_SWAG_H

#include "tokenizer/unicode_text.h"

/* Appends text.capitalize() as in Python: first character in title case, the others in lower case. */
fp_status fp_swag_capitalize(fp_context *ctx, const char *text, int64_t length, fp_text_buffer *out);
/* *out ← the text, with " [title]" replaced by ". ", then other [brackets] removed, then "  " replaced by " ". */
fp_status fp_swag_clean(fp_context *ctx, const char *text, int64_t length, fp_text_buffer *out);

#endif
