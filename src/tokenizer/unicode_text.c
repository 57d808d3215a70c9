/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer/unicode_text.h"

#include "base/memory.h"
#include <string.h>
#include <utf8proc.h>

fp_status fp_text_append(fp_context *ctx, fp_text_buffer *buffer, const char *bytes, int64_t length)
{
	if (buffer->length + length > buffer->capacity || !buffer->bytes) {
		fp_status status = FP_GROW(ctx, &buffer->bytes, &buffer->capacity, buffer->length + length);
		if (status != FP_OK)
			return status;
	}
	memcpy(buffer->bytes + buffer->length, bytes, (size_t)length);
	buffer->length += length;
	return FP_OK;
}

/* What may follow a first byte: the number of bytes and the range of the first of them (Unicode, table 3-7). */
typedef struct sequence_form {
	int further;
	unsigned char low, high;
} sequence_form;

static sequence_form form_of(unsigned char first)
{
	if (first < 0x80)
		return (sequence_form){0, 0, 0};
	if (first >= 0xC2 && first <= 0xDF)
		return (sequence_form){1, 0x80, 0xBF};
	if (first == 0xE0)
		return (sequence_form){2, 0xA0, 0xBF};
	if (first == 0xED)
		return (sequence_form){2, 0x80, 0x9F};
	if (first >= 0xE1 && first <= 0xEF)
		return (sequence_form){2, 0x80, 0xBF};
	if (first == 0xF0)
		return (sequence_form){3, 0x90, 0xBF};
	if (first >= 0xF1 && first <= 0xF3)
		return (sequence_form){3, 0x80, 0xBF};
	if (first == 0xF4)
		return (sequence_form){3, 0x80, 0x8F};
	return (sequence_form){-1, 0, 0};
}

/* The size of the first sequence if it is valid, else minus the size of its longest valid prefix (at least 1). */
static int measure(const unsigned char *text, int64_t length)
{
	sequence_form form = form_of(text[0]);
	if (form.further < 0)
		return -1;
	for (int i = 1; i <= form.further; i++) {
		unsigned char low = i == 1 ? form.low : 0x80, high = i == 1 ? form.high : 0xBF;
		if (i >= length || text[i] < low || text[i] > high)
			return -i;
	}
	return form.further + 1;
}

int fp_utf8_decode(const char *text, int64_t length, uint32_t *code)
{
	const unsigned char *bytes = (const unsigned char *)text;
	*code = bytes[0];
	if (bytes[0] < 0x80)
		return 1;
	int size = measure(bytes, length);
	if (size <= 1)
		return 1;
	*code = bytes[0] & (0x7FU >> size);
	for (int i = 1; i < size; i++)
		*code = *code << 6 | (bytes[i] & 0x3FU);
	return size;
}

int fp_utf8_encode(uint32_t code, char *out)
{
	return (int)utf8proc_encode_char((utf8proc_int32_t)code, (utf8proc_uint8_t *)out);
}

int64_t fp_utf8_previous(const char *text, int64_t at, uint32_t *code)
{
	int64_t start = at - 1;
	while (start > 0 && at - start < 4 && ((unsigned char)text[start] & 0xC0) == 0x80)
		start--;
	fp_utf8_decode(text + start, at - start, code);
	return start;
}

int64_t fp_utf8_valid_prefix(const char *text, int64_t length)
{
	int64_t i = 0;
	while (i < length) {
		uint64_t eight;
		if (i + 8 <= length && (memcpy(&eight, text + i, 8), (eight & 0x8080808080808080ULL) == 0)) {
			i += 8;
			continue;
		}
		int size = measure((const unsigned char *)text + i, length - i);
		if (size < 0)
			return i;
		i += size;
	}
	return i;
}

int64_t fp_utf8_unfinished(const char *text, int64_t length)
{
	for (int64_t size = 1; size <= 3 && size <= length; size++) {
		const unsigned char *first = (const unsigned char *)text + length - size;
		if (form_of(*first).further >= size && measure(first, size) == -size)
			return size;
	}
	return 0;
}

fp_status fp_utf8_repair(fp_context *ctx, const char *text, int64_t length, fp_text_buffer *out)
{
	fp_status status = FP_OK;
	while (length > 0) {
		int64_t valid = fp_utf8_valid_prefix(text, length);
		FP_TRY(fp_text_append(ctx, out, text, valid));
		text += valid;
		length -= valid;
		if (length > 0) {
			FP_TRY(fp_text_append(ctx, out, "\xEF\xBF\xBD", 3));
			int wrong = -measure((const unsigned char *)text, length);
			text += wrong;
			length -= wrong;
		}
	}
cleanup:
	return status;
}

bool fp_is_white_space(uint32_t code)
{
	return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
		   (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
		   code == 0x3000;
}

bool fp_is_word(uint32_t code)
{
	switch (utf8proc_category((utf8proc_int32_t)code)) {
	case UTF8PROC_CATEGORY_LU:
	case UTF8PROC_CATEGORY_LL:
	case UTF8PROC_CATEGORY_LT:
	case UTF8PROC_CATEGORY_LM:
	case UTF8PROC_CATEGORY_LO:
	case UTF8PROC_CATEGORY_MN:
	case UTF8PROC_CATEGORY_MC:
	case UTF8PROC_CATEGORY_ME:
	case UTF8PROC_CATEGORY_ND:
	case UTF8PROC_CATEGORY_NL:
	case UTF8PROC_CATEGORY_PC:
		return true;
	default: /* joiners, and the circled and squared letters that Unicode calls alphabetic */
		return code == 0x200C || code == 0x200D || (code >= 0x24B6 && code <= 0x24E9) ||
			   (code >= 0x1F130 && code <= 0x1F149) || (code >= 0x1F150 && code <= 0x1F169) ||
			   (code >= 0x1F170 && code <= 0x1F189);
	}
}

uint32_t fp_lowercase(uint32_t code)
{
	/* Capitals of Unicode 16 and 17, which utf8proc may not know yet */
	static const struct {
		uint32_t first, last, lower;
	} newer[] = {{0x1C89, 0x1C89, 0x1C8A},   {0xA7CB, 0xA7CB, 0x264},  {0xA7CC, 0xA7CC, 0xA7CD},
				 {0xA7CE, 0xA7CE, 0xA7CF},   {0xA7D2, 0xA7D2, 0xA7D3}, {0xA7D4, 0xA7D4, 0xA7D5},
				 {0xA7DA, 0xA7DA, 0xA7DB},   {0xA7DC, 0xA7DC, 0x19B},  {0x10D50, 0x10D65, 0x10D70},
				 {0x16EA0, 0x16EB8, 0x16EBB}};
	if (code == 0x130)
		return 'i';
	for (size_t i = 0; code >= 0x1C89 && i < sizeof newer / sizeof newer[0]; i++)
		if (code >= newer[i].first && code <= newer[i].last)
			return newer[i].lower + (code - newer[i].first);
	return (uint32_t)utf8proc_tolower((utf8proc_int32_t)code);
}
