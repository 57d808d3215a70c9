/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer/sentencepiece_rules.h"

#include <string.h>

void fp_sentencepiece_rules_clear(fp_sentencepiece_rules *rules)
{
	fp_character_map_clear(&rules->map);
	fp_added_tokens_clear(&rules->symbols);
}

typedef struct reading {
	const fp_sentencepiece_rules *rules;
	fp_context *ctx;
	const char *text;
	int64_t length, at;
	fp_added_match symbol; /* the next one from `at` on; none: start = length */
} reading;

static void find_symbol(reading *r)
{
	if (!fp_added_tokens_find(&r->rules->symbols, r->text, r->length, r->at, r->at, &r->symbol))
		r->symbol = (fp_added_match){.start = r->length, .end = r->length};
}

/* *part ← the next character, symbol or sequence of the map, changed, of which `taken` bytes of the text are read */
static fp_status next_part(reading *r, fp_replacement *part)
{
	const char *text = r->text + r->at;
	if (r->symbol.start < r->at)
		find_symbol(r);
	if (r->symbol.start == r->at) {
		*part = (fp_replacement){.taken = r->symbol.end - r->at, .text = text, .length = r->symbol.end - r->at};
	} else {
		fp_status status = fp_character_map_find(&r->rules->map, r->ctx, text, r->length - r->at, true, part);
		if (status != FP_OK)
			return status;
		if (part->taken == 0) {
			uint32_t code;
			part->taken = part->length = fp_utf8_decode(text, r->length - r->at, &code);
			part->text = text;
		}
	}
	r->at += part->taken;
	return FP_OK;
}

static bool is_space(const fp_replacement *part)
{
	return part->length == 1 && part->text[0] == ' ';
}

static fp_status append(const reading *r, const char *text, int64_t length, const char *space, fp_text_buffer *out)
{
	fp_status status = FP_OK;
	for (const char *end = text + length; text < end;) {
		const char *next = memchr(text, ' ', (size_t)(end - text));
		FP_TRY(fp_text_append(r->ctx, out, text, (next ? next : end) - text));
		if (!next)
			break;
		FP_TRY(fp_text_append(r->ctx, out, space, (int64_t)strlen(space)));
		text = next + 1;
	}
cleanup:
	return status;
}

static void drop_spaces_at_end(const char *space, fp_text_buffer *out)
{
	const int64_t size = (int64_t)strlen(space);
	while (out->length >= size && memcmp(out->bytes + out->length - size, space, (size_t)size) == 0)
		out->length -= size;
}

fp_status fp_sentencepiece_rules_apply(const fp_sentencepiece_rules *rules, fp_context *ctx, const char *text,
									   int64_t length, fp_text_buffer *out)
{
	fp_status status = FP_OK;
	const char *space = rules->escape_spaces ? FP_SPACE_MARK : " ";
	reading r = {.rules = rules, .ctx = ctx, .text = text, .length = length};
	fp_replacement part = {0};
	bool has_part = false, after_space = rules->remove_extra_spaces;
	find_symbol(&r);
	while (r.at < length && !has_part) {
		FP_TRY(next_part(&r, &part));
		has_part = !(rules->remove_extra_spaces && is_space(&part));
	}
	if (has_part && rules->add_dummy_prefix)
		FP_TRY(fp_text_append(ctx, out, space, (int64_t)strlen(space)));
	while (has_part) {
		for (; after_space && part.length > 0 && part.text[0] == ' '; part.length--)
			part.text++;
		FP_TRY(append(&r, part.text, part.length, space, out));
		if (part.length > 0)
			after_space = rules->remove_extra_spaces && part.text[part.length - 1] == ' ';
		has_part = r.at < length;
		if (has_part)
			FP_TRY(next_part(&r, &part));
	}
	if (rules->remove_extra_spaces)
		drop_spaces_at_end(space, out);
cleanup:
	return status;
}
