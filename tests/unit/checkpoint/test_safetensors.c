/* SPDX-License-Identifier: Apache-2.0 */
/* Damaged safetensors files, and files that must be accepted. */
#include "support.h"

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A file in memory: length, header, data_size bytes 0, 1, 2 … The caller frees it. */
static fp_mapping make_file(const char *header, int64_t data_size)
{
	int64_t length = (int64_t)strlen(header), size = 8 + length + data_size;
	unsigned char *bytes = malloc((size_t)size);
	for (int i = 0; i < 8; i++)
		bytes[i] = (unsigned char)((uint64_t)length >> (8 * i));
	memcpy(bytes + 8, header, (size_t)length);
	for (int64_t i = 0; i < data_size; i++)
		bytes[8 + length + i] = (unsigned char)i;
	return (fp_mapping){bytes, size};
}

static void refused(const char *header, int64_t data_size, const char *message)
{
	fp_context *ctx = fp_context_new();
	fp_mapping file = make_file(header, data_size);
	fp_tensor_list list = {0};
	assert_fails(ctx, FP_ERROR_INPUT, message, fp_safetensors_read(&list, ctx, file, 0, "x.safetensors"));
	assert_fails(ctx, FP_ERROR_INPUT, "x.safetensors", fp_safetensors_read(&list, ctx, file, 0, "x.safetensors"));
	fp_tensor_list_free(&list);
	free((void *)(uintptr_t)file.bytes);
	fp_context_free(ctx);
}

static void accepted(const char *header, int64_t data_size, int64_t tensors)
{
	fp_context *ctx = fp_context_new();
	fp_mapping file = make_file(header, data_size);
	fp_tensor_list list = {0};
	assert_ok(ctx, fp_safetensors_read(&list, ctx, file, 0, "x.safetensors"));
	assert_int_equal(list.count, tensors);
	fp_tensor_list_free(&list);
	free((void *)(uintptr_t)file.bytes);
	fp_context_free(ctx);
}

static void valid_files_are_accepted(void **state)
{
	(void)state;
	accepted("{}", 0, 0);
	accepted("{}   ", 0, 0);
	accepted("{\"__metadata__\":{\"format\":\"pt\"}}", 0, 0);
	accepted("{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, 1);
	accepted("{\"a\":{\"dtype\":\"F16\",\"shape\":[2,0],\"data_offsets\":[0,0]}}", 0, 1);
	/* one byte before it: the second tensor is not aligned */
	accepted("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
			 "\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[1,7]}}",
			 7, 2);
	/* the header may be in another order than the bytes; an empty tensor may be between two others */
	accepted("{\"b\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[2,4]},"
			 "\"e\":{\"dtype\":\"F16\",\"shape\":[0],\"data_offsets\":[2,2]},"
			 "\"a\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]}}",
			 4, 3);
	accepted("{\"a\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, 1);
	accepted("{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]}}", 3, 1);
}

static void tensors_come_in_the_order_of_their_bytes(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	fp_tensor_list list = {0};
	const char *header = "{\"b\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[8,12]},"
						 "\"a\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]},"
						 "\"c\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[12,13]}}";
	fp_mapping file = make_file(header, 13);
	assert_ok(ctx, fp_safetensors_read(&list, ctx, file, 3, "x"));
	assert_string_equal(list.items[0].name, "a");
	assert_string_equal(list.items[1].name, "b");
	assert_int_equal(list.items[0].dtype, FP_I64);
	assert_int_equal(list.items[1].dtype, FP_BF16);
	assert_int_equal(list.items[1].rank, 2);
	assert_int_equal(list.items[1].shape[1], 2);
	assert_int_equal(list.items[1].elements, 2);
	assert_int_equal(list.items[1].bytes, 4);
	assert_int_equal(list.items[1].shard, 3);
	assert_int_equal(list.items[1].offset, 8 + (int64_t)strlen(header) + 8);
	assert_int_equal(list.items[2].dtype, FP_F8_E4M3);
	assert_string_equal(list.items[2].dtype_name, "F8_E4M3");
	fp_tensor_list_free(&list);
	free((void *)(uintptr_t)file.bytes);
	fp_context_free(ctx);
}

static void damaged_headers_are_refused(void **state)
{
	(void)state;
	refused("", 0, "does not start with '{'");
	refused("[]", 0, "does not start with '{'");
	refused(" {}", 0, "does not start with '{'");
	refused("{", 0, "not valid");
	refused("{\"a\":1}", 0, "needs dtype");
	refused("{} x", 0, "not valid");
	refused("{\"\xFF\":1}", 0, "not valid");
	refused("{\"__metadata__\":1}", 0, "__metadata__ is not an object");
	refused("{\"__metadata__\":{\"a\":1}}", 0, "'a' is not a string");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
			"\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
			8, "duplicate");
	refused("{\"a\":{\"dtype\":\"Q4\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown dtype 'Q4'");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "shape must be a list");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "at most 8");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "not a whole number >= 0");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "not a whole number >= 0");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "two data_offsets");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "in order");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "in order");
}

