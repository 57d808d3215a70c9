/* SPDX-License-Identifier: Apache-2.0 */
/* Unigram models: ids and texts equal to those of sentencepiece and Hugging Face's tokenizers (unigram.json, made by the
 * script beside it), normalizers, damaged files, and long texts. */
#include "support.h"

#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint32_t hash_bytes(uint32_t value, const char *bytes, int64_t length)
{
	for (int64_t i = 0; i < length; i++)
		value = (value ^ (unsigned char)bytes[i]) * 0x01000193U;
	return value;
}
enum { HASH_START = 0x811c9dc5 };

static uint32_t hash_ids(const fp_tokens *tokens)
{
	uint32_t value = HASH_START;
	for (int64_t i = 0; i < tokens->count; i++)
		for (int shift = 0; shift < 32; shift += 8) {
			char byte = (char)((uint32_t)tokens->ids[i] >> shift & 0xFF);
			value = hash_bytes(value, &byte, 1);
		}
	return value;
}

static uint32_t read_hash(const json_t *text)
{
	return (uint32_t)strtoul(json_string_value(text), NULL, 16);
}

static char *read_hex(const json_t *text, int64_t *length)
{
	const char *digits = json_string_value(text);
	*length = (int64_t)strlen(digits) / 2;
	char *bytes = malloc((size_t)*length + 1);
	for (int64_t i = 0; i < *length; i++) {
		char pair[3] = {digits[2 * i], digits[2 * i + 1], 0};
		bytes[i] = (char)strtoul(pair, NULL, 16);
	}
	return bytes;
}

static uint32_t hash_text(fp_context *ctx, const fp_tokenizer *tokenizer, const fp_tokens *tokens, uint32_t value)
{
	fp_detokenizer *detokenizer;
	const char *text;
	int64_t length;
	assert_ok(ctx, fp_detokenizer_new(&detokenizer, ctx, tokenizer, true));
	for (int64_t i = 0; i < tokens->count; i++) {
		if (tokens->ids[i] == 0) /* <unk>, for which the libraries write different texts */
			continue;
		assert_ok(ctx, fp_detokenizer_add(detokenizer, tokens->ids[i], &text, &length));
		value = hash_bytes(value, text, length);
	}
	assert_ok(ctx, fp_detokenizer_finish(detokenizer, &text, &length));
	value = hash_bytes(hash_bytes(value, text, length), "", 1);
	fp_detokenizer_free(detokenizer);
	return value;
}

static void check_entry(fp_context *ctx, const json_t *entry, const json_t *strings, const char *folder)
{
	fp_tokenizer *tokenizer;
	const char *name = json_string_value(json_object_get(entry, "name"));
	const json_t *ids = json_object_get(entry, "ids");
	uint32_t texts = HASH_START;
	assert_ok(ctx, fp_tokenizer_open(&tokenizer, ctx, folder));
	assert_string_equal(fp_tokenizer_kind(tokenizer), "Unigram");
	assert_int_equal(json_array_size(ids), json_array_size(strings));
	for (size_t i = 0; i < json_array_size(strings); i++) {
		int64_t length;
		fp_tokens tokens = {0};
		char *bytes = read_hex(json_array_get(strings, i), &length);
		assert_ok(ctx, fp_tokenizer_encode(tokenizer, bytes, length, true, &tokens));
		if (hash_ids(&tokens) != read_hash(json_array_get(ids, i)))
			fail_msg("%s: the ids of string %zu (%.80s) differ", name, i,
					 json_string_value(json_array_get(strings, i)));
		texts = hash_text(ctx, tokenizer, &tokens, texts);
		fp_free(tokens.ids);
		free(bytes);
	}
	if (texts != read_hash(json_object_get(entry, "texts")))
		fail_msg("%s: the decoded texts differ", name);
	fp_tokenizer_free(tokenizer);
}

static void test_oracles(void **state)
{
	(void)state;
	json_error_t error;
	json_t *fixture = json_load_file(source_path("tests/fixtures/tokenizer/unigram.json"), 0, &error), *entry;
	size_t index;
	assert_non_null(fixture);
	assert_true(json_array_size(json_object_get(fixture, "tokenizers")) > 5);
	json_array_foreach(json_object_get(fixture, "tokenizers"), index, entry)
	{
		fp_context *ctx = fp_context_new();
		char *folder = temporary_folder();
		const json_t *model = json_object_get(entry, "model");
		if (model) {
			static const char config[] = "{\"add_bos_token\": false}";
			int64_t length;
			char *bytes = read_hex(model, &length);
			write_file(folder, "tokenizer.model", bytes, (size_t)length);
			write_file(folder, "tokenizer_config.json", config, sizeof config - 1);
			free(bytes);
		} else {
			char *text = json_dumps(json_object_get(entry, "tokenizer"), 0);
			write_file(folder, "tokenizer.json", text, strlen(text));
			free(text);
		}
		check_entry(ctx, entry, json_object_get(fixture, "strings"), folder);
		remove_folder(folder);
		free(folder);
		fp_context_free(ctx);
	}
	json_decref(fixture);
}

