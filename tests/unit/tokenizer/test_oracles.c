/* SPDX-License-Identifier: Apache-2.0 */
/* Ids equal to those of Hugging Face's tokenizers: hostile.json and variants.json, made by the scripts beside this
 * file. */
#include "support.h"

#include "text/corpus.h"
#include "tokenizer/tokenizer.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *load(const char *name)
{
	json_error_t error;
	json_t *json = json_load_file(source_path(name), 0, &error);
	if (!json)
		fail_msg("%s: line %d: %s", source_path(name), error.line, error.text);
	return json;
}

static uint64_t hash_ids(const fp_tokens *tokens)
{
	uint64_t value = 0xcbf29ce484222325ULL;
	for (int64_t i = 0; i < tokens->count; i++)
		for (int shift = 0; shift < 32; shift += 8)
			value = (value ^ ((uint32_t)tokens->ids[i] >> shift & 0xFF)) * 0x100000001b3ULL;
	return value;
}

/* The tokenizer of a fixture's entry. */
static fp_tokenizer *open_entry(fp_context *ctx, const json_t *entry)
{
	fp_tokenizer *tokenizer = NULL;
	assert_ok(ctx,
			  fp_tokenizer_open(&tokenizer, ctx, shared_path(json_string_value(json_object_get(entry, "folder")))));
	return tokenizer;
}

/* hostile.json. The test is skipped if one of its tokenizers is missing, or one of its texts where those are needed. */
static json_t *load_hostile(bool with_texts)
{
	json_t *fixture = load("tests/unit/tokenizer/hostile.json");
	char missing[256] = "";
	size_t index, file_index;
	json_t *entry, *file;
	json_array_foreach(json_object_get(fixture, "tokenizers"), index, entry)
	{
		if (!shared_path(json_string_value(json_object_get(entry, "folder"))))
			snprintf(missing, sizeof missing, "%s", json_string_value(json_object_get(entry, "folder")));
		json_array_foreach(json_object_get(entry, "files"), file_index, file)
		{
			if (with_texts && !shared_path(json_string_value(json_object_get(file, "file"))))
				snprintf(missing, sizeof missing, "%s", json_string_value(json_object_get(file, "file")));
		}
	}
	if (missing[0]) {
		json_decref(fixture);
		need_shared_path(missing);
	}
	return fixture;
}

/* Bytes written as hexadecimal digits; the caller frees them. */
static char *read_hex(const char *digits, int64_t *length)
{
	*length = (int64_t)strlen(digits) / 2;
	char *bytes = malloc((size_t)*length + 1);
	for (int64_t i = 0; i < *length; i++) {
		char pair[3] = {digits[2 * i], digits[2 * i + 1], 0};
		bytes[i] = (char)strtoul(pair, NULL, 16);
	}
	return bytes;
}

static bool equals(const fp_tokens *got, const json_t *wanted)
{
	if (json_is_object(wanted)) { /* a long one: count and hash */
		uint64_t hash = strtoull(json_string_value(json_object_get(wanted, "fnv64")), NULL, 16);
		return got->count == json_integer_value(json_object_get(wanted, "count")) && hash_ids(got) == hash;
	}
	bool same = (size_t)got->count == json_array_size(wanted);
	for (int64_t i = 0; same && i < got->count; i++)
		same = got->ids[i] == json_integer_value(json_array_get(wanted, (size_t)i));
	return same;
}

static void check_strings(fp_context *ctx, fp_tokenizer *tokenizer, const char *name, const json_t *strings,
						  const json_t *ids)
{
	int wrong = 0;
	assert_int_equal(json_array_size(strings), json_array_size(ids));
	assert_true(json_array_size(strings) > 0);
	for (size_t i = 0; i < json_array_size(strings); i++) {
		const char *digits = json_string_value(json_array_get(strings, i));
		int64_t length;
		char *bytes = read_hex(digits, &length);
		fp_tokens tokens = {0};
		assert_ok(ctx, fp_tokenizer_encode(tokenizer, bytes, length, true, &tokens));
		if (!equals(&tokens, json_array_get(ids, i))) {
			print_error("%s: string %zu (%.80s) differs\n", name, i, digits);
			wrong++;
		}
		fp_free(tokens.ids);
		free(bytes);
	}
	assert_int_equal(wrong, 0);
}

