/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.json: a whole tokenizer in one file of Hugging Face tokenizers. Unknown components are errors. */
#include "base/memory.h"
#include "tokenizer/component_table.h"
#include "tokenizer/tokenizer_parts.h"

#include <float.h>
#include <string.h>

static bool is_set(const json_t *value)
{
	if (!value || json_is_null(value) || json_is_false(value))
		return false;
	if (json_is_string(value))
		return json_string_length(value) > 0;
	return !(json_is_number(value) && json_number_value(value) == 0);
}

static fp_status read_merges(fp_tokenizer *tokenizer, const json_t *merges)
{
	fp_context *ctx = tokenizer->ctx;
	for (size_t i = 0; i < json_array_size(merges); i++) {
		const json_t *merge = json_array_get(merges, i), *left = NULL, *right = NULL;
		const char *first = NULL, *second = NULL;
		int64_t first_length = 0, second_length = 0;
		if (json_is_string(merge)) { /* "left right", the older form */
			const char *text = json_string_value(merge), *space = strchr(text, ' ');
			first = text;
			first_length = space ? space - text : 0;
			second = space ? space + 1 : NULL;
			second_length = space ? (int64_t)(json_string_length(merge)) - first_length - 1 : 0;
		} else if (json_array_size(merge) == 2) {
			left = json_array_get(merge, 0);
			right = json_array_get(merge, 1);
			first = json_string_value(left);
			second = json_string_value(right);
			first_length = (int64_t)json_string_length(left);
			second_length = (int64_t)json_string_length(right);
		}
		if (!first || !second)
			return fp_fail(ctx, FP_ERROR_INPUT, "merge %zu: must be \"left right\" or [\"left\", \"right\"]", i);
		fp_status status = fp_bpe_put_merge_text(ctx, &tokenizer->bpe, first, first_length, second, second_length,
												 (int64_t)i, "merges");
		if (status != FP_OK)
			return status;
	}
	return FP_OK;
}

static fp_status refuse_settings(fp_context *ctx, const json_t *model, const char *type, const char *const *names)
{
	for (; *names; names++)
		if (is_set(json_object_get(model, *names)))
			return fp_fail(ctx, FP_ERROR_INPUT, "model %s: \"%s\" is not supported; it must be null", type, *names);
	return FP_OK;
}

static fp_status read_bpe(fp_tokenizer *tokenizer, const json_t *model)
{
	static const char *const unsupported[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix", NULL};
	fp_context *ctx = tokenizer->ctx;
	fp_bpe *bpe = &tokenizer->bpe;
	fp_status status = FP_OK;
	const json_t *vocabulary = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
	if (!json_is_object(vocabulary) || !json_is_array(merges))
		return fp_fail(ctx, FP_ERROR_INPUT, "model BPE: needs \"vocab\" and \"merges\"");
	FP_TRY(refuse_settings(ctx, model, "BPE", unsupported));
	const char *token;
	json_t *id;
	json_object_foreach((json_t *)vocabulary, token, id)
	{
		if (!json_is_integer(id))
			return fp_fail(ctx, FP_ERROR_INPUT, "token '%.80s': its id must be a whole number", token);
		FP_TRY(fp_vocabulary_put(ctx, &tokenizer->vocabulary, token, (int64_t)strlen(token), json_integer_value(id)));
	}
	FP_TRY(read_merges(tokenizer, merges));
	bpe->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
	bpe->fuse_unknown = json_is_true(json_object_get(model, "fuse_unk"));
	bpe->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
	const char *unknown = json_string_value(json_object_get(model, "unk_token"));
	if (unknown && *unknown) {
		bpe->unknown = fp_vocabulary_get(&tokenizer->vocabulary, unknown, (int64_t)strlen(unknown));
		if (bpe->unknown < 0)
			return fp_fail(ctx, FP_ERROR_INPUT, "model BPE: unk_token '%.80s' is not in the vocabulary", unknown);
	}
cleanup:
	return status;
}

/* Puts [piece, score] pairs into the vocabulary and into `pieces`. *least ← the lowest score. */
static fp_status read_scored_pieces(fp_tokenizer *tokenizer, const json_t *list, fp_trie_piece *pieces, double *least)
{
	fp_status status = FP_OK;
	*least = DBL_MAX;
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *pair = json_array_get(list, i), *text = json_array_get(pair, 0), *score = json_array_get(pair, 1);
		if (!json_is_string(text) || !json_is_number(score))
			return fp_fail(tokenizer->ctx, FP_ERROR_INPUT,
						   "model Unigram: entry %zu of \"vocab\": must be [piece, score]", i);
		pieces[i] = (fp_trie_piece){.text = json_string_value(text),
									.length = (int64_t)json_string_length(text),
									.score = json_number_value(score),
									.id = (int32_t)i};
		if (pieces[i].score < *least)
			*least = pieces[i].score;
		FP_TRY(fp_vocabulary_put(tokenizer->ctx, &tokenizer->vocabulary, pieces[i].text, pieces[i].length, (int64_t)i));
	}
cleanup:
	return status;
}

