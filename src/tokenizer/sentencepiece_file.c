/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer.model: SentencePiece's protocol buffer, for BPE models such as LLaMA 1 and 2.
 * SentencePiece merges two neighbours if their joined text is a piece, best score first. Here every split of a piece
 * into two pieces becomes a merge with the rank of the piece's score, which gives the same result without comparing
 * text while merging.
 */
#include "base/file.h"
#include "base/memory.h"
#include "tokenizer/tokenizer_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER_DEFINED, PIECE_UNUSED, PIECE_BYTE };
enum { MODEL_BPE = 2 };

typedef struct piece {
	const char *text;
	int64_t length;
	float score;
	int32_t type, rank;
} piece;

typedef struct sentencepiece_model {
	piece *pieces;
	int64_t count, capacity;
	bool *has_length; /* by number of bytes: whether a piece has this length */
	int64_t longest;
	int64_t model_type, bos;
	bool byte_fallback, space_as_suffix, has_charsmap;
	bool add_dummy_prefix, remove_extra_spaces, escape_spaces;
} sentencepiece_model;

/* Protocol-buffer wire format: a field is a key (number << 3 | wire type) and a value. */
typedef struct wire_reader {
	const unsigned char *at, *end;
} wire_reader;

typedef struct wire_field {
	uint64_t number;
	uint64_t value;    /* varint and fixed-width values */
	wire_reader bytes; /* length-delimited values */
} wire_field;

static bool read_varint(wire_reader *reader, uint64_t *value)
{
	*value = 0;
	for (int shift = 0; shift < 64 && reader->at < reader->end; shift += 7) {
		unsigned char byte = *reader->at++;
		*value |= (uint64_t)(byte & 0x7F) << shift;
		if (!(byte & 0x80))
			return true;
	}
	return false;
}

static bool read_fixed(wire_reader *reader, int size, uint64_t *value)
{
	*value = 0;
	if (reader->end - reader->at < size)
		return false;
	for (int i = 0; i < size; i++)
		*value |= (uint64_t)reader->at[i] << (8 * i);
	reader->at += size;
	return true;
}

static bool read_field(wire_reader *reader, wire_field *field)
{
	uint64_t key, size;
	if (!read_varint(reader, &key))
		return false;
	*field = (wire_field){.number = key >> 3};
	switch (key & 7) {
	case 0:
		return read_varint(reader, &field->value);
	case 1:
		return read_fixed(reader, 8, &field->value);
	case 2:
		if (!read_varint(reader, &size) || size > (uint64_t)(reader->end - reader->at))
			return false;
		field->bytes = (wire_reader){reader->at, reader->at + size};
		reader->at += size;
		return true;
	case 5:
		return read_fixed(reader, 4, &field->value);
	default:
		return false;
	}
}

static bool read_piece(wire_reader reader, piece *out)
{
	*out = (piece){.type = PIECE_NORMAL, .text = ""};
	wire_field field;
	while (reader.at < reader.end) {
		if (!read_field(&reader, &field))
			return false;
		if (field.number == 1) {
			out->text = (const char *)field.bytes.at;
			out->length = field.bytes.end - field.bytes.at;
		} else if (field.number == 2) {
			uint32_t bits = (uint32_t)field.value;
			memcpy(&out->score, &bits, sizeof bits);
		} else if (field.number == 3) {
			out->type = field.value <= PIECE_BYTE ? (int32_t)field.value : 0;
		}
	}
	return out->text != NULL;
}

static bool read_trainer(wire_reader reader, sentencepiece_model *model)
{
	wire_field field;
	while (reader.at < reader.end) {
		if (!read_field(&reader, &field))
			return false;
		if (field.number == 3)
			model->model_type = (int64_t)field.value;
		else if (field.number == 24)
			model->space_as_suffix = field.value != 0;
		else if (field.number == 35)
			model->byte_fallback = field.value != 0;
		else if (field.number == 41)
			model->bos = (int32_t)field.value;
	}
	return true;
}

static bool read_normalizer(wire_reader reader, sentencepiece_model *model)
{
	wire_field field;
	while (reader.at < reader.end) {
		if (!read_field(&reader, &field))
			return false;
		if (field.number == 2)
			model->has_charsmap = field.bytes.end > field.bytes.at;
		else if (field.number == 3)
			model->add_dummy_prefix = field.value != 0;
		else if (field.number == 4)
			model->remove_extra_spaces = field.value != 0;
		else if (field.number == 5)
			model->escape_spaces = field.value != 0;
	}
	return true;
}

