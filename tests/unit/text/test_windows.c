/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of each protocol and sampler: the published counts, and the rules on small files. */
#include "support.h"

#include "c4_draws.h"
#include "text/windows.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The smallest tokenizer: ids are bytes, with <s> = 256 in front. */
static fp_tokenizer *byte_tokenizer(const folder_fixture *test, bool adds_bos)
{
	char *json = malloc(1 << 16), *at = json;
	at += sprintf(at, "{\"added_tokens\": [{\"id\": 256, \"content\": \"<s>\", \"special\": true}],"
					  "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false},"
					  "\"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {");
	for (int byte = 0, other = 0x100; byte < 256; byte++) {
		bool plain = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
		at += sprintf(at, "%s\"\\u%04x\": %d", byte ? ", " : "", plain ? byte : other, byte);
		other += !plain;
	}
	sprintf(at, "}}}");
	write_file(test->folder, "tokenizer.json", json, strlen(json));
	const char *config = adds_bos ? "{\"bos_token\": \"<s>\", \"add_bos_token\": true}" : "{\"bos_token\": \"<s>\"}";
	write_file(test->folder, "tokenizer_config.json", config, strlen(config));
	free(json);
	fp_tokenizer *tokenizer;
	assert_ok(test->ctx, fp_tokenizer_open(&tokenizer, test->ctx, test->folder));
	return tokenizer;
}

static const char *put_text(const folder_fixture *test, const char *name, const char *text)
{
	static char path[4096];
	write_file(test->folder, name, text, strlen(text));
	snprintf(path, sizeof path, "%s/%s", test->folder, name);
	return path;
}

static void assert_text(const fp_windows *windows, const char *text)
{
	assert_int_equal(windows->count * windows->length, strlen(text));
	for (int64_t i = 0; i < windows->count * windows->length; i++)
		assert_int_equal(windows->ids[i], text[i] == '^' ? 256 : (unsigned char)text[i]);
}

static void check_count(fp_context *ctx, const char *model, const char *text, const char *protocol, int64_t length,
						int64_t wanted)
{
	char text_path[4096], model_path[4096];
	snprintf(text_path, sizeof text_path, "%s", need_shared_path(text));
	snprintf(model_path, sizeof model_path, "%s", need_shared_path(model));
	fp_tokenizer *tokenizer;
	fp_windows windows;
	assert_ok(ctx, fp_tokenizer_open(&tokenizer, ctx, model_path));
	assert_ok(ctx, fp_windows_evaluation(&windows, ctx, tokenizer, text_path, protocol, length));
	assert_int_equal(windows.count, wanted);
	assert_int_equal(windows.length, length);
	fp_windows_free(&windows);
	fp_tokenizer_free(tokenizer);
}

static void test_document_counts(void **state)
{
	fp_context *ctx = ((folder_fixture *)*state)->ctx;
	check_count(ctx, "models/stories15M", "data/tinystories-eval.jsonl", "documents", 256, 287);
	check_count(ctx, "models/opt-stories-26m", "data/tinystories-eval.jsonl", "documents", 256, 264);
	check_count(ctx, "models/stories260K", "data/tinystories-eval.jsonl", "documents", 256, 542);
}

/* 341,469 tokens with LLaMA-2's tokenizer and 289,076 (+ BOS, which this file does not add) with LLaMA-3's. */
static void test_wikitext2_counts(void **state)
{
	fp_context *ctx = ((folder_fixture *)*state)->ctx;
	check_count(ctx, "models/stories15M", "data/wikitext2-test.raw", "wikitext2", 4096, 83);
	check_count(ctx, "models/stories15M", "data/wikitext2-test.raw", "wikitext2", 341469, 1);
	check_count(ctx, "tokenizers/llama3", "data/wikitext2-test.raw", "wikitext2", 4096, 70);
	check_count(ctx, "tokenizers/llama3", "data/wikitext2-test.raw", "wikitext2", 289076, 1);
}

static void test_protocol_texts(void **state)
{
	folder_fixture *test = *state;
	fp_context *ctx = test->ctx;
	fp_tokenizer *tokenizer = byte_tokenizer(test, true);
	fp_windows windows;
	static const struct {
		const char *protocol, *name, *text, *wanted;
		int64_t length;
	} cases[] = {
		{"wikitext2", "a.raw", " \n = A = \n \r\n b\nend", "^\n\n = A = \n\n\n\n\n b\n\n\nend", 23},
		{"wikitext2", "a.jsonl", "{\"text\": \"\"}\n\n{\"text\": \"x\\n\"}\n", "^\n\nx\n", 5},
		{"ptb", "a.txt", " one <unk> \n\n two\t\n", "^one <unk>  two", 15},
		{"documents", "b.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"cde\"}", "^ab^cd", 3},
		{"documents", "b.txt", "two\nlines", "^two\nlines", 10},
		{"c4", "c.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"cde\"}", "^ab cd", 2},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		const char *path = put_text(test, cases[i].name, cases[i].text);
		assert_ok(ctx, fp_windows_evaluation(&windows, ctx, tokenizer, path, cases[i].protocol, cases[i].length));
		assert_text(&windows, cases[i].wanted);
		fp_windows_free(&windows);
	}
	fp_tokenizer_free(tokenizer);
}

