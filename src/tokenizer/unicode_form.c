/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer/unicode_form.h"

#include <stdlib.h>
#include <utf8proc.h>

/* Hugging Face's normal forms are those of Unicode 12.0: they leave younger characters as they are. These are the ones
 * that have decompositions in Unicode 17. */
static bool is_unknown_to_forms(uint32_t code)
{
	static const struct {
		uint32_t first, last;
	} younger[] = {{0x32FF, 0x32FF},   {0xA7F1, 0xA7F4},   {0xAB69, 0xAB69},   {0x105C9, 0x105C9}, {0x105E4, 0x105E4},
				   {0x10781, 0x107BA}, {0x11383, 0x11391}, {0x113C5, 0x113C8}, {0x11938, 0x11938}, {0x16121, 0x16128},
				   {0x16D68, 0x16D6A}, {0x1CCD6, 0x1CCF9}, {0x1E030, 0x1E06D}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};
	for (size_t i = 0; code >= younger[0].first && i < sizeof younger / sizeof younger[0]; i++)
		if (code >= younger[i].first && code <= younger[i].last)
			return true;
	return false;
}

/* The bytes before the first such character. */
static int64_t known_to_forms(const char *text, int64_t length)
{
	uint32_t code;
	for (int64_t at = 0, size; at < length; at += size) {
		size = fp_utf8_decode(text + at, length - at, &code);
		if (is_unknown_to_forms(code))
			return at;
	}
	return length;
}

static fp_status form_part(fp_context *ctx, const char *text, int64_t length, bool compose, bool compatible,
						   fp_text_buffer *out)
{
	int options = UTF8PROC_STABLE;
	options |= compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
	options |= compatible ? UTF8PROC_COMPAT : 0;
	utf8proc_uint8_t *formed = NULL;
	utf8proc_ssize_t size =
		utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)length, &formed, (utf8proc_option_t)options);
	if (size < 0)
		return fp_fail(ctx, FP_ERROR_RUN, "normalising text: %s", utf8proc_errmsg(size));
	fp_status status = fp_text_append(ctx, out, (const char *)formed, (int64_t)size);
	free(formed);
	return status;
}

fp_status fp_unicode_form(fp_context *ctx, const char *text, int64_t length, bool compose, bool compatible,
						  fp_text_buffer *out)
{
	fp_status status = FP_OK;
	for (int64_t at = 0; at < length;) {
		uint32_t code;
		const int64_t known = known_to_forms(text + at, length - at);
		if (known > 0)
			FP_TRY(form_part(ctx, text + at, known, compose, compatible, out));
		at += known;
		const int size = at < length ? fp_utf8_decode(text + at, length - at, &code) : 0;
		FP_TRY(fp_text_append(ctx, out, text + at, size));
		at += size;
	}
cleanup:
	return status;
}
