/* SPDX-License-Identifier: Apache-2.0 */
/* FP8 weights with scales: what readers see, what the writer writes, and the messages for broken ones. */
#include "support.h"

#include "checkpoint/checkpoint_files.h"
#include "checkpoint/working_folder.h"
#include "checkpoint/writer.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 5, COLS = 7 };

static fp_context *ctx;
static char *folder;
static char in[4200], out[4200], command[9000];

static int set_up(void **state)
{
	folder_set_up(state);
	ctx = ((folder_fixture *)*state)->ctx;
	folder = ((folder_fixture *)*state)->folder;
	snprintf(in, sizeof in, "%s/in", folder);
	snprintf(out, sizeof out, "%s/out", folder);
	snprintf(command, sizeof command, "mkdir '%s'", in);
	assert_int_equal(system(command), 0);
	return 0;
}

static void write_text(const char *name, const char *text)
{
	write_file(in, name, text, strlen(text));
}

static float scale_at(int64_t row, int64_t col, int64_t across)
{
	return 0.37F + 0.11F * (float)(row * across + col);
}

/* x: a matrix of ROWS × COLS in `dtype` whose bytes count up, with F32 scales of the shape; y: two floats that stay. */
static void write_model(const char *config, const char *dtype, const char *scale_name, int64_t down, int64_t across,
						const char *shape)
{
	char header[1024];
	int64_t scales = down * across;
	unsigned char data[ROWS * COLS + 256] = {0};
	for (int i = 0; i < ROWS * COLS; i++)
		data[i] = (unsigned char)(3 + 7 * i);
	for (int64_t i = 0; i < scales; i++) {
		float scale = scale_at(i / across, i % across, across);
		memcpy(data + ROWS * COLS + 4 * i, &scale, sizeof scale);
	}
	const float kept[2] = {1.5F, -0.0F};
	memcpy(data + ROWS * COLS + 4 * scales, kept, sizeof kept);
	int end = ROWS * COLS + 4 * (int)scales;
	snprintf(header, sizeof header,
			 "{\"x.weight\":{\"dtype\":\"%s\",\"shape\":[%d,%d],\"data_offsets\":[0,%d]},"
			 "\"%s\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[%d,%d]},"
			 "\"y\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[%d,%d]}}",
			 dtype, ROWS, COLS, ROWS * COLS, scale_name, shape, ROWS * COLS, end, end, end + 8);
	write_text("config.json", config);
	write_safetensors(in, "model.safetensors", header, data, (size_t)end + 8);
}

/* The value of an FP8 byte by the definition of the format. */
static double meaning(unsigned char byte, int exponent_bits, int mantissa_bits)
{
	int exponent = (byte & 0x7F) >> mantissa_bits, mantissa = byte & ((1 << mantissa_bits) - 1);
	int bias = (1 << (exponent_bits - 1)) - 1;
	double value = exponent ? ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)
							: ldexp(mantissa, 1 - bias - mantissa_bits);
	return byte & 0x80 ? -value : value;
}

static float float_of_bf16(uint16_t bits)
{
	float value;
	uint32_t wide = (uint32_t)bits << 16;
	memcpy(&value, &wide, sizeof value);
	return value;
}

/* x.weight of the checkpoint in `in`, blocks of `down` × `across` entries sharing a scale. */
static void assert_decoded(int exponent_bits, int mantissa_bits, int64_t block_rows, int64_t block_cols)
{
	fp_checkpoint *checkpoint;
	const void *bytes;
	void *own;
	int64_t across = (COLS + block_cols - 1) / block_cols;
	assert_ok(ctx, fp_checkpoint_open(&checkpoint, ctx, in));
	assert_int_equal(fp_checkpoint_tensor_count(checkpoint), 2); /* no scales */
	const fp_tensor_info *tensor = fp_checkpoint_find(checkpoint, "x.weight");
	assert_non_null(tensor);
	assert_int_equal(tensor->dtype, FP_BF16);
	assert_string_equal(tensor->dtype_name, "BF16");
	assert_int_equal(tensor->bytes, 2 * ROWS * COLS);
	assert_null(fp_checkpoint_data(checkpoint, tensor));
	assert_null(json_object_get(fp_checkpoint_config(checkpoint), "quantization_config"));
	assert_non_null(strstr(fp_checkpoint_coding(checkpoint), "read and written as BF16"));
	assert_ok(ctx, fp_checkpoint_read(&bytes, &own, ctx, checkpoint, tensor));
	assert_non_null(own);
	for (int64_t i = 0; i < ROWS * COLS; i++) {
		unsigned char byte = (unsigned char)(3 + 7 * i);
		double scale = (double)scale_at(i / COLS / block_rows, i % COLS / block_cols, across);
		double wanted = meaning(byte, exponent_bits, mantissa_bits) * scale;
		uint16_t bits;
		memcpy(&bits, (const char *)bytes + 2 * i, sizeof bits);
		if (mantissa_bits == 3 ? (byte & 0x7F) == 0x7F : (byte & 0x7F) > 0x7C)
			assert_true(isnan(float_of_bf16(bits)));
		else if (mantissa_bits == 2 && (byte & 0x7F) == 0x7C)
			assert_true(isinf(float_of_bf16(bits)));
		else
			assert_true(fabs((double)float_of_bf16(bits) - wanted) <= fabs(wanted) * 0x1p-8);
	}
	fp_free(own);
	fp_checkpoint_forget(checkpoint, tensor);
	tensor = fp_checkpoint_find(checkpoint, "y");
	assert_ok(ctx, fp_checkpoint_read(&bytes, &own, ctx, checkpoint, tensor));
	assert_null(own);
	assert_ptr_equal(bytes, fp_checkpoint_data(checkpoint, tensor));
	fp_checkpoint_close(checkpoint);
}

