/* SPDX-License-Identifier: Apache-2.0 */
/* The writer: only replaced bytes change, and a directory under its final name is complete. */
#include "support.h"

#include "base/file.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/writer.h"
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static fp_context *ctx;
static char *folder;
static char in[4200], out[4200], command[20000];

static void shell(const char *text)
{
	if (system(text) != 0)
		fail_msg("%s", text);
}

static int set_up(void **state)
{
	folder_set_up(state);
	ctx = ((folder_fixture *)*state)->ctx;
	folder = ((folder_fixture *)*state)->folder;
	snprintf(in, sizeof in, "%s/in", folder);
	snprintf(out, sizeof out, "%s/out", folder);
	return 0;
}

/* A copy of a fixture as the input, with the other files that models on the hub have. */
static fp_checkpoint *open_fixture(const char *name)
{
	fp_checkpoint *source;
	snprintf(command, sizeof command,
			 "cp -r '%s/%s' '%s' && cd '%s' && echo t >tokenizer.json && echo l >LICENSE && echo h >tf_model.h5 && "
			 "echo g >.gitattributes && mkdir original additional_chat_templates && echo o >original/params.json && "
			 "echo c >additional_chat_templates/tool.jinja",
			 source_path("tests/fixtures/checkpoint"), name, in, in);
	shell(command);
	assert_ok(ctx, fp_checkpoint_open(&source, ctx, in));
	return source;
}

static bool exists(const char *directory, const char *name)
{
	char path[9000];
	snprintf(path, sizeof path, "%s/%s", directory, name);
	return access(path, F_OK) == 0;
}

static void assert_same_file(const char *name)
{
	snprintf(command, sizeof command, "cmp '%s/%s' '%s/%s'", in, name, out, name);
	shell(command);
}

/* The number of entries in the temporary folder, with hidden ones. */
static int count_names(void)
{
	int count = 0;
	DIR *listing = opendir(folder);
	for (const struct dirent *entry = readdir(listing); entry; entry = readdir(listing))
		count++;
	closedir(listing);
	return count - 2;
}

static void write_all(const fp_checkpoint *source, const char *target)
{
	fp_writer *writer;
	assert_ok(ctx, fp_writer_open(&writer, ctx, source, target, NULL));
	assert_ok(ctx, fp_writer_commit(writer));
	fp_writer_close(writer);
}

/* Every tensor of the output has the source's bytes, except those named in `changed`, which have the given bytes. */
static void assert_same_tensors(const fp_checkpoint *source, int64_t missing, const char *changed, const void *bytes)
{
	fp_checkpoint *copy;
	assert_ok(ctx, fp_checkpoint_open(&copy, ctx, out));
	assert_string_equal(copy->format->name, "safetensors");
	assert_int_equal(fp_checkpoint_tensor_count(copy), fp_checkpoint_tensor_count(source) - missing);
	for (int64_t i = 0; i < fp_checkpoint_tensor_count(copy); i++) {
		const fp_tensor_info *tensor = fp_checkpoint_tensor(copy, i);
		const fp_tensor_info *wanted = fp_checkpoint_find(source, tensor->name);
		assert_non_null(wanted);
		assert_string_equal(tensor->dtype_name, wanted->dtype_name);
		assert_int_equal(tensor->rank, wanted->rank);
		assert_memory_equal(tensor->shape, wanted->shape, sizeof tensor->shape);
		const void *wanted_bytes =
			changed && strcmp(changed, tensor->name) == 0 ? bytes : fp_checkpoint_data(source, wanted);
		if (tensor->bytes > 0)
			assert_memory_equal(fp_checkpoint_data(copy, tensor), wanted_bytes, (size_t)tensor->bytes);
	}
	fp_checkpoint_close(copy);
}

