/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer/normalizer.h"

#include "base/memory.h"
#include "tokenizer/component_table.h"
#include "tokenizer/unicode_form.h"
#include <string.h>

void fp_normalizer_clear(fp_normalizer *normalizer)
{
	for (int64_t i = 0; i < normalizer->count; i++) {
		fp_free(normalizer->steps[i].content);
		fp_free(normalizer->steps[i].literal);
		fp_split_regex_free(normalizer->steps[i].pattern);
		if (normalizer->steps[i].rules)
			fp_sentencepiece_rules_clear(normalizer->steps[i].rules);
		fp_free(normalizer->steps[i].rules);
	}
	fp_free(normalizer->steps);
	fp_free(normalizer->buffers[0].bytes);
	fp_free(normalizer->buffers[1].bytes);
	*normalizer = (fp_normalizer){0};
}

static fp_status add_step(fp_context *ctx, fp_normalizer *normalizer, fp_normalizer_kind kind, fp_normalizer_step **out)
{
	fp_status status = FP_GROW(ctx, &normalizer->steps, &normalizer->capacity, normalizer->count + 1);
	if (status != FP_OK)
		return status;
	*out = &normalizer->steps[normalizer->count++];
	**out = (fp_normalizer_step){.kind = kind};
	return FP_OK;
}

static fp_status add_rules(fp_context *ctx, fp_normalizer *normalizer, fp_normalizer_kind kind,
						   fp_sentencepiece_rules **rules)
{
	fp_status status = FP_OK;
	fp_normalizer_step *step;
	FP_TRY(add_step(ctx, normalizer, kind, &step));
	FP_TRY(FP_NEW(ctx, &step->rules, 1));
	*rules = step->rules;
cleanup:
	return status;
}

fp_status fp_normalizer_add_sentencepiece(fp_context *ctx, fp_normalizer *normalizer, fp_sentencepiece_rules **rules)
{
	return add_rules(ctx, normalizer, FP_NORMALIZE_SENTENCEPIECE, rules);
}

static fp_status read_plain(fp_context *ctx, void *target, int kind, const json_t *json)
{
	(void)json;
	fp_normalizer_step *step;
	return add_step(ctx, target, (fp_normalizer_kind)kind, &step);
}

static fp_status read_strip(fp_context *ctx, void *target, int kind, const json_t *json)
{
	fp_normalizer_step *step;
	const json_t *left = json_object_get(json, "strip_left"), *right = json_object_get(json, "strip_right");
	if (!json_is_boolean(left) || !json_is_boolean(right))
		return fp_fail(ctx, FP_ERROR_INPUT,
					   "normalizer Strip: \"strip_left\" and \"strip_right\" must be true or false");
	fp_status status = add_step(ctx, target, (fp_normalizer_kind)kind, &step);
	if (status == FP_OK) {
		step->at_start = json_is_true(left);
		step->at_end = json_is_true(right);
	}
	return status;
}

static fp_status read_precompiled(fp_context *ctx, void *target, int kind, const json_t *json)
{
	fp_status status = FP_OK;
	fp_sentencepiece_rules *rules;
	const json_t *map = json_object_get(json, "precompiled_charsmap");
	if (!json_is_string(map))
		return fp_fail(ctx, FP_ERROR_INPUT, "normalizer Precompiled: needs a \"precompiled_charsmap\" in base64");
	FP_TRY(add_rules(ctx, target, (fp_normalizer_kind)kind, &rules));
	FP_TRY(fp_character_map_read_base64(&rules->map, ctx, json_string_value(map), (int64_t)json_string_length(map)));
cleanup:
	return status;
}

static fp_status read_prepend(fp_context *ctx, void *target, int kind, const json_t *json)
{
	fp_normalizer_step *step;
	const char *content = json_string_value(json_object_get(json, "prepend"));
	if (!content)
		return fp_fail(ctx, FP_ERROR_INPUT, "normalizer Prepend: needs a \"prepend\" text");
	fp_status status = add_step(ctx, target, (fp_normalizer_kind)kind, &step);
	return status != FP_OK ? status : fp_copy_text(ctx, &step->content, content);
}

static fp_status read_replace(fp_context *ctx, void *target, int kind, const json_t *json)
{
	fp_status status = FP_OK;
	fp_normalizer_step *step;
	const json_t *pattern = json_object_get(json, "pattern");
	const char *literal = json_string_value(json_object_get(pattern, "String"));
	const char *regex = json_string_value(json_object_get(pattern, "Regex"));
	const char *content = json_string_value(json_object_get(json, "content"));
	if ((!literal && !regex) || !content)
		return fp_fail(ctx, FP_ERROR_INPUT,
					   "normalizer Replace: needs a pattern {\"String\": …} or {\"Regex\": …} and a content");
	FP_TRY(add_step(ctx, target, (fp_normalizer_kind)kind, &step));
	FP_TRY(fp_copy_text(ctx, &step->content, content));
	FP_TRY(literal ? fp_copy_text(ctx, &step->literal, literal)
				   : fp_split_regex_compile(&step->pattern, ctx, regex, false));
cleanup:
	return status;
}

