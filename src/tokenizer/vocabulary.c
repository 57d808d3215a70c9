/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer/vocabulary.h"

#include "base/memory.h"

#include <stdio.h>
#include <string.h>

fp_status fp_tokens_append(fp_context *ctx, fp_tokens *tokens, int32_t id)
{
	if (tokens->count == tokens->capacity) {
		fp_status status = FP_GROW(ctx, &tokens->ids, &tokens->capacity, tokens->count + 1);
		if (status != FP_OK)
			return status;
	}
	tokens->ids[tokens->count++] = id;
	return FP_OK;
}

void fp_vocabulary_clear(fp_vocabulary *vocabulary)
{
	fp_text_map_clear(&vocabulary->map);
	fp_free(vocabulary->text_place);
	*vocabulary = (fp_vocabulary){0};
}

fp_status fp_vocabulary_put(fp_context *ctx, fp_vocabulary *vocabulary, const char *token, int64_t length, int64_t id)
{
	fp_status status = FP_OK;
	if (id < 0 || id >= FP_LARGEST_ID)
		return fp_fail(ctx, FP_ERROR_INPUT, "token '%.*s' has id %lld; ids run from 0 to %d",
					   (int)(length < 80 ? length : 80), token, (long long)id, FP_LARGEST_ID - 1);
	const char *there = fp_vocabulary_text(vocabulary, id);
	if (there && (strlen(there) != (size_t)length || memcmp(there, token, (size_t)length) != 0))
		return fp_fail(ctx, FP_ERROR_INPUT, "tokens '%.80s' and '%.*s' both have id %lld; ids must differ", there,
					   (int)(length < 80 ? length : 80), token, (long long)id);
	int32_t other = fp_vocabulary_get(vocabulary, token, length);
	if (other >= 0 && other != id)
		return fp_fail(ctx, FP_ERROR_INPUT, "token '%.*s' has ids %d and %lld; a token has one id",
					   (int)(length < 80 ? length : 80), token, other, (long long)id);
	if (there)
		return FP_OK;
	int64_t place = vocabulary->map.bytes_used;
	FP_TRY(FP_GROW(ctx, &vocabulary->text_place, &vocabulary->capacity, id + 1));
	FP_TRY(fp_text_map_put(ctx, &vocabulary->map, token, length, (int32_t)id));
	vocabulary->text_place[id] = place + 1;
	if (id >= vocabulary->size)
		vocabulary->size = id + 1;
cleanup:
	return status;
}

int32_t fp_vocabulary_get(const fp_vocabulary *vocabulary, const char *token, int64_t length)
{
	return fp_text_map_get(&vocabulary->map, token, length);
}

const char *fp_vocabulary_text(const fp_vocabulary *vocabulary, int64_t id)
{
	if (id < 0 || id >= vocabulary->size || vocabulary->text_place[id] == 0)
		return NULL;
	return vocabulary->map.bytes + vocabulary->text_place[id] - 1;
}

void fp_vocabulary_find_bytes(const fp_vocabulary *vocabulary, int32_t ids[256])
{
	for (int i = 0; i < 256; i++) {
		char name[8];
		snprintf(name, sizeof name, "<0x%02X>", (unsigned)i);
		ids[i] = fp_vocabulary_get(vocabulary, name, (int64_t)strlen(name));
	}
}