static fp_status read_unigram(fp_tokenizer *tokenizer, const json_t *model)
{
	static const char *const unsupported[] = {"alpha", NULL}; /* it makes the result random */
	fp_context *ctx = tokenizer->ctx;
	fp_unigram *unigram = &tokenizer->unigram;
	fp_trie_piece *pieces = NULL;
	double least;
	fp_status status = FP_OK;
	const json_t *list = json_object_get(model, "vocab"), *unknown = json_object_get(model, "unk_id");
	const int64_t count = (int64_t)json_array_size(list);
	if (count == 0)
		return fp_fail(ctx, FP_ERROR_INPUT, "model Unigram: needs a \"vocab\" of [piece, score] pairs");
	if (tokenizer->pretokenizer.byte_level)
		return fp_fail(ctx, FP_ERROR_INPUT, "model Unigram: is not supported together with pre_tokenizer ByteLevel");
	if (json_is_integer(unknown) && json_integer_value(unknown) >= 0 && json_integer_value(unknown) < count)
		unigram->unknown = (int32_t)json_integer_value(unknown);
	else if (unknown && !json_is_null(unknown))
		return fp_fail(ctx, FP_ERROR_INPUT, "model Unigram: \"unk_id\" must be an id of the vocabulary, or null");
	FP_TRY(refuse_settings(ctx, model, "Unigram", unsupported));
	FP_TRY(FP_NEW(ctx, &pieces, count));
	FP_TRY(read_scored_pieces(tokenizer, list, pieces, &least));
	tokenizer->is_unigram = true;
	unigram->count = count;
	unigram->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
	FP_TRY(fp_unigram_finish(unigram, ctx, pieces, count, least));
cleanup:
	fp_free(pieces);
	return status;
}

static fp_status read_model(fp_tokenizer *tokenizer, const json_t *model)
{
	const char *type = json_string_value(json_object_get(model, "type"));
	/* Old files have no type; with a vocabulary and merges it can only be BPE. */
	if (type ? strcmp(type, "BPE") == 0 : json_object_get(model, "merges") != NULL)
		return read_bpe(tokenizer, model);
	if (type && strcmp(type, "Unigram") == 0)
		return read_unigram(tokenizer, model);
	return fp_fail(tokenizer->ctx, FP_ERROR_INPUT, "model '%.80s' is not supported; its type must be BPE or Unigram",
				   type ? type : "without a type");
}

/* The decoder follows from the other components, except for what Metaspace leaves out at the start of a text, and that
 * tokens for bytes stay as they are written without ByteFallback. */
static void read_decoder(fp_tokenizer *tokenizer, const json_t *decoder)
{
	const json_t *list = json_object_get(decoder, "decoders");
	size_t count = list ? json_array_size(list) : 1;
	tokenizer->shows_bytes = json_is_object(decoder);
	for (size_t i = 0; i < count; i++) {
		const json_t *part = list ? json_array_get(list, i) : decoder;
		const char *type = json_string_value(json_object_get(part, "type"));
		const char *scheme = json_string_value(json_object_get(part, "prepend_scheme"));
		if (type && strcmp(type, "Metaspace") == 0)
			tokenizer->leading_space = scheme && strcmp(scheme, "never") == 0 ? FP_LEADING_NONE : FP_LEADING_FIRST;
		if (type && strcmp(type, "ByteFallback") == 0)
			tokenizer->shows_bytes = false;
	}
}

static fp_status read_added_tokens(fp_tokenizer *tokenizer, const json_t *list)
{
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *token = json_array_get(list, i), *id = json_object_get(token, "id");
		const char *content = json_string_value(json_object_get(token, "content"));
		if (!content || !json_is_integer(id))
			return fp_fail(tokenizer->ctx, FP_ERROR_INPUT, "added_tokens: entry %zu needs an id and a content", i);
		const json_t *normalized = json_object_get(token, "normalized");
		fp_added_settings how = {
			.left_strip = json_is_true(json_object_get(token, "lstrip")),
			.right_strip = json_is_true(json_object_get(token, "rstrip")),
			.single_word = json_is_true(json_object_get(token, "single_word")),
			.special = json_is_true(json_object_get(token, "special")),
			.normalized = normalized ? json_is_true(normalized) : !json_is_true(json_object_get(token, "special")),
		};
		fp_status status = fp_tokenizer_add_token(tokenizer, content, json_integer_value(id), how);
		if (status != FP_OK)
			return status;
	}
	return FP_OK;
}

