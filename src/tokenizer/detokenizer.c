/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer/detokenizer.h"

#include "base/memory.h"
#include "tokenizer/tokenizer_parts.h"

#include <string.h>

struct fp_detokenizer {
	fp_context *ctx;
	const fp_tokenizer *tokenizer;
	bool *special;          /* by id */
	const char **found;     /* by id: what is searched for in normalised text; NULL: the token as it is */
	int16_t bytes[512];     /* byte-level: the byte that a letter stands for; −1: none */
	int16_t *byte_of;       /* byte fallback: the byte of an id; −1: it is text */
	const char *mark;       /* stands for a space; NULL: none does */
	fp_leading_space drops; /* what is still to be left out */
	fp_text_buffer held;    /* bytes of a character that is not whole */
	fp_text_buffer text;    /* the last result */
};

static void mark_special(fp_detokenizer *d, const fp_added_tokens *added)
{
	for (int64_t i = 0; i < added->count; i++)
		if (added->tokens[i].special)
			d->special[added->tokens[i].id] = true;
}

/* An added token that is searched for in normalised text stands for what was found there, such as a space before it. */
static void note_normalised(fp_detokenizer *d, const fp_added_tokens *added)
{
	for (int64_t i = 0; i < added->map.capacity; i++) {
		const fp_text_slot *slot = &added->map.slots[i];
		if (slot->value >= 0)
			d->found[added->tokens[slot->value].id] = added->map.bytes + slot->offset;
	}
}

static bool puts_space_before(const fp_tokenizer *t)
{
	for (int64_t i = 0; i < t->normalizer.count; i++) {
		const fp_normalizer_step *step = &t->normalizer.steps[i];
		if (step->kind == FP_NORMALIZE_PREPEND ||
			(step->kind == FP_NORMALIZE_SENTENCEPIECE && step->rules->add_dummy_prefix))
			return true;
	}
	for (int64_t i = 0; i < t->pretokenizer.count; i++)
		if (t->pretokenizer.steps[i].kind == FP_CUT_METASPACE && t->pretokenizer.steps[i].prepend != FP_PREPEND_NEVER)
			return true;
	return false;
}

/* The character that stands for a space, and which spaces at the start of a text are left out. */
static void find_mark(fp_detokenizer *d, bool at_start)
{
	const fp_tokenizer *t = d->tokenizer;
	d->drops = FP_LEADING_NONE;
	if (t->bpe.byte_level)
		return;
	d->mark = FP_SPACE_MARK;
	for (int64_t i = 0; i < t->pretokenizer.count; i++)
		if (t->pretokenizer.steps[i].kind == FP_CUT_METASPACE)
			d->mark = t->pretokenizer.steps[i].mark;
	if (at_start)
		d->drops = t->leading_space;
	if (d->drops == FP_LEADING_ONE && !puts_space_before(t))
		d->drops = FP_LEADING_NONE;
}

static fp_status index_bytes(fp_detokenizer *d)
{
	const fp_bpe *bpe = &d->tokenizer->bpe;
	const fp_unigram *unigram = &d->tokenizer->unigram;
	const int32_t *ids = d->tokenizer->is_unigram ? unigram->byte_ids : bpe->byte_ids;
	for (int i = 0; i < 512; i++)
		d->bytes[i] = -1;
	for (int i = 0; i < 256; i++) {
		uint32_t code;
		char letter[3];
		fp_byte_letter((unsigned char)i, letter);
		fp_utf8_decode(letter, (int64_t)strnlen(letter, 3), &code);
		d->bytes[code] = (int16_t)i;
	}
	const bool byte_fallback = d->tokenizer->is_unigram ? unigram->byte_fallback : bpe->byte_fallback;
	if (bpe->byte_level || !byte_fallback || d->tokenizer->shows_bytes)
		return FP_OK;
	fp_status status = FP_NEW(d->ctx, &d->byte_of, d->tokenizer->vocabulary.size);
	for (int64_t i = 0; status == FP_OK && i < d->tokenizer->vocabulary.size; i++)
		d->byte_of[i] = -1;
	for (int i = 0; status == FP_OK && i < 256; i++)
		if (ids[i] >= 0)
			d->byte_of[ids[i]] = (int16_t)i;
	return status;
}

