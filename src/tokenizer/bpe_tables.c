/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of byte-pair encoding: merges, and GPT-2's spelling of bytes as printable characters. */
#include "base/memory.h"
#include "tokenizer/bpe.h"

#include <string.h>

static bool is_plain_letter(int byte)
{
	return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

/* A printable byte is written as itself, the others in order as U+0100 and up. */
static uint32_t letter_of_byte(int byte)
{
	if (is_plain_letter(byte))
		return (uint32_t)byte;
	uint32_t code = 0x100;
	for (int i = 0; i < byte; i++)
		code += !is_plain_letter(i);
	return code;
}

void fp_byte_letter(unsigned char byte, char letter[3])
{
	memset(letter, 0, 3);
	fp_utf8_encode(letter_of_byte(byte), letter);
}

void fp_bpe_start(fp_bpe *bpe, const fp_vocabulary *vocabulary)
{
	*bpe = (fp_bpe){.vocabulary = vocabulary, .unknown = -1};
	for (int i = 0; i < 256; i++)
		bpe->byte_ids[i] = -1;
}

void fp_bpe_clear(fp_bpe *bpe)
{
	fp_free(bpe->merges);
	fp_free(bpe->joined.bytes);
	fp_text_map_clear(&bpe->words);
	fp_free(bpe->cache);
	fp_free(bpe->symbols);
	fp_free(bpe->heap);
	*bpe = (fp_bpe){.unknown = -1};
}

static fp_merge *merge_slot(fp_merge *merges, int64_t capacity, uint64_t pair)
{
	uint64_t mask = (uint64_t)capacity - 1;
	for (uint64_t i = (pair * 0x9e3779b97f4a7c15ULL) >> 20 & mask;; i = (i + 1) & mask)
		if (merges[i].rank < 0 || merges[i].pair == pair)
			return &merges[i];
}

static fp_status enlarge_merges(fp_context *ctx, fp_bpe *bpe)
{
	int64_t capacity = bpe->merge_capacity ? 2 * bpe->merge_capacity : 1024;
	fp_merge *merges;
	fp_status status = FP_NEW(ctx, &merges, capacity);
	if (status != FP_OK)
		return status;
	for (int64_t i = 0; i < capacity; i++)
		merges[i].rank = -1;
	for (int64_t i = 0; bpe->merges && i < bpe->merge_capacity; i++)
		if (bpe->merges[i].rank >= 0)
			*merge_slot(merges, capacity, bpe->merges[i].pair) = bpe->merges[i];
	fp_free(bpe->merges);
	bpe->merges = merges;
	bpe->merge_capacity = capacity;
	return FP_OK;
}

fp_status fp_bpe_put_merge(fp_context *ctx, fp_bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t merged)
{
	if (!bpe->merges || 2 * (bpe->merge_count + 1) > bpe->merge_capacity) {
		fp_status status = enlarge_merges(ctx, bpe);
		if (status != FP_OK)
			return status;
	}
	uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
	fp_merge *slot = merge_slot(bpe->merges, bpe->merge_capacity, pair);
	bpe->merge_count += slot->rank < 0;
	*slot = (fp_merge){.pair = pair, .rank = rank, .merged = merged};
	return FP_OK;
}

fp_status fp_bpe_put_merge_text(fp_context *ctx, fp_bpe *bpe, const char *left, int64_t left_length, const char *right,
								int64_t right_length, int64_t rank, const char *where)
{
	fp_status status = FP_OK;
	bpe->joined.length = 0;
	FP_TRY(fp_text_append(ctx, &bpe->joined, left, left_length));
	FP_TRY(fp_text_append(ctx, &bpe->joined, right, right_length));
	int32_t first = fp_vocabulary_get(bpe->vocabulary, left, left_length);
	int32_t second = fp_vocabulary_get(bpe->vocabulary, right, right_length);
	int32_t merged = fp_vocabulary_get(bpe->vocabulary, bpe->joined.bytes, bpe->joined.length);
	if (first < 0 || second < 0 || merged < 0)
		return fp_fail(ctx, FP_ERROR_INPUT,
					   "%s: merge %lld '%.*s %.*s': both parts and the whole must be in the vocabulary", where,
					   (long long)rank, (int)(left_length < 80 ? left_length : 80), left,
					   (int)(right_length < 80 ? right_length : 80), right);
	return fp_bpe_put_merge(ctx, bpe, first, second, (int32_t)rank, merged);
cleanup:
	return status;
}

/* The bytes of a token in GPT-2's alphabet; −1 if it has another character. */
static int64_t spell_bytes(const int16_t *byte_of_letter, const char *token, char *bytes)
{
	int64_t count = 0, length = (int64_t)strlen(token);
	for (int64_t i = 0; i < length;) {
		uint32_t code;
		i += fp_utf8_decode(token + i, length - i, &code);
		if (code >= 512 || byte_of_letter[code] < 0)
			return -1;
		bytes[count++] = (char)byte_of_letter[code];
	}
	return count;
}

static fp_status index_words(fp_context *ctx, fp_bpe *bpe)
{
	fp_status status = FP_OK;
	int16_t byte_of_letter[512];
	char *bytes = NULL;
	int64_t capacity = 0;
	for (int i = 0; i < 512; i++)
		byte_of_letter[i] = -1;
	for (int i = 0; i < 256; i++)
		byte_of_letter[letter_of_byte(i)] = (int16_t)i;
	for (int64_t id = 0; id < bpe->vocabulary->size; id++) {
		const char *token = fp_vocabulary_text(bpe->vocabulary, id);
		if (!token)
			continue;
		FP_TRY(FP_GROW(ctx, &bytes, &capacity, (int64_t)strlen(token) + 1));
		int64_t length = spell_bytes(byte_of_letter, token, bytes);
		if (length > 0)
			FP_TRY(fp_text_map_put(ctx, &bpe->words, bytes, length, (int32_t)id));
	}
cleanup:
	fp_free(bytes);
	return status;
}

/* Whether no merge makes a token with U+2581 after another character. */
static bool spaces_only_lead(const fp_bpe *bpe)
{
	static const char space[] = FP_SPACE_MARK;
	if (fp_vocabulary_get(bpe->vocabulary, space, 3) < 0)
		return false;
	for (int64_t i = 0; i < bpe->merge_capacity; i++) {
		if (bpe->merges[i].rank < 0)
			continue;
		const char *token = fp_vocabulary_text(bpe->vocabulary, bpe->merges[i].merged);
		while (strncmp(token, space, 3) == 0)
			token += 3;
		if (strstr(token, space))
			return false;
	}
	return true;
}

fp_status fp_bpe_finish(fp_context *ctx, fp_bpe *bpe)
{
	if (!bpe->merges) {
		fp_status status = enlarge_merges(ctx, bpe); /* an empty table, so that look-ups need no special case */
		if (status != FP_OK)
			return status;
	}
	for (int i = 0; i < 256; i++) {
		char letter[3];
		fp_byte_letter((unsigned char)i, letter);
		if (bpe->byte_level)
			bpe->byte_ids[i] = fp_vocabulary_get(bpe->vocabulary, letter, (int64_t)strlen(letter));
	}
	if (!bpe->byte_level && bpe->byte_fallback)
		fp_vocabulary_find_bytes(bpe->vocabulary, bpe->byte_ids);
	bpe->cut_at_spaces = !bpe->byte_level && spaces_only_lead(bpe);
	return bpe->byte_level && bpe->ignore_merges ? index_words(ctx, bpe) : FP_OK;
}
