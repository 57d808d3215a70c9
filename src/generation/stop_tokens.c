/* SPDX-License-Identifier: Apache-2.0 */
#include "generation/stop_tokens.h"

#include "base/file.h"
#include "base/memory.h"

#include <jansson.h>

static fp_status add_ids(fp_stop_tokens *out, fp_context *ctx, const char *path, const json_t *value)
{
	size_t count = json_is_array(value) ? json_array_size(value) : 1;
	if (!value || json_is_null(value))
		return FP_OK;
	for (size_t i = 0; i < count; i++) {
		const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
		if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX ||
			out->count == FP_MOST_STOP_TOKENS)
			return fp_fail(ctx, FP_ERROR_INPUT,
						   "%s: eos_token_id must be a token's number or a list of up to %d of them", path,
						   FP_MOST_STOP_TOKENS);
		out->ids[out->count++] = (int32_t)json_integer_value(id);
	}
	return FP_OK;
}

/* From generation_config.json, which a model need not have. */
static fp_status read_generation_config(fp_stop_tokens *out, fp_context *ctx, const char *directory)
{
	enum { MOST_BYTES = 1 << 20 };
	char *path = NULL, *text = NULL;
	int64_t size;
	json_t *json = NULL;
	json_error_t error;
	fp_status status;
	FP_TRY(fp_join_path(&path, ctx, directory, "generation_config.json"));
	if (!fp_is_file(path))
		goto cleanup;
	FP_TRY(fp_read_file(&text, &size, ctx, path, MOST_BYTES));
	json = json_loadb(text, (size_t)size, 0, &error);
	if (!json)
		FP_TRY(fp_fail(ctx, FP_ERROR_INPUT, "%s: line %d: not valid JSON: %s", path, error.line, error.text));
	FP_TRY(add_ids(out, ctx, path, json_object_get(json, "eos_token_id")));
cleanup:
	json_decref(json);
	fp_free(text);
	fp_free(path);
	return status;
}

fp_status fp_stop_tokens_read(fp_stop_tokens *out, fp_context *ctx, const fp_checkpoint *checkpoint)
{
	const char *directory = fp_checkpoint_directory(checkpoint);
	const json_t *config = fp_checkpoint_config(checkpoint);
	fp_status status;
	*out = (fp_stop_tokens){0};
	FP_TRY(read_generation_config(out, ctx, directory));
	if (out->count == 0)
		status = add_ids(out, ctx, "config.json", json_object_get(config, "eos_token_id"));
	if (status == FP_OK && out->count == 0) /* of models that see images */
		status =
			add_ids(out, ctx, "config.json", json_object_get(json_object_get(config, "text_config"), "eos_token_id"));
	if (status == FP_ERROR_INPUT)
		fp_fail_in(ctx, status, "%s", directory);
cleanup:
	return status;
}

bool fp_is_stop_token(const fp_stop_tokens *stop, int32_t id)
{
	for (int i = 0; i < stop->count; i++)
		if (stop->ids[i] == id)
			return true;
	return false;
}
