/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices that are written on a grid and read back: every format and type, groups without weights, a column of zeros,
 * scales that underflow, rows that no group divides; a run that is continued; shards; what must fail. */
#include "support.h"

#include "checkpoint/checkpoint_files.h"
#include "checkpoint/working_folder.h"
#include "checkpoint/writer.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 11, MOST_COLS = 256, SIZES = 4 };
static const int64_t widths[SIZES] = {256, 64, 96, 43};
static const fp_dtype types[] = {FP_F32, FP_F16, FP_BF16};

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

/* A matrix on a grid: the weights as floats and as bytes, and the grid. */
typedef struct gridded {
	float weights[ROWS * MOST_COLS], scales[ROWS * MOST_COLS], zeros[ROWS * MOST_COLS];
	char bytes[ROWS * MOST_COLS * 4];
	fp_grid_numbers numbers;
} gridded;

/* Random weights, half of them zero, with the hard cases in the first rows. */
static void fill(gridded *g, int64_t cols, const fp_grid_format *format, fp_dtype dtype, uint64_t seed)
{
	const int64_t group = fp_grid_group(format, cols);
	const float least = dtype == FP_F32 ? 0x1p-149F : dtype == FP_F16 ? 0x1p-24F : 0x1p-133F;
	for (int64_t i = 0; i < ROWS * cols; i++) {
		int64_t row = i / cols, col = i % cols;
		float x = random_uniform(&seed) < 0 ? 0.0F : random_normal(&seed) / 50.0F;
		if (row == 0 || col == 5) /* a row and a column of zeros, so that a group has none */
			x = 0.0F;
		else if (row == 1) /* a scale that underflows */
			x = x > 0 ? 2.0F * least : 0.0F;
		else if (row == 2) /* on one side */
			x = fabsf(x);
		g->weights[i] = x;
	}
	for (int64_t i = 0; i < ROWS * cols / group; i++) {
		float *v = g->weights + i * group;
		fp_grid_fit_group(format, dtype, v, group, &g->scales[i], &g->zeros[i]);
		for (int64_t j = 0; j < group; j++)
			v[j] =
				fp_grid_value(dtype, g->scales[i], g->zeros[i], fp_grid_code(format, g->scales[i], g->zeros[i], v[j]));
	}
	fp_from_float(g->bytes, dtype, g->weights, ROWS * cols);
	g->numbers = (fp_grid_numbers){g->scales, format->symmetric ? NULL : g->zeros};
}

/* a.weight … with ROWS rows, and a vector that stays; in two files if there are `shards`. */
static void write_source(fp_dtype dtype, bool shards)
{
	static char data[SIZES * ROWS * MOST_COLS * 4];
	const char *type = fp_dtype_name(dtype);
	char header[2][1024] = {"{", "{"}, index[1024] = "{\"weight_map\":{", name[64], config[128];
	size_t end[2] = {0, 0}, size = (size_t)fp_dtype_size(dtype);
	for (int i = 0; i < SIZES + 1; i++) {
		int file = shards && i >= 2;
		size_t bytes = size * (size_t)(i < SIZES ? ROWS * widths[i] : 3);
		char shape[64];
		snprintf(shape, sizeof shape, i < SIZES ? "[%d,%lld]" : "[3]", ROWS, (long long)widths[i % SIZES]);
		snprintf(name, sizeof name, i < SIZES ? "l.%d.m.weight" : "bias", i);
		snprintf(header[file] + strlen(header[file]), 1024 - strlen(header[file]),
				 "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}", end[file] ? "," : "", name,
				 type, shape, end[file], end[file] + bytes);
		snprintf(index + strlen(index), sizeof index - strlen(index), "%s\"%s\":\"%s.safetensors\"", i ? "," : "", name,
				 file ? "second" : "first");
		end[file] += bytes;
	}
	for (int file = 0; file < 2; file++)
		strcat(header[file], "}");
	strcat(index, "}}");
	snprintf(config, sizeof config, "{\"model_type\":\"x\",\"eps\":0.5,\"dtype\":\"%s\"}",
			 dtype == FP_F32 ? "float32" : "other");
	write_file(in, "config.json", config, strlen(config));
	write_safetensors(in, shards ? "first.safetensors" : "model.safetensors", header[0], data, end[0]);
	if (shards) {
		write_safetensors(in, "second.safetensors", header[1], data, end[1]);
		write_file(in, "model.safetensors.index.json", index, strlen(index));
	}
}