static void sizes_that_do_not_fit_are_refused(void **state)
{
	(void)state;
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "give 4 bytes, dtype and shape 8");
	refused("{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2,
			"does not give a valid number of bytes");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
			"does not give a valid number of bytes");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0,
			"does not give a valid number of bytes");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,0]}}", 0, "not valid");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "truncated");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, "1 bytes at its end");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
			"\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
			8, "'b' overlaps 'a'");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
			"\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}",
			12, "4 bytes before tensor 'b' belong to no tensor");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[9223372036854775803,9223372036854775807]}}", 4,
			"belong to no tensor");
}

static void header_lengths_are_checked_first(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	fp_tensor_list list = {0};
	unsigned char bytes[16] = {0};
	assert_fails(ctx, FP_ERROR_INPUT, "8-byte header length",
				 fp_safetensors_read(&list, ctx, (fp_mapping){bytes, 7}, 0, "x"));
	assert_fails(ctx, FP_ERROR_INPUT, "8-byte header length", fp_safetensors_read(&list, ctx, (fp_mapping){0}, 0, "x"));
	const uint64_t ten_gigabytes = 10000000000ULL;
	memcpy(bytes, &ten_gigabytes, 8);
	assert_fails(ctx, FP_ERROR_INPUT, "claims a header of 10000000000 bytes",
				 fp_safetensors_read(&list, ctx, (fp_mapping){bytes, 16}, 0, "x"));
	memset(bytes, 0xFF, 8);
	assert_fails(ctx, FP_ERROR_INPUT, "claims a header",
				 fp_safetensors_read(&list, ctx, (fp_mapping){bytes, 16}, 0, "x"));
	const uint64_t too_long = 9;
	memcpy(bytes, &too_long, 8);
	assert_fails(ctx, FP_ERROR_INPUT, "truncated", fp_safetensors_read(&list, ctx, (fp_mapping){bytes, 16}, 0, "x"));
	fp_tensor_list_free(&list);
	fp_context_free(ctx);
}

/* A file truncated anywhere gives an error. */
static void every_truncation_is_noticed(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	fp_mapping file = make_file("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
								"\"b\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[8,10]}}",
								10);
	for (int64_t size = 0; size < file.size; size++) {
		unsigned char *part = malloc((size_t)size + 1); /* so that a sanitizer detects reading beyond it */
		memcpy(part, file.bytes, (size_t)size);
		fp_tensor_list list = {0};
		assert_int_equal(fp_safetensors_read(&list, ctx, (fp_mapping){part, size}, 0, "x"), FP_ERROR_INPUT);
		fp_tensor_list_free(&list);
		free(part);
	}
	free((void *)(uintptr_t)file.bytes);
	fp_context_free(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(valid_files_are_accepted),         cmocka_unit_test(tensors_come_in_the_order_of_their_bytes),
		cmocka_unit_test(damaged_headers_are_refused),      cmocka_unit_test(sizes_that_do_not_fit_are_refused),
		cmocka_unit_test(header_lengths_are_checked_first), cmocka_unit_test(every_truncation_is_noticed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