#define FP8(rest) "{\"quantization_config\": {\"quant_method\": \"fp8\"" rest "}}"
#define BLOCKS ", \"fmt\": \"e4m3\", \"weight_block_size\": [2, 3]"
#define GROUP(rest)                                                                                                    \
	"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"float-quantized\", "           \
	"\"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 8, \"type\": \"float\"" rest "}}}}}"

static void readers_see_bf16(void **state)
{
	(void)state;
	write_model(FP8(BLOCKS), "F8_E4M3", "x.weight_scale_inv", 3, 3, "[3,3]");
	assert_decoded(4, 3, 2, 3);
	write_model(FP8(", \"fmt\": \"e5m2\", \"weight_block_size\": null"), "F8_E5M2", "x.weight_scale_inv", 1, 1, "[]");
	assert_decoded(5, 2, ROWS, COLS);
	write_model(FP8(""), "F8_E4M3", "x.weight_scale", 1, 1, "[1]");
	assert_decoded(4, 3, ROWS, COLS);
	write_model(GROUP(", \"strategy\": \"channel\""), "F8_E4M3", "x.weight_scale", ROWS, 1, "[5,1]");
	assert_decoded(4, 3, 1, COLS);
	write_model(GROUP(", \"strategy\": \"tensor\""), "F8_E4M3", "x.weight_scale", 1, 1, "[1]");
	assert_decoded(4, 3, ROWS, COLS);
	write_model(GROUP(", \"strategy\": \"block\", \"block_structure\": [4, 4]"), "F8_E4M3", "x.weight_scale", 2, 2,
				"[2,2]");
	assert_decoded(4, 3, 4, 4);
}

static void refused(const char *message)
{
	fp_checkpoint *checkpoint;
	assert_fails(ctx, FP_ERROR_INPUT, message, fp_checkpoint_open(&checkpoint, ctx, in));
}

static void broken_ones_are_refused(void **state)
{
	(void)state;
	write_model(FP8(BLOCKS), "F8_E4M3", "x.scale", 3, 3, "[3,3]");
	refused("tensor 'x.weight' is F8_E4M3, but its scale 'x.weight_scale_inv' is missing");
	write_model(FP8(BLOCKS), "F8_E4M3", "x.weight_scale_inv", 2, 3, "[2,3]");
	refused(
		"tensor 'x.weight_scale_inv' of 6 entries does not fit the weight's 5 x 7: shape [3, 3] for blocks of 2 x 3");
	write_model(FP8(BLOCKS), "F8_E4M3", "x.weight_scale_inv", 1, 9, "[9]");
	refused("tensor 'x.weight_scale_inv' of 9 entries does not fit");
	write_model(FP8(""), "F8_E4M3", "x.weight_scale_inv", 3, 3, "[3,3]");
	refused("one entry is needed");
	write_model(GROUP(""), "F8_E4M3", "x.weight_scale", 3, 3, "[3,3]");
	refused("shape [5, 1] or one entry is needed");
	write_model(FP8(BLOCKS), "I8", "x.weight_scale_inv", 3, 3, "[3,3]");
	refused("tensor 'x.weight' has a scale, 'x.weight_scale_inv', but type I8");
	write_model(FP8(", \"weight_block_size\": [0, 128]"), "F8_E4M3", "x.weight_scale_inv", 3, 3, "[3,3]");
	refused("'quantization_config.weight_block_size' must be two whole numbers above 0");
	write_model(FP8(", \"weight_block_size\": 128"), "F8_E4M3", "x.weight_scale_inv", 3, 3, "[3,3]");
	refused("such as [128, 128]");
	write_model(FP8(", \"fmt\": \"e3m4\""), "F8_E4M3", "x.weight_scale_inv", 3, 3, "[3,3]");
	refused("'quantization_config.fmt' is 'e3m4'");
	write_model("{\"quantization_config\": 8}", "F8_E4M3", "x.weight_scale_inv", 3, 3, "[3,3]");
	refused("'quantization_config' must be an object");
}

