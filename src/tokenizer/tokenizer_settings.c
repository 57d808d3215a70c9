/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_config.json, special_tokens_map.json and added_tokens.json: special tokens, and which surround a text. */
#include "tokenizer/tokenizer_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static fp_status load_if_there(json_t **out, fp_context *ctx, const char *directory, const char *name)
{
	char path[4096];
	*out = NULL;
	if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path || access(path, F_OK) != 0)
		return FP_OK;
	/* model_max_length is often 1e30 as an integer, which does not fit in 64 bits. */
	fp_status status = fp_load_json(out, ctx, path, JSON_DECODE_INT_AS_REAL);
	if (status == FP_OK && !json_is_object(*out))
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: must be a JSON object", path);
	return status;
}

fp_status fp_tokenizer_settings_read(fp_tokenizer_settings *settings, fp_context *ctx, const char *directory)
{
	fp_status status = FP_OK;
	FP_TRY(load_if_there(&settings->config, ctx, directory, "tokenizer_config.json"));
	FP_TRY(load_if_there(&settings->special_map, ctx, directory, "special_tokens_map.json"));
	FP_TRY(load_if_there(&settings->added, ctx, directory, "added_tokens.json"));
	FP_TRY(load_if_there(&settings->model, ctx, directory, "config.json"));
cleanup:
	return status;
}

void fp_tokenizer_settings_clear(fp_tokenizer_settings *settings)
{
	json_decref(settings->config);
	json_decref(settings->special_map);
	json_decref(settings->added);
	json_decref(settings->model);
	*settings = (fp_tokenizer_settings){0};
}

bool fp_tokenizer_settings_flag(const fp_tokenizer_settings *settings, const char *name, bool missing)
{
	const json_t *value = json_object_get(settings->config, name);
	return json_is_boolean(value) ? json_is_true(value) : missing;
}

/* A special token is a string, or an object with its content and flags. */
static const char *content_of(const json_t *token)
{
	return json_is_string(token) ? json_string_value(token) : json_string_value(json_object_get(token, "content"));
}

/* named: one of special_names, which are special whatever their entry says. */
static fp_status add_token(fp_tokenizer *tokenizer, const json_t *token, int64_t id, bool named)
{
	const char *content = content_of(token);
	if (!content)
		return FP_OK;
	fp_added_settings how = {
		.left_strip = json_is_true(json_object_get(token, "lstrip")),
		.right_strip = json_is_true(json_object_get(token, "rstrip")),
		.single_word = json_is_true(json_object_get(token, "single_word")),
		.normalized = json_is_true(json_object_get(token, "normalized")),
		.special = named || json_is_true(json_object_get(token, "special")),
	};
	int64_t length = (int64_t)strlen(content);
	int32_t known = fp_vocabulary_get(&tokenizer->vocabulary, content, length);
	/* If a token has two entries, the first one's flags count, unless the second has flags, too. */
	if (known >= 0 && json_is_string(token) && fp_text_map_get(&tokenizer->raw_added.map, content, length) >= 0)
		return FP_OK;
	return fp_tokenizer_add_token(tokenizer, content, id, how);
}

static const char *const special_names[] = {"bos_token", "eos_token", "unk_token",  "pad_token",
											"cls_token", "sep_token", "mask_token", "additional_special_tokens"};

static const json_t *find_special(const fp_tokenizer_settings *settings, const char *name)
{
	const json_t *value = json_object_get(settings->config, name);
	return value ? value : json_object_get(settings->special_map, name);
}

static fp_status add_named_tokens(const fp_tokenizer_settings *settings, fp_tokenizer *tokenizer, bool only_new)
{
	fp_status status = FP_OK;
	for (size_t i = 0; i < sizeof special_names / sizeof special_names[0]; i++) {
		const json_t *value = find_special(settings, special_names[i]);
		size_t count = json_is_array(value) ? json_array_size(value) : 1;
		for (size_t j = 0; j < count; j++) {
			const json_t *token = json_is_array(value) ? json_array_get(value, j) : value;
			const char *content = content_of(token);
			if (only_new && content &&
				fp_vocabulary_get(&tokenizer->vocabulary, content, (int64_t)strlen(content)) >= 0)
				continue;
			FP_TRY(add_token(tokenizer, token, -1, true));
		}
	}
cleanup:
	return status;
}

static int64_t id_of(const json_t *number)
{
	double value = json_number_value(number);
	return value >= 0 && value < FP_LARGEST_ID ? (int64_t)value : FP_LARGEST_ID;
}

static fp_status add_listed_tokens(const fp_tokenizer_settings *settings, fp_tokenizer *tokenizer)
{
	fp_status status = FP_OK;
	const char *key;
	json_t *value;
	json_object_foreach(json_object_get(settings->config, "added_tokens_decoder"), key, value)
	{
		char *end;
		long id = strtol(key, &end, 10);
		if (*end || end == key) {
			status = fp_fail(tokenizer->ctx, FP_ERROR_INPUT,
							 "tokenizer_config.json: added_tokens_decoder: '%.80s' is not an id", key);
			goto cleanup;
		}
		FP_TRY(add_token(tokenizer, value, id, false));
	}
	json_object_foreach(settings->added, key, value)
	{
		if (fp_vocabulary_get(&tokenizer->vocabulary, key, (int64_t)strlen(key)) < 0 && json_is_number(value))
			FP_TRY(fp_tokenizer_add_token(tokenizer, key, id_of(value), (fp_added_settings){.normalized = true}));
	}
cleanup:
	return status;
}

static int32_t find_id(const fp_tokenizer_settings *settings, const fp_tokenizer *tokenizer, const char *name)
{
	const char *content = content_of(find_special(settings, name));
	return content ? fp_vocabulary_get(&tokenizer->vocabulary, content, (int64_t)strlen(content)) : -1;
}

fp_status fp_tokenizer_settings_apply(const fp_tokenizer_settings *settings, fp_tokenizer *tokenizer)
{
	fp_status status = FP_OK;
	const bool adds_bos = tokenizer->adds_bos_by_default;
	if (!tokenizer->lists_added_tokens)
		FP_TRY(add_listed_tokens(settings, tokenizer));
	FP_TRY(add_named_tokens(settings, tokenizer, tokenizer->lists_added_tokens));

	int32_t bos = find_id(settings, tokenizer, "bos_token");
	if (bos >= 0)
		tokenizer->bos = bos;
	else if (tokenizer->bos < 0 && adds_bos)
		tokenizer->bos = fp_vocabulary_get(&tokenizer->vocabulary, "</s>", 4); /* as in OPT */
	else if (tokenizer->bos < 0 && tokenizer->prefix_count > 0)
		tokenizer->bos = tokenizer->prefix[0];

	const json_t *add_bos = json_object_get(settings->config, "add_bos_token");
	if (json_is_boolean(add_bos) || adds_bos) {
		bool adds = json_is_boolean(add_bos) ? json_is_true(add_bos) : true;
		tokenizer->prefix_count = adds && tokenizer->bos >= 0;
		tokenizer->prefix[0] = tokenizer->bos;
	}
	tokenizer->eos = find_id(settings, tokenizer, "eos_token");
	const json_t *add_eos = json_object_get(settings->config, "add_eos_token");
	if (json_is_boolean(add_eos)) {
		tokenizer->suffix_count = json_is_true(add_eos) && tokenizer->eos >= 0;
		tokenizer->suffix[0] = tokenizer->eos;
	}
cleanup:
	return status;
}
