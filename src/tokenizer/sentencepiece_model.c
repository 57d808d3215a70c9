/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer/sentencepiece_model.h"

#include "base/memory.h"
#include "tokenizer/unicode_text.h"

#include <math.h>
#include <string.h>

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

static bool read_piece(wire_reader reader, fp_piece *out)
{
	*out = (fp_piece){.type = FP_PIECE_NORMAL, .text = ""};
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
			out->type = field.value <= FP_PIECE_BYTE ? (int32_t)field.value : 0;
		}
	}
	return out->text != NULL;
}

static bool read_trainer(wire_reader reader, fp_sentencepiece_model *model)
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

static bool read_normalizer(wire_reader reader, fp_sentencepiece_model *model)
{
	wire_field field;
	while (reader.at < reader.end) {
		if (!read_field(&reader, &field))
			return false;
		if (field.number == 2) {
			model->charsmap = (const char *)field.bytes.at;
			model->charsmap_size = field.bytes.end - field.bytes.at;
		} else if (field.number == 3)
			model->add_dummy_prefix = field.value != 0;
		else if (field.number == 4)
			model->remove_extra_spaces = field.value != 0;
		else if (field.number == 5)
			model->escape_spaces = field.value != 0;
	}
	return true;
}

static fp_status read_fields(fp_context *ctx, fp_sentencepiece_model *model, const char *bytes, int64_t size,
							 const char *path)
{
	fp_status status = FP_OK;
	wire_reader reader = {(const unsigned char *)bytes, (const unsigned char *)bytes + size};
	wire_field field;
	*model = (fp_sentencepiece_model){
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

static fp_status check_model(fp_context *ctx, const fp_sentencepiece_model *model, const char *path)
{
	if (model->count == 0)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: not a SentencePiece model: it has no pieces", path);
	if (model->model_type != FP_SENTENCEPIECE_UNIGRAM && model->model_type != FP_SENTENCEPIECE_BPE)
		return fp_fail(ctx, FP_ERROR_INPUT,
					   "%s: SentencePiece model type %lld is not supported; Unigram (1) and BPE (2) are", path,
					   (long long)model->model_type);
	if (model->space_as_suffix)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: treat_whitespace_as_suffix = true is not supported", path);
	for (int64_t i = 0; i < model->count; i++) {
		const fp_piece *one = &model->pieces[i];
		if (one->length == 0 || !isfinite(one->score) || fp_utf8_valid_prefix(one->text, one->length) != one->length)
			return fp_fail(ctx, FP_ERROR_INPUT,
						   "%s: piece %lld: must be UTF-8 of at least one byte with a finite score", path,
						   (long long)i);
		if (one->type < FP_PIECE_NORMAL || one->type == FP_PIECE_UNUSED)
			return fp_fail(
				ctx, FP_ERROR_INPUT,
				"%s: piece %lld: its type is not supported; normal, unknown, control, user defined and byte are", path,
				(long long)i);
	}
	return FP_OK;
}

fp_status fp_sentencepiece_model_read(fp_sentencepiece_model *model, fp_context *ctx, const char *bytes, int64_t size,
									  const char *path)
{
	fp_status status = read_fields(ctx, model, bytes, size, path);
	return status != FP_OK ? status : check_model(ctx, model, path);
}
