/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes one piece, with a linked list of symbols, a heap of candidate merges, and a cache of short words. */
#include "base/memory.h"
#include "tokenizer/bpe.h"

#include <string.h>

enum { DEAD = -2 };

static const fp_merge *find_merge(const fp_bpe *bpe, int32_t left, int32_t right)
{
	uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
	uint64_t mask = (uint64_t)bpe->merge_capacity - 1;
	for (uint64_t i = (pair * 0x9e3779b97f4a7c15ULL) >> 20 & mask;; i = (i + 1) & mask) {
		const fp_merge *slot = &bpe->merges[i];
		if (slot->rank < 0)
			return NULL;
		if (slot->pair == pair)
			return slot;
	}
}

/* Each pair of neighbours is pushed once, and a merge makes at most two new pairs: below three times the symbols. */
static void heap_push(fp_bpe *bpe, fp_bpe_candidate candidate)
{
	int64_t i = bpe->heap_count++;
	fp_bpe_candidate *heap = bpe->heap;
	while (i > 0 && heap[(i - 1) / 2].order > candidate.order) {
		heap[i] = heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	heap[i] = candidate;
}

static fp_bpe_candidate heap_pop(fp_bpe *bpe)
{
	fp_bpe_candidate *heap = bpe->heap;
	fp_bpe_candidate top = heap[0], last = heap[--bpe->heap_count];
	int64_t i = 0;
	for (;;) {
		int64_t child = 2 * i + 1;
		if (child >= bpe->heap_count)
			break;
		if (child + 1 < bpe->heap_count && heap[child + 1].order < heap[child].order)
			child++;
		if (last.order <= heap[child].order)
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = last;
	return top;
}

static void consider(fp_bpe *bpe, int32_t position)
{
	if (position < 0 || bpe->symbols[position].next < 0)
		return;
	int32_t left = bpe->symbols[position].id, right = bpe->symbols[bpe->symbols[position].next].id;
	const fp_merge *merge = find_merge(bpe, left, right);
	if (merge)
		heap_push(bpe, (fp_bpe_candidate){.order = (uint64_t)merge->rank << 32 | (uint32_t)position,
										  .left = left,
										  .right = right,
										  .merged = merge->merged});
}

static void merge_symbols(fp_bpe *bpe, int32_t count)
{
	fp_bpe_symbol *symbols = bpe->symbols;
	bpe->heap_count = 0;
	for (int32_t i = 0; i + 1 < count; i++)
		consider(bpe, i);
	while (bpe->heap_count > 0) {
		fp_bpe_candidate best = heap_pop(bpe);
		int32_t position = (int32_t)(best.order & 0xffffffffU);
		fp_bpe_symbol *left = &symbols[position];
		if (left->id != best.left || left->next < 0 || symbols[left->next].id != best.right)
			continue; /* one of the two was merged meanwhile */
		fp_bpe_symbol *right = &symbols[left->next];
		left->id = best.merged;
		left->next = right->next;
		right->id = DEAD;
		if (left->next >= 0)
			symbols[left->next].previous = position;
		consider(bpe, left->previous);
		consider(bpe, position);
	}
}

static void add_symbol(fp_bpe *bpe, int32_t *count, int32_t id)
{
	bpe->symbols[*count] = (fp_bpe_symbol){.id = id, .previous = *count - 1, .next = *count + 1};
	(*count)++;
}

/* A character that is not a token becomes its byte tokens, or the unknown token, or nothing. */
static void add_unknown(fp_bpe *bpe, int32_t *count, const char *text, int length, bool *after_unknown)
{
	bool bytes_known = bpe->byte_fallback;
	for (int i = 0; i < length && bytes_known; i++)
		bytes_known = bpe->byte_ids[(unsigned char)text[i]] >= 0;
	if (bytes_known) {
		for (int i = 0; i < length; i++)
			add_symbol(bpe, count, bpe->byte_ids[(unsigned char)text[i]]);
		*after_unknown = false;
		return;
	}
	if (bpe->unknown >= 0 && !(bpe->fuse_unknown && *after_unknown))
		add_symbol(bpe, count, bpe->unknown);
	*after_unknown = true;
}

static int32_t split_into_symbols(fp_bpe *bpe, const char *word, int64_t length)
{
	int32_t count = 0;
	bool after_unknown = false;
	for (int64_t i = 0; i < length;) {
		int size = 1;
		int32_t id;
		if (bpe->byte_level) {
			id = bpe->byte_ids[(unsigned char)word[i]];
		} else {
			uint32_t code;
			size = fp_utf8_decode(word + i, length - i, &code);
			id = fp_vocabulary_get(bpe->vocabulary, word + i, size);
		}
		if (id >= 0) {
			add_symbol(bpe, &count, id);
			after_unknown = false;
		} else {
			add_unknown(bpe, &count, word + i, size, &after_unknown);
		}
		i += size;
	}
	if (count > 0)
		bpe->symbols[count - 1].next = -1;
	return count;
}

static fp_status encode_fresh(fp_context *ctx, fp_bpe *bpe, const char *word, int64_t length, fp_tokens *out)
{
	fp_status status = FP_OK;
	if (length > INT32_MAX - 1)
		return fp_fail(ctx, FP_ERROR_INPUT, "a piece of %lld bytes without a split; at most 2147483646 are supported",
					   (long long)length);
	if (bpe->ignore_merges) {
		int32_t whole = bpe->byte_level ? fp_text_map_get(&bpe->words, word, length)
										: fp_vocabulary_get(bpe->vocabulary, word, length);
		if (whole >= 0)
			return fp_tokens_append(ctx, out, whole);
	}
	FP_TRY(FP_GROW(ctx, &bpe->symbols, &bpe->symbol_capacity, length));
	FP_TRY(FP_GROW(ctx, &bpe->heap, &bpe->heap_capacity, 3 * length));
	int32_t count = split_into_symbols(bpe, word, length);
	merge_symbols(bpe, count);
	for (int32_t i = count > 0 ? 0 : -1; i >= 0; i = bpe->symbols[i].next)
		FP_TRY(fp_tokens_append(ctx, out, bpe->symbols[i].id));
cleanup:
	return status;
}

static fp_status encode_word(fp_context *ctx, fp_bpe *bpe, const char *word, int64_t length, fp_tokens *out)
{
	if (length >= FP_CACHE_KEY || !bpe->cache)
		return encode_fresh(ctx, bpe, word, length, out);
	uint64_t hash = fp_text_hash(word, length);
	fp_bpe_cached *cached = &bpe->cache[hash & (FP_CACHE_SLOTS - 1)];
	uint32_t check = (uint32_t)(hash >> 32);
	fp_status status = FP_OK;
	if (cached->length == length && cached->check == check && memcmp(cached->key, word, (size_t)length) == 0) {
		FP_TRY(FP_GROW(ctx, &out->ids, &out->capacity, out->count + FP_CACHE_IDS));
		memcpy(out->ids + out->count, cached->ids, sizeof cached->ids);
		out->count += cached->count;
		return FP_OK;
	}
	int64_t before = out->count;
	FP_TRY(encode_fresh(ctx, bpe, word, length, out));
	if (out->count - before <= FP_CACHE_IDS) {
		cached->length = (uint8_t)length;
		cached->count = (uint8_t)(out->count - before);
		cached->check = check;
		memcpy(cached->key, word, (size_t)length);
		memcpy(cached->ids, out->ids + before, (size_t)cached->count * sizeof *cached->ids);
	}
cleanup:
	return status;
}

/* The length of the first word, which ends before the next U+2581 that follows another character. */
static int64_t word_end(const char *word, int64_t length)
{
	int64_t i = 0;
	while (length - i >= 3 && memcmp(word + i, FP_SPACE_MARK, 3) == 0)
		i += 3;
	while (i < length) {
		const char *mark = memchr(word + i, (unsigned char)FP_SPACE_MARK[0], (size_t)(length - i));
		if (!mark || word + length - mark < 3)
			return length;
		if (memcmp(mark, FP_SPACE_MARK, 3) == 0)
			return mark - word;
		i = mark - word + 1;
	}
	return length;
}

fp_status fp_bpe_encode(fp_context *ctx, fp_bpe *bpe, const char *piece, int64_t length, fp_tokens *out)
{
	if (length == 0)
		return FP_OK;
	bpe->encoded_bytes += length;
	if (!bpe->cache && bpe->encoded_bytes >= FP_CACHE_AFTER_BYTES) {
		fp_status status = FP_NEW(ctx, &bpe->cache, FP_CACHE_SLOTS);
		if (status != FP_OK)
			return status;
	}
	if (!bpe->cut_at_spaces || bpe->ignore_merges)
		return encode_word(ctx, bpe, piece, length, out);
	for (int64_t start = 0; start < length;) {
		int64_t size = word_end(piece + start, length - start);
		fp_status status = encode_word(ctx, bpe, piece + start, size, out);
		if (status != FP_OK)
			return status;
		start += size;
	}
	return FP_OK;
}
