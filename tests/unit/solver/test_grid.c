/* SPDX-License-Identifier: Apache-2.0 */
/* An operator on its grid: weights are as near as they can be, zeros stay, a second time changes nothing. */
#include "support.h"

#include "solver/grid.h"
#include <math.h>

enum { ROWS = 7, MOST = 160 };

static void fill(float *v, int64_t cols, uint64_t seed)
{
	for (int64_t i = 0; i < ROWS * cols; i++)
		v[i] = random_uniform(&seed) < 0 || i / cols == 3 ? 0.0F : random_normal(&seed);
}

static void weights_are_rounded_to_the_nearest(void **state)
{
	fp_context *ctx = *state;
	static const int64_t widths[] = {128, 160, 50};
	fp_backend *be;
	const fp_grid_format *format;
	assert_ok(ctx, fp_backend_open(&be, ctx, "cpu", 2));
	for (int f = 0; (format = fp_grid_format_at(f)); f++)
		for (int w = 0; w < 3; w++) {
			const int64_t cols = widths[w];
			float before[ROWS * MOST], after[ROWS * MOST], again[ROWS * MOST], scales[ROWS * MOST];
			fp_matrix V;
			fp_grid grid;
			fill(before, cols, (uint64_t)(f + 1));
			assert_ok(ctx, fp_matrix_new(be, &V, ROWS, cols, FP_F32));
			assert_ok(ctx, be->memory->upload(be, V, before, FP_F32, cols));
			assert_ok(ctx, fp_grid_new(&grid, be, format, FP_BF16, ROWS, cols));
			assert_ok(ctx, fp_grid_fit(be, V, &grid));
			assert_int_equal(fp_matrix_is_absent(grid.zero), format->symmetric);
			assert_ok(ctx, be->grid->round(be, &grid, V, V));
			assert_ok(ctx, be->memory->download(be, after, FP_F32, cols, V));
			assert_ok(ctx, be->grid->round(be, &grid, V, V));
			assert_ok(ctx, be->memory->download(be, again, FP_F32, cols, V));
			assert_ok(ctx, be->memory->download(be, scales, FP_F32, grid.scale.cols, grid.scale));
			assert_memory_equal(after, again, (size_t)(ROWS * cols) * sizeof *after);
			const int64_t group = cols / grid.scale.cols;
			for (int64_t i = 0; i < ROWS * cols; i++) {
				float step = scales[i / cols * grid.scale.cols + i % cols / group], error = fabsf(after[i] - before[i]);
				if (before[i] == 0.0F)
					assert_true(after[i] == 0.0F && !signbit(after[i]));
				/* half a step (the largest may need a whole one), or half of E4M3's, and rounding to BF16 */
				float most = format->is_float ? fmaxf(fabsf(before[i]) / 16.0F, step / 1024.0F) : step;
				assert_true(error <= most + fabsf(before[i]) / 256.0F);
				if (!format->is_float && fabsf(before[i]) < 3.0F * step)
					assert_true(error <= 0.5F * step + fabsf(before[i]) / 128.0F);
			}
			fp_grid_free(be, &grid);
			fp_matrix_free(be, &V);
		}
	fp_backend_close(be);
}

/* The words of the setting are the formats of the table. */
static void the_setting_has_all_formats(void **state)
{
	(void)state;
	const fp_setting_info *info;
	const fp_grid_format *format;
	char words[256] = "none";
	for (int i = 0; (format = fp_grid_format_at(i)); i++) {
		strcat(words, "|");
		strcat(words, format->name);
	}
	for (size_t i = 0; (info = fp_setting_at(i)); i++)
		if (strcmp(info->name, "quantize") == 0)
			assert_string_equal(info->choices, words);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(weights_are_rounded_to_the_nearest, context_set_up, context_tear_down),
		cmocka_unit_test(the_setting_has_all_formats),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
