/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer.model: SentencePiece's models, BPE (LLaMA 1 and 2) and Unigram.
 * For BPE, SentencePiece merges two neighbours if their joined text is a piece, best score first. Here every split of a
 * piece into two pieces becomes a merge with the rank of the piece's score, which gives the same result without comparing
 * text while merging.
 */
#include "base/file.h"
#include "base/memory.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/tokenizer_parts.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

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
static fp_status rank_pieces(fp_context *ctx, fp_sentencepiece_model *model)
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

/* Tables for finding the splits of pieces. */
typedef struct piece_lengths {
	bool *known; /* by number of bytes: whether a piece has this length */
	int64_t longest;
} piece_lengths;

static fp_status note_lengths(fp_context *ctx, const fp_sentencepiece_model *model, piece_lengths *lengths)
{
	for (int64_t i = 0; i < model->count; i++)
		if (model->pieces[i].length > lengths->longest)
			lengths->longest = model->pieces[i].length;
	fp_status status = FP_NEW(ctx, &lengths->known, lengths->longest + 1);
	for (int64_t i = 0; status == FP_OK && i < model->count; i++)
		lengths->known[model->pieces[i].length] = true;
	return status;
}

/* A look-up hashes the text, so only splits into lengths that pieces have are looked up. */
static fp_status put_merges(fp_context *ctx, fp_bpe *bpe, const fp_sentencepiece_model *model,
							const piece_lengths *lengths, int32_t id)
{
	const fp_piece *whole = &model->pieces[id];
	fp_status status = fp_check_interrupt(ctx);
	for (int64_t cut = 1; cut < whole->length && status == FP_OK; cut++) {
		if (!lengths->known[cut] || !lengths->known[whole->length - cut] ||
			((unsigned char)whole->text[cut] & 0xC0) == 0x80)
			continue;
		int32_t left = fp_vocabulary_get(bpe->vocabulary, whole->text, cut);
		if (left < 0 || model->pieces[left].type != FP_PIECE_NORMAL)
			continue;
		int32_t right = fp_vocabulary_get(bpe->vocabulary, whole->text + cut, whole->length - cut);
		if (right < 0 || model->pieces[right].type != FP_PIECE_NORMAL)
			continue;
		status = fp_bpe_put_merge(ctx, bpe, left, right, whole->rank, id);
	}
	return status;
}

static fp_status fill_bpe(fp_tokenizer *tokenizer, fp_sentencepiece_model *model, int32_t unknown)
{
	fp_context *ctx = tokenizer->ctx;
	fp_bpe *bpe = &tokenizer->bpe;
	piece_lengths lengths = {0};
	fp_status status = FP_OK;
	FP_TRY(rank_pieces(ctx, model));
	FP_TRY(note_lengths(ctx, model, &lengths));
	for (int64_t i = 0; i < model->count; i++)
		if (model->pieces[i].type == FP_PIECE_NORMAL)
			FP_TRY(put_merges(ctx, bpe, model, &lengths, (int32_t)i));
	for (int64_t i = 0; i < model->count; i++) {
		const fp_piece *one = &model->pieces[i];
		const fp_added_token token = {.id = (int32_t)i};
		if (one->type == FP_PIECE_USER_DEFINED)
			FP_TRY(fp_added_tokens_put(ctx, &tokenizer->normalized_added, one->text, one->length, token));
	}
	bpe->unknown = unknown;
	bpe->byte_fallback = model->byte_fallback;
	bpe->fuse_unknown = true;
cleanup:
	fp_free(lengths.known);
	return status;
}

/* A user-defined piece of n bytes has the score (n − 1)/10, whatever the file says, as in sentencepiece 0.2.3 (before: −0.1),
 * so that it is nearly always chosen. */
static fp_status fill_unigram(fp_tokenizer *tokenizer, const fp_sentencepiece_model *model, int32_t unknown)
{
	fp_context *ctx = tokenizer->ctx;
	fp_unigram *unigram = &tokenizer->unigram;
	fp_trie_piece *pieces = NULL;
	int64_t count = 0;
	float least = FLT_MAX;
	fp_status status = FP_OK;
	FP_TRY(FP_NEW(ctx, &pieces, model->count));
	for (int64_t i = 0; i < model->count; i++) {
		const fp_piece *one = &model->pieces[i];
		if (one->type == FP_PIECE_NORMAL && one->score < least)
			least = one->score;
	}
	for (int64_t i = 0; i < model->count; i++) {
		const fp_piece *one = &model->pieces[i];
		fp_trie_piece entry = {.text = one->text, .length = one->length, .score = one->score, .id = (int32_t)i};
		if (one->type == FP_PIECE_USER_DEFINED)
			entry.score = (float)(0.1 * (double)(one->length - 1));
		if (one->type == FP_PIECE_NORMAL || one->type == FP_PIECE_USER_DEFINED)
			pieces[count++] = entry;
	}
	unigram->unknown = unknown;
	unigram->byte_fallback = model->byte_fallback;
	unigram->as_sentencepiece = true;
	unigram->count = model->count;
	FP_TRY(fp_unigram_finish(unigram, ctx, pieces, count, least));
cleanup:
	fp_free(pieces);
	return status;
}