static const fp_component components[] = {
	{"NFC", read_plain, FP_NORMALIZE_NFC},
	{"NFD", read_plain, FP_NORMALIZE_NFD},
	{"NFKC", read_plain, FP_NORMALIZE_NFKC},
	{"NFKD", read_plain, FP_NORMALIZE_NFKD},
	{"Lowercase", read_plain, FP_NORMALIZE_LOWERCASE},
	{"Nmt", read_plain, FP_NORMALIZE_NMT},
	{"Strip", read_strip, FP_NORMALIZE_STRIP},
	{"Prepend", read_prepend, FP_NORMALIZE_PREPEND},
	{"Replace", read_replace, FP_NORMALIZE_REPLACE},
	{"Precompiled", read_precompiled, FP_NORMALIZE_PRECOMPILED},
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

/* Lowercase letters one by one: a sigma at the end of a word stays σ. */
static fp_status lowercase(fp_context *ctx, const char *text, int64_t length, fp_text_buffer *out)
{
	fp_status status = FP_OK;
	for (int64_t at = 0; at < length;) {
		uint32_t code;
		char letter[8];
		at += fp_utf8_decode(text + at, length - at, &code);
		int size = fp_utf8_encode(fp_lowercase(code), letter);
		FP_TRY(fp_text_append(ctx, out, letter, size));
		if (code == 0x130) /* İ, the only letter that becomes two */
			FP_TRY(fp_text_append(ctx, out, "\xCC\x87", 2));
	}
cleanup:
	return status;
}

/* What sentencepiece's nmt rules do besides NFKC. */
static fp_status nmt(fp_context *ctx, const char *text, int64_t length, fp_text_buffer *out, bool *start_removed)
{
	fp_status status = FP_OK;
	for (int64_t at = 0; at < length;) {
		uint32_t code;
		const char *character = text + at;
		int size = fp_utf8_decode(character, length - at, &code);
		at += size;
		if ((code >= 0x01 && code <= 0x08) || code == 0x0B || (code >= 0x0E && code <= 0x1F) || code == 0x7F ||
			code == 0x8F || code == 0x9F) {
			*start_removed |= out->length == 0;
			continue;
		}
		bool space = code == 0x09 || code == 0x0A || code == 0x0C || code == 0x0D || code == 0x1680 ||
					 (code >= 0x200B && code <= 0x200F) || code == 0x2028 || code == 0x2029 || code == 0x2581 ||
					 code == 0xFEFF || code == 0xFFFD;
		FP_TRY(space ? fp_text_append(ctx, out, " ", 1) : fp_text_append(ctx, out, character, size));
	}
cleanup:
	return status;
}

static fp_status strip(fp_context *ctx, const fp_normalizer_step *step, const char *text, int64_t length,
					   fp_text_buffer *out, bool *start_removed)
{
	uint32_t code;
	int64_t start = 0, end = length;
	while (step->at_start && start < end) {
		int size = fp_utf8_decode(text + start, end - start, &code);
		if (!fp_is_white_space(code))
			break;
		start += size;
	}
	while (step->at_end && end > start) {
		int64_t before = fp_utf8_previous(text, end, &code);
		if (!fp_is_white_space(code))
			break;
		end = before;
	}
	*start_removed |= start > 0;
	return fp_text_append(ctx, out, text + start, end - start);
}

static fp_status run_step(fp_context *ctx, const fp_normalizer_step *step, const char *text, int64_t length,
						  fp_text_buffer *out, bool *start_removed)
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
	case FP_NORMALIZE_LOWERCASE:
		return lowercase(ctx, text, length, out);
	case FP_NORMALIZE_NMT:
		return nmt(ctx, text, length, out, start_removed);
	case FP_NORMALIZE_STRIP:
		return strip(ctx, step, text, length, out, start_removed);
	case FP_NORMALIZE_PRECOMPILED:
		return fp_character_map_apply(&step->rules->map, ctx, text, length, out);
	case FP_NORMALIZE_SENTENCEPIECE:
		return fp_sentencepiece_rules_apply(step->rules, ctx, text, length, out);
	default:
		return fp_unicode_form(ctx, text, length, step->kind == FP_NORMALIZE_NFC || step->kind == FP_NORMALIZE_NFKC,
							   step->kind == FP_NORMALIZE_NFKC || step->kind == FP_NORMALIZE_NFKD, out);
	}
}

fp_status fp_normalizer_run(fp_context *ctx, fp_normalizer *normalizer, const char *text, int64_t length,
							const char **out, int64_t *out_length)
{
	fp_status status = FP_OK;
	int turn = 0;
	normalizer->start_removed = false;
	for (int64_t i = 0; i < normalizer->count; i++) {
		const fp_normalizer_step *step = &normalizer->steps[i];
		if (step->kind <= FP_NORMALIZE_NFKD && is_ascii(text, length))
			continue;
		fp_text_buffer *buffer = &normalizer->buffers[turn];
		buffer->length = 0;
		FP_TRY(run_step(ctx, step, text, length, buffer, &normalizer->start_removed));
		text = buffer->bytes ? buffer->bytes : "";
		length = buffer->length;
		turn = 1 - turn;
	}
	*out = text;
	*out_length = length;
cleanup:
	return status;
}
