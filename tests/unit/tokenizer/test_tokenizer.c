/* SPDX-License-Identifier: Apache-2.0 */
/* Special tokens around a text, damaged and unsupported files, and very long tokens and pieces. */
#include "support.h"

#include "tokenizer/tokenizer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void put(const folder_fixture *test, const char *name, const char *text)
{
	write_file(test->folder, name, text, strlen(text));
}

/* Opens the folder's tokenizer, encodes a text, and compares the ids with `wanted`, which ends with −1. */
static void check_ids(const folder_fixture *test, const char *text, bool with_special, const int32_t *wanted)
{
	fp_tokenizer *tokenizer;
	fp_tokens tokens = {0};
	assert_ok(test->ctx, fp_tokenizer_open(&tokenizer, test->ctx, test->folder));
	assert_ok(test->ctx, fp_tokenizer_encode(tokenizer, text, (int64_t)strlen(text), with_special, &tokens));
	int64_t count = 0;
	while (wanted[count] >= 0)
		count++;
	assert_int_equal(tokens.count, count);
	for (int64_t i = 0; i < count; i++)
		assert_int_equal(tokens.ids[i], wanted[i]);
	fp_free(tokens.ids);
	fp_tokenizer_free(tokenizer);
}
#define IDS(...) ((const int32_t[]){__VA_ARGS__, -1})

static const char small_vocabulary[] =
	"{\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, \"bc\": 4, \"\\u0120\": 5, \"</s>\": 6, \"abc\": 7, \"\\u0120a\": 8}";

static void put_gpt2(const folder_fixture *test, const char *config)
{
	put(test, "vocab.json", small_vocabulary);
	put(test, "merges.txt", "#version: 0.2\r\nb c\na b\nab c\nĠ a\n");
	put(test, "tokenizer_config.json", config);
}

static void test_merges_by_rank(void **state)
{
	folder_fixture *test = *state;
	put_gpt2(test, "{}");
	check_ids(test, "abc", true, IDS(0, 4)); /* "b c" ranks before "a b", and "a bc" is not a merge */
	check_ids(test, "ab", true, IDS(3));
	check_ids(test, "ababc a", true, IDS(3, 0, 4, 8));
	check_ids(test, "", true, IDS(-1));
}

static void test_special_tokens_around_a_text(void **state)
{
	folder_fixture *test = *state;
	put_gpt2(test, "{\"bos_token\": \"</s>\", \"eos_token\": {\"content\": \"</s>\"}, \"add_bos_token\": true}");
	check_ids(test, "ab", true, IDS(6, 3));
	check_ids(test, "ab", false, IDS(3));
	check_ids(test, "a</s>b", true, IDS(6, 0, 6, 1));
	put_gpt2(test,
			 "{\"bos_token\": \"</s>\", \"eos_token\": \"</s>\", \"add_bos_token\": false, \"add_eos_token\": true}");
	check_ids(test, "ab", true, IDS(3, 6));
	put_gpt2(test, "{}"); /* only config.json says that it is OPT */
	put(test, "config.json", "{\"model_type\": \"opt\"}");
	check_ids(test, "ab", true, IDS(6, 3));
	put_gpt2(test, "{\"add_prefix_space\": true, \"model_max_length\": 1000000000000000019884624838656}");
	put(test, "config.json", "{\"model_type\": \"gpt2\"}");
	check_ids(test, "a", true, IDS(8));

	fp_tokenizer *tokenizer;
	put_gpt2(test, "{\"bos_token\": \"</s>\"}");
	assert_ok(test->ctx, fp_tokenizer_open(&tokenizer, test->ctx, test->folder));
	assert_int_equal(fp_tokenizer_bos(tokenizer), 6);
	assert_int_equal(fp_tokenizer_size(tokenizer), 9);
	assert_string_equal(fp_tokenizer_kind(tokenizer), "byte-level BPE");
	assert_string_equal(fp_tokenizer_token(tokenizer, 8), "Ġa");
	assert_null(fp_tokenizer_token(tokenizer, 9));
	assert_null(fp_tokenizer_token(tokenizer, -1));
	fp_tokenizer_free(tokenizer);
}

