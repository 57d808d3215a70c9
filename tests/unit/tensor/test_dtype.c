/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions of all 65536 16-bit patterns and at every rounding boundary, compared with double arithmetic. */
#include "support.h"

#include "tensor/dtype.h"
#include "tensor/dtype_convert.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PATTERNS = 65536 };

typedef void (*widen_function)(float *, const void *, int64_t);
typedef void (*narrow_function)(void *, const float *, int64_t);

static const struct format {
	const char *name;
	fp_dtype dtype;
	int exponent_bits, mantissa_bits;
	widen_function widen_scalar, widen_simd;
	narrow_function narrow_scalar, narrow_simd;
} formats[] = {
	{"f16", FP_F16, 5, 10, fp_f16_to_float_scalar, fp_f16_to_float_simd, fp_f16_from_float_scalar,
	 fp_f16_from_float_simd},
	{"bf16", FP_BF16, 8, 7, fp_bf16_to_float_scalar, fp_bf16_to_float_simd, fp_bf16_from_float_scalar,
	 fp_bf16_from_float_simd},
};

static uint32_t float_bits(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, sizeof bits);
	return bits;
}

/* The value of a pattern by the definition of the format, except infinity and NaN. */
static double meaning(const struct format *format, uint32_t pattern)
{
	int exponent = (int)(pattern >> format->mantissa_bits) & ((1 << format->exponent_bits) - 1);
	int mantissa = (int)(pattern & ((1U << format->mantissa_bits) - 1));
	int bias = (1 << (format->exponent_bits - 1)) - 1;
	double value =
		exponent ? ldexp((double)((1 << format->mantissa_bits) + mantissa), exponent - bias - format->mantissa_bits)
				 : ldexp((double)mantissa, 1 - bias - format->mantissa_bits);
	return pattern & 0x8000 ? -value : value;
}

static uint32_t infinity_pattern(const struct format *format)
{
	return ((1U << format->exponent_bits) - 1) << format->mantissa_bits;
}

static void every_pattern_means_what_the_format_says(void **state)
{
	(void)state;
	static uint16_t in[PATTERNS];
	static float scalar[PATTERNS], simd[PATTERNS], chosen[PATTERNS];
	for (uint32_t i = 0; i < PATTERNS; i++)
		in[i] = (uint16_t)i;
	for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
		const struct format *format = &formats[f];
		format->widen_scalar(scalar, in, PATTERNS);
		fp_to_float(chosen, in, format->dtype, PATTERNS);
		assert_memory_equal(chosen, scalar, sizeof scalar);
		if (fp_dtype_simd_works()) {
			format->widen_simd(simd, in, PATTERNS);
			assert_memory_equal(simd, scalar, sizeof scalar);
		}
		uint32_t infinity = infinity_pattern(format);
		for (uint32_t i = 0; i < PATTERNS; i++) {
			uint32_t magnitude = i & 0x7FFF;
			assert_int_equal(float_bits(scalar[i]) >> 31, i >> 15);
			if (magnitude > infinity)
				assert_true(isnan(scalar[i]));
			else if (magnitude == infinity)
				assert_true(isinf(scalar[i]));
			else
				assert_true((double)scalar[i] == meaning(format, i));
		}
	}
}

static void every_pattern_survives_the_round_trip(void **state)
{
	(void)state;
	static uint16_t in[PATTERNS], back[PATTERNS];
	static float wide[PATTERNS];
	for (uint32_t i = 0; i < PATTERNS; i++)
		in[i] = (uint16_t)i;
	for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
		const struct format *format = &formats[f];
		fp_to_float(wide, in, format->dtype, PATTERNS);
		fp_from_float(back, format->dtype, wide, PATTERNS);
		uint32_t quiet = 1U << (format->mantissa_bits - 1);
		for (uint32_t i = 0; i < PATTERNS; i++) {
			bool is_nan = (i & 0x7FFF) > infinity_pattern(format);
			assert_int_equal(back[i], is_nan ? (i | quiet) : i);
		}
	}
}

/* For each pair of neighbours: just below the midpoint, the midpoint (ties to even), just above it. */
static void values_between_neighbours_round_to_nearest_even(void **state)
{
	(void)state;
	for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
		const struct format *format = &formats[f];
		uint32_t infinity = infinity_pattern(format);
		for (uint32_t i = 0; i < infinity; i++) {
			double low = meaning(format, i);
			/* the next step above the largest number is infinity */
			double high = i + 1 < infinity ? meaning(format, i + 1) : 2 * low - meaning(format, i - 1);
			float middle = (float)((low + high) / 2);
			float values[9];
			uint16_t wanted[9], scalar[9], chosen[9];
			for (int k = 0; k < 9; k++) {
				float value = k % 3 == 0   ? nextafterf(middle, 0.0F)
							  : k % 3 == 1 ? middle
										   : nextafterf(middle, INFINITY);
				uint32_t nearest = k % 3 == 0 ? i : k % 3 == 2 ? i + 1 : i + (i & 1);
				bool negative = k % 2 == 1;
				values[k] = negative ? -value : value;
				wanted[k] = (uint16_t)(nearest | (negative ? 0x8000U : 0));
			}
			format->narrow_scalar(scalar, values, 9);
			assert_memory_equal(scalar, wanted, sizeof wanted);
			fp_from_float(chosen, format->dtype, values, 9);
			assert_memory_equal(chosen, wanted, sizeof wanted);
		}
	}
}