static fp_status read_model(fp_context *ctx, sentencepiece_model *model, const char *bytes, int64_t size,
							const char *path)
{
	fp_status status = FP_OK;
	wire_reader reader = {(const unsigned char *)bytes, (const unsigned char *)bytes + size};
	wire_field field;
	*model = (sentencepiece_model){
		.model_type = 1, .bos = 1, .add_dummy_prefix = true, .remove_extra_spaces = true, .escape_spaces = true};
	while (reader.at < reader.end) {
		bool fine = read_field(&reader, &field);
		if (fine && field.number == 1) {
			FP_TRY(FP_GROW(ctx, &model->pieces, &model->capacity, model->count + 1));
			fine = read_piece(field.bytes, &model->pieces[model->count++]);
		} else if (fine && field.number == 2) {
			fine = read_trainer(field.bytes, model);
		} else if (fine && field.number == 3) {
			fine = read_normalizer(field.bytes, model);
		}
		if (!fine) {
			status = fp_fail(ctx, FP_ERROR_INPUT, "%s: byte %lld: not a SentencePiece model, or a damaged one", path,
							 (long long)((const char *)reader.at - bytes));
			goto cleanup;
		}
	}
cleanup:
	return status;
}

static fp_status check_model(fp_context *ctx, const sentencepiece_model *model, const char *path)
{
	if (model->count == 0)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: not a SentencePiece model: it has no pieces", path);
	if (model->model_type != MODEL_BPE)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: SentencePiece model type %lld is not supported; BPE (2) is", path,
					   (long long)model->model_type);
	if (model->has_charsmap)
		return fp_fail(ctx, FP_ERROR_INPUT,
					   "%s: a normalizer with a character map (such as nmt_nfkc) is not supported; identity is", path);
	if (model->space_as_suffix || !model->escape_spaces)
		return fp_fail(ctx, FP_ERROR_INPUT,
					   "%s: treat_whitespace_as_suffix = true and escape_whitespaces = false are not supported", path);
	for (int64_t i = 0; i < model->count; i++) {
		const piece *one = &model->pieces[i];
		if (one->length == 0 || !isfinite(one->score) || fp_utf8_valid_prefix(one->text, one->length) != one->length)
			return fp_fail(ctx, FP_ERROR_INPUT,
						   "%s: piece %lld: must be UTF-8 of at least one byte with a finite score", path,
						   (long long)i);
		if (one->type < PIECE_NORMAL || one->type == PIECE_UNUSED)
			return fp_fail(
				ctx, FP_ERROR_INPUT,
				"%s: piece %lld: its type is not supported; normal, unknown, control, user defined and byte are", path,
				(long long)i);
	}
	return FP_OK;
}

typedef struct scored {
	float score;
	int32_t id;
} scored;

static int by_falling_score(const void *a, const void *b)
{
	float x = ((const scored *)a)->score, y = ((const scored *)b)->score;
	return (x < y) - (x > y);
}

/* Pieces of equal score have equal rank, so that the leftmost is merged first. */
static fp_status rank_pieces(fp_context *ctx, sentencepiece_model *model)
{
	scored *order;
	fp_status status = FP_NEW(ctx, &order, model->count);
	if (status != FP_OK)
		return status;
	for (int64_t i = 0; i < model->count; i++)
		order[i] = (scored){.score = model->pieces[i].score, .id = (int32_t)i};
	qsort(order, (size_t)model->count, sizeof *order, by_falling_score);
	int32_t rank = 0;
	for (int64_t i = 0; i < model->count; i++) {
		rank += i > 0 && order[i].score < order[i - 1].score;
		model->pieces[order[i].id].rank = rank;
	}
	fp_free(order);
	return FP_OK;
}

static fp_status note_lengths(fp_context *ctx, sentencepiece_model *model)
{
	for (int64_t i = 0; i < model->count; i++)
		if (model->pieces[i].length > model->longest)
			model->longest = model->pieces[i].length;
	fp_status status = FP_NEW(ctx, &model->has_length, model->longest + 1);
	for (int64_t i = 0; status == FP_OK && i < model->count; i++)
		model->has_length[model->pieces[i].length] = true;
	return status;
}

