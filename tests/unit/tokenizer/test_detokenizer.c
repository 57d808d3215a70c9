/* SPDX-License-Identifier: Apache-2.0 */
/* Texts equal to what Hugging Face's tokenizers and sentencepiece decode: decodes.json, made by the script beside it. */
#include "support.h"

#include "tokenizer/detokenizer.h"
#include "tokenizer/unicode_text.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *load(const char *name)
{
	json_error_t error;
	json_t *json = json_load_file(source_path(name), 0, &error);
	if (!json)
		fail_msg("%s: line %d: %s", name, error.line, error.text);
	return json;
}

/* The text of ids, a token at a time; what each one gives must be valid by itself. */
static fp_text_buffer decode(fp_context *ctx, const fp_tokenizer *tokenizer, const json_t *ids, bool at_start)
{
	fp_detokenizer *detokenizer;
	fp_text_buffer whole = {0};
	const char *text;
	int64_t length;
	assert_ok(ctx, fp_detokenizer_new(&detokenizer, ctx, tokenizer, at_start));
	for (size_t i = 0; i <= json_array_size(ids); i++) {
		if (i < json_array_size(ids))
			assert_ok(ctx, fp_detokenizer_add(detokenizer, (int32_t)json_integer_value(json_array_get(ids, i)), &text,
											  &length));
		else
			assert_ok(ctx, fp_detokenizer_finish(detokenizer, &text, &length));
		assert_int_equal(fp_utf8_valid_prefix(text, length), length);
		assert_ok(ctx, fp_text_append(ctx, &whole, text, length));
	}
	fp_detokenizer_free(detokenizer);
	return whole;
}

static void check(fp_context *ctx, const fp_tokenizer *tokenizer, const char *name, const json_t *ids,
				  const char *wanted)
{
	fp_text_buffer text = decode(ctx, tokenizer, ids, true);
	char *hex = malloc(2 * (size_t)text.length + 1);
	hex[0] = '\0';
	for (int64_t i = 0; i < text.length; i++)
		sprintf(hex + 2 * i, "%02x", (unsigned char)text.bytes[i]);
	if (strcmp(hex, wanted) != 0) {
		char *list = json_dumps(ids, 0);
		fail_msg("%s: %s gives %s, expected %s", name, list, hex, wanted);
	}
	free(hex);
	fp_free(text.bytes);
}

static void test_variants(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	json_t *decodes = load("tests/unit/tokenizer/decodes.json"), *fixture = load("tests/unit/tokenizer/variants.json");
	char *folder = temporary_folder();
	size_t index, at, checked = 0;
	json_t *entry, *variant = NULL;
	json_array_foreach(json_object_get(decodes, "variants"), index, entry)
	{
		const char *name = json_string_value(json_object_get(entry, "name"));
		json_array_foreach(json_object_get(fixture, "variants"), at, variant)
		{
			if (strcmp(name, json_string_value(json_object_get(variant, "name"))) == 0)
				break;
		}
		char *text = json_dumps(json_object_get(variant, "tokenizer"), 0);
		write_file(folder, "tokenizer.json", text, strlen(text));
		free(text);
		fp_tokenizer *tokenizer;
		assert_ok(ctx, fp_tokenizer_open(&tokenizer, ctx, folder));
		const json_t *texts = json_object_get(entry, "texts"), *encoded = json_object_get(variant, "ids");
		for (size_t i = 0; i < json_array_size(texts); i++, checked++) {
			size_t known = json_array_size(encoded);
			const json_t *ids =
				i < known ? json_array_get(encoded, i) : json_array_get(json_object_get(entry, "ids"), i - known);
			check(ctx, tokenizer, name, ids, json_string_value(json_array_get(texts, i)));
		}
		fp_tokenizer_free(tokenizer);
	}
	assert_true(checked > 2000);
	remove_folder(folder);
	free(folder);
	json_decref(fixture);
	json_decref(decodes);
	fp_context_free(ctx);
}

static void test_shared(void **state)
{
	(void)state;
	json_t *decodes = load("tests/unit/tokenizer/decodes.json"), *fixture = load("tests/unit/tokenizer/hostile.json");
	fp_context *ctx = fp_context_new();
	size_t index;
	json_t *entry;
	json_array_foreach(json_object_get(decodes, "shared"), index, entry)
	{
		const json_t *source = json_array_get(json_object_get(fixture, "tokenizers"), index);
		const char *name = json_string_value(json_object_get(entry, "name"));
		fp_tokenizer *tokenizer;
		assert_ok(ctx, fp_tokenizer_open(&tokenizer, ctx,
										 need_shared_path(json_string_value(json_object_get(source, "folder")))));
		const json_t *texts = json_object_get(entry, "texts"), *ids = json_object_get(source, "ids");
		for (size_t i = 0; i < json_array_size(texts); i++)
			if (json_is_string(json_array_get(texts, i)))
				check(ctx, tokenizer, name, json_array_get(ids, i), json_string_value(json_array_get(texts, i)));
		fp_tokenizer_free(tokenizer);
	}
	json_decref(fixture);
	json_decref(decodes);
	fp_context_free(ctx);
}

/* A text that goes on keeps its first space, and ids that no token has are passed over. */
static void test_continuation(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	fp_tokenizer *tokenizer;
	fp_tokens tokens = {0};
	json_t *ids = json_array();
	assert_ok(ctx, fp_tokenizer_open(&tokenizer, ctx, source_path("models/llama-demo")));
	assert_ok(ctx, fp_tokenizer_encode(tokenizer, "the end", 7, true, &tokens));
	for (int64_t i = 0; i < tokens.count; i++)
		json_array_append_new(ids, json_integer(tokens.ids[i]));
	json_array_append_new(ids, json_integer(1 << 30));
	json_array_append_new(ids, json_integer(-1));
	fp_text_buffer text = decode(ctx, tokenizer, ids, false);
	assert_int_equal(text.length, tokens.count > 0 && text.bytes[0] == ' ' ? 8 : 7);
	assert_memory_equal(text.bytes + text.length - 7, "the end", 7);
	fp_free(text.bytes);
	fp_free(tokens.ids);
	json_decref(ids);
	fp_tokenizer_free(tokenizer);
	fp_context_free(ctx);
}

static void test_unfinished(void **state)
{
	(void)state;
	static const struct {
		const char *bytes;
		int64_t count;
	} cases[] = {{"", 0},          {"a", 0},        {"\xC3", 1},         {"a\xE2\x82", 2}, {"\xF0\x9F\x98", 3},
				 {"\xE2\x82z", 0}, {"\xC3\xA9", 0}, {"\xC0", 0},         {"\xE0\x80", 0},  {"\xED\xA0", 0},
				 {"\x82", 0},      {"\xF5", 0},     {"\xE2\x82\xC3", 1}, {"\xF4\x90", 0},  {"\xF4\x8F", 2}};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		assert_int_equal(fp_utf8_unfinished(cases[i].bytes, (int64_t)strlen(cases[i].bytes)), cases[i].count);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_variants), cmocka_unit_test(test_continuation),
									   cmocka_unit_test(test_unfinished)};
	const struct CMUnitTest shared_tokenizers[] = {cmocka_unit_test(test_shared)};
	TEST_PART(shared_tokenizers);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
