/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rotary.c: reads rope_theta and rope_scaling from config.json and computes the tables of angles.
 *
 *     plain    ωᵢ = θ^(−2i/d),  0 ≤ i < d/2
 *     linear   ωᵢ/factor
 *     llama3   ωᵢ/factor                    if t < low
 *              ωᵢ                           if t > high
 *              (1 − s)·ωᵢ/factor + s·ωᵢ     otherwise
 *
 * where n is the original context length and
 *
 *     t = nωᵢ/2π
 *     s = (t − low)/(high − low)
 */
#include "model/rotary.h"

#include "base/memory.h"
#include "model/architecture.h"

#include <math.h>
#include <string.h>

static const struct {
	const char *name;
	fp_rope_scaling scaling;
} rope_types[] = {{"default", FP_ROPE_PLAIN}, {"linear", FP_ROPE_LINEAR}, {"llama3", FP_ROPE_LLAMA3}};

enum { ROPE_TYPE_COUNT = sizeof rope_types / sizeof rope_types[0] };

static fp_status read_scaling(const fp_config_reader *rope, fp_model_config *config)
{
	fp_status status;
	const char *type;
	FP_TRY(fp_config_text_or(rope, "type", "default", &type)); /* the key before transformers 4.43 */
	FP_TRY(fp_config_text_or(rope, "rope_type", type, &type));
	int row = 0;
	while (row < ROPE_TYPE_COUNT && strcmp(rope_types[row].name, type) != 0)
		row++;
	if (row == ROPE_TYPE_COUNT) {
		status = fp_config_fail(rope, "rope_type",
								"is '%.60s', which is not supported; supported are default, linear, llama3", type);
		goto cleanup;
	}
	config->rope_scaling = rope_types[row].scaling;
	if (config->rope_scaling == FP_ROPE_PLAIN)
		goto cleanup;
	FP_TRY(fp_config_positive_or(rope, "factor", 0, &config->rope_factor));
	if (config->rope_factor == 0) {
		status = fp_config_fail(rope, "factor", "is missing; rope type '%s' needs it, such as 8.0", type);
		goto cleanup;
	}
	if (config->rope_scaling == FP_ROPE_LINEAR)
		goto cleanup;
	FP_TRY(fp_config_positive_or(rope, "low_freq_factor", 1, &config->rope_low));
	FP_TRY(fp_config_positive_or(rope, "high_freq_factor", 4, &config->rope_high));
	FP_TRY(fp_config_integer_or(rope, "original_max_position_embeddings", 1, FP_MAX_DIMENSION, config->positions,
								&config->rope_original));
	if (config->rope_high <= config->rope_low)
		status = fp_config_fail(rope, "high_freq_factor", "must be above low_freq_factor, but %g is not above %g",
								config->rope_high, config->rope_low);
cleanup:
	return status;
}

fp_status fp_config_rope(const fp_config_reader *reader, double default_theta, fp_model_config *config)
{
	fp_status status;
	fp_config_reader rope;
	double theta;
	double partial;
	FP_TRY(fp_config_positive_or(reader, "rope_theta", default_theta, &theta));
	FP_TRY(fp_config_positive_or(reader, "partial_rotary_factor", 1, &partial));
	FP_TRY(fp_config_section(reader, "rope_parameters", &rope));
	if (!rope.object)
		FP_TRY(fp_config_section(reader, "rope_scaling", &rope));
	if (rope.object) {
		FP_TRY(fp_config_positive_or(&rope, "rope_theta", theta, &theta));
		FP_TRY(fp_config_positive_or(&rope, "partial_rotary_factor", partial, &partial));
		FP_TRY(read_scaling(&rope, config));
	}
	if (partial != 1) {
		status = fp_config_fail(reader, "partial_rotary_factor", "must be 1, but is %g", partial);
		goto cleanup;
	}
	config->rope_theta = theta;
cleanup:
	return status;
}

static double scaled(const fp_model_config *config, double frequency)
{
	if (config->rope_scaling == FP_ROPE_PLAIN)
		return frequency;
	double slow = frequency / config->rope_factor;
	if (config->rope_scaling == FP_ROPE_LINEAR)
		return slow;
	double turns = (double)config->rope_original * frequency / (2 * 3.14159265358979323846);
	if (turns < config->rope_low)
		return slow;
	if (turns > config->rope_high)
		return frequency;
	double smooth = (turns - config->rope_low) / (config->rope_high - config->rope_low);
	return (1 - smooth) * slow + smooth * frequency;
}

/* frequencies[head_dim / 2]: radians per position, after scaling. */
static void fill_frequencies(const fp_model_config *config, float *frequencies)
{
	for (int64_t i = 0; i < config->head_dim / 2; i++) {
		double exponent = -2.0 * (double)i / (double)config->head_dim;
		frequencies[i] = (float)scaled(config, pow(config->rope_theta, exponent));
	}
}

int64_t fp_rotary_rows(const fp_model_config *config, int64_t tokens)
{
	return tokens < config->positions ? tokens : config->positions;
}

fp_status fp_rotary_tables(fp_backend *be, const fp_model_config *config, int64_t length, fp_matrix *cosine,
						   fp_matrix *sine)
{
	fp_status status;
	int64_t half = config->head_dim / 2;
	float *frequencies = NULL;
	float *table = NULL; /* cosines, then sines */
	*cosine = *sine = (fp_matrix){0};
	FP_TRY(FP_NEW(be->ctx, &frequencies, half));
	FP_TRY(FP_NEW(be->ctx, &table, 2 * length * half));
	fill_frequencies(config, frequencies);
	for (int64_t t = 0; t < length; t++)
		for (int64_t i = 0; i < half; i++) {
			/* Models are trained with the product rounded to single precision, which changes the
			 * angle by up to 5e-4 at position 8191. */
			float angle = (float)t * frequencies[i];
			table[t * half + i] = (float)cos((double)angle);
			table[(length + t) * half + i] = (float)sin((double)angle);
		}
	FP_TRY(fp_matrix_new(be, cosine, length, half, FP_F32));
	FP_TRY(fp_matrix_new(be, sine, length, half, FP_F32));
	FP_TRY(be->memory->upload(be, *cosine, table, FP_F32, half));
	FP_TRY(be->memory->upload(be, *sine, table + length * half, FP_F32, half));
	FP_TRY(be->memory->synchronize(be)); /* before the table is freed */
cleanup:
	if (status != FP_OK) {
		fp_matrix_free(be, cosine);
		fp_matrix_free(be, sine);
	}
	fp_free(table);
	fp_free(frequencies);
	return status;
}