/* legacy: Hugging Face's flag: text after a special token also gets a space before it. */
static fp_status fill_rules(fp_tokenizer *tokenizer, const fp_sentencepiece_model *model, bool legacy)
{
	fp_context *ctx = tokenizer->ctx;
	fp_sentencepiece_rules *rules;
	fp_status status = FP_OK;
	FP_TRY(fp_normalizer_add_sentencepiece(ctx, &tokenizer->normalizer, &rules));
	rules->add_dummy_prefix = legacy && model->add_dummy_prefix;
	rules->remove_extra_spaces = model->remove_extra_spaces;
	rules->escape_spaces = model->escape_spaces;
	tokenizer->leading_space = model->remove_extra_spaces ? FP_LEADING_EACH
							   : model->add_dummy_prefix  ? FP_LEADING_ONE
														  : FP_LEADING_NONE;
	if (model->charsmap_size > 0)
		FP_TRY(fp_character_map_read(&rules->map, ctx, model->charsmap, model->charsmap_size));
	for (int64_t i = 0; i < model->count; i++) {
		const fp_piece *one = &model->pieces[i];
		const fp_added_token token = {.id = (int32_t)i};
		if (one->type == FP_PIECE_USER_DEFINED)
			FP_TRY(fp_added_tokens_put(ctx, &rules->symbols, one->text, one->length, token));
	}
	if (!legacy)
		FP_TRY(fp_pretokenizer_add_metaspace(ctx, &tokenizer->pretokenizer, FP_SPACE_MARK,
											 model->add_dummy_prefix ? FP_PREPEND_FIRST : FP_PREPEND_NEVER, false));
cleanup:
	return status;
}

static fp_status fill_tokenizer(fp_tokenizer *tokenizer, fp_sentencepiece_model *model, bool legacy)
{
	fp_context *ctx = tokenizer->ctx;
	int32_t unknown = -1;
	fp_status status = FP_OK;
	for (int64_t i = 0; i < model->count; i++)
		FP_TRY(fp_vocabulary_put(ctx, &tokenizer->vocabulary, model->pieces[i].text, model->pieces[i].length, i));
	for (int64_t i = 0; i < model->count; i++) {
		const fp_piece *one = &model->pieces[i];
		const fp_added_token token = {.id = (int32_t)i, .special = true};
		if (one->type == FP_PIECE_UNKNOWN)
			unknown = (int32_t)i;
		if (one->type == FP_PIECE_UNKNOWN || one->type == FP_PIECE_CONTROL)
			FP_TRY(fp_added_tokens_put(ctx, &tokenizer->raw_added, one->text, one->length, token));
	}
	if (model->bos >= 0 && model->bos < model->count && model->pieces[model->bos].type == FP_PIECE_CONTROL)
		tokenizer->bos = (int32_t)model->bos;
	tokenizer->is_unigram = model->model_type == FP_SENTENCEPIECE_UNIGRAM;
	tokenizer->kind = tokenizer->is_unigram ? "Unigram" : "SentencePiece BPE";
	FP_TRY(tokenizer->is_unigram ? fill_unigram(tokenizer, model, unknown) : fill_bpe(tokenizer, model, unknown));
	FP_TRY(fill_rules(tokenizer, model, legacy));
cleanup:
	return status;
}

fp_status fp_read_sentencepiece(fp_tokenizer *tokenizer, const fp_tokenizer_settings *settings, const char *path)
{
	fp_context *ctx = tokenizer->ctx;
	fp_sentencepiece_model model = {0};
	char *bytes = NULL;
	int64_t size;
	fp_status status = FP_OK;
	tokenizer->adds_bos_by_default = true; /* as LlamaTokenizer does */
	FP_TRY(fp_read_file(&bytes, &size, ctx, path, FP_TOKENIZER_FILE_LIMIT));
	FP_TRY(fp_sentencepiece_model_read(&model, ctx, bytes, size, path));
	status = fill_tokenizer(tokenizer, &model, fp_tokenizer_settings_flag(settings, "legacy", true));
	if (status == FP_ERROR_INPUT)
		fp_fail_in(ctx, status, "%s", path);
cleanup:
	fp_free(model.pieces);
	fp_free(bytes);
	return status;
}