/* A look-up hashes the text, so only splits into lengths that pieces have are looked up. */
static fp_status put_merges(fp_context *ctx, fp_bpe *bpe, const sentencepiece_model *model, int32_t id)
{
	const piece *whole = &model->pieces[id];
	fp_status status = fp_check_interrupt(ctx);
	for (int64_t cut = 1; cut < whole->length && status == FP_OK; cut++) {
		if (!model->has_length[cut] || !model->has_length[whole->length - cut] ||
			((unsigned char)whole->text[cut] & 0xC0) == 0x80)
			continue;
		int32_t left = fp_vocabulary_get(bpe->vocabulary, whole->text, cut);
		if (left < 0 || model->pieces[left].type != PIECE_NORMAL)
			continue;
		int32_t right = fp_vocabulary_get(bpe->vocabulary, whole->text + cut, whole->length - cut);
		if (right < 0 || model->pieces[right].type != PIECE_NORMAL)
			continue;
		status = fp_bpe_put_merge(ctx, bpe, left, right, whole->rank, id);
	}
	return status;
}

/* legacy: Hugging Face's flag: text after a special token also gets a space before it. */
static fp_status fill_tokenizer(fp_tokenizer *tokenizer, sentencepiece_model *model, bool legacy)
{
	fp_context *ctx = tokenizer->ctx;
	fp_bpe *bpe = &tokenizer->bpe;
	fp_status status = FP_OK;
	FP_TRY(rank_pieces(ctx, model));
	FP_TRY(note_lengths(ctx, model));
	for (int64_t i = 0; i < model->count; i++)
		FP_TRY(fp_vocabulary_put(ctx, &tokenizer->vocabulary, model->pieces[i].text, model->pieces[i].length, i));
	for (int64_t i = 0; i < model->count; i++) {
		const piece *one = &model->pieces[i];
		const fp_added_token token = {.id = (int32_t)i, .special = one->type != PIECE_USER_DEFINED};
		if (one->type == PIECE_NORMAL)
			FP_TRY(put_merges(ctx, bpe, model, (int32_t)i));
		if (one->type == PIECE_UNKNOWN)
			bpe->unknown = (int32_t)i;
		if (one->type == PIECE_UNKNOWN || one->type == PIECE_CONTROL)
			FP_TRY(fp_added_tokens_put(ctx, &tokenizer->raw_added, one->text, one->length, token));
		if (one->type == PIECE_USER_DEFINED)
			FP_TRY(fp_added_tokens_put(ctx, &tokenizer->normalized_added, one->text, one->length, token));
	}
	bpe->byte_fallback = model->byte_fallback;
	bpe->fuse_unknown = true;
	if (model->bos >= 0 && model->bos < model->count && model->pieces[model->bos].type == PIECE_CONTROL)
		tokenizer->bos = (int32_t)model->bos;
	if (model->remove_extra_spaces)
		FP_TRY(fp_normalizer_add(ctx, &tokenizer->normalizer, FP_NORMALIZE_SINGLE_SPACES, NULL, NULL));
	if (!legacy)
		return fp_pretokenizer_add_metaspace(ctx, &tokenizer->pretokenizer, FP_SPACE_MARK,
											 model->add_dummy_prefix ? FP_PREPEND_FIRST : FP_PREPEND_NEVER, false);
	if (model->add_dummy_prefix)
		FP_TRY(fp_normalizer_add(ctx, &tokenizer->normalizer, FP_NORMALIZE_PREPEND, FP_SPACE_MARK, NULL));
	FP_TRY(fp_normalizer_add(ctx, &tokenizer->normalizer, FP_NORMALIZE_REPLACE, FP_SPACE_MARK, " "));
cleanup:
	return status;
}

fp_status fp_read_sentencepiece(fp_tokenizer *tokenizer, const fp_tokenizer_settings *settings, const char *path)
{
	fp_context *ctx = tokenizer->ctx;
	sentencepiece_model model = {0};
	char *bytes = NULL;
	int64_t size;
	fp_status status = FP_OK;
	tokenizer->kind = "SentencePiece BPE";
	tokenizer->adds_bos_by_default = true; /* as LlamaTokenizer does */
	FP_TRY(fp_read_file(&bytes, &size, ctx, path, FP_TOKENIZER_FILE_LIMIT));
	FP_TRY(read_model(ctx, &model, bytes, size, path));
	FP_TRY(check_model(ctx, &model, path));
	status = fill_tokenizer(tokenizer, &model, fp_tokenizer_settings_flag(settings, "legacy", true));
	if (status == FP_ERROR_INPUT)
		fp_fail_in(ctx, status, "%s", path);
cleanup:
	fp_free(model.pieces);
	fp_free(model.has_length);
	fp_free(bytes);
	return status;
}