static void an_untouched_model_is_the_same_bytes(void **state)
{
	(void)state;
	fp_checkpoint *source = open_fixture("safetensors-single");
	write_all(source, out);
	assert_same_file("model.safetensors");
	assert_same_file("config.json");
	assert_same_file("tokenizer.json");
	assert_same_file("LICENSE");
	assert_same_file("additional_chat_templates/tool.jinja");
	assert_false(exists(out, "tf_model.h5"));
	assert_false(exists(out, "original"));
	assert_false(exists(out, ".gitattributes"));
	assert_int_equal(count_names(), 2);
	fp_checkpoint_close(source);
}

static void only_replaced_bytes_change(void **state)
{
	(void)state;
	fp_checkpoint *source = open_fixture("safetensors-single");
	fp_writer *writer;
	uint16_t bytes[15];
	memset(bytes, 0x3C, sizeof bytes);
	write_file(in, "pruning_report.json", "old", 3);
	assert_ok(ctx, fp_writer_open(&writer, ctx, source, out, NULL));
	assert_false(exists(folder, "out"));
	const fp_tensor_info *tensor = fp_checkpoint_find(source, "bf16");
	assert_int_equal(tensor->bytes, sizeof bytes);
	assert_ok(ctx, fp_writer_replace(writer, ctx, tensor, bytes));
	assert_ok(ctx, fp_writer_add_file(writer, "pruning_report.json", "{}", 2));
	assert_fails(ctx, FP_ERROR_USAGE, "not a plain file name", fp_writer_add_file(writer, "../x", "", 0));
	assert_fails(ctx, FP_ERROR_USAGE, "a weight file", fp_writer_add_file(writer, "model.safetensors", "", 0));
	assert_ok(ctx, fp_writer_commit(writer));
	fp_writer_close(writer);
	assert_same_tensors(source, 0, "bf16", bytes);
	char *report;
	int64_t size;
	snprintf(command, sizeof command, "%s/pruning_report.json", out);
	assert_ok(ctx, fp_read_file(&report, &size, ctx, command, 100));
	assert_string_equal(report, "{}");
	fp_free(report);
	/* the file differs from the source's only in these bytes */
	fp_mapping before, after;
	snprintf(command, sizeof command, "%s/model.safetensors", in);
	assert_ok(ctx, fp_map_file(&before, ctx, command));
	snprintf(command, sizeof command, "%s/model.safetensors", out);
	assert_ok(ctx, fp_map_file(&after, ctx, command));
	assert_int_equal(before.size, after.size);
	for (int64_t i = 0; i < before.size; i++)
		if (i < tensor->offset || i >= tensor->offset + tensor->bytes)
			assert_int_equal(before.bytes[i], after.bytes[i]);
	fp_unmap_file(&before);
	fp_unmap_file(&after);
	fp_checkpoint_close(source);
}

static void shards_keep_their_index_and_get_a_format(void **state)
{
	(void)state;
	fp_checkpoint *source = open_fixture("safetensors-sharded"); /* written without metadata */
	write_all(source, out);
	assert_same_file("model.safetensors.index.json");
	assert_same_tensors(source, 0, NULL, NULL);
	snprintf(command, sizeof command,
			 "grep -q '\"__metadata__\":{\"format\":\"pt\"}' '%s'/model-00002-of-00002.safetensors", out);
	shell(command);
	fp_checkpoint_close(source);
	/* the second time the bytes stay the same */
	snprintf(command, sizeof command, "mv '%s' '%s.first' && mv '%s' '%s'", in, in, out, in);
	shell(command);
	assert_ok(ctx, fp_checkpoint_open(&source, ctx, in));
	write_all(source, out);
	assert_same_file("model-00001-of-00002.safetensors");
	fp_checkpoint_close(source);
}

static void archives_come_out_as_safetensors(void **state)
{
	(void)state;
	fp_checkpoint *source = open_fixture("bin-single");
	write_all(source, out);
	assert_same_tensors(source, 0, NULL, NULL);
	assert_true(exists(out, "model.safetensors"));
	assert_false(exists(out, "pytorch_model.bin"));
	fp_checkpoint_close(source);
}