/* A special token that is not in the vocabulary gets the next id, as in Hugging Face. */
static void test_new_special_token(void **state)
{
	folder_fixture *test = *state;
	put_gpt2(test, "{\"pad_token\": {\"content\": \"<pad>\", \"rstrip\": true}}");
	check_ids(test, "ab<pad>  ab", true, IDS(3, 9, 3));
}

static void test_damaged_files(void **state)
{
	folder_fixture *test = *state;
	fp_context *ctx = test->ctx;
	fp_tokenizer *tokenizer;
	assert_fails(ctx, FP_ERROR_INPUT,
				 "no tokenizer: needs one of tokenizer.json, tokenizer.model, vocab.json with merges.txt",
				 fp_tokenizer_open(&tokenizer, ctx, test->folder));
	assert_fails(ctx, FP_ERROR_INPUT, "no tokenizer", fp_tokenizer_open(&tokenizer, ctx, "/nowhere/at/all"));
	put(test, "vocab.json", "{\"a\": 0, \"b\": \"one\"}");
	put(test, "merges.txt", "a b\n");
	assert_fails(ctx, FP_ERROR_INPUT, "vocab.json: token 'b': its id must be a whole number",
				 fp_tokenizer_open(&tokenizer, ctx, test->folder));
	put(test, "vocab.json", "{\"a\": 0, \"b\": 0}");
	assert_fails(ctx, FP_ERROR_INPUT, "tokens 'a' and 'b' both have id 0",
				 fp_tokenizer_open(&tokenizer, ctx, test->folder));
	put(test, "vocab.json", "{\"a\": 0, \"b\": 99999999}");
	assert_fails(ctx, FP_ERROR_INPUT, "token 'b' has id 99999999", fp_tokenizer_open(&tokenizer, ctx, test->folder));
	put(test, "vocab.json", "{\"a\": 0, \"b\": 1}");
	assert_fails(ctx, FP_ERROR_INPUT, "merges.txt: merge 0 'a b'", fp_tokenizer_open(&tokenizer, ctx, test->folder));
	put(test, "merges.txt", "ab\n");
	assert_fails(ctx, FP_ERROR_INPUT, "merges.txt: line 1: must be two tokens",
				 fp_tokenizer_open(&tokenizer, ctx, test->folder));
	put(test, "merges.txt", "");
	put(test, "tokenizer_config.json", "{\"add_bos_token\": tru");
	assert_fails(ctx, FP_ERROR_INPUT, "tokenizer_config.json: line 1: not valid JSON",
				 fp_tokenizer_open(&tokenizer, ctx, test->folder));
	put(test, "tokenizer_config.json", "{}");
	put(test, "tokenizer.model", "this is no protocol buffer");
	assert_fails(ctx, FP_ERROR_INPUT, "tokenizer.model: ", fp_tokenizer_open(&tokenizer, ctx, test->folder));
	put(test, "tokenizer.model", "");
	assert_fails(ctx, FP_ERROR_INPUT, "tokenizer.model: not a SentencePiece model: it has no pieces",
				 fp_tokenizer_open(&tokenizer, ctx, test->folder));
}

/* A model with the piece "a" and these protocol-buffer bytes. */
static void check_model_refused(const folder_fixture *test, const char *specs, size_t size, const char *message)
{
	static const char piece[] = "\x0A\x03\x0A\x01"
								"a";
	char bytes[256];
	memcpy(bytes, piece, sizeof piece - 1);
	memcpy(bytes + sizeof piece - 1, specs, size);
	write_file(test->folder, "tokenizer.model", bytes, sizeof piece - 1 + size);
	fp_tokenizer *tokenizer;
	assert_fails(test->ctx, FP_ERROR_INPUT, message, fp_tokenizer_open(&tokenizer, test->ctx, test->folder));
}