static const fp_tensor_info *matrix(const fp_checkpoint *source, int i)
{
	char name[64];
	snprintf(name, sizeof name, "l.%d.m.weight", i);
	return fp_checkpoint_find(source, name);
}

/* The change that quantises all matrices. */
typedef struct plan {
	bool chosen[16];
	json_t *config;
	fp_output_change change;
} plan;

static void make_plan(plan *p, const fp_checkpoint *source, const fp_grid_format *format)
{
	*p = (plan){0};
	for (int i = 0; i < SIZES; i++)
		p->chosen[matrix(source, i) - fp_checkpoint_tensor(source, 0)] = true;
	p->config = json_pack("{s:s, s:s, s:{s:{s:{s:i, s:s, s:s}}}}", "quant_method", "compressed-tensors", "format",
						  format->layout, "config_groups", "group_0", "weights", "num_bits", format->bits, "type",
						  format->is_float ? "float" : "int", "strategy", "group");
	p->change = (fp_output_change){.format = format, .quantised = p->chosen, .quantisation = p->config};
}

static void assert_read(const fp_checkpoint *checkpoint, int i, const gridded *g)
{
	const fp_tensor_info *tensor = matrix(checkpoint, i);
	const void *bytes;
	void *own;
	assert_non_null(tensor);
	assert_ok(ctx, fp_checkpoint_read(&bytes, &own, ctx, checkpoint, tensor));
	assert_memory_equal(bytes, g->bytes, (size_t)tensor->bytes);
	fp_free(own);
}

static void write_and_read(const fp_grid_format *format, fp_dtype dtype, bool shards)
{
	static gridded g[SIZES];
	static char bytes[ROWS * MOST_COLS * 4];
	fp_checkpoint *source, *copy;
	fp_writer *writer;
	bool begun;
	plan p;
	write_source(dtype, shards);
	assert_ok(ctx, fp_checkpoint_open(&source, ctx, in));
	make_plan(&p, source, format);
	assert_ok(ctx, fp_writer_open(&writer, ctx, source, out, &p.change));
	for (int i = 0; i < SIZES; i++) {
		fill(&g[i], widths[i], format, dtype, (uint64_t)(17 + i));
		assert_ok(ctx, fp_writer_quantise(writer, ctx, matrix(source, i), g[i].bytes, g[i].numbers));
	}
	assert_ok(ctx, fp_writer_sync(writer, ctx));
	write_file(fp_writer_folder(writer), FP_FINISHED_PREFIX "00000", "", 0);
	fp_writer_keep(writer);
	fp_writer_close(writer);
	/* a run that continues gets the weights back */
	assert_ok(ctx, fp_writer_resume(&writer, ctx, source, out, &p.change, &begun));
	assert_true(begun);
	for (int i = 0; i < SIZES; i++) {
		assert_ok(ctx, fp_writer_read(writer, ctx, matrix(source, i), bytes));
		assert_memory_equal(bytes, g[i].bytes, (size_t)matrix(source, i)->bytes);
		assert_ok(ctx, fp_writer_mark(writer, ctx, matrix(source, i)));
	}
	assert_ok(ctx, fp_writer_commit(writer));
	fp_writer_close(writer);
	assert_ok(ctx, fp_checkpoint_open(&copy, ctx, out));
	assert_int_equal(fp_checkpoint_tensor_count(copy), SIZES + 1);
	assert_int_equal(fp_checkpoint_shard_count(copy), shards ? 2 : 1);
	assert_non_null(fp_checkpoint_coding(copy));
	assert_null(json_object_get(fp_checkpoint_config(copy), "quantization_config"));
	assert_true(json_real_value(json_object_get(fp_checkpoint_config(copy), "eps")) == 0.5);
	for (int i = 0; i < SIZES; i++) {
		assert_int_equal(matrix(copy, i)->dtype, dtype);
		assert_read(copy, i, &g[i]);
	}
	fp_checkpoint_close(copy);
	fp_checkpoint_close(source);
	json_decref(p.config);
	snprintf(command, sizeof command, "rm -rf '%s' '%s'/*", out, in);
	assert_int_equal(system(command), 0);
}

