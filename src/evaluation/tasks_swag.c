/* SPDX-License-Identifier: Apache-2.0 */
#include "evaluation/tasks_swag.h"

#include <string.h>
#include <utf8proc.h>

fp_status fp_swag_capitalize(fp_context *ctx, const char *text, int64_t length, fp_text_buffer *out)
{
	fp_status status = FP_OK;
	uint32_t code;
	char bytes[4];
	for (int64_t at = 0; at < length;) {
		bool first = at == 0;
		at += fp_utf8_decode(text + at, length - at, &code);
		code = (uint32_t)(first ? utf8proc_totitle((utf8proc_int32_t)code) : utf8proc_tolower((utf8proc_int32_t)code));
		FP_TRY(fp_text_append(ctx, out, bytes, fp_utf8_encode(code, bytes)));
	}
cleanup:
	return status;
}

/* In place: no replacement lengthens the text. */
static int64_t replace(char *text, int64_t length, const char *old, const char *new)
{
	int64_t old_length = (int64_t)strlen(old);
	int64_t new_length = (int64_t)strlen(new);
	int64_t kept = 0;
	for (int64_t at = 0; at < length;) {
		if (length - at >= old_length && memcmp(text + at, old, (size_t)old_length) == 0) {
			memcpy(text + kept, new, (size_t)new_length);
			kept += new_length;
			at += old_length;
		} else {
			text[kept++] = text[at++];
		}
	}
	return kept;
}

/* Removes […] within a line, up to the nearest ]. */
static int64_t drop_brackets(char *text, int64_t length)
{
	int64_t kept = 0;
	for (int64_t at = 0; at < length;) {
		int64_t end = at;
		if (text[at] == '[')
			while (end < length && text[end] != ']' && text[end] != '\n')
				end++;
		if (end > at && end < length && text[end] == ']')
			at = end + 1;
		else
			text[kept++] = text[at++];
	}
	return kept;
}

fp_status fp_swag_clean(fp_context *ctx, const char *text, int64_t length, fp_text_buffer *out)
{
	out->length = 0;
	fp_status status = fp_text_append(ctx, out, text, length);
	if (status != FP_OK || length == 0)
		return status;
	out->length = replace(out->bytes, out->length, " [title]", ". ");
	out->length = drop_brackets(out->bytes, out->length);
	out->length = replace(out->bytes, out->length, "  ", " ");
	return FP_OK;
}
