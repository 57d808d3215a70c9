/* SPDX-License-Identifier: Apache-2.0 */
/* Whole numbers with scales, as compressed-tensors stores them: what readers see, and the messages for broken ones. */
#include "support.h"

#include "checkpoint/checkpoint_files.h"
#include "checkpoint/integer_tensors.h"
#include <stdio.h>

/* A file of tensors, all of whose bytes are 1, but for the shape, which says 3 x 16 if it is [2]. */
typedef struct stored {
	const char *name, *dtype, *shape;
	int bytes;
} stored;

#define PACKED                                                                                                         \
	{                                                                                                                  \
		"m.weight_packed", "I32", "[3,2]", 24                                                                          \
	}
#define SCALE                                                                                                          \
	{                                                                                                                  \
		"m.weight_scale", "F16", "[3,1]", 6                                                                            \
	}
#define SHAPE                                                                                                          \
	{                                                                                                                  \
		"m.weight_shape", "I64", "[2]", 16                                                                             \
	}
#define WEIGHTS(more) "{\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\"" more "}"
#define CONFIG(format, weights)                                                                                        \
	"{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"" format "\","                     \
	"\"config_groups\":{\"group_0\":{\"weights\":" weights "}}}}"
#define PACK CONFIG("pack-quantized", WEIGHTS(""))

static void write_model(const char *folder, const char *config, const stored *tensors)
{
	char header[2048] = "{";
	unsigned char data[1024];
	size_t end = 0;
	memset(data, 1, sizeof data);
	for (int i = 0; tensors[i].name; i++) {
		size_t at = strlen(header);
		const int64_t shape[2] = {3, 16};
		if (strcmp(tensors[i].name, "m.weight_shape") == 0 && strcmp(tensors[i].shape, "[2]") == 0)
			memcpy(data + end, shape, sizeof shape);
		snprintf(header + at, sizeof header - at, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
				 i ? "," : "", tensors[i].name, tensors[i].dtype, tensors[i].shape, end,
				 end + (size_t)tensors[i].bytes);
		end += (size_t)tensors[i].bytes;
	}
	strcat(header, "}");
	write_file(folder, "config.json", config, strlen(config));
	write_safetensors(folder, "model.safetensors", header, data, end);
}

static void broken_tensors_are_named(void **state)
{
	folder_fixture *f = *state;
	fp_checkpoint *checkpoint;
	static const struct {
		const char *message;
		stored tensors[6];
	} cases[] = {
		{"'m.weight_scale' is missing", {PACKED, SHAPE}},
		{"'m.weight_packed' needs its shape, 'm.weight_shape'", {PACKED, SCALE}},
		{"needs its shape", {PACKED, SCALE, {"m.weight_shape", "I64", "[3]", 24}}},
		{"says 72340172838076673 x 72340172838076673, but 'm.weight_packed' has 3 rows",
		 {PACKED, SCALE, {"m.weight_shape", "I64", "[1,2]", 16}}},
		{"has type F32; packed weights must be I32", {{"m.weight_packed", "F32", "[3,2]", 24}, SCALE, SHAPE}},
		{"has 1 dimensions", {{"m.weight_packed", "I32", "[6]", 24}, SCALE, SHAPE}},
		{"has 3 words in a row for 16 entries, which is none of config.json's num_bits",
		 {{"m.weight_packed", "I32", "[3,3]", 36}, SCALE, SHAPE}},
		{"'m.weight_scale' has type I8; scales must be", {PACKED, {"m.weight_scale", "I8", "[3,1]", 3}, SHAPE}},
		{"'m.weight_scale' of 9 entries does not fit the weight's 3 x 16",
		 {PACKED, {"m.weight_scale", "F16", "[3,3]", 18}, SHAPE}},
		{"'m.weight_scale' of 2 entries does not fit", {PACKED, {"m.weight_scale", "F16", "[2]", 4}, SHAPE}},
		{"'m.weight_zero_point' does not have the type and shape",
		 {PACKED, SCALE, SHAPE, {"m.weight_zero_point", "I8", "[3,1]", 3}}},
		{"'m.weight_zero_point' does not have the type and shape",
		 {PACKED, SCALE, SHAPE, {"m.weight_zero_point", "I32", "[3,1]", 12}}},
		{"groups in the order of activations are not supported",
		 {PACKED, SCALE, SHAPE, {"m.weight_g_idx", "I32", "[16]", 64}}},
		{"'m.weight_scale' is missing", {{"m.weight", "I8", "[3,5]", 15}}},
		{"'m.weight_zero_point' does not have the type and shape",
		 {{"m.weight", "I8", "[3,5]", 15}, SCALE, {"m.weight_zero_point", "I8", "[3,2]", 6}}},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		write_model(f->folder, PACK, cases[i].tensors);
		assert_fails(f->ctx, FP_ERROR_INPUT, cases[i].message, fp_checkpoint_open(&checkpoint, f->ctx, f->folder));
	}
}

