/* SPDX-License-Identifier: Apache-2.0 */
/* tasks_swag.h: how HellaSwag's texts are cleaned. */
#ifndef FP_EVALUATION_TASKS_SWAG_H
#define FP_EVALUATION_TASKS_SWAG_H

#include "tokenizer/unicode_text.h"

/* Appends Python's text.capitalize(): the first character as in a title, all others small. */
fp_status fp_swag_capitalize(fp_context *ctx, const char *text, int64_t length, fp_text_buffer *out);
/* Replaces *out by the text with " [title]" as ". ", other things in brackets removed, and "  " as " ", in this order.
 */
fp_status fp_swag_clean(fp_context *ctx, const char *text, int64_t length, fp_text_buffer *out);

#endif