static void test_c4_takes_1100_documents_and_256_windows(void **state)
{
	folder_fixture *test = *state;
	fp_context *ctx = test->ctx;
	fp_tokenizer *tokenizer = byte_tokenizer(test, false);
	fp_windows windows;
	char *text = malloc(1 << 16), *at = text;
	for (int i = 0; i < 1500; i++)
		at += sprintf(at, "{\"text\": \"%c\"}\n", i < 1100 ? 'a' : 'b');
	const char *path = put_text(test, "c.jsonl", text);
	assert_ok(ctx, fp_windows_evaluation(&windows, ctx, tokenizer, path, "c4", 10));
	assert_int_equal(windows.count, 219); /* 1,100 letters and 1,099 spaces */
	fp_windows_free(&windows);
	assert_ok(ctx, fp_windows_evaluation(&windows, ctx, tokenizer, path, "c4", 8));
	assert_int_equal(windows.count, 256);
	fp_windows_free(&windows);
	free(text);
	fp_tokenizer_free(tokenizer);
}

static void test_evaluation_errors(void **state)
{
	folder_fixture *test = *state;
	fp_context *ctx = test->ctx;
	fp_tokenizer *tokenizer = byte_tokenizer(test, true);
	fp_windows windows;
	const char *path = put_text(test, "a.txt", "short");
	assert_fails(ctx, FP_ERROR_INPUT, "6 tokens by protocol 'documents', less than one window of 7",
				 fp_windows_evaluation(&windows, ctx, tokenizer, path, "documents", 7));
	assert_fails(ctx, FP_ERROR_USAGE, "protocol 'none' is unknown; it must be one of documents, wikitext2, ptb, c4",
				 fp_windows_evaluation(&windows, ctx, tokenizer, path, "none", 7));
	assert_fails(ctx, FP_ERROR_USAGE, "sequence length 0: must be",
				 fp_windows_evaluation(&windows, ctx, tokenizer, path, "ptb", 0));
	path = put_text(test, "empty.txt", "");
	assert_fails(ctx, FP_ERROR_INPUT, "has no text", fp_windows_evaluation(&windows, ctx, tokenizer, path, "ptb", 8));
	fp_tokenizer_free(tokenizer);
}

static void test_packed(void **state)
{
	folder_fixture *test = *state;
	fp_context *ctx = test->ctx;
	fp_tokenizer *tokenizer = byte_tokenizer(test, true);
	fp_windows windows;
	char first[4096];
	snprintf(first, sizeof first, "%s", put_text(test, "a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"cde\"}"));
	const char *paths[] = {first, put_text(test, "b.txt", "fghij")};
	assert_ok(ctx, fp_windows_calibration(&windows, ctx, tokenizer, paths, 2, "packed", 0, 2, 0));
	assert_text(&windows, "^ab^cde^fghi");
	fp_windows_free(&windows);
	assert_ok(ctx, fp_windows_calibration(&windows, ctx, tokenizer, paths, 2, "packed", 3, 2, 0));
	assert_text(&windows, "^ab^cd");
	fp_windows_free(&windows);
	/* random.Random(7).shuffle([0, 1, 2, 3, 4, 5]) in CPython gives 4 0 5 3 1 2 */
	assert_ok(ctx, fp_windows_calibration(&windows, ctx, tokenizer, paths, 2, "packed", 4, 2, 7));
	assert_text(&windows, "fg^ahie^");
	fp_windows_free(&windows);
	/* the rest, in the same order */
	assert_ok(ctx, fp_windows_held_out(&windows, ctx, tokenizer, paths, 2, "packed", 3, 2, 0, 2));
	assert_text(&windows, "e^fg");
	fp_windows_free(&windows);
	assert_ok(ctx, fp_windows_held_out(&windows, ctx, tokenizer, paths, 2, "packed", 4, 2, 7, 9));
	assert_text(&windows, "b^cd");
	fp_windows_free(&windows);
	for (int64_t samples = 0; samples <= 6; samples += 6) { /* the sample has all windows */
		assert_ok(ctx, fp_windows_held_out(&windows, ctx, tokenizer, paths, 2, "packed", samples, 2, 0, 9));
		assert_int_equal(windows.count, 0);
		fp_windows_free(&windows);
	}
	assert_fails(ctx, FP_ERROR_INPUT, "6 windows of 2, and 7 are needed",
				 fp_windows_calibration(&windows, ctx, tokenizer, paths, 2, "packed", 7, 2, 0));
	fp_tokenizer_free(tokenizer);
}

/* Document i of make_c4_draws.py: letters that identify the document and the position. */
static char letter_of(int document, int place)
{
	return (char)('A' + (document * 7 + place * 3) % 50);
}

