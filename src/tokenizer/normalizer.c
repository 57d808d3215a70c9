/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer/normalizer.h"

#include "base/memory.h"
#include "tokenizer/component_table.h"
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

void fp_normalizer_clear(fp_normalizer *normalizer)
{
	for (int64_t i = 0; i < normalizer->count; i++) {
		fp_free(normalizer->steps[i].content);
		fp_free(normalizer->steps[i].literal);
		fp_split_regex_free(normalizer->steps[i].pattern);
	}
	fp_free(normalizer->steps);
	fp_free(normalizer->buffers[0].bytes);
	fp_free(normalizer->buffers[1].bytes);
	*normalizer = (fp_normalizer){0};
}

static fp_status add_step(fp_context *ctx, fp_normalizer *normalizer, fp_normalizer_kind kind, const char *content,
						  const char *pattern, bool literal)
{
	fp_status status = FP_OK;
	FP_TRY(FP_GROW(ctx, &normalizer->steps, &normalizer->capacity, normalizer->count + 1));
	fp_normalizer_step *step = &normalizer->steps[normalizer->count++];
	*step = (fp_normalizer_step){.kind = kind};
	if (content)
		FP_TRY(fp_copy_text(ctx, &step->content, content));
	if (pattern && literal)
		FP_TRY(fp_copy_text(ctx, &step->literal, pattern));
	else if (pattern)
		FP_TRY(fp_split_regex_compile(&step->pattern, ctx, pattern, false));
cleanup:
	return status;
}

fp_status fp_normalizer_add(fp_context *ctx, fp_normalizer *normalizer, fp_normalizer_kind kind, const char *content,
							const char *pattern)
{
	return add_step(ctx, normalizer, kind, content, pattern, true);
}

static fp_status read_unicode_form(fp_context *ctx, void *target, int kind, const json_t *json)
{
	(void)json;
	return fp_normalizer_add(ctx, target, (fp_normalizer_kind)kind, NULL, NULL);
}

static fp_status read_prepend(fp_context *ctx, void *target, int kind, const json_t *json)
{
	const char *content = json_string_value(json_object_get(json, "prepend"));
	if (!content)
		return fp_fail(ctx, FP_ERROR_INPUT, "normalizer Prepend: needs a \"prepend\" text");
	return fp_normalizer_add(ctx, target, (fp_normalizer_kind)kind, content, NULL);
}

static fp_status read_replace(fp_context *ctx, void *target, int kind, const json_t *json)
{
	const json_t *pattern = json_object_get(json, "pattern");
	const char *literal = json_string_value(json_object_get(pattern, "String"));
	const char *regex = json_string_value(json_object_get(pattern, "Regex"));
	const char *content = json_string_value(json_object_get(json, "content"));
	if ((!literal && !regex) || !content)
		return fp_fail(ctx, FP_ERROR_INPUT,
					   "normalizer Replace: needs a pattern {\"String\": …} or {\"Regex\": …} and a content");
	return add_step(ctx, target, (fp_normalizer_kind)kind, content, literal ? literal : regex, literal != NULL);
}

static const fp_component components[] = {
	{"NFC", read_unicode_form, FP_NORMALIZE_NFC},
	{"NFD", read_unicode_form, FP_NORMALIZE_NFD},
	{"NFKC", read_unicode_form, FP_NORMALIZE_NFKC},
	{"NFKD", read_unicode_form, FP_NORMALIZE_NFKD},
	{"Prepend", read_prepend, FP_NORMALIZE_PREPEND},
	{"Replace", read_replace, FP_NORMALIZE_REPLACE},
	{0},
};

fp_status fp_normalizer_read(fp_context *ctx, fp_normalizer *normalizer, const json_t *json)
{
	static const fp_component_table table = {"normalizer", "normalizers", components};
	return fp_components_read(ctx, &table, normalizer, json);
}

/* Unicode normal forms do not change ASCII, which most text is. */
static bool is_ascii(const char *text, int64_t length)
{
	for (int64_t i = 0; i < length; i++)
		if (text[i] & 0x80)
			return false;
	return true;
}