/* A tokenizer.json whose ids are the bytes of the normalized text, plus 1. */
static void put_byte_tokenizer(const folder_fixture *test, const char *parts)
{
	char text[20000];
	int size = snprintf(text, sizeof text,
						"{%s, \"model\": {\"type\": \"Unigram\", \"unk_id\": 0, \"byte_fallback\": true, \"vocab\": "
						"[[\"<unk>\", 0]",
						parts);
	for (unsigned i = 0; i < 256; i++)
		size += snprintf(text + size, sizeof text - (size_t)size, ", [\"<0x%02X>\", -1]", i);
	size += snprintf(text + size, sizeof text - (size_t)size, "]}}");
	write_file(test->folder, "tokenizer.json", text, (size_t)size);
}

static void check_normalized(const folder_fixture *test, const char *parts, const char *text, const char *wanted)
{
	fp_tokenizer *tokenizer;
	fp_tokens tokens = {0};
	put_byte_tokenizer(test, parts);
	assert_ok(test->ctx, fp_tokenizer_open(&tokenizer, test->ctx, test->folder));
	assert_ok(test->ctx, fp_tokenizer_encode(tokenizer, text, (int64_t)strlen(text), false, &tokens));
	char *got = calloc((size_t)tokens.count + 1, 1);
	for (int64_t i = 0; i < tokens.count; i++)
		got[i] = (char)(tokens.ids[i] - 1);
	assert_string_equal(got, wanted);
	free(got);
	fp_free(tokens.ids);
	fp_tokenizer_free(tokenizer);
}

/* The results are those of tokenizers 0.23.3. */
static void test_normalizers(void **state)
{
	folder_fixture *test = *state;
	check_normalized(test, "\"normalizer\": {\"type\": \"Lowercase\"}", "ΑΣ İẞ Ǆ", "ασ i\xCC\x87ß ǆ");
	check_normalized(test, "\"normalizer\": {\"type\": \"NFKC\"}", "ﬁ㋿①e\xCC\x81", "fi㋿1é");
	check_normalized(test, "\"normalizer\": {\"type\": \"NFD\"}", "éU\xF0\x91\xA4\xB8", "e\xCC\x81U\xF0\x91\xA4\xB8");
	check_normalized(test, "\"normalizer\": {\"type\": \"Nmt\"}", "\ta\x7F\xE2\x80\x8B\x01\xEF\xBF\xBD", " a  ");
	check_normalized(test, "\"normalizer\": {\"type\": \"Strip\", \"strip_left\": true, \"strip_right\": true}",
					 "\xE3\x80\x80 a b\n\xE2\x80\x83", "a b");
	check_normalized(test, "\"normalizer\": {\"type\": \"Strip\", \"strip_left\": false, \"strip_right\": true}", " a ",
					 " a");
	static const char split[] = "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": "
								"\"WhitespaceSplit\"}, {\"type\": \"Metaspace\", \"replacement\": \"_\", "
								"\"prepend_scheme\": \"first\"}]}";
	check_normalized(test, split, "a  b\t_", "_ab_");
	check_normalized(test, split, " a b", "ab");
	/* what the normalizer removes at the start does not count as the start */
	static const char first[] = "\"normalizer\": {\"type\": \"Nmt\"}, \"pre_tokenizer\": {\"type\": \"Metaspace\", "
								"\"replacement\": \"_\", \"prepend_scheme\": \"first\"}";
	check_normalized(test, first, "a b", "_a_b");
	check_normalized(test, first, "\x01 a", "_a");
	check_normalized(test, first,
					 "\x01"
					 "a",
					 "a");
}

static void put_json(const folder_fixture *test, const char *vocabulary, const char *more)
{
	char text[2048];
	snprintf(text, sizeof text, "{\"model\": {\"type\": \"Unigram\", \"vocab\": %s%s}}", vocabulary, more);
	write_file(test->folder, "tokenizer.json", text, strlen(text));
}

