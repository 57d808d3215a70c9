/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer/added_tokens.h"

#include "base/memory.h"
#include "tokenizer/unicode_text.h"

void fp_added_tokens_clear(fp_added_tokens *added)
{
	fp_text_map_clear(&added->map);
	fp_free(added->tokens);
	fp_free(added->lengths);
	*added = (fp_added_tokens){0};
}

static fp_status note_length(fp_context *ctx, fp_added_tokens *added, int64_t length)
{
	int64_t place = 0;
	while (place < added->length_count && added->lengths[place] > length)
		place++;
	if (place < added->length_count && added->lengths[place] == length)
		return FP_OK;
	fp_status status = FP_GROW(ctx, &added->lengths, &added->length_capacity, added->length_count + 1);
	if (status != FP_OK)
		return status;
	for (int64_t i = added->length_count++; i > place; i--)
		added->lengths[i] = added->lengths[i - 1];
	added->lengths[place] = length;
	return FP_OK;
}

fp_status fp_added_tokens_put(fp_context *ctx, fp_added_tokens *added, const char *content, int64_t length,
							  fp_added_token token)
{
	fp_status status = FP_OK;
	if (length == 0)
		return FP_OK;
	int32_t there = fp_text_map_get(&added->map, content, length);
	if (there >= 0) {
		added->tokens[there] = token;
		return FP_OK;
	}
	FP_TRY(FP_GROW(ctx, &added->tokens, &added->capacity, added->count + 1));
	FP_TRY(note_length(ctx, added, length));
	FP_TRY(fp_text_map_put(ctx, &added->map, content, length, (int32_t)added->count));
	added->starts[(unsigned char)content[0]] = true;
	added->tokens[added->count++] = token;
cleanup:
	return status;
}

static bool touches_word(const char *text, int64_t length, const fp_added_match *match)
{
	uint32_t code;
	if (match->start > 0) {
		fp_utf8_previous(text, match->start, &code);
		if (fp_is_word(code))
			return true;
	}
	if (match->end < length) {
		fp_utf8_decode(text + match->end, length - match->end, &code);
		if (fp_is_word(code))
			return true;
	}
	return false;
}

static void strip(const fp_added_token *token, const char *text, int64_t length, int64_t taken, fp_added_match *match)
{
	uint32_t code;
	while (token->left_strip && match->start > taken) {
		int64_t before = fp_utf8_previous(text, match->start, &code);
		if (!fp_is_white_space(code))
			break;
		match->start = before;
	}
	while (token->right_strip && match->end < length) {
		int size = fp_utf8_decode(text + match->end, length - match->end, &code);
		if (!fp_is_white_space(code))
			break;
		match->end += size;
	}
}

bool fp_added_tokens_find(const fp_added_tokens *added, const char *text, int64_t length, int64_t from, int64_t taken,
						  fp_added_match *match)
{
	if (added->count == 0)
		return false;
	for (int64_t i = from; i < length; i++) {
		if (!added->starts[(unsigned char)text[i]])
			continue;
		for (int64_t j = 0; j < added->length_count; j++) {
			int64_t size = added->lengths[j];
			int32_t index = size <= length - i ? fp_text_map_get(&added->map, text + i, size) : -1;
			if (index < 0)
				continue;
			const fp_added_token *token = &added->tokens[index];
			*match = (fp_added_match){.start = i, .end = i + size, .match_end = i + size, .id = token->id};
			if (token->single_word && touches_word(text, length, match)) {
				i += size - 1; /* not a match: continue after it */
				break;
			}
			strip(token, text, length, taken, match);
			return true;
		}
	}
	return false;
}
