/* SPDX-License-Identifier: Apache-2.0 */
/* Opening model directories: which files are read, and the messages for broken ones. */
#include "support.h"

#include "checkpoint/checkpoint_files.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static fp_context *ctx;
static char *folder;

static int set_up(void **state)
{
	folder_set_up(state);
	ctx = ((folder_fixture *)*state)->ctx;
	folder = ((folder_fixture *)*state)->folder;
	return 0;
}

static void write_text(const char *name, const char *text)
{
	write_file(folder, name, text, strlen(text));
}

/* One F32 tensor of two elements. */
static void write_shard(const char *name, const char *tensor, float first, float second)
{
	unsigned char bytes[256] = {0};
	int length =
		snprintf((char *)bytes + 8, 200, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", tensor);
	bytes[0] = (unsigned char)length;
	const float values[2] = {first, second};
	memcpy(bytes + 8 + length, values, sizeof values);
	write_file(folder, name, bytes, 8 + (size_t)length + sizeof values);
}

static void refused(const char *model, const char *message)
{
	fp_checkpoint *checkpoint = (fp_checkpoint *)1;
	assert_fails(ctx, FP_ERROR_INPUT, message, fp_checkpoint_open(&checkpoint, ctx, model));
	assert_null(checkpoint);
}

static void one_file(void **state)
{
	(void)state;
	fp_checkpoint *checkpoint;
	write_text("config.json", "{\"model_type\": \"opt\"}");
	write_shard("model.safetensors", "weight", 1.5F, -2.0F);
	write_text("pytorch_model.bin", "not looked at"); /* safetensors has precedence */
	assert_ok(ctx, fp_checkpoint_open(&checkpoint, ctx, folder));
	assert_string_equal(checkpoint->format->name, "safetensors");
	assert_int_equal(fp_checkpoint_shard_count(checkpoint), 1);
	assert_string_equal(fp_checkpoint_shard_name(checkpoint, 0), "model.safetensors");
	assert_string_equal(json_string_value(json_object_get(fp_checkpoint_config(checkpoint), "model_type")), "opt");
	assert_int_equal(fp_checkpoint_tensor_count(checkpoint), 1);
	const fp_tensor_info *tensor = fp_checkpoint_find(checkpoint, "weight");
	assert_ptr_equal(tensor, fp_checkpoint_tensor(checkpoint, 0));
	assert_null(fp_checkpoint_find(checkpoint, "bias"));
	float values[2];
	memcpy(values, fp_checkpoint_data(checkpoint, tensor), sizeof values);
	assert_true(values[0] == 1.5F && values[1] == -2.0F);
	fp_checkpoint_forget(checkpoint, tensor);
	memcpy(values, fp_checkpoint_data(checkpoint, tensor), sizeof values);
	assert_true(values[0] == 1.5F && values[1] == -2.0F);
	fp_checkpoint_close(checkpoint);
	fp_checkpoint_close(NULL);
}

static void shards_with_an_index(void **state)
{
	(void)state;
	fp_checkpoint *checkpoint;
	write_text("config.json", "{}");
	write_shard("model-00001-of-00002.safetensors", "x", 1, 2);
	write_shard("model-00002-of-00002.safetensors", "a", 3, 4);
	write_text("model.safetensors.index.json", "{\"metadata\": {\"total_size\": 16}, \"weight_map\": {"
											   "\"a\": \"model-00002-of-00002.safetensors\","
											   "\"x\": \"model-00001-of-00002.safetensors\"}}");
	assert_ok(ctx, fp_checkpoint_open(&checkpoint, ctx, folder));
	assert_int_equal(fp_checkpoint_shard_count(checkpoint), 2);
	assert_string_equal(fp_checkpoint_shard_name(checkpoint, 1), "model-00002-of-00002.safetensors");
	assert_string_equal(fp_checkpoint_tensor(checkpoint, 0)->name, "x");
	float values[2];
	memcpy(values, fp_checkpoint_data(checkpoint, fp_checkpoint_find(checkpoint, "a")), sizeof values);
	assert_true(values[0] == 3 && values[1] == 4);
	fp_checkpoint_close(checkpoint);
}

static void broken_indexes_are_refused(void **state)
{
	(void)state;
	char secret[4096];
	write_text("config.json", "{}");
	write_shard("one.safetensors", "a", 1, 2);
	write_shard("two.safetensors", "a", 1, 2);
	const char *index = "model.safetensors.index.json";
	write_text(index, "{\"weight_map\": {\"a\": \"one.safetensors\", \"b\": \"two.safetensors\"}}");
	refused(folder, "tensor 'a' occurs twice, in one.safetensors and in two.safetensors");
	write_text(index, "{\"weight_map\": {\"a\": \"one.safetensors\", \"b\": \"one.safetensors\"}}");
	refused(folder, "tensor 'b' should be in one.safetensors, but is in no shard");
	write_shard("two.safetensors", "b", 1, 2);
	write_text(index, "{\"weight_map\": {\"a\": \"two.safetensors\", \"b\": \"one.safetensors\"}}");
	refused(folder, "should be in two.safetensors, but is in one.safetensors");
	write_text(index, "{\"weight_map\": {\"a\": \"three.safetensors\"}}");
	refused(folder, "three.safetensors: cannot be opened");
	write_text(index, "{\"weight_map\": {\"a\": \"one.safetensors\", \"a\": \"one.safetensors\"}}");
	refused(folder, "duplicate");
	write_text(index, "{\"weight_map\": {}}");
	refused(folder, "needs weight_map");
	write_text(index, "[]");
	refused(folder, "needs weight_map");
	write_text(index, "{\"weight_map\": {\"a\": 1}}");
	refused(folder, "must be the name of a file");
	write_text(index, "{\"weight_map\": {\"a\": \"../one.safetensors\"}}");
	refused(folder, "must be the name of a file");
	snprintf(secret, sizeof secret, "{\"weight_map\": {\"a\": \"%s/one.safetensors\"}}", folder);
	write_text(index, secret);
	refused(folder, "must be the name of a file");
	write_text(index, "{\"weight_map\": {\"a\": \"..\"}}");
	refused(folder, "must be the name of a file");
	write_text(index, "{");
	refused(folder, "model.safetensors.index.json: line 1");
}

static void what_is_not_a_model_is_told_so(void **state)
{
	(void)state;
	char path[4200];
	snprintf(path, sizeof path, "%s/missing", folder);
	refused(path, "no such directory");
	refused(folder, "has no config.json");
	write_text("config.json", "{\"a\": }");
	refused(folder, "config.json: line 1");
	write_text("config.json", "[1]");
	refused(folder, "is not a JSON object");
	write_text("config.json", "{}");
	refused(folder, "has no weights: none of model.safetensors, model.safetensors.index.json, "
					"model.packed.safetensors, model.packed.safetensors.index.json, pytorch_model.bin, "
					"pytorch_model.bin.index.json");
	snprintf(path, sizeof path, "%s/config.json", folder);
	refused(path, "is a file");
	write_text("model.safetensors", "");
	refused(folder, "8-byte header length");
}

static void an_unreadable_file_is_named(void **state)
{
	(void)state;
	char path[4200];
	const uid_t user = geteuid();
	write_text("config.json", "{}");
	write_shard("model.safetensors", "a", 1, 2);
	snprintf(path, sizeof path, "%s/model.safetensors", folder);
	assert_int_equal(chmod(path, 0), 0);
	assert_int_equal(chmod(folder, 0755), 0);
	if (user == 0) /* root can read everything, so run as nobody */
		assert_int_equal(seteuid(65534), 0);
	fp_checkpoint *checkpoint;
	fp_status status = fp_checkpoint_open(&checkpoint, ctx, folder);
	assert_int_equal(seteuid(user), 0);
	assert_fails(ctx, FP_ERROR_INPUT, "model.safetensors: cannot be opened: Permission denied", status);
}

static void a_pipe_does_not_hang(void **state)
{
	(void)state;
	char path[4200];
	write_text("config.json", "{}");
	write_text("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"pipe.safetensors\"}}");
	snprintf(path, sizeof path, "%s/pipe.safetensors", folder);
	assert_int_equal(mkfifo(path, 0600), 0);
	refused(folder, "is not a regular file");
}

/* Each allocation fails once: an error, no crash, no leak (the sanitizer build checks). */
static void no_memory_is_an_error(void **state)
{
	(void)state;
	fp_checkpoint *checkpoint;
	write_text("config.json", "{}");
	write_shard("one.safetensors", "a", 1, 2);
	write_shard("two.safetensors", "b", 1, 2);
	write_text("model.safetensors.index.json",
			   "{\"weight_map\": {\"a\": \"one.safetensors\", \"b\": \"two.safetensors\"}}");
	for (int64_t n = 1;; n++) {
		ctx->allocations = 0;
		ctx->fail_allocation_at = n;
		fp_status status = fp_checkpoint_open(&checkpoint, ctx, folder);
		if (status == FP_OK) {
			assert_true(n > 10);
			fp_checkpoint_close(checkpoint);
			break;
		}
		assert_int_equal(status, FP_ERROR_MEMORY);
	}
}

static void a_real_model_opens(void **state)
{
	(void)state;
	fp_checkpoint *checkpoint;
	assert_ok(ctx, fp_checkpoint_open(&checkpoint, ctx, need_shared_path("models/stories260K")));
	const fp_tensor_info *tensor = fp_checkpoint_find(checkpoint, "model.layers.0.self_attn.k_proj.weight");
	assert_non_null(tensor);
	assert_int_equal(tensor->shape[0], 32);
	assert_int_equal(tensor->shape[1], 64);
	assert_int_equal(tensor->dtype, FP_F32);
	fp_checkpoint_close(checkpoint);
}

int main(int argc, char **argv)
{
#define CHECKPOINT_TEST(test) cmocka_unit_test_setup_teardown(test, set_up, folder_tear_down)
	const struct CMUnitTest tests[] = {
		CHECKPOINT_TEST(one_file),
		CHECKPOINT_TEST(shards_with_an_index),
		CHECKPOINT_TEST(broken_indexes_are_refused),
		CHECKPOINT_TEST(what_is_not_a_model_is_told_so),
		CHECKPOINT_TEST(an_unreadable_file_is_named),
		CHECKPOINT_TEST(a_pipe_does_not_hang),
		CHECKPOINT_TEST(no_memory_is_an_error),
	};
	const struct CMUnitTest shared_model[] = {CHECKPOINT_TEST(a_real_model_opens)};
	TEST_PART(shared_model);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
