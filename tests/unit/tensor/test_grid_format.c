/* SPDX-License-Identifier: Apache-2.0 */
/* Grids of quantised weights: E4M3 against its definition, codes that come back from their values in every type, and the
 * scales of groups that are empty, tiny or one-sided. */
#include "support.h"

#include "tensor/grid_format.h"
#include <math.h>

static const fp_dtype types[] = {FP_F32, FP_F16, FP_BF16};
enum { TYPES = 3, BYTES = 256, GROUP = 32 };

static void e4m3_bytes_come_back(void **state)
{
	(void)state;
	for (int i = 0; i < BYTES; i++) {
		uint8_t byte = (uint8_t)i;
		float value;
		fp_to_float(&value, &byte, FP_F8_E4M3, 1);
		if (isnan(value))
			continue;
		assert_int_equal(fp_grid_e4m3(value), byte);
	}
}

/* No value of E4M3 is nearer. */
static void e4m3_rounds_to_the_nearest(void **state)
{
	(void)state;
	const fp_grid_format *format = fp_grid_format_named("fp8");
	uint64_t seed = 7;
	for (int i = 0; i < 20000; i++) {
		float x = ldexpf(random_uniform(&seed), (int)(12.0F * random_uniform(&seed)));
		float got = fp_grid_code(format, 1.0F, 0.0F, x), least = INFINITY;
		for (int j = 0; j < BYTES; j++) {
			uint8_t byte = (uint8_t)j;
			float value;
			fp_to_float(&value, &byte, FP_F8_E4M3, 1);
			least = isnan(value) ? least : fminf(least, fabsf(value - x));
		}
		assert_true(fabsf(got - x) == least);
	}
}

/* A weight on the grid determines its code, or another one with the same meaning. */
static void codes_come_back_from_their_values(void **state)
{
	(void)state;
	const fp_grid_format *format;
	for (int f = 0; (format = fp_grid_format_at(f)); f++)
		for (int t = 0; t < TYPES; t++) {
			int low = types[t] == FP_F16 ? -24 : types[t] == FP_BF16 ? -133 : -149;
			int high = types[t] == FP_F16 ? 6 : 100;
			uint64_t seed = (uint64_t)(10 * f + t);
			for (int i = 0; i < 20000; i++) {
				float first = fp_grid_rule_of(format, FP_F32).first, last = fp_grid_rule_of(format, FP_F32).last;
				int exponent = low + (int)((float)(high - low) * (random_uniform(&seed) + 1.0F) / 2.0F);
				float scale = fp_round_to_type(types[t], ldexpf(1.5F + random_uniform(&seed) / 2.0F, exponent));
				float middle = (first + last) / 2.0F, half = (last - first) / 2.0F;
				float zero = format->symmetric ? 0.0F : nearbyintf(middle + half * random_uniform(&seed));
				float code = fp_grid_code(format, 1.0F, 0.0F, middle + half * random_uniform(&seed));
				float value = fp_grid_value(types[t], scale, zero, code);
				float back = fp_grid_code(format, scale, zero, value);
				assert_true(fp_grid_value(types[t], scale, zero, back) == value);
				if (!format->is_float)
					assert_true(back == code);
				assert_true(fp_grid_code(format, scale, zero, 0.0F) == zero);
			}
		}
}

/* Many at a time are the same as one by one, at halves and beyond the ends too. */
static void many_codes_are_those_of_each(void **state)
{
	(void)state;
	const fp_grid_format *format;
	uint64_t seed = 11;
	for (int f = 0; (format = fp_grid_format_at(f)); f++)
		for (int i = 0; i < 500; i++) {
			float x[GROUP], codes[GROUP], zero = format->symmetric ? 0.0F : (float)(i % 16 - 8);
			float scale = ldexpf(1.0F + random_uniform(&seed) / 2.0F, i % 40 - 30);
			for (int j = 0; j < GROUP; j++)
				x[j] = j % 4 == 0   ? 0.0F
					   : j % 4 == 1 ? ((float)j + 0.5F) * scale
									: ldexpf(random_uniform(&seed), (int)(20.0F * random_uniform(&seed)));
			fp_grid_codes(format, scale, zero, x, codes, GROUP);
			for (int j = 0; j < GROUP; j++)
				assert_true(codes[j] == fp_grid_code(format, scale, zero, x[j]));
		}
}