static void test_unsupported_sentencepiece(void **state)
{
	folder_fixture *test = *state;
	check_model_refused(test, "\x12\x02\x18\x03", 4, "model type 3 is not supported; Unigram (1) and BPE (2) are");
	check_model_refused(test, "\x12\x02\x18\x02\x1A\x05\x12\x03map", 11, "character map: must be the size of a trie");
	check_model_refused(test, "\x12\x05\x18\x02\xC0\x01\x01", 7, "treat_whitespace_as_suffix");
	check_model_refused(test, "\x12\x02\x18\x02\x0A\x05\x0A\x01z\x18\x05", 11, "piece 1: its type is not supported");
	check_model_refused(test, "\x12\x02\x18\x02\x0A\x03\x0A\x01\xFF", 9, "piece 1: must be UTF-8");
	check_model_refused(test,
						"\x12\x02\x18\x02\x0A\x03\x0A\x01"
						"a",
						9, "token 'a' has ids 0 and 1");
	check_model_refused(test, "\x12\x7F\x18\x02", 4, "not a SentencePiece model, or a damaged one");
}

/* Pieces "a" doubled up to 4,096 bytes, the shorter ones with the better score; the ids are SentencePiece 0.2.2's. */
static void test_long_sentencepiece(void **state)
{
	folder_fixture *test = *state;
	enum { DOUBLINGS = 13 };
	char text[5000];
	memset(text, 'a', sizeof text - 1);
	text[sizeof text - 1] = '\0';
	char bytes[10000];
	size_t size = 0;
	for (int i = 0; i < DOUBLINGS; i++) { /* a field in a field: 1 = piece, in it 1 = text, 2 = score */
		unsigned length = 1U << i, inner = length + 8;
		const float score = (float)-i;
		const unsigned char heads[] = {0x0A, 0x80 | (inner & 0x7F),  inner >> 7,
									   0x0A, 0x80 | (length & 0x7F), length >> 7};
		memcpy(bytes + size, heads, sizeof heads);
		memcpy(bytes + size + sizeof heads, text, length);
		size += sizeof heads + length;
		bytes[size++] = 0x15;
		memcpy(bytes + size, &score, sizeof score);
		size += sizeof score;
	}
	memcpy(bytes + size, "\x12\x02\x18\x02\x1A\x02\x18\x00", 8); /* BPE; no space in front of the text */
	write_file(test->folder, "tokenizer.model", bytes, size + 8);
	check_ids(test, text, false, IDS(12, 9, 8, 7, 2, 1, 0));
}