static void both_paths_agree_on_any_float(void **state)
{
	(void)state;
	if (!fp_dtype_simd_works())
		skip_because("this processor lacks the vector instructions for 16-bit conversions");
	enum { BLOCK = 4096 };
	static float in[BLOCK];
	static uint16_t scalar[BLOCK], simd[BLOCK];
	for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
		/* an odd stride covers the whole range of bit patterns, with NaN and subnormals */
		uint32_t bits = 0;
		for (int block = 0; block < 2048; block++) {
			for (int i = 0; i < BLOCK; i++, bits += 511)
				memcpy(&in[i], &bits, sizeof bits);
			formats[f].narrow_scalar(scalar, in, BLOCK);
			formats[f].narrow_simd(simd, in, BLOCK);
			assert_memory_equal(scalar, simd, sizeof scalar);
		}
	}
}

static void overflow_goes_to_infinity(void **state)
{
	(void)state;
	const float in[4] = {65519.0F, 65520.0F, -3.0e38F, INFINITY};
	const uint16_t wanted[4] = {0x7BFF, 0x7C00, 0xFC00, 0x7C00};
	uint16_t out[4];
	fp_from_float(out, FP_F16, in, 4);
	assert_memory_equal(out, wanted, sizeof out);
	const float large[2] = {3.4028235e38F, -3.4028235e38F};
	const uint16_t large_wanted[2] = {0x7F80, 0xFF80};
	fp_from_float(out, FP_BF16, large, 2);
	assert_memory_equal(out, large_wanted, sizeof large_wanted);
}

/* Any length, any alignment, more than one chunk: nothing beyond the end is written. */
static void odd_lengths_and_addresses_work(void **state)
{
	(void)state;
	const int64_t lengths[] = {0, 1, 7, 8, 9, 65535, 65536, 65537, 200003};
	for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
		for (int d = 0; d < 3; d++) {
			const fp_dtype dtype = (fp_dtype[]){FP_F32, FP_F16, FP_BF16}[d];
			int64_t count = lengths[l], size = fp_dtype_size(dtype);
			float *in = malloc((size_t)(count + 1) * sizeof *in), *back = malloc((size_t)(count + 1) * sizeof *back);
			char *packed = malloc((size_t)(count * size + 2));
			for (int64_t i = 0; i < count; i++)
				in[i] = (float)((i * 37) % 251 - 125);
			packed[0] = 'a';
			packed[1 + count * size] = 'z';
			back[count] = 42;
			fp_from_float(packed + 1, dtype, in, count);
			fp_to_float(back, packed + 1, dtype, count);
			assert_memory_equal(in, back, (size_t)count * sizeof *in);
			assert_int_equal(packed[0], 'a');
			assert_int_equal(packed[1 + count * size], 'z');
			assert_true(back[count] == 42);
			free(in);
			free(back);
			free(packed);
		}
	}
}

static void names_and_sizes(void **state)
{
	(void)state;
	assert_string_equal(fp_dtype_name(FP_BF16), "BF16");
	assert_int_equal(fp_dtype_size(FP_F32), 4);
	assert_int_equal(fp_dtype_size(FP_BF16), 2);
	assert_int_equal(fp_dtype_size(FP_I64), 8);
	assert_int_equal(fp_dtype_size(FP_OTHER_DTYPE), 0);
	assert_true(fp_dtype_is_weight(FP_F16));
	assert_false(fp_dtype_is_weight(FP_F64));
}

/* E4M3 has finite values where other formats have infinities; E5M2 is like F16. */
static void fp8_means_what_the_format_says(void **state)
{
	(void)state;
	static const struct {
		fp_dtype dtype;
		int exponent_bits, mantissa_bits;
		uint32_t first_nan, infinity;
	} kinds[] = {{FP_F8_E4M3, 4, 3, 0x7F, 0}, {FP_F8_E5M2, 5, 2, 0x7D, 0x7C}};
	for (size_t k = 0; k < 2; k++) {
		const struct format format = {.exponent_bits = kinds[k].exponent_bits, .mantissa_bits = kinds[k].mantissa_bits};
		unsigned char in[256];
		float got[256];
		for (int i = 0; i < 256; i++)
			in[i] = (unsigned char)i;
		fp_to_float(got, in, kinds[k].dtype, 256);
		for (uint32_t i = 0; i < 256; i++) {
			uint32_t magnitude = i & 0x7F;
			assert_int_equal(float_bits(got[i]) >> 31, i >> 7);
			if (magnitude >= kinds[k].first_nan)
				assert_true(isnan(got[i]));
			else if (kinds[k].infinity && magnitude == kinds[k].infinity)
				assert_true(isinf(got[i]));
			else
				assert_true(fabs((double)got[i]) == meaning(&format, magnitude));
		}
		assert_int_equal(fp_dtype_size(kinds[k].dtype), 1);
		assert_true(fp_dtype_is_fp8(kinds[k].dtype));
		assert_false(fp_dtype_is_weight(kinds[k].dtype));
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_and_sizes),
		cmocka_unit_test(fp8_means_what_the_format_says),
		cmocka_unit_test(every_pattern_means_what_the_format_says),
		cmocka_unit_test(every_pattern_survives_the_round_trip),
		cmocka_unit_test(values_between_neighbours_round_to_nearest_even),
		cmocka_unit_test(overflow_goes_to_infinity),
		cmocka_unit_test(odd_lengths_and_addresses_work),
	};
	const struct CMUnitTest simd[] = {cmocka_unit_test(both_paths_agree_on_any_float)};
	TEST_PART(simd);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