static void every_format_and_type_comes_back(void **state)
{
	(void)state;
	const fp_grid_format *format;
	for (int f = 0; (format = fp_grid_format_at(f)); f++)
		for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
			for (int shards = 0; shards < 2; shards++)
				write_and_read(format, types[t], shards);
}

/* Where compressed-tensors looks for the codes of a row, and for zero points. */
static void codes_lie_where_loaders_look(void **state)
{
	(void)state;
	const fp_grid_format *format = fp_grid_format_named("int4-asym");
	const float scales[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, zeros[9] = {-8, -7, 0, 1, 2, 3, 4, 5, 7};
	const fp_tensor_info info = {.name = "m.weight",
								 .dtype = FP_F32,
								 .dtype_name = "F32",
								 .rank = 2,
								 .shape = {9, 10},
								 .elements = 90,
								 .bytes = 360};
	float weights[90], back[90];
	for (int i = 0; i < 90; i++)
		weights[i] = (float)(i % 10) - 5.0F - zeros[i / 10] > 0 ? (float)(i % 10) - 5.0F - zeros[i / 10] : 0.0F;
	fp_quantised_tensor tensor;
	uint32_t words[18], packed_zeros[2];
	float stored[9];
	int64_t shape[2];
	char *const parts[] = {(char *)words, (char *)stored, (char *)shape, (char *)packed_zeros};
	assert_ok(ctx, fp_quantised_tensor_new(&tensor, ctx, &info, format));
	assert_int_equal(tensor.count, 4);
	assert_string_equal(tensor.parts[0].name, "m.weight_packed");
	assert_string_equal(tensor.parts[1].name, "m.weight_scale");
	assert_string_equal(tensor.parts[2].name, "m.weight_shape");
	assert_string_equal(tensor.parts[3].name, "m.weight_zero_point");
	assert_int_equal(tensor.parts[0].bytes, sizeof words);
	assert_int_equal(tensor.parts[3].bytes, sizeof packed_zeros);
	assert_ok(ctx, fp_quantised_encode(parts, ctx, &tensor, weights, (fp_grid_numbers){scales, zeros}));
	assert_int_equal(shape[0], 9);
	assert_int_equal(shape[1], 10);
	/* row 0 has the zero point −8 and the codes −5 … 4, each 8 higher where it is stored */
	assert_int_equal(words[0], 0xA9876543U);
	assert_int_equal(words[1], 0x000000CBU); /* the rest of the word is 0 */
	assert_int_equal(packed_zeros[0], 0xDCBA9810U);
	assert_int_equal(packed_zeros[1], 0x0000000FU);
	assert_ok(ctx, fp_quantised_decode(back, ctx, &tensor, parts));
	assert_memory_equal(back, weights, sizeof back);
	fp_quantised_tensor_free(&tensor);
}

static void what_is_not_on_the_grid_is_refused(void **state)
{
	(void)state;
	static gridded g;
	const fp_grid_format *format = fp_grid_format_named("int4");
	fp_checkpoint *source;
	fp_writer *writer;
	plan p;
	write_source(FP_BF16, false);
	assert_ok(ctx, fp_checkpoint_open(&source, ctx, in));
	make_plan(&p, source, format);
	assert_ok(ctx, fp_writer_open(&writer, ctx, source, out, &p.change));
	fill(&g, widths[0], format, FP_BF16, 5);
	assert_fails(ctx, FP_ERROR_INTERNAL, "has no scales", fp_writer_replace(writer, ctx, matrix(source, 0), g.bytes));
	assert_fails(ctx, FP_ERROR_INTERNAL, "not one of those that are quantised",
				 fp_writer_quantise(writer, ctx, fp_checkpoint_find(source, "bias"), g.bytes, g.numbers));
	g.scales[2 * (3 * 256 / 128)] *= 1.5F;
	assert_fails(ctx, FP_ERROR_INTERNAL, "'l.0.m.weight': row 6 is not on its grid",
				 fp_writer_quantise(writer, ctx, matrix(source, 0), g.bytes, g.numbers));
	assert_fails(ctx, FP_ERROR_INTERNAL, "was to be quantised and has no bytes", fp_writer_commit(writer));
	fp_writer_close(writer);
	fp_checkpoint_close(source);
	json_decref(p.config);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(every_format_and_type_comes_back, set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(codes_lie_where_loaders_look, set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(what_is_not_on_the_grid_is_refused, set_up, folder_tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