fp_status fp_detokenizer_new(fp_detokenizer **out, fp_context *ctx, const fp_tokenizer *tokenizer, bool at_start)
{
	fp_status status;
	fp_detokenizer *d = NULL;
	*out = NULL;
	FP_TRY(FP_NEW(ctx, &d, 1));
	d->ctx = ctx;
	d->tokenizer = tokenizer;
	FP_TRY(FP_NEW(ctx, &d->special, tokenizer->vocabulary.size));
	FP_TRY(FP_NEW(ctx, &d->found, tokenizer->vocabulary.size));
	note_normalised(d, &tokenizer->normalized_added);
	mark_special(d, &tokenizer->raw_added);
	mark_special(d, &tokenizer->normalized_added);
	FP_TRY(index_bytes(d));
	find_mark(d, at_start);
	*out = d;
	d = NULL;
cleanup:
	fp_detokenizer_free(d);
	return status;
}

void fp_detokenizer_free(fp_detokenizer *d)
{
	if (!d)
		return;
	fp_free(d->special);
	fp_free(d->found);
	fp_free(d->byte_of);
	fp_free(d->held.bytes);
	fp_free(d->text.bytes);
	fp_free(d);
}

/* Appends the bytes for which the letters of a token stand, or its own if one of them stands for none. */
static fp_status append_letters(fp_detokenizer *d, const char *token)
{
	fp_status status = FP_OK;
	int64_t before = d->held.length, length = (int64_t)strlen(token);
	for (int64_t i = 0; i < length;) {
		uint32_t code;
		i += fp_utf8_decode(token + i, length - i, &code);
		if (code >= 512 || d->bytes[code] < 0) {
			d->held.length = before;
			return fp_text_append(d->ctx, &d->held, token, length);
		}
		char byte = (char)d->bytes[code];
		FP_TRY(fp_text_append(d->ctx, &d->held, &byte, 1));
	}
cleanup:
	return status;
}

/* Appends a token with spaces for the marks, or nothing for them. */
static fp_status append_marked(fp_detokenizer *d, const char *token)
{
	fp_status status = FP_OK;
	size_t size = strlen(d->mark);
	const int64_t space = d->drops != FP_LEADING_FIRST;
	for (const char *mark; (mark = strstr(token, d->mark)); token = mark + size) {
		FP_TRY(fp_text_append(d->ctx, &d->held, token, mark - token));
		FP_TRY(fp_text_append(d->ctx, &d->held, " ", space));
	}
	FP_TRY(fp_text_append(d->ctx, &d->held, token, (int64_t)strlen(token)));
cleanup:
	return status;
}

/* *text ← the first `whole` of the held bytes as valid UTF-8. */
static fp_status release(fp_detokenizer *d, int64_t whole, const char **text, int64_t *length)
{
	fp_status status;
	d->text.length = 0;
	FP_TRY(fp_utf8_repair(d->ctx, d->held.bytes ? d->held.bytes : "", whole, &d->text));
	if (whole > 0)
		memmove(d->held.bytes, d->held.bytes + whole, (size_t)(d->held.length - whole));
	d->held.length -= whole;
	*text = d->text.bytes ? d->text.bytes : "";
	*length = d->text.length;
	if (*length > 0 && (d->drops == FP_LEADING_ONE || d->drops == FP_LEADING_EACH)) {
		bool is_space = **text == ' ';
		*length -= is_space;
		*text += is_space;
		if (d->drops == FP_LEADING_ONE || *length > 0)
			d->drops = FP_LEADING_NONE;
	}
cleanup:
	return status;
}

fp_status fp_detokenizer_add(fp_detokenizer *d, int32_t id, const char **text, int64_t *length)
{
	fp_status status = FP_OK;
	const char *token = fp_tokenizer_token(d->tokenizer, id);
	if (token && d->found[id])
		token = d->found[id];
	if (token && !d->special[id]) {
		if (d->tokenizer->bpe.byte_level) {
			FP_TRY(append_letters(d, token));
		} else if (d->byte_of && d->byte_of[id] >= 0) {
			char byte = (char)d->byte_of[id];
			FP_TRY(fp_text_append(d->ctx, &d->held, &byte, 1));
		} else {
			FP_TRY(append_marked(d, token));
		}
		if (d->drops == FP_LEADING_FIRST)
			d->drops = FP_LEADING_NONE;
	}
	FP_TRY(release(d, d->held.length - fp_utf8_unfinished(d->held.bytes, d->held.length), text, length));
cleanup:
	return status;
}

fp_status fp_detokenizer_finish(fp_detokenizer *d, const char **text, int64_t *length)
{
	return release(d, d->held.length, text, length);
}