static const char *put_draw_documents(const folder_fixture *test)
{
	char *text = malloc(1 << 16), *at = text;
	for (int i = 0; i < DRAW_DOCUMENTS; i++) {
		at += sprintf(at, "{\"text\": \"");
		for (int j = 0; j < i * 37 % 97 + 1; j++) {
			char letter = letter_of(i, j);
			if (letter == '\\')
				*at++ = '\\';
			*at++ = letter;
		}
		at += sprintf(at, "\"}\n");
	}
	const char *path = put_text(test, "draws.jsonl", text);
	free(text);
	return path;
}

static void test_c4_draws_as_the_peers_do(void **state)
{
	folder_fixture *test = *state;
	fp_context *ctx = test->ctx;
	fp_tokenizer *tokenizer = byte_tokenizer(test, true);
	const char *path = put_draw_documents(test);
	for (size_t i = 0; i < sizeof c4_draws / sizeof c4_draws[0]; i++) {
		fp_windows windows;
		assert_ok(ctx, fp_windows_calibration(&windows, ctx, tokenizer, &path, 1, "c4", DRAW_SAMPLES, DRAW_LENGTH,
											  c4_draws[i].seed));
		assert_int_equal(windows.count, DRAW_SAMPLES);
		for (int j = 0; j < DRAW_SAMPLES; j++) {
			int document = c4_draws[i].windows[j].document, offset = c4_draws[i].windows[j].offset;
			for (int k = 0; k < DRAW_LENGTH; k++) {
				int wanted = offset + k == 0 ? 256 : letter_of(document, offset + k - 1);
				assert_int_equal(windows.ids[j * DRAW_LENGTH + k], wanted);
			}
		}
		fp_windows_free(&windows);
	}
	fp_tokenizer_free(tokenizer);
}

static bool is_drawn(size_t draw, int document)
{
	for (int j = 0; j < DRAW_SAMPLES; j++)
		if (c4_draws[draw].windows[j].document == document)
			return true;
	return false;
}

/* The beginnings of the first long documents that the sample does not have. */
static void test_c4_held_out(void **state)
{
	enum { MOST = 5 };
	folder_fixture *test = *state;
	fp_context *ctx = test->ctx;
	fp_tokenizer *tokenizer = byte_tokenizer(test, true);
	const char *path = put_draw_documents(test);
	for (size_t i = 0; i < sizeof c4_draws / sizeof c4_draws[0]; i++) {
		fp_windows windows;
		int document = -1;
		assert_ok(ctx, fp_windows_held_out(&windows, ctx, tokenizer, &path, 1, "c4", DRAW_SAMPLES, DRAW_LENGTH,
										   c4_draws[i].seed, MOST));
		assert_int_equal(windows.count, MOST);
		for (int j = 0; j < MOST; j++) {
			do
				document++;
			while (document * 37 % 97 + 2 <= DRAW_LENGTH || is_drawn(i, document));
			assert_int_equal(windows.ids[j * DRAW_LENGTH], 256);
			for (int k = 1; k < DRAW_LENGTH; k++)
				assert_int_equal(windows.ids[j * DRAW_LENGTH + k], letter_of(document, k - 1));
		}
		fp_windows_free(&windows);
	}
	fp_tokenizer_free(tokenizer);
}

static void test_c4_without_a_long_document(void **state)
{
	folder_fixture *test = *state;
	fp_context *ctx = test->ctx;
	fp_tokenizer *tokenizer = byte_tokenizer(test, true);
	fp_windows windows;
	const char *path = put_draw_documents(test);
	assert_fails(ctx, FP_ERROR_INPUT, "more than 98 tokens; the longest of 200 has 98",
				 fp_windows_calibration(&windows, ctx, tokenizer, &path, 1, "c4", 4, 98, 0));
	assert_ok(ctx, fp_windows_calibration(&windows, ctx, tokenizer, &path, 1, "c4", 4, 97, 0));
	fp_windows_free(&windows);
	assert_fails(ctx, FP_ERROR_USAGE, "such as 128",
				 fp_windows_calibration(&windows, ctx, tokenizer, &path, 1, "c4", 0, 8, 0));
	assert_fails(ctx, FP_ERROR_USAGE, "sampler 'none' is unknown; it must be one of packed, c4",
				 fp_windows_calibration(&windows, ctx, tokenizer, &path, 1, "none", 1, 8, 0));
	fp_tokenizer_free(tokenizer);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_protocol_texts, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_c4_takes_1100_documents_and_256_windows, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_evaluation_errors, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_packed, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_c4_draws_as_the_peers_do, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_c4_held_out, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_c4_without_a_long_document, folder_set_up, folder_tear_down),
	};
	const struct CMUnitTest documents[] = {
		cmocka_unit_test_setup_teardown(test_document_counts, folder_set_up, folder_tear_down),
	};
	const struct CMUnitTest wikitext2[] = {
		cmocka_unit_test_setup_teardown(test_wikitext2_counts, folder_set_up, folder_tear_down),
	};
	TEST_PART(documents);
	TEST_PART(wikitext2);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
