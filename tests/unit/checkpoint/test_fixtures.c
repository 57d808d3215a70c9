/* SPDX-License-Identifier: Apache-2.0 */
/* Files written by torch and safetensors: every tensor must have its exact bytes, every bad file gives its message. */
#include "support.h"

#include "base/file.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/torch_bin.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *load_expected(void)
{
	json_t *expected = json_load_file(source_path("tests/fixtures/checkpoint/expected.json"), 0, NULL);
	assert_non_null(expected);
	return expected;
}

static void fixture_path(char *out, size_t size, const char *name)
{
	snprintf(out, size, "%s/%s", source_path("tests/fixtures/checkpoint"), name);
}

static void check_tensor(const fp_checkpoint *checkpoint, const char *name, json_t *wanted)
{
	const fp_tensor_info *tensor = fp_checkpoint_find(checkpoint, name);
	if (!tensor)
		fail_msg("%s: tensor '%s' was not found", fp_checkpoint_directory(checkpoint), name);
	assert_string_equal(tensor->dtype_name, json_string_value(json_object_get(wanted, "dtype")));
	if (tensor->dtype != FP_OTHER_DTYPE)
		assert_string_equal(tensor->dtype_name, fp_dtype_name(tensor->dtype));
	const json_t *shape = json_object_get(wanted, "shape");
	assert_int_equal(tensor->rank, json_array_size(shape));
	for (int i = 0; i < tensor->rank; i++)
		assert_int_equal(tensor->shape[i], json_integer_value(json_array_get(shape, (size_t)i)));
	const char *hexadecimal = json_string_value(json_object_get(wanted, "bytes"));
	assert_int_equal(tensor->bytes * 2, strlen(hexadecimal));
	const unsigned char *bytes = fp_checkpoint_data(checkpoint, tensor);
	for (int64_t i = 0; i < tensor->bytes; i++) {
		char digits[3];
		snprintf(digits, sizeof digits, "%02x", bytes[i]);
		if (memcmp(digits, hexadecimal + 2 * i, 2) != 0)
			fail_msg("%s: byte %lld of '%s' is %s", fp_checkpoint_directory(checkpoint), (long long)i, name, digits);
	}
}

static void real_files_give_their_exact_bytes(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	json_t *expected = load_expected(), *model, *wanted;
	const char *folder, *name;
	char path[4200];
	int models = 0;
	json_object_foreach(json_object_get(expected, "good"), folder, model)
	{
		fp_checkpoint *checkpoint;
		fixture_path(path, sizeof path, folder);
		assert_ok(ctx, fp_checkpoint_open(&checkpoint, ctx, path));
		assert_int_equal(checkpoint->format->is_output, json_is_true(json_object_get(model, "safetensors")));
		json_t *tensors = json_object_get(model, "tensors");
		assert_int_equal(fp_checkpoint_tensor_count(checkpoint), json_object_size(tensors));
		json_object_foreach(tensors, name, wanted) check_tensor(checkpoint, name, wanted);
		fp_checkpoint_close(checkpoint);
		models++;
	}
	assert_int_equal(models, 8);
	json_decref(expected);
	fp_context_free(ctx);
}

static void bad_files_are_refused_by_name(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	json_t *expected = load_expected(), *message;
	const char *folder;
	char path[4200];
	int models = 0;
	json_object_foreach(json_object_get(expected, "bad"), folder, message)
	{
		fp_checkpoint *checkpoint;
		fixture_path(path, sizeof path, folder);
		assert_fails(ctx, FP_ERROR_INPUT, json_string_value(message), fp_checkpoint_open(&checkpoint, ctx, path));
		assert_non_null(strstr(fp_context_message(ctx), "pytorch_model.bin"));
		models++;
	}
	assert_true(models >= 15);
	json_decref(expected);
	fp_context_free(ctx);
}

/* The reader gets a copy of exactly the file's size, so that the sanitizer detects reading beyond it. */
static fp_status read_copy(fp_context *ctx, const unsigned char *bytes, int64_t size)
{
	unsigned char *copy = malloc((size_t)size + (size == 0));
	memcpy(copy, bytes, (size_t)size);
	fp_tensor_list list = {0};
	fp_status status = fp_torch_bin_read(&list, ctx, (fp_mapping){copy, size}, 0, "x.bin");
	for (int64_t i = 0; status == FP_OK && i < list.count; i++) {
		assert_true(list.items[i].offset >= 0 && list.items[i].bytes >= 0);
		assert_true(list.items[i].offset + list.items[i].bytes <= size);
	}
	fp_tensor_list_free(&list);
	free(copy);
	return status;
}

static void cut_and_changed_archives_do_no_harm(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	char path[4200];
	fp_mapping file;
	fixture_path(path, sizeof path, "bin-module/pytorch_model.bin");
	assert_ok(ctx, fp_map_file(&file, ctx, path));
	assert_int_equal(read_copy(ctx, file.bytes, file.size), FP_OK);
	for (int64_t size = 0; size < file.size; size++)
		assert_int_equal(read_copy(ctx, file.bytes, size), FP_ERROR_INPUT);
	unsigned char *changed = malloc((size_t)(file.size & INT32_MAX));
	memcpy(changed, file.bytes, (size_t)file.size);
	for (int64_t i = 0; i < file.size; i++) {
		for (int bit = 0; bit < 8; bit++) {
			changed[i] ^= (unsigned char)(1 << bit);
			fp_status status = read_copy(ctx, changed, file.size);
			assert_true(status == FP_OK || status == FP_ERROR_INPUT);
			changed[i] ^= (unsigned char)(1 << bit);
		}
	}
	free(changed);
	fp_unmap_file(&file);
	fp_context_free(ctx);
}

static void no_memory_is_an_error(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	char path[4200];
	fixture_path(path, sizeof path, "bin-single");
	for (int64_t n = 1;; n++) {
		fp_checkpoint *checkpoint;
		ctx->allocations = 0;
		ctx->fail_allocation_at = n;
		fp_status status = fp_checkpoint_open(&checkpoint, ctx, path);
		if (status == FP_OK) {
			assert_true(n > 50);
			fp_checkpoint_close(checkpoint);
			break;
		}
		assert_int_equal(status, FP_ERROR_MEMORY);
	}
	fp_context_free(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(real_files_give_their_exact_bytes),
		cmocka_unit_test(bad_files_are_refused_by_name),
		cmocka_unit_test(cut_and_changed_archives_do_no_harm),
		cmocka_unit_test(no_memory_is_an_error),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
