/* SPDX-License-Identifier: Apache-2.0 */
/* vocab.json and merges.txt: byte-level BPE of GPT-2 and OPT. */
#include "base/file.h"
#include "base/memory.h"
#include "tokenizer/tokenizer_parts.h"

#include <string.h>

fp_status fp_load_json(json_t **out, fp_context *ctx, const char *path, size_t flags)
{
	char *bytes;
	int64_t size;
	*out = NULL;
	fp_status status = fp_read_file(&bytes, &size, ctx, path, FP_TOKENIZER_FILE_LIMIT);
	if (status != FP_OK)
		return status;
	json_error_t error;
	*out = json_loadb(bytes, (size_t)size, flags | JSON_ALLOW_NUL, &error);
	fp_free(bytes);
	if (!*out)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: line %d: not valid JSON: %s", path, error.line, error.text);
	return FP_OK;
}

static fp_status read_vocabulary(fp_tokenizer *tokenizer, const char *path)
{
	fp_context *ctx = tokenizer->ctx;
	json_t *json = NULL;
	fp_status status = FP_OK;
	FP_TRY(fp_load_json(&json, ctx, path, 0));
	if (!json_is_object(json) || json_object_size(json) == 0) {
		status = fp_fail(ctx, FP_ERROR_INPUT, "%s: must be a JSON object from token to id", path);
		goto cleanup;
	}
	const char *token;
	json_t *id;
	json_object_foreach(json, token, id)
	{
		if (!json_is_integer(id)) {
			status = fp_fail(ctx, FP_ERROR_INPUT, "%s: token '%.80s': its id must be a whole number", path, token);
			goto cleanup;
		}
		status = fp_vocabulary_put(ctx, &tokenizer->vocabulary, token, (int64_t)strlen(token), json_integer_value(id));
		if (status != FP_OK) {
			fp_fail_in(ctx, status, "%s", path);
			goto cleanup;
		}
	}
cleanup:
	json_decref(json);
	return status;
}

static fp_status read_merges(fp_tokenizer *tokenizer, const char *path)
{
	fp_context *ctx = tokenizer->ctx;
	char *bytes = NULL;
	int64_t size, rank = 0, line_number = 0;
	fp_status status = FP_OK;
	FP_TRY(fp_read_file(&bytes, &size, ctx, path, FP_TOKENIZER_FILE_LIMIT));
	for (char *line = bytes, *end = bytes + size; line < end;) {
		char *stop = memchr(line, '\n', (size_t)(end - line));
		char *next = stop ? stop + 1 : end;
		stop = stop ? stop : end;
		if (stop > line && stop[-1] == '\r')
			stop--;
		line_number++;
		/* The first line is "#version: …"; no merge begins so. */
		if (stop > line && !(stop - line >= 8 && memcmp(line, "#version", 8) == 0)) {
			char *space = memchr(line, ' ', (size_t)(stop - line));
			if (!space) {
				status = fp_fail(ctx, FP_ERROR_INPUT, "%s: line %lld: must be two tokens with a space between them",
								 path, (long long)line_number);
				goto cleanup;
			}
			FP_TRY(fp_bpe_put_merge_text(ctx, &tokenizer->bpe, line, space - line, space + 1, stop - space - 1, rank++,
										 path));
		}
		line = next;
	}
cleanup:
	fp_free(bytes);
	return status;
}

fp_status fp_read_vocabulary_and_merges(fp_tokenizer *tokenizer, const fp_tokenizer_settings *settings,
										const char *path)
{
	fp_context *ctx = tokenizer->ctx;
	char *merges = NULL;
	fp_status status = FP_OK;
	tokenizer->kind = "byte-level BPE";
	/* OPT's tokenizer is GPT-2's with </s> before a text; in older checkpoints only the model's type says so. */
	const char *type = json_string_value(json_object_get(settings->model, "model_type"));
	tokenizer->adds_bos_by_default = type && strcmp(type, "opt") == 0;
	FP_TRY(read_vocabulary(tokenizer, path));
	FP_TRY(fp_join_path(&merges, ctx, tokenizer->directory, "merges.txt"));
	FP_TRY(read_merges(tokenizer, merges));
	FP_TRY(fp_pretokenizer_add_byte_level(ctx, &tokenizer->pretokenizer,
										  fp_tokenizer_settings_flag(settings, "add_prefix_space", false), true));
	tokenizer->bpe.byte_level = true;
cleanup:
	fp_free(merges);
	return status;
}