/* Opens the folder's tokenizer, encodes a text, and compares the ids with `wanted`, which ends with −1. */
static void check_ids(const folder_fixture *test, const char *text, const int32_t *wanted)
{
	fp_tokenizer *tokenizer;
	fp_tokens tokens = {0};
	assert_ok(test->ctx, fp_tokenizer_open(&tokenizer, test->ctx, test->folder));
	assert_ok(test->ctx, fp_tokenizer_encode(tokenizer, text, (int64_t)strlen(text), false, &tokens));
	int64_t count = 0;
	for (; wanted[count] >= 0; count++)
		assert_true(count < tokens.count && tokens.ids[count] == wanted[count]);
	assert_int_equal(tokens.count, count);
	fp_free(tokens.ids);
	fp_tokenizer_free(tokenizer);
}
#define IDS(...) ((const int32_t[]){__VA_ARGS__, -1})

/* Ids of tokenizers 0.23.3. */
static void test_best_way(void **state)
{
	folder_fixture *test = *state;
	static const char pieces[] = "[[\"<unk>\", 0], [\"a\", -1], [\"b\", -1], [\"ab\", -2], [\"abc\", -9], [\"\", -20]]";
	put_json(test, pieces, ", \"unk_id\": 0");
	check_ids(test, "ab", IDS(3)); /* as good as a, b, and found first */
	check_ids(test, "abc", IDS(4));
	check_ids(test, "abcab", IDS(4, 3));
	check_ids(test, "xaxx", IDS(0, 1, 0));
	check_ids(test, "", IDS(-1));
	/* <unk> in the text is a part of the unknown text around it */
	check_ids(test, "<unk>xa", IDS(0, 1));
	static const char bytes[] = "[[\"<unk>\", 0], [\"a\", -1], [\"<0x78>\", -3], [\"<0x79>\", -3]]";
	put_json(test, bytes, ", \"unk_id\": 0, \"byte_fallback\": true");
	check_ids(test, "xya", IDS(2, 3, 1));
	check_ids(test, "xyza", IDS(0, 1)); /* z has no byte token */
	check_ids(test, "<unk>a", IDS(0, 1));
	put_json(test, "[[\"a\", -1]]", "");
	check_ids(test, "aa", IDS(0, 0));
	fp_tokenizer *tokenizer;
	fp_tokens tokens = {0};
	assert_ok(test->ctx, fp_tokenizer_open(&tokenizer, test->ctx, test->folder));
	assert_fails(test->ctx, FP_ERROR_INPUT,
				 "the character 'b' is not in the vocabulary, and the tokenizer has no unk_id",
				 fp_tokenizer_encode(tokenizer, "ab", 2, false, &tokens));
	fp_free(tokens.ids);
	fp_tokenizer_free(tokenizer);
}

static void check_refused(const folder_fixture *test, const char *message)
{
	fp_tokenizer *tokenizer;
	assert_fails(test->ctx, FP_ERROR_INPUT, message, fp_tokenizer_open(&tokenizer, test->ctx, test->folder));
}

static void test_damaged_models(void **state)
{
	folder_fixture *test = *state;
	put_json(test, "[]", "");
	check_refused(test, "tokenizer.json: model Unigram: needs a \"vocab\" of [piece, score] pairs");
	put_json(test, "[[\"a\", -1], [\"b\"]]", "");
	check_refused(test, "entry 1 of \"vocab\": must be [piece, score]");
	put_json(test, "[[\"a\", -1], [\"a\", -2]]", "");
	check_refused(test, "token 'a' has ids 0 and 1");
	put_json(test, "[[\"a\", -1]]", ", \"unk_id\": 1");
	check_refused(test, "\"unk_id\" must be an id of the vocabulary, or null");
	put_json(test, "[[\"a\", -1]]", ", \"alpha\": 0.1");
	check_refused(test, "model Unigram: \"alpha\" is not supported");
	put_json(test, "[[\"a\", -1]]", "}, \"pre_tokenizer\": {\"type\": \"ByteLevel\"");
	check_refused(test, "model Unigram: is not supported together with pre_tokenizer ByteLevel");
}

/* The JSON of a normalizer with a character map of 256 units without keys, and of those in `more`. */
static char *make_empty_map(const char *more)
{
	enum { TRIE = 1024, DIGITS = (4 + TRIE + 1) / 3 * 4 };
	char digits[DIGITS + 1], *parts = malloc(DIGITS + 512);
	memset(digits, 'A', DIGITS);
	digits[2] = 'Q'; /* 4 << 8 */
	digits[DIGITS] = '\0';
	snprintf(parts, DIGITS + 512,
			 "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Precompiled\", "
			 "\"precompiled_charsmap\": \"%s\"}%s]}",
			 digits, more);
	return parts;
}