static void test_unsupported_components(void **state)
{
	folder_fixture *test = *state;
	static const struct {
		const char *parts, *message;
	} cases[] = {
		{"\"normalizer\": {\"type\": \"BertNormalizer\"}",
		 "normalizer 'BertNormalizer' is not supported; its type must be one of NFC, NFD, NFKC, NFKD, "
		 "Lowercase, Nmt, Strip, Prepend, Replace, Precompiled, Sequence"},
		{"\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Strip\"}]}",
		 "normalizer Strip: \"strip_left\" and \"strip_right\" must be true or false"},
		{"\"normalizer\": {\"type\": \"Precompiled\"}", "normalizer Precompiled: needs a \"precompiled_charsmap\""},
		{"\"pre_tokenizer\": {\"type\": \"Whitespace\"}", "pre_tokenizer 'Whitespace' is not supported"},
		{"\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}, \"behavior\": \"Isolated\"}",
		 "regular expression '('"},
		{"\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Sideways\"}",
		 "pre_tokenizer Split: needs"},
		{"\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a[^b]]\"}, \"behavior\": \"Isolated\"}",
		 "regular expression '[a[^b]]': this kind of set inside brackets is not supported"},
		{"\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a-z&&[aeiou]]\"}, \"behavior\": "
		 "\"Isolated\"}",
		 "regular expression '[a-z&&[aeiou]]': this kind of set inside brackets is not supported"},
		{"\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a-[b]]\"}, \"behavior\": \"Isolated\"}",
		 "regular expression '[a-[b]]': this kind of set inside brackets is not supported"},
		{"\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[[ab]-c]\"}, \"behavior\": \"Isolated\"}",
		 "regular expression '[[ab]-c]': this kind of set inside brackets is not supported"},
		{"\"pre_tokenizer\": {\"type\": \"Punctuation\", \"behavior\": \"Sideways\"}",
		 "pre_tokenizer Punctuation: needs"},
		{"\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\"}, {\"type\": "
		 "\"Metaspace\"}]}",
		 "pre_tokenizer Sequence: Metaspace is supported as the last part only, and after ByteLevel only Split"},
		{"\"post_processor\": {\"type\": \"Other\"}", "post_processor 'Other' is not supported"},
		{"\"model\": {\"type\": \"WordPiece\"}", "model 'WordPiece' is not supported; its type must be BPE or Unigram"},
		{"\"model\": {\"type\": \"BPE\", \"vocab\": {}}", "model BPE: needs \"vocab\" and \"merges\""},
		{"\"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": [], \"dropout\": 0.1}",
		 "model BPE: \"dropout\" is not supported"},
		{"\"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": [], \"end_of_word_suffix\": \"</w>\"}",
		 "model BPE: \"end_of_word_suffix\" is not supported"},
		{"\"added_tokens\": [{\"content\": \"x\"}]", "added_tokens: entry 0 needs an id"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char text[1024], message[256];
		bool has_model = strstr(cases[i].parts, "\"model\"") != NULL;
		snprintf(text, sizeof text, "{%s%s}", cases[i].parts,
				 has_model ? "" : ", \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}");
		put(test, "tokenizer.json", text);
		snprintf(message, sizeof message, "tokenizer.json: %s", cases[i].message);
		fp_tokenizer *tokenizer;
		assert_fails(test->ctx, FP_ERROR_INPUT, message, fp_tokenizer_open(&tokenizer, test->ctx, test->folder));
	}
}

/* 3 MB without a split: O(n log n) takes about a second, O(n²) hours. */
static void test_long_piece(void **state)
{
	folder_fixture *test = *state;
	put_gpt2(test, "{}");
	enum { LENGTH = 3000000 };
	char *text = malloc(LENGTH);
	for (int i = 0; i < LENGTH; i++)
		text[i] = "abc"[i % 3];
	fp_tokenizer *tokenizer;
	fp_tokens tokens = {0};
	assert_ok(test->ctx, fp_tokenizer_open(&tokenizer, test->ctx, test->folder));
	clock_t start = clock();
	assert_ok(test->ctx, fp_tokenizer_encode(tokenizer, text, LENGTH, false, &tokens));
	double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
	assert_int_equal(tokens.count, LENGTH / 3 * 2);
	for (int64_t i = 0; i < tokens.count; i++)
		assert_int_equal(tokens.ids[i], i % 2 ? 4 : 0);
	assert_true(seconds < 60); /* the sanitizers are slow */
	fp_free(tokens.ids);
	fp_tokenizer_free(tokenizer);
	free(text);
}

/* Each allocation fails once: the result is an error, without a leak (the sanitizer build checks). */
static void test_no_memory(void **state)
{
	folder_fixture *test = *state;
	fp_context *ctx = test->ctx;
	put_gpt2(test, "{\"bos_token\": \"</s>\", \"pad_token\": \"<pad>\"}");
	int failures = 0;
	for (int64_t at = 1; at < 1000; at++) {
		fp_tokenizer *tokenizer = NULL;
		fp_tokens tokens = {0};
		ctx->allocations = 0;
		ctx->fail_allocation_at = at;
		fp_status status = fp_tokenizer_open(&tokenizer, ctx, test->folder);
		if (status == FP_OK)
			status = fp_tokenizer_encode(tokenizer, "abc\xFF</s>", 8, true, &tokens);
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
		cmocka_unit_test_setup_teardown(test_merges_by_rank, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_special_tokens_around_a_text, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_new_special_token, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_damaged_files, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_unsupported_sentencepiece, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_long_sentencepiece, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_unsupported_components, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_long_piece, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_no_memory, folder_set_up, folder_tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