static void a_scale_that_is_not_finite_is_named(void **state)
{
	(void)state;
	fp_checkpoint *checkpoint;
	const void *bytes;
	void *own;
	unsigned char data[4 + 4] = {0x38, 0x38, 0x38, 0x38};
	const float nan = NAN;
	memcpy(data + 4, &nan, sizeof nan);
	write_text("config.json", FP8(""));
	write_safetensors(in, "model.safetensors",
					  "{\"a.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[2,2],\"data_offsets\":[0,4]},"
					  "\"a.weight_scale_inv\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,8]}}",
					  data, sizeof data);
	assert_ok(ctx, fp_checkpoint_open(&checkpoint, ctx, in));
	assert_fails(ctx, FP_ERROR_INPUT, "tensor 'a.weight_scale_inv' contains NaN or infinity",
				 fp_checkpoint_read(&bytes, &own, ctx, checkpoint, fp_checkpoint_find(checkpoint, "a.weight")));
	assert_null(own);
	fp_checkpoint_close(checkpoint);
}

static void a_matrix_without_columns_has_any_number_of_rows(void **state)
{
	(void)state;
	fp_checkpoint *checkpoint;
	const void *bytes;
	void *own;
	write_text("config.json", FP8(", \"weight_block_size\": [1, 1]"));
	write_safetensors(in, "model.safetensors",
					  "{\"a.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[4000000000000,0],\"data_offsets\":[0,0]},"
					  "\"a.weight_scale\":{\"dtype\":\"F32\",\"shape\":[4000000000000,0],\"data_offsets\":[0,0]}}",
					  "", 0);
	assert_ok(ctx, fp_checkpoint_open(&checkpoint, ctx, in));
	assert_ok(ctx, fp_checkpoint_read(&bytes, &own, ctx, checkpoint, fp_checkpoint_find(checkpoint, "a.weight")));
	fp_free(own);
	fp_checkpoint_close(checkpoint);
}