static void readers_see_weights_only(void **state)
{
	folder_fixture *f = *state;
	const stored tensors[] = {PACKED,
							  SCALE,
							  SHAPE,
							  {"n.weight", "I8", "[2,5]", 10},
							  {"n.weight_scale", "F32", "[1]", 4},
							  {"m.input_scale", "F16", "[1]", 2},
							  {"v.weight_scale", "F16", "[2]", 4}, /* nobody's scale */
							  {NULL, NULL, NULL, 0}};
	fp_checkpoint *checkpoint;
	const void *bytes;
	void *own;
	write_model(f->folder, PACK, tensors);
	assert_ok(f->ctx, fp_checkpoint_open(&checkpoint, f->ctx, f->folder));
	assert_int_equal(fp_checkpoint_tensor_count(checkpoint), 3);
	const fp_tensor_info *m = fp_checkpoint_find(checkpoint, "m.weight"),
						 *n = fp_checkpoint_find(checkpoint, "n.weight");
	assert_non_null(fp_checkpoint_find(checkpoint, "v.weight_scale"));
	assert_string_equal(m->dtype_name, "F16");
	assert_string_equal(n->dtype_name, "F32");
	assert_int_equal(m->shape[1], 16);
	assert_non_null(strstr(fp_checkpoint_coding(checkpoint), "4-bit integers with a scale for each row"));
	assert_ok(f->ctx, fp_checkpoint_read(&bytes, &own, f->ctx, checkpoint, n));
	const float one = ((const float *)bytes)[0];
	uint32_t bits;
	memcpy(&bits, &one, sizeof bits);
	assert_int_equal(bits, 0x01010101); /* 1 times the scale */
	fp_free(own);
	fp_checkpoint_close(checkpoint);
}

static void bad_scales_are_refused(void **state)
{
	folder_fixture *f = *state;
	const stored tensors[] = {
		{"n.weight", "I8", "[2,5]", 10}, {"n.weight_scale", "BF16", "[2]", 4}, {NULL, NULL, NULL, 0}};
	fp_checkpoint *checkpoint;
	const void *bytes;
	void *own;
	char path[4200];
	const uint16_t infinity = 0x7F80;
	write_model(f->folder, CONFIG("int-quantized", "{\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\"}"),
				tensors);
	snprintf(path, sizeof path, "%s/model.safetensors", f->folder);
	FILE *file = fopen(path, "r+b");
	fseek(file, -2, SEEK_END);
	assert_int_equal(fwrite(&infinity, 2, 1, file), 1);
	fclose(file);
	assert_ok(f->ctx, fp_checkpoint_open(&checkpoint, f->ctx, f->folder));
	assert_fails(f->ctx, FP_ERROR_INPUT, "'n.weight_scale' contains NaN or infinity (entry 1)",
				 fp_checkpoint_read(&bytes, &own, f->ctx, checkpoint, fp_checkpoint_find(checkpoint, "n.weight")));
	fp_checkpoint_close(checkpoint);
}

/* Forms that are not read are listed as they are. */
static void other_forms_are_not_decoded(void **state)
{
	folder_fixture *f = *state;
	static const char *const configs[] = {
		CONFIG("pack-quantized", "{\"num_bits\":3,\"type\":\"int\",\"strategy\":\"group\"}"),
		CONFIG("pack-quantized", "{\"num_bits\":4,\"type\":\"float\",\"strategy\":\"group\"}"),
		CONFIG("nvfp4-pack-quantized", WEIGHTS("")),
		CONFIG("int-quantized", "{\"num_bits\":8,\"type\":\"int\",\"strategy\":\"block\"}"),
		CONFIG("pack-quantized", "null"),
	};
	const stored tensors[] = {PACKED, SCALE, SHAPE, {NULL, NULL, NULL, 0}};
	for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
		fp_checkpoint *checkpoint;
		write_model(f->folder, configs[i], tensors);
		assert_ok(f->ctx, fp_checkpoint_open(&checkpoint, f->ctx, f->folder));
		assert_int_equal(fp_checkpoint_tensor_count(checkpoint), 3);
		assert_fails(f->ctx, FP_ERROR_INPUT, "4-bit or 8-bit integers",
					 fp_checkpoint_check_weights(checkpoint, f->ctx));
		fp_checkpoint_close(checkpoint);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(broken_tensors_are_named, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(readers_see_weights_only, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(bad_scales_are_refused, folder_set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(other_forms_are_not_decoded, folder_set_up, folder_tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