static void test_damaged_character_maps(void **state)
{
	folder_fixture *test = *state;
	static const struct {
		const char *map, *message;
	} cases[] = {
		{"", "character map: must be the size of a trie, the trie, and UTF-8 texts"},
		{"AAA", "character map: must be base64"},
		{"A===", "character map: must be base64"},
		{"AA\\u0000A", "character map: must be base64"},
		{"BAAAAA==", "character map: must be the size"},     /* 4, and no trie */
		{"BAAAAAAAAAA=", "character map: must be the size"}, /* no texts */
		{"AwAAAAAAAAAA", "character map: must be the size"}, /* 3 is no multiple of 4 */
		{"/////wAAAAAA", "character map: must be the size"}, /* 2³² − 1 */
		{"BAAAAAAAAABh", "character map: must be the size"}, /* no NUL at the end */
	};
	char parts[256];
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		snprintf(parts, sizeof parts, "\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"%s\"}",
				 cases[i].map);
		put_byte_tokenizer(test, parts);
		check_refused(test, cases[i].message);
	}
	char *parts_with_map = make_empty_map("");
	check_normalized(test, parts_with_map, "aé\r\n", "aé\r\n");
	free(parts_with_map);
	/* the root's children are outside of the trie */
	put_byte_tokenizer(test, "\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"BAAAAAD//38A\"}");
	fp_tokenizer *tokenizer;
	fp_tokens tokens = {0};
	assert_ok(test->ctx, fp_tokenizer_open(&tokenizer, test->ctx, test->folder));
	assert_fails(test->ctx, FP_ERROR_INPUT, "character map: damaged: its trie points outside of it",
				 fp_tokenizer_encode(tokenizer, "a", 1, false, &tokens));
	fp_free(tokens.ids);
	fp_tokenizer_free(tokenizer);
}

/* 3 MB of which no place is passed by every way, and unknown text as long: both take time in proportion to the text. */
static void test_long_texts(void **state)
{
	folder_fixture *test = *state;
	enum { LENGTH = 3000000 };
	put_json(test, "[[\"<unk>\", 0], [\"a\", -2], [\"aa\", -2], [\"aaa\", -2]]", ", \"unk_id\": 0");
	char *text = malloc(LENGTH);
	fp_tokenizer *tokenizer;
	assert_ok(test->ctx, fp_tokenizer_open(&tokenizer, test->ctx, test->folder));
	clock_t start = clock();
	for (int letter = 'a'; letter <= 'b'; letter++) {
		fp_tokens tokens = {0};
		memset(text, letter, LENGTH);
		assert_ok(test->ctx, fp_tokenizer_encode(tokenizer, text, LENGTH, false, &tokens));
		assert_int_equal(tokens.count, letter == 'a' ? LENGTH / 3 : 1);
		assert_int_equal(tokens.ids[0], letter == 'a' ? 3 : 0);
		fp_free(tokens.ids);
	}
	assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 60); /* the sanitizers are slow */
	fp_tokenizer_free(tokenizer);
	free(text);
}

/* Each allocation fails once: the result is an error, without a leak (the sanitizer build checks). */
static void test_no_memory(void **state)
{
	folder_fixture *test = *state;
	fp_context *ctx = test->ctx;
	char *parts = make_empty_map(", {\"type\": \"NFKC\"}");
	put_byte_tokenizer(test, parts);
	free(parts);
	int failures = 0;
	for (int64_t at = 1; at < 2000; at++) {
		fp_tokenizer *tokenizer = NULL;
		fp_tokens tokens = {0};
		ctx->allocations = 0;
		ctx->fail_allocation_at = at;
		fp_status status = fp_tokenizer_open(&tokenizer, ctx, test->folder);
		if (status == FP_OK)
			status = fp_tokenizer_encode(tokenizer, "abc\xFFﬁ", 7, true, &tokens);
		fp_free(tokens.ids);
		fp_tokenizer_free(tokenizer);
		if (status == FP_OK)
			break;
		assert_int_equal(status, FP_ERROR_MEMORY);
		failures++;
	}
	ctx->fail_allocation_at = 0;
	assert_in_range(failures, 10, 500);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_oracles),
		cmocka_unit_test_setup_teardown(test_normalizers, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_best_way, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_damaged_models, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_damaged_character_maps, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_long_texts, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_no_memory, folder_set_up, folder_tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