/* Both passes must agree: the second one finds its words in the cache. */
static void test_hostile_strings(void **state)
{
	(void)state;
	json_t *fixture = load_hostile(false);
	fp_context *ctx = fp_context_new();
	size_t index;
	json_t *entry;
	json_array_foreach(json_object_get(fixture, "tokenizers"), index, entry)
	{
		fp_tokenizer *tokenizer = open_entry(ctx, entry);
		for (int pass = 0; pass < 2; pass++)
			check_strings(ctx, tokenizer, json_string_value(json_object_get(entry, "name")),
						  json_object_get(fixture, "strings"), json_object_get(entry, "ids"));
		fp_tokenizer_free(tokenizer);
	}
	json_decref(fixture);
	fp_context_free(ctx);
}

static void check_file(fp_context *ctx, fp_tokenizer *tokenizer, const char *path, const json_t *wanted)
{
	fp_corpus *corpus;
	fp_tokens tokens = {0};
	assert_ok(ctx, fp_corpus_read(&corpus, ctx, path));
	for (int64_t i = 0; i < fp_corpus_count(corpus); i++) {
		fp_document document = fp_corpus_document(corpus, i);
		assert_ok(ctx, fp_tokenizer_encode(tokenizer, document.text, document.length, true, &tokens));
	}
	if (!equals(&tokens, wanted))
		fail_msg("%s: %lld ids with hash %016" PRIx64 " differ from the fixture", path, (long long)tokens.count,
				 hash_ids(&tokens));
	fp_free(tokens.ids);
	fp_corpus_free(corpus);
}

static void test_whole_files(void **state)
{
	(void)state;
	json_t *fixture = load_hostile(true);
	fp_context *ctx = fp_context_new();
	size_t index, file_index;
	json_t *entry, *file;
	json_array_foreach(json_object_get(fixture, "tokenizers"), index, entry)
	{
		fp_tokenizer *tokenizer = open_entry(ctx, entry);
		json_array_foreach(json_object_get(entry, "files"), file_index, file)
		{
			check_file(ctx, tokenizer, shared_path(json_string_value(json_object_get(file, "file"))), file);
		}
		fp_tokenizer_free(tokenizer);
	}
	json_decref(fixture);
	fp_context_free(ctx);
}

static void test_variants(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	json_t *fixture = load("tests/unit/tokenizer/variants.json");
	char *folder = temporary_folder();
	size_t index;
	json_t *entry;
	assert_true(json_array_size(json_object_get(fixture, "variants")) > 10);
	json_array_foreach(json_object_get(fixture, "variants"), index, entry)
	{
		char *text = json_dumps(json_object_get(entry, "tokenizer"), 0);
		const char *name = json_string_value(json_object_get(entry, "name"));
		const json_t *own = json_object_get(entry, "strings");
		const json_t *strings = own ? own : json_object_get(fixture, "strings");
		write_file(folder, "tokenizer.json", text, strlen(text));
		free(text);
		fp_tokenizer *tokenizer;
		assert_ok(ctx, fp_tokenizer_open(&tokenizer, ctx, folder));
		for (int pass = 0; pass < 2; pass++)
			check_strings(ctx, tokenizer, name, strings, json_object_get(entry, "ids"));
		fp_tokenizer_free(tokenizer);
	}
	remove_folder(folder);
	free(folder);
	json_decref(fixture);
	fp_context_free(ctx);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_variants)};
	const struct CMUnitTest shared_tokenizers[] = {cmocka_unit_test(test_hostile_strings)};
	const struct CMUnitTest shared_texts[] = {cmocka_unit_test(test_whole_files)};
	TEST_PART(shared_tokenizers);
	TEST_PART(shared_texts);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