static void sharded_archives_get_a_new_index(void **state)
{
	(void)state;
	fp_checkpoint *source = open_fixture("bin-sharded");
	write_all(source, out);
	assert_same_tensors(source, 0, NULL, NULL);
	assert_true(exists(out, "model-00001-of-00002.safetensors"));
	assert_true(exists(out, "model.safetensors.index.json"));
	assert_false(exists(out, "pytorch_model.bin.index.json"));
	fp_checkpoint_close(source);
}

/* The head is left out if the config ties it, and written if not. */
static void tied_heads_follow_the_config(void **state)
{
	(void)state;
	fp_checkpoint *source = open_fixture("bin-tied");
	fp_writer *writer;
	assert_ok(ctx, fp_writer_open(&writer, ctx, source, out, NULL));
	assert_fails(ctx, FP_ERROR_USAGE, "'lm_head.weight' is tied",
				 fp_writer_replace(writer, ctx, fp_checkpoint_find(source, "lm_head.weight"), ""));
	assert_ok(ctx, fp_writer_commit(writer));
	fp_writer_close(writer);
	assert_same_tensors(source, 1, NULL, NULL);
	fp_checkpoint_close(source);
	snprintf(command, sizeof command,
			 "rm -r '%s' && echo '{\"model_type\": \"opt\", \"tie_word_embeddings\": false}' >'%s/config.json'", out,
			 in);
	shell(command);
	assert_ok(ctx, fp_checkpoint_open(&source, ctx, in));
	write_all(source, out);
	assert_same_tensors(source, 0, NULL, NULL);
	fp_checkpoint_close(source);
}

static void symlinks_are_followed(void **state)
{
	(void)state;
	fp_checkpoint *source = open_fixture("safetensors-single");
	fp_checkpoint_close(source);
	snprintf(command, sizeof command,
			 "cd '%s' && mkdir blobs && for f in in/*.json in/*.safetensors; do mv $f blobs/; "
			 "ln -s ../blobs/${f#in/} $f; done",
			 folder);
	shell(command);
	assert_ok(ctx, fp_checkpoint_open(&source, ctx, in));
	write_all(source, out);
	struct stat about;
	snprintf(command, sizeof command, "%s/model.safetensors", out);
	assert_int_equal(lstat(command, &about), 0);
	assert_true(S_ISREG(about.st_mode));
	snprintf(command, sizeof command, "%s/config.json", out);
	assert_int_equal(lstat(command, &about), 0);
	assert_true(S_ISREG(about.st_mode));
	fp_checkpoint_close(source);
}

static void bad_targets_are_refused(void **state)
{
	(void)state;
	fp_checkpoint *source = open_fixture("safetensors-single");
	fp_writer *writer;
	char path[9000];
	assert_fails(ctx, FP_ERROR_USAGE, "is the input", fp_writer_open(&writer, ctx, source, in, NULL));
	snprintf(path, sizeof path, "%s/../in/", in);
	assert_fails(ctx, FP_ERROR_USAGE, "is the input", fp_writer_open(&writer, ctx, source, path, NULL));
	snprintf(path, sizeof path, "%s/pruned", in);
	assert_fails(ctx, FP_ERROR_USAGE, "is inside the input", fp_writer_open(&writer, ctx, source, path, NULL));
	snprintf(path, sizeof path, "%s/no/pruned", folder);
	assert_fails(ctx, FP_ERROR_USAGE, "create it first", fp_writer_open(&writer, ctx, source, path, NULL));
	assert_fails(ctx, FP_ERROR_USAGE, "cannot be the output", fp_writer_open(&writer, ctx, source, "/", NULL));
	assert_int_equal(mkdir(out, 0777), 0);
	write_file(out, "precious", "x", 1);
	assert_fails(ctx, FP_ERROR_USAGE, "exists already", fp_writer_open(&writer, ctx, source, out, NULL));
	assert_null(writer);
	assert_true(exists(out, "precious"));
	snprintf(path, sizeof path, "%s/precious", out);
	assert_fails(ctx, FP_ERROR_USAGE, "exists already", fp_writer_open(&writer, ctx, source, path, NULL));
	unlink(path);
	snprintf(path, sizeof path, "%s///", out);
	write_all(source, path); /* an empty directory is fine */
	assert_same_file("model.safetensors");
	snprintf(path, sizeof path, "%s-2", in); /* a name that only starts like the input */
	write_all(source, path);
	fp_checkpoint_close(source);
}

