/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "base/file.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static fp_context *ctx;
static char *folder;
static char path[4200], other[4200];

static int set_up(void **state)
{
	folder_set_up(state);
	ctx = ((folder_fixture *)*state)->ctx;
	folder = ((folder_fixture *)*state)->folder;
	snprintf(path, sizeof path, "%s/file", folder);
	snprintf(other, sizeof other, "%s/other", folder);
	return 0;
}

static void assert_holds(const char *name, const char *text)
{
	char *bytes;
	int64_t size;
	assert_ok(ctx, fp_read_file(&bytes, &size, ctx, name, 1000));
	assert_int_equal(size, strlen(text));
	assert_string_equal(bytes, text);
	fp_free(bytes);
}

static void reading(void **state)
{
	(void)state;
	char *bytes;
	int64_t size;
	fp_mapping mapping;
	assert_fails(ctx, FP_ERROR_INPUT, "file: cannot be opened: No such file", fp_map_file(&mapping, ctx, path));
	assert_fails(ctx, FP_ERROR_INPUT, "No such file", fp_read_file(&bytes, &size, ctx, path, 10));
	assert_fails(ctx, FP_ERROR_INPUT, "not a regular file", fp_read_file(&bytes, &size, ctx, folder, 10));
	write_file(folder, "file", "0123456789", 10);
	assert_holds(path, "0123456789");
	assert_fails(ctx, FP_ERROR_INPUT, "has 10 bytes; at most 9", fp_read_file(&bytes, &size, ctx, path, 9));
	assert_ok(ctx, fp_map_file(&mapping, ctx, path));
	assert_int_equal(mapping.size, 10);
	assert_memory_equal(mapping.bytes, "0123456789", 10);
	fp_forget_pages(mapping.bytes + 3, 4);
	fp_forget_pages(mapping.bytes, 0);
	assert_memory_equal(mapping.bytes, "0123456789", 10);
	fp_unmap_file(&mapping);
	assert_null(mapping.bytes);
	fp_unmap_file(&mapping);
	write_file(folder, "file", "", 0);
	assert_ok(ctx, fp_map_file(&mapping, ctx, path));
	assert_int_equal(mapping.size, 0);
	assert_holds(path, "");
}

static void joining(void **state)
{
	(void)state;
	const char *rows[][3] = {
		{"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"a", "/b", "/b"}, {"/", "b", "/b"}};
	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		char *joined;
		assert_ok(ctx, fp_join_path(&joined, ctx, rows[i][0], rows[i][1]));
		assert_string_equal(joined, rows[i][2]);
		fp_free(joined);
	}
}

static void writing(void **state)
{
	(void)state;
	assert_ok(ctx, fp_write_file(ctx, path, "one", 3));
	assert_holds(path, "one");
	assert_fails(ctx, FP_ERROR_IO, "cannot be created: File exists", fp_write_file(ctx, path, "two", 3));
	assert_holds(path, "one");
	assert_ok(ctx, fp_write_file_atomic(ctx, path, "three", 5));
	assert_holds(path, "three");
	assert_ok(ctx, fp_copy_file(ctx, path, other));
	assert_holds(other, "three");
	snprintf(other, sizeof other, "%s/no/such/folder", folder);
	assert_fails(ctx, FP_ERROR_IO, "cannot be created", fp_write_file(ctx, other, "x", 1));
	assert_fails(ctx, FP_ERROR_IO, "cannot be created", fp_write_file_atomic(ctx, other, "x", 1));
	int64_t room;
	assert_ok(ctx, fp_free_space(&room, ctx, folder));
	assert_true(room > 0);
	assert_ok(ctx, fp_sync_directory(ctx, folder));
	fp_remove_tree(folder);
	assert_false(fp_is_directory(folder));
}

/* A limit on the file size acts like a full disk: no partial file may remain. */
static void a_write_that_fails_leaves_nothing(void **state)
{
	(void)state;
	struct rlimit before, small;
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	small = before;
	small.rlim_cur = 4096;
	signal(SIGXFSZ, SIG_IGN);
	char *bytes = calloc(1, 10000);
	assert_ok(ctx, fp_write_file(ctx, other, "old", 3));
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	fp_status plain = fp_write_file(ctx, path, bytes, 10000);
	fp_status atomic = fp_write_file_atomic(ctx, other, bytes, 10000);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	assert_int_equal(plain, FP_ERROR_IO);
	assert_int_equal(atomic, FP_ERROR_IO);
	assert_int_not_equal(access(path, F_OK), 0);
	assert_holds(other, "old");
	free(bytes);
}

int main(void)
{
#define FILE_TEST(test) cmocka_unit_test_setup_teardown(test, set_up, folder_tear_down)
	const struct CMUnitTest tests[] = {
		FILE_TEST(reading),
		FILE_TEST(joining),
		FILE_TEST(writing),
		FILE_TEST(a_write_that_fails_leaves_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
