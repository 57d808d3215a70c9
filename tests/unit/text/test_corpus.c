/* SPDX-License-Identifier: Apache-2.0 */
/* Corpora: plain text and JSON lines, compressed and not, and damaged files. */
#include "support.h"

#include "text/corpus.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

/* The file's path, until the next call. */
static const char *put(const folder_fixture *test, const char *name, const void *bytes, size_t size)
{
	static char path[4200];
	write_file(test->folder, name, bytes, size);
	snprintf(path, sizeof path, "%s/%s", test->folder, name);
	return path;
}

static size_t pack_gzip(const char *text, size_t size, unsigned char *out, size_t capacity)
{
	z_stream stream = {0};
	assert_int_equal(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
	stream.next_in = (unsigned char *)(uintptr_t)text;
	stream.avail_in = (unsigned)size;
	stream.next_out = out;
	stream.avail_out = (unsigned)capacity;
	assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
	size_t packed = capacity - stream.avail_out;
	deflateEnd(&stream);
	return packed;
}

/* With a checksum, as the zstd program writes it. */
static size_t pack_zstd(const char *text, size_t size, unsigned char *out, size_t capacity)
{
	ZSTD_CCtx *packer = ZSTD_createCCtx();
	ZSTD_CCtx_setParameter(packer, ZSTD_c_checksumFlag, 1);
	size_t packed = ZSTD_compress2(packer, out, capacity, text, size);
	assert_false(ZSTD_isError(packed));
	ZSTD_freeCCtx(packer);
	return packed;
}

static void assert_document(const fp_corpus *corpus, int64_t index, const char *text, size_t length)
{
	fp_document document = fp_corpus_document(corpus, index);
	assert_int_equal(document.length, length);
	assert_memory_equal(document.text, text, length);
}

static void check_two_lines(folder_fixture *test, const char *name, const void *bytes, size_t size)
{
	fp_corpus *corpus;
	assert_ok(test->ctx, fp_corpus_read(&corpus, test->ctx, put(test, name, bytes, size)));
	assert_int_equal(fp_corpus_count(corpus), 2);
	assert_false(fp_corpus_is_plain(corpus));
	assert_document(corpus, 0, "one\n", 4);
	assert_document(corpus, 1, "two\0é", 6);
	fp_corpus_free(corpus);
}

static const char two_lines[] =
	"{\"text\": \"one\\n\", \"id\": 123456789012345678901234567890}\r\n\n{\"text\": \"two\\u0000\\u00e9\"}";

static void test_json_lines(void **state)
{
	folder_fixture *test = *state;
	size_t size = sizeof two_lines - 1;
	unsigned char packed[1024];
	check_two_lines(test, "a.jsonl", two_lines, size);
	check_two_lines(test, "a.txt", two_lines, size); /* by its first byte */
	size_t packed_size = pack_gzip(two_lines, size, packed, sizeof packed);
	check_two_lines(test, "a.json.gz", packed, packed_size);
	check_two_lines(test, "no-ending", packed, packed_size); /* by its magic bytes */
	packed_size = ZSTD_compress(packed, sizeof packed, two_lines, size, 3);
	assert_false(ZSTD_isError(packed_size));
	check_two_lines(test, "a.jsonl.zst", packed, packed_size);
}

static void test_members_and_frames_follow_each_other(void **state)
{
	folder_fixture *test = *state;
	unsigned char packed[1024];
	size_t half = 20, size = sizeof two_lines - 1;
	size_t first = pack_gzip(two_lines, half, packed, sizeof packed);
	size_t both = first + pack_gzip(two_lines + half, size - half, packed + first, sizeof packed - first);
	check_two_lines(test, "a.jsonl.gz", packed, both);
	first = ZSTD_compress(packed, sizeof packed, two_lines, half, 3);
	both = first + ZSTD_compress(packed + first, sizeof packed - first, two_lines + half, size - half, 3);
	check_two_lines(test, "a.jsonl.zst", packed, both);
}

static void test_plain_text(void **state)
{
	folder_fixture *test = *state;
	fp_corpus *corpus;
	static const char text[] = "  \nplain\0text \xFF\n";
	assert_ok(test->ctx, fp_corpus_read(&corpus, test->ctx, put(test, "a.txt", text, sizeof text - 1)));
	assert_int_equal(fp_corpus_count(corpus), 1);
	assert_true(fp_corpus_is_plain(corpus));
	assert_document(corpus, 0, text, sizeof text - 1);
	fp_corpus_free(corpus);
}

/* Longer than the reader's buffer, so that lines and compressed data cross its end. */
static void test_long_files(void **state)
{
	folder_fixture *test = *state;
	enum { LINES = 3000, LETTERS = 700 };
	size_t size = 0, capacity = (size_t)LINES * (LETTERS + 32);
	char *text = malloc(capacity);
	unsigned char *packed = malloc(capacity + 1024);
	uint64_t seed = 1;
	for (int i = 0; i < LINES; i++) {
		size += (size_t)sprintf(text + size, "{\"text\": \"");
		for (int j = 0; j < LETTERS; j++)
			text[size++] = (char)('a' + (int)((random_uniform(&seed) + 1) * 13) % 26);
		size += (size_t)sprintf(text + size, "\"}\n");
	}
	for (int kind = 0; kind < 3; kind++) {
		const void *bytes = kind == 0 ? (const void *)text : packed;
		size_t stored = size;
		if (kind == 1)
			stored = pack_gzip(text, size, packed, capacity + 1024);
		if (kind == 2)
			stored = pack_zstd(text, size, packed, capacity + 1024);
		fp_corpus *corpus;
		assert_ok(test->ctx, fp_corpus_read(&corpus, test->ctx, put(test, "long.jsonl", bytes, stored)));
		assert_int_equal(fp_corpus_count(corpus), LINES);
		for (int i = 0; i < LINES; i++)
			assert_document(corpus, i, text + (size_t)i * (LETTERS + 13) + 10, LETTERS);
		fp_corpus_free(corpus);
		if (kind > 0) { /* truncated at several places, and one wrong bit */
			fp_corpus *none;
			for (size_t cut = 20; cut < stored; cut += stored / 5)
				assert_fails(test->ctx, FP_ERROR_INPUT, kind == 1 ? "gzip" : "zstd",
							 fp_corpus_read(&none, test->ctx, put(test, "cut.jsonl", packed, cut)));
			packed[stored / 2] ^= 0x55;
			assert_int_equal(fp_corpus_read(&none, test->ctx, put(test, "bad.jsonl", packed, stored)), FP_ERROR_INPUT);
			assert_non_null(strstr(fp_context_message(test->ctx), "bad.jsonl"));
		}
	}
	free(packed);
	free(text);
}

static void test_invalid_utf8_in_json_lines(void **state)
{
	folder_fixture *test = *state;
	fp_corpus *corpus;
	static const char text[] = "{\"text\": \"a\xE2\x82!\xFF\"}\n";
	assert_ok(test->ctx, fp_corpus_read(&corpus, test->ctx, put(test, "a.jsonl", text, sizeof text - 1)));
	assert_document(corpus, 0, "a\xEF\xBF\xBD!\xEF\xBF\xBD", 8);
	fp_corpus_free(corpus);
}

static void test_errors(void **state)
{
	folder_fixture *test = *state;
	fp_context *ctx = test->ctx;
	fp_corpus *corpus;
	static const struct {
		const char *name, *text, *message;
	} cases[] = {
		{"a.jsonl", "{\"text\": \"x\"}\n{\"text\": 1}\n", "a.jsonl: line 2: must be a JSON object with a text"},
		{"b.jsonl", "{\"text\": \"x\"}\n\n{\"text\": \"x\"\n", "b.jsonl: line 3: not valid JSON"},
		{"c.jsonl", "[\"text\"]", "c.jsonl: line 1: must be a JSON object"},
		{"d.jsonl", "plain", "d.jsonl: line 1: not valid JSON"},
		{"e.txt", "", "e.txt: has no text"},
		{"f.jsonl", "\n \n", "f.jsonl: has no text"},
		{"g.gz", "\x1F\x8B", "g.gz: ends in the middle of its gzip data"},
		{"h.gz", "\x1F\x8B not gzip at all, this", "h.gz: damaged gzip data"},
		{"i.zst", "\x28\xB5\x2F\xFD not zstd at all, this", "i.zst: "},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		assert_fails(ctx, FP_ERROR_INPUT, cases[i].message,
					 fp_corpus_read(&corpus, ctx, put(test, cases[i].name, cases[i].text, strlen(cases[i].text))));
	assert_fails(ctx, FP_ERROR_INPUT, "cannot be opened", fp_corpus_read(&corpus, ctx, "/nowhere/at/all.txt"));
	assert_fails(ctx, FP_ERROR_INPUT, "cannot be read", fp_corpus_read(&corpus, ctx, test->folder));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_json_lines, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_members_and_frames_follow_each_other, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_plain_text, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_long_files, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_invalid_utf8_in_json_lines, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(test_errors, folder_set_up, folder_tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