static fp_status unicode_form(fp_context *ctx, fp_normalizer_kind kind, const char *text, int64_t length,
							  fp_text_buffer *out)
{
	int options = UTF8PROC_STABLE;
	options |= kind == FP_NORMALIZE_NFC || kind == FP_NORMALIZE_NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
	options |= kind == FP_NORMALIZE_NFKC || kind == FP_NORMALIZE_NFKD ? UTF8PROC_COMPAT : 0;
	utf8proc_uint8_t *formed = NULL;
	utf8proc_ssize_t size =
		utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)length, &formed, (utf8proc_option_t)options);
	if (size < 0)
		return fp_fail(ctx, FP_ERROR_RUN, "normalising text: %s", utf8proc_errmsg(size));
	fp_status status = fp_text_append(ctx, out, (const char *)formed, (int64_t)size);
	free(formed);
	return status;
}

static fp_status find_pattern(fp_context *ctx, const fp_normalizer_step *step, const char *text, int64_t length,
							  int64_t from, bool *found, int64_t *start, int64_t *end)
{
	if (!step->literal)
		return fp_split_regex_find(step->pattern, ctx, text, length, from, found, start, end);
	size_t size = strlen(step->literal);
	const char *place = memmem(text + from, (size_t)(length - from), step->literal, size);
	*found = place != NULL;
	if (place) {
		*start = place - text;
		*end = *start + (int64_t)size;
	}
	return FP_OK;
}

static fp_status replace(fp_context *ctx, const fp_normalizer_step *step, const char *text, int64_t length,
						 fp_text_buffer *out)
{
	fp_status status = FP_OK;
	int64_t content_length = (int64_t)strlen(step->content), done = 0, start = 0, end = 0;
	bool found = true;
	while (done < length) {
		FP_TRY(find_pattern(ctx, step, text, length, done, &found, &start, &end));
		if (!found || end == start)
			break;
		FP_TRY(fp_text_append(ctx, out, text + done, start - done));
		FP_TRY(fp_text_append(ctx, out, step->content, content_length));
		done = end;
	}
	FP_TRY(fp_text_append(ctx, out, text + done, length - done));
cleanup:
	return status;
}

/* Removes leading and trailing spaces and reduces runs of spaces to one. */
static fp_status single_spaces(fp_context *ctx, const char *text, int64_t length, fp_text_buffer *out)
{
	fp_status status = FP_OK;
	for (int64_t i = 0; i < length; i++)
		if (text[i] != ' ' || (out->length > 0 && out->bytes[out->length - 1] != ' '))
			FP_TRY(fp_text_append(ctx, out, text + i, 1));
	if (out->length > 0 && out->bytes[out->length - 1] == ' ')
		out->length--;
cleanup:
	return status;
}

static fp_status run_step(fp_context *ctx, const fp_normalizer_step *step, const char *text, int64_t length,
						  fp_text_buffer *out)
{
	switch (step->kind) {
	case FP_NORMALIZE_PREPEND: {
		fp_status status = FP_OK;
		if (length > 0)
			status = fp_text_append(ctx, out, step->content, (int64_t)strlen(step->content));
		return status != FP_OK ? status : fp_text_append(ctx, out, text, length);
	}
	case FP_NORMALIZE_REPLACE:
		return replace(ctx, step, text, length, out);
	case FP_NORMALIZE_SINGLE_SPACES:
		return single_spaces(ctx, text, length, out);
	default:
		return unicode_form(ctx, step->kind, text, length, out);
	}
}

fp_status fp_normalizer_run(fp_context *ctx, fp_normalizer *normalizer, const char *text, int64_t length,
							const char **out, int64_t *out_length)
{
	fp_status status = FP_OK;
	int turn = 0;
	for (int64_t i = 0; i < normalizer->count; i++) {
		const fp_normalizer_step *step = &normalizer->steps[i];
		if (step->kind <= FP_NORMALIZE_NFKD && is_ascii(text, length))
			continue;
		fp_text_buffer *buffer = &normalizer->buffers[turn];
		buffer->length = 0;
		FP_TRY(run_step(ctx, step, text, length, buffer));
		text = buffer->bytes ? buffer->bytes : "";
		length = buffer->length;
		turn = 1 - turn;
	}
	*out = text;
	*out_length = length;
cleanup:
	return status;
}
