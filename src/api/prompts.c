/* SPDX-License-Identifier: Apache-2.0 */
#include "api/prompts.h"

#include "base/file.h"
#include "base/memory.h"

#include <string.h>

#define MOST_BYTES ((int64_t)1 << 30)

void fp_prompts_free(fp_prompts *prompts)
{
	for (int64_t i = 0; prompts->tokens && i < prompts->count; i++)
		fp_free(prompts->tokens[i].ids);
	fp_free(prompts->tokens);
	json_decref(prompts->lines);
	*prompts = (fp_prompts){0};
}

static fp_status read_lines(json_t *lines, fp_context *ctx, const char *path)
{
	char *text = NULL;
	int64_t size = 0, number = 0;
	fp_status status;
	FP_TRY(fp_read_file(&text, &size, ctx, path, MOST_BYTES));
	for (const char *line = text, *end = text + size; line < end;) {
		const char *stop = memchr(line, '\n', (size_t)(end - line));
		size_t length = (size_t)((stop ? stop : end) - line);
		const char *begin = line;
		line += length + 1;
		number++;
		while (length > 0 && strchr(" \t\r", begin[length - 1]))
			length--;
		if (length == 0)
			continue;
		json_error_t error;
		json_t *object = json_loadb(begin, length, JSON_ALLOW_NUL, &error);
		bool has = json_is_string(json_object_get(object, "prompt")) || json_is_string(json_object_get(object, "text"));
		if (!has || json_array_append(lines, object) != 0)
			status = fp_fail(ctx, FP_ERROR_INPUT, "%s: line %lld: %s", path, (long long)number,
							 object ? "must be an object with a \"prompt\" (or \"text\")" : error.text);
		json_decref(object);
		if (status != FP_OK)
			goto cleanup;
	}
	if (json_array_size(lines) == 0)
		status = fp_fail(ctx, FP_ERROR_INPUT, "%s: has no prompts; needs lines such as {\"prompt\": \"Once\"}", path);
cleanup:
	fp_free(text);
	return status;
}

static fp_status encode(fp_tokens *out, const fp_model *model, fp_tokenizer *tokenizer, const char *text, int64_t size)
{
	fp_context *ctx = fp_model_backend(model)->ctx;
	int64_t positions = fp_model_get_config(model)->positions;
	if (size == 0)
		return fp_fail(ctx, FP_ERROR_USAGE, "the prompt is empty; give at least one character, such as \"Once\"");
	fp_status status = fp_tokenizer_encode(tokenizer, text, size, true, out);
	if (status == FP_OK && out->count == 0)
		return fp_fail(ctx, FP_ERROR_USAGE, "the prompt has no tokens; give at least one character, such as \"Once\"");
	if (status == FP_OK && out->count >= positions)
		return fp_fail(ctx, FP_ERROR_USAGE,
					   "the prompt has %lld tokens, but %s has %lld positions, and one must be left for a token after "
					   "it; use at most %lld",
					   (long long)out->count, fp_checkpoint_directory(fp_model_checkpoint(model)), (long long)positions,
					   (long long)(positions - 1));
	return status;
}

fp_status fp_prompts_read(fp_prompts *out, const fp_model *model, fp_tokenizer *tokenizer,
						  const fp_generate_request *request)
{
	fp_context *ctx = fp_model_backend(model)->ctx;
	fp_status status;
	*out = (fp_prompts){0};
	if (request->batch) {
		out->lines = json_array();
		FP_TRY(read_lines(out->lines, ctx, request->batch));
	}
	out->count = request->batch ? (int64_t)json_array_size(out->lines) : 1;
	FP_TRY(FP_NEW(ctx, &out->tokens, out->count));
	if (!request->batch)
		FP_TRY(encode(&out->tokens[0], model, tokenizer, request->prompt ? request->prompt : "", request->prompt_size));
	for (int64_t i = 0; request->batch && i < out->count; i++) {
		const json_t *line = json_array_get(out->lines, (size_t)i), *prompt = json_object_get(line, "prompt");
		if (!json_is_string(prompt))
			prompt = json_object_get(line, "text");
		status =
			encode(&out->tokens[i], model, tokenizer, json_string_value(prompt), (int64_t)json_string_length(prompt));
		if (status != FP_OK) {
			fp_fail_in(ctx, status, "%s: prompt %lld", request->batch, (long long)i + 1);
			goto cleanup;
		}
	}
cleanup:
	return status;
}