static fp_status put_special(fp_tokenizer *tokenizer, bool after, int64_t id)
{
	int *count = after ? &tokenizer->suffix_count : &tokenizer->prefix_count;
	if (*count == FP_MOST_SPECIALS || id < 0 || id >= tokenizer->vocabulary.size)
		return fp_fail(
			tokenizer->ctx, FP_ERROR_INPUT,
			"post_processor: special id %lld: at most %d ids of the vocabulary can go before or after a text",
			(long long)id, FP_MOST_SPECIALS);
	(after ? tokenizer->suffix : tokenizer->prefix)[(*count)++] = (int32_t)id;
	return FP_OK;
}

static fp_status read_template(fp_context *ctx, void *target, int kind, const json_t *json)
{
	(void)kind;
	fp_tokenizer *tokenizer = target;
	fp_status status = FP_OK;
	bool after = false;
	const json_t *single = json_object_get(json, "single"), *specials = json_object_get(json, "special_tokens");
	for (size_t i = 0; i < json_array_size(single); i++) {
		const json_t *part = json_array_get(single, i), *special = json_object_get(part, "SpecialToken");
		if (!special) {
			after = true;
			continue;
		}
		const char *name = json_string_value(json_object_get(special, "id"));
		const json_t *ids = json_object_get(name ? json_object_get(specials, name) : NULL, "ids");
		if (json_array_size(ids) == 0)
			return fp_fail(ctx, FP_ERROR_INPUT, "post_processor TemplateProcessing: special token '%.80s' has no ids",
						   name ? name : "");
		for (size_t j = 0; j < json_array_size(ids); j++)
			FP_TRY(put_special(tokenizer, after, json_integer_value(json_array_get(ids, j))));
	}
cleanup:
	return status;
}

/* [text, id] pairs: "cls" goes before the text, "sep" after it. */
static fp_status read_cls_and_sep(fp_context *ctx, void *target, int kind, const json_t *json)
{
	(void)ctx;
	(void)kind;
	fp_status status = FP_OK;
	FP_TRY(put_special(target, false, json_integer_value(json_array_get(json_object_get(json, "cls"), 1))));
	FP_TRY(put_special(target, true, json_integer_value(json_array_get(json_object_get(json, "sep"), 1))));
cleanup:
	return status;
}

/* Changes the offsets of tokens, not their ids. */
static fp_status ignore_byte_level(fp_context *ctx, void *target, int kind, const json_t *json)
{
	(void)ctx;
	(void)target;
	(void)kind;
	(void)json;
	return FP_OK;
}

static const fp_component post_processors[] = {
	{"ByteLevel", ignore_byte_level, 0},
	{"TemplateProcessing", read_template, 0},
	{"RobertaProcessing", read_cls_and_sep, 0},
	{"BertProcessing", read_cls_and_sep, 0},
	{0},
};

static fp_status read_post_processor(fp_tokenizer *tokenizer, const json_t *json)
{
	static const fp_component_table table = {"post_processor", "processors", post_processors};
	return fp_components_read(tokenizer->ctx, &table, tokenizer, json);
}

fp_status fp_read_tokenizer_json(fp_tokenizer *tokenizer, const fp_tokenizer_settings *settings, const char *path)
{
	(void)settings;
	fp_context *ctx = tokenizer->ctx;
	json_t *json = NULL;
	fp_status status = FP_OK;
	FP_TRY(fp_load_json(&json, ctx, path, 0));
	status = fp_normalizer_read(ctx, &tokenizer->normalizer, json_object_get(json, "normalizer"));
	if (status == FP_OK)
		status = fp_pretokenizer_read(ctx, &tokenizer->pretokenizer, json_object_get(json, "pre_tokenizer"));
	if (status == FP_OK)
		status = read_model(tokenizer, json_object_get(json, "model"));
	tokenizer->lists_added_tokens = true;
	tokenizer->bpe.byte_level = tokenizer->pretokenizer.byte_level;
	tokenizer->kind = tokenizer->is_unigram       ? "Unigram"
					  : tokenizer->bpe.byte_level ? "byte-level BPE"
												  : "SentencePiece BPE";
	read_decoder(tokenizer, json_object_get(json, "decoder"));
	if (status == FP_OK)
		status = read_added_tokens(tokenizer, json_object_get(json, "added_tokens"));
	if (status == FP_OK)
		status = read_post_processor(tokenizer, json_object_get(json, "post_processor"));
	if (status != FP_OK)
		fp_fail_in(ctx, status, "%s", path);
cleanup:
	json_decref(json);
	return status;
}