static void scales_fit_the_largest_weight(void **state)
{
	(void)state;
	float v[GROUP] = {0}, scale, zero;
	v[3] = -0.5F;
	v[9] = 0.25F;
	fp_grid_fit_group(fp_grid_format_named("int4"), FP_F32, v, GROUP, &scale, &zero);
	assert_true(scale == 0.5F / 7.5F && zero == 0.0F);
	fp_grid_fit_group(fp_grid_format_named("int8"), FP_F32, v, GROUP, &scale, &zero);
	assert_true(scale == 0.5F / 127.5F && zero == 0.0F);
	fp_grid_fit_group(fp_grid_format_named("fp8"), FP_BF16, v, GROUP, &scale, &zero);
	assert_true(scale == fp_round_to_type(FP_BF16, 0.5F / 448.0F) && zero == 0.0F);
	fp_grid_fit_group(fp_grid_format_named("int4-asym"), FP_F32, v, GROUP, &scale, &zero);
	assert_true(fabsf(scale - 0.05F) < 1e-8F && zero == 2.0F); /* −0.5 is code −8 */
}

/* A group without weights has the type's epsilon and only zeros; so has one that is all below or above zero a zero. */
static void zeros_are_on_every_grid(void **state)
{
	(void)state;
	const float all[][2] = {{0.0F, 0.0F}, {0.1F, 0.3F}, {-0.3F, -0.1F}};
	const fp_grid_format *format;
	for (int f = 0; (format = fp_grid_format_at(f)); f++)
		for (int t = 0; t < TYPES; t++)
			for (int i = 0; i < 3; i++) {
				float v[GROUP] = {0}, scale, zero;
				v[1] = all[i][0];
				v[2] = all[i][1];
				fp_grid_fit_group(format, types[t], v, GROUP, &scale, &zero);
				assert_true(scale > 0.0F && scale == fp_round_to_type(types[t], scale));
				assert_true(zero >= fp_grid_rule_of(format, FP_F32).first &&
							zero <= fp_grid_rule_of(format, FP_F32).last);
				float back = fp_grid_value(types[t], scale, zero, fp_grid_code(format, scale, zero, 0.0F));
				assert_true(back == 0.0F && !signbit(back));
				if (i == 0)
					assert_true(scale == (types[t] == FP_F32 ? 0x1p-23F : types[t] == FP_F16 ? 0x1p-10F : 0x1p-7F));
			}
}

/* Weights so small that their scale underflows are then exact. */
static void a_scale_that_underflows_is_the_smallest(void **state)
{
	(void)state;
	const fp_grid_format *format;
	for (int f = 0; (format = fp_grid_format_at(f)); f++)
		for (int t = 0; t < TYPES; t++) {
			float least = types[t] == FP_F32 ? 0x1p-149F : types[t] == FP_F16 ? 0x1p-24F : 0x1p-133F;
			float v[GROUP] = {0}, scale, zero;
			v[4] = 3.0F * least;
			v[5] = -1.0F * least;
			fp_grid_fit_group(format, types[t], v, GROUP, &scale, &zero);
			assert_true(scale == least);
			for (int i = 0; i < GROUP; i++)
				assert_true(fp_grid_value(types[t], scale, zero, fp_grid_code(format, scale, zero, v[i])) == v[i]);
		}
}

static void groups_divide_the_row(void **state)
{
	(void)state;
	const fp_grid_format *wide = fp_grid_format_named("int4"), *row = fp_grid_format_named("int8");
	assert_int_equal(fp_grid_group(wide, 4096), 128);
	assert_int_equal(fp_grid_group(wide, 320), 64);
	assert_int_equal(fp_grid_group(wide, 288), 32);
	assert_int_equal(fp_grid_group(wide, 64), 64);
	assert_int_equal(fp_grid_group(wide, 172), 172);
	assert_int_equal(fp_grid_group(fp_grid_format_named("int4-g32"), 320), 32);
	assert_int_equal(fp_grid_group(row, 320), 320);
	assert_null(fp_grid_format_named("none"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(e4m3_bytes_come_back),
		cmocka_unit_test(e4m3_rounds_to_the_nearest),
		cmocka_unit_test(codes_come_back_from_their_values),
		cmocka_unit_test(many_codes_are_those_of_each),
		cmocka_unit_test(scales_fit_the_largest_weight),
		cmocka_unit_test(zeros_are_on_every_grid),
		cmocka_unit_test(a_scale_that_underflows_is_the_smallest),
		cmocka_unit_test(groups_divide_the_row),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