static void without_a_commit_nothing_stays(void **state)
{
	(void)state;
	fp_checkpoint *source = open_fixture("safetensors-single");
	fp_writer *writer;
	assert_ok(ctx, fp_writer_open(&writer, ctx, source, out, NULL));
	assert_int_equal(count_names(), 2);
	fp_writer_close(writer);
	assert_int_equal(count_names(), 1);
	const volatile int stop = 1;
	assert_ok(ctx, fp_writer_open(&writer, ctx, source, out, NULL));
	fp_context_set_interrupt(ctx, &stop);
	assert_fails(ctx, FP_ERROR_INTERRUPTED, "interrupted", fp_writer_commit(writer));
	fp_context_set_interrupt(ctx, NULL);
	fp_writer_close(writer);
	assert_int_equal(count_names(), 1);
	fp_checkpoint_close(source);
}

/* A limit on the file size acts like a full disk, at each file in turn. */
static void a_full_disk_leaves_nothing(void **state)
{
	(void)state;
	fp_checkpoint *source = open_fixture("bin-sharded");
	struct rlimit before, small;
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	signal(SIGXFSZ, SIG_IGN);
	for (rlim_t limit = 0; limit < 2600; limit += 100) {
		fp_writer *writer = NULL;
		small = before;
		small.rlim_cur = limit;
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
		fp_status status = fp_writer_open(&writer, ctx, source, out, NULL);
		if (status == FP_OK)
			status = fp_writer_commit(writer);
		fp_writer_close(writer);
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
		if (status == FP_OK) {
			assert_true(limit > 500);
			assert_same_tensors(source, 0, NULL, NULL);
			break;
		}
		assert_int_equal(status, FP_ERROR_IO);
		assert_int_equal(count_names(), 1);
	}
	assert_true(exists(folder, "out"));
	fp_checkpoint_close(source);
}

static void no_memory_leaves_nothing(void **state)
{
	(void)state;
	fp_checkpoint *source = open_fixture("bin-sharded");
	for (int64_t n = 1;; n++) {
		fp_writer *writer = NULL;
		ctx->allocations = 0;
		ctx->fail_allocation_at = n;
		fp_status status = fp_writer_open(&writer, ctx, source, out, NULL);
		if (status == FP_OK)
			status = fp_writer_commit(writer);
		fp_writer_close(writer);
		if (status == FP_OK) {
			assert_true(n > 20);
			break;
		}
		assert_int_equal(status, FP_ERROR_MEMORY);
		assert_int_equal(count_names(), 1);
	}
	ctx->fail_allocation_at = 0;
	assert_same_tensors(source, 0, NULL, NULL);
	fp_checkpoint_close(source);
}

int main(void)
{
#define WRITER_TEST(test) cmocka_unit_test_setup_teardown(test, set_up, folder_tear_down)
	const struct CMUnitTest tests[] = {
		WRITER_TEST(an_untouched_model_is_the_same_bytes),
		WRITER_TEST(only_replaced_bytes_change),
		WRITER_TEST(shards_keep_their_index_and_get_a_format),
		WRITER_TEST(archives_come_out_as_safetensors),
		WRITER_TEST(sharded_archives_get_a_new_index),
		WRITER_TEST(tied_heads_follow_the_config),
		WRITER_TEST(symlinks_are_followed),
		WRITER_TEST(bad_targets_are_refused),
		WRITER_TEST(without_a_commit_nothing_stays),
		WRITER_TEST(a_full_disk_leaves_nothing),
		WRITER_TEST(no_memory_leaves_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