static void other_methods_can_be_listed_only(void **state)
{
	(void)state;
	static const struct {
		const char *config, *message;
	} cases[] = {
		{"{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4}}", "quantised by 'gptq', which is not"},
		{"{\"quantization_config\": {\"load_in_8bit\": true}}", "'an unnamed method'"},
		{"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\"}}",
		 "'compressed-tensors' with format pack-quantized"},
		{GROUP(", \"symmetric\": false"), "float-quantized"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		fp_checkpoint *checkpoint;
		write_model(cases[i].config, "F8_E4M3", "x.weight_scale_inv", 3, 3, "[3,3]");
		assert_ok(ctx, fp_checkpoint_open(&checkpoint, ctx, in));
		assert_int_equal(fp_checkpoint_tensor_count(checkpoint), 3);
		assert_null(fp_checkpoint_coding(checkpoint));
		assert_fails(ctx, FP_ERROR_INPUT, cases[i].message, fp_checkpoint_check_weights(checkpoint, ctx));
		assert_fails(ctx, FP_ERROR_INPUT, "supported are fp8", fp_checkpoint_check_weights(checkpoint, ctx));
		fp_checkpoint_close(checkpoint);
	}
	fp_checkpoint *plain;
	write_model("{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"dense\"}}", "U8",
				"s", 3, 3, "[3,3]");
	assert_ok(ctx, fp_checkpoint_open(&plain, ctx, in));
	assert_ok(ctx, fp_checkpoint_check_weights(plain, ctx));
	fp_checkpoint_close(plain);
}

/* Every tensor of the copy is what readers of the source see. */
static void assert_written(const fp_checkpoint *source, const char *changed, const void *changed_bytes)
{
	fp_checkpoint *copy;
	assert_ok(ctx, fp_checkpoint_open(&copy, ctx, out));
	assert_int_equal(fp_checkpoint_tensor_count(copy), fp_checkpoint_tensor_count(source));
	assert_null(fp_checkpoint_coding(copy));
	assert_null(json_object_get(fp_checkpoint_config(copy), "quantization_config"));
	assert_true(json_equal(fp_checkpoint_config(copy), fp_checkpoint_config(source)));
	for (int64_t i = 0; i < fp_checkpoint_tensor_count(source); i++) {
		const fp_tensor_info *wanted = fp_checkpoint_tensor(source, i);
		const fp_tensor_info *tensor = fp_checkpoint_find(copy, wanted->name);
		const void *bytes;
		void *own;
		assert_non_null(tensor);
		assert_int_equal(tensor->dtype, wanted->dtype);
		assert_int_equal(tensor->bytes, wanted->bytes);
		assert_ok(ctx, fp_checkpoint_read(&bytes, &own, ctx, source, wanted));
		bool is_changed = changed && strcmp(changed, wanted->name) == 0;
		assert_memory_equal(fp_checkpoint_data(copy, tensor), is_changed ? changed_bytes : bytes,
							(size_t)tensor->bytes);
		fp_free(own);
	}
	fp_checkpoint_close(copy);
}

static void the_writer_decodes(void **state)
{
	(void)state;
	fp_checkpoint *source;
	fp_writer *writer;
	char bytes[2 * ROWS * COLS];
	bool begun;
	memset(bytes, 0x3C, sizeof bytes);
	write_model(FP8(BLOCKS), "F8_E4M3", "x.weight_scale_inv", 3, 3, "[3,3]");
	assert_ok(ctx, fp_checkpoint_open(&source, ctx, in));
	assert_ok(ctx, fp_writer_open(&writer, ctx, source, out, NULL));
	assert_ok(ctx, fp_writer_commit(writer));
	fp_writer_close(writer);
	assert_written(source, NULL, NULL);
	snprintf(command, sizeof command, "rm -r '%s'", out);
	assert_int_equal(system(command), 0);

	/* a replaced tensor, in a run that is continued */
	assert_ok(ctx, fp_writer_open(&writer, ctx, source, out, NULL));
	assert_ok(ctx, fp_writer_replace(writer, ctx, fp_checkpoint_find(source, "x.weight"), bytes));
	assert_ok(ctx, fp_writer_sync(writer, ctx));
	write_file(fp_writer_folder(writer), FP_FINISHED_PREFIX "00000", "", 0);
	fp_writer_keep(writer);
	fp_writer_close(writer);
	assert_ok(ctx, fp_writer_resume(&writer, ctx, source, out, NULL, &begun));
	assert_true(begun);
	char read[sizeof bytes];
	assert_ok(ctx, fp_writer_read(writer, ctx, fp_checkpoint_find(source, "x.weight"), read));
	assert_memory_equal(read, bytes, sizeof bytes);
	assert_ok(ctx, fp_writer_mark(writer, ctx, fp_checkpoint_find(source, "x.weight")));
	assert_ok(ctx, fp_writer_commit(writer));
	fp_writer_close(writer);
	assert_written(source, "x.weight", bytes);
	fp_checkpoint_close(source);
}

/* Decoded shards are split where they would be larger than the largest before. */
static void shards_stay_small(void **state)
{
	(void)state;
	fp_checkpoint *source, *copy;
	fp_writer *writer;
	int64_t largest = 0;
	assert_ok(ctx, fp_checkpoint_open(&source, ctx, source_path("tests/fixtures/model/qwen3-fp8-ragged")));
	assert_int_equal(fp_checkpoint_shard_count(source), 3);
	for (int i = 0; i < 3; i++)
		largest = source->files[i].size > largest ? source->files[i].size : largest;
	assert_ok(ctx, fp_writer_open(&writer, ctx, source, out, NULL));
	assert_ok(ctx, fp_writer_commit(writer));
	fp_writer_close(writer);
	assert_written(source, NULL, NULL);
	assert_ok(ctx, fp_checkpoint_open(&copy, ctx, out));
	int count = fp_checkpoint_shard_count(copy);
	assert_true(count > 3);
	char name[64];
	for (int i = 0; i < count; i++) {
		snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", i + 1, count);
		assert_string_equal(fp_checkpoint_shard_name(copy, i), name);
		int64_t bytes = 0;
		for (int64_t j = 0; j < fp_checkpoint_tensor_count(copy); j++)
			bytes += fp_checkpoint_tensor(copy, j)->shard == i ? fp_checkpoint_tensor(copy, j)->bytes : 0;
		assert_true(bytes > 0 && bytes <= largest);
	}
	fp_checkpoint_close(copy);
	fp_checkpoint_close(source);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(readers_see_bf16, set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(broken_ones_are_refused, set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(a_scale_that_is_not_finite_is_named, set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(a_matrix_without_columns_has_any_number_of_rows, set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(other_methods_can_be_listed_only, set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(the_writer_decodes, set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(shards_stay_small, set_up, folder_tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
