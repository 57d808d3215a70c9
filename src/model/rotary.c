/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rotary.c: reads rope_theta and rope_scaling from config.json and computes the frequencies of rotary positions. With r
 * the entries of a head that turn:
 *
 *     plain      ωᵢ = θ^(−2i/r),  0 ≤ i < r/2
 *     dynamic    ωᵢ: up to the model's positions, beyond which nothing is computed here, it changes nothing
 *     mrope      ωᵢ: the three positions of a token, which differ in images, are the same in text
 *     linear     ωᵢ/factor
 *     llama3     ωᵢ/factor                    if t < low
 *                ωᵢ                           if t > high
 *                (1 − s)·ωᵢ/factor + s·ωᵢ     otherwise
 *     yarn       (1 − s)·ωᵢ + s·ωᵢ/factor     s rises from 0 to 1 between the pairs that turn beta_fast and beta_slow
 *                                             times over n positions
 *     longrope   ωᵢ/aᵢ                        with a list a for sequences of up to n tokens and another for longer ones
 *
 * where n is the original context length and, for llama3,
 *
 *     t = nωᵢ/2π
 *     s = (t − low)/(high − low)
 *
 * yarn and longrope multiply cosines and sines by a magnitude as well.
 */
#include "model/architecture.h"

#include <math.h>
#include <string.h>

static const double PI = 3.14159265358979323846;

/* What the types of scaling share. */
typedef struct rope_reader {
	const fp_config_reader *section; /* object NULL: the config has none */
	const fp_model_config *config;
	double theta, factor;
	int64_t rotated, original; /* r, n */
	bool fixed_original;       /* the section cannot change it */
	bool whole;                /* no part of a head may stay */
	fp_rope *out;
} rope_reader;

typedef fp_status (*rope_scaling)(rope_reader *r);

static double frequency(const rope_reader *r, int64_t i)
{
	double exponent = -2.0 * (double)i / (double)r->rotated;
	return pow(r->theta, exponent);
}

static fp_status need_factor(rope_reader *r, const char *type)
{
	if (r->factor > 0)
		return FP_OK;
	return fp_config_fail(r->section, "factor", "is missing; rope type '%s' needs it, such as 8.0", type);
}

static fp_status plain(rope_reader *r)
{
	for (int64_t i = 0; i < r->out->pairs; i++)
		r->out->frequencies[i] = (float)frequency(r, i);
	return FP_OK;
}

static fp_status linear(rope_reader *r)
{
	fp_status status = need_factor(r, "linear");
	for (int64_t i = 0; i < r->out->pairs && status == FP_OK; i++)
		r->out->frequencies[i] = (float)(frequency(r, i) / r->factor);
	return status;
}

static double llama3_frequency(double w, double turns, double factor, double low, double high)
{
	double slow = w / factor;
	if (turns < low)
		return slow;
	if (turns > high)
		return w;
	double smooth = (turns - low) / (high - low);
	return (1 - smooth) * slow + smooth * w;
}

static fp_status llama3(rope_reader *r)
{
	fp_status status;
	double low, high;
	FP_TRY(need_factor(r, "llama3"));
	FP_TRY(fp_config_positive_or(r->section, "low_freq_factor", 1, &low));
	FP_TRY(fp_config_positive_or(r->section, "high_freq_factor", 4, &high));
	if (high <= low)
		FP_TRY(fp_config_fail(r->section, "high_freq_factor", "must be above low_freq_factor, but %g is not above %g",
							  high, low));
	for (int64_t i = 0; i < r->out->pairs; i++) {
		double w = frequency(r, i);
		r->out->frequencies[i] = (float)llama3_frequency(w, (double)r->original * w / (2 * PI), r->factor, low, high);
	}
cleanup:
	return status;
}

static double yarn_magnitude(double factor, double weight)
{
	return factor <= 1 ? 1.0 : 0.1 * weight * log(factor) + 1.0;
}

static fp_status yarn(rope_reader *r)
{
	fp_status status;
	double fast, slow, magnitude, above, below;
	bool truncate;
	double n = (double)r->original;
	if (!(r->factor > 0))
		r->factor = (double)r->config->positions / n;
	FP_TRY(fp_config_positive_or(r->section, "beta_fast", 32, &fast));
	FP_TRY(fp_config_positive_or(r->section, "beta_slow", 1, &slow));
	FP_TRY(fp_config_flag_or(r->section, "truncate", true, &truncate));
	FP_TRY(fp_config_positive_or(r->section, "mscale", 0, &above));
	FP_TRY(fp_config_positive_or(r->section, "mscale_all_dim", 0, &below));
	magnitude = above > 0 && below > 0 ? yarn_magnitude(r->factor, above) / yarn_magnitude(r->factor, below)
									   : yarn_magnitude(r->factor, 1);
	FP_TRY(fp_config_positive_or(r->section, "attention_factor", magnitude, &magnitude));
	/* the pairs that turn `fast` and `slow` times over the original length */
	double first = (double)r->rotated * log(n / (fast * 2 * PI)) / (2 * log(r->theta));
	double last = (double)r->rotated * log(n / (slow * 2 * PI)) / (2 * log(r->theta));
	first = fmax(truncate ? floor(first) : first, 0);
	last = fmin(truncate ? ceil(last) : last, (double)(r->rotated - 1));
	if (first == last)
		last += 0.001;
	for (int64_t i = 0; i < r->out->pairs; i++) {
		double w = frequency(r, i), share = fmin(fmax(((double)i - first) / (last - first), 0), 1);
		r->out->frequencies[i] = (float)((1 - share) * w + share * w / r->factor);
	}
	r->out->magnitude = (float)magnitude;
cleanup:
	return status;
}

static fp_status longrope(rope_reader *r)
{
	fp_status status;
	double magnitude, n = (double)r->original;
	double factor = r->factor > 0 ? r->factor : (double)r->config->positions / n;
	FP_TRY(fp_config_numbers(r->section, "short_factor", r->out->pairs, r->out->frequencies));
	FP_TRY(fp_config_numbers(r->section, "long_factor", r->out->pairs, r->out->long_frequencies));
	for (int64_t i = 0; i < r->out->pairs; i++) {
		double w = frequency(r, i);
		r->out->frequencies[i] = (float)(w / (double)r->out->frequencies[i]);
		r->out->long_frequencies[i] = (float)(w / (double)r->out->long_frequencies[i]);
	}
	magnitude = factor <= 1 ? 1.0 : sqrt(1 + log(factor) / log(n));
	FP_TRY(fp_config_positive_or(r->section, "attention_factor", magnitude, &magnitude));
	r->out->magnitude = (float)magnitude;
	r->out->original = r->original;
cleanup:
	return status;
}

static const struct {
	const char *name;
	rope_scaling scale;
} rope_types[] = {{"default", plain}, {"dynamic", plain},     {"mrope", plain}, {"linear", linear}, {"llama3", llama3},
				  {"yarn", yarn},     {"longrope", longrope}, {"su", longrope}}; /* Phi-3's first name for it */

enum { ROPE_TYPE_COUNT = sizeof rope_types / sizeof rope_types[0] };

static fp_status read_type(const fp_config_reader *rope, const char **type)
{
	fp_status status;
	FP_TRY(fp_config_text_or(rope, "type", "default", type)); /* the key before transformers 4.43 */
	FP_TRY(fp_config_text_or(rope, "rope_type", *type, type));
cleanup:
	return status;
}

static fp_status scale(rope_reader *r)
{
	fp_status status;
	const fp_config_reader *rope = r->section;
	const char *type;
	if (!rope->object)
		return plain(r);
	FP_TRY(read_type(rope, &type));
	FP_TRY(fp_config_positive_or(rope, "factor", 0, &r->factor));
	if (!r->fixed_original)
		FP_TRY(fp_config_integer_or(rope, "original_max_position_embeddings", 1, FP_MAX_DIMENSION, r->original,
									&r->original));
	if (strcmp(type, "yarn") == 0 && fp_config_has(rope, "short_factor")) /* another of Phi-3's names */
		type = "longrope";
	for (int row = 0; row < ROPE_TYPE_COUNT; row++)
		if (strcmp(rope_types[row].name, type) == 0) {
			status = rope_types[row].scale(r);
			goto cleanup;
		}
	status = fp_config_fail(
		rope, "rope_type",
		"is '%.60s', which is not supported; supported are default, dynamic, mrope, linear, llama3, yarn, longrope",
		type);
cleanup:
	return status;
}

static fp_status read_rope(rope_reader *r, const fp_config_reader *reader, double part)
{
	fp_status status = FP_OK;
	*r->out = (fp_rope){.magnitude = 1};
	if (r->section->object) {
		FP_TRY(fp_config_positive_or(r->section, "rope_theta", r->theta, &r->theta));
		FP_TRY(fp_config_positive_or(r->section, "partial_rotary_factor", part, &part));
	}
	if (r->whole && part != 1)
		FP_TRY(fp_config_fail(reader, "partial_rotary_factor", "must be 1, but is %g", part));
	r->rotated = part <= 1 ? (int64_t)((double)r->config->head_dim * part) : 0;
	if (r->rotated < 2 || r->rotated % 2 != 0)
		FP_TRY(fp_config_fail(reader, "partial_rotary_factor",
							  "is %g, so that %lld of a head's %lld entries turn; it must be an even number of them",
							  part, (long long)r->rotated, (long long)r->config->head_dim));
	if (r->rotated > 2 * FP_MAX_ROPE_PAIRS)
		FP_TRY(fp_config_fail(reader, "head_dim", "must be at most %d for rotary positions, but is %lld",
							  2 * FP_MAX_ROPE_PAIRS, (long long)r->config->head_dim));
	r->out->pairs = r->rotated / 2;
	FP_TRY(scale(r));
cleanup:
	return status;
}

fp_status fp_config_rope_section(const fp_config_reader *section, double theta, double part,
								 const fp_model_config *config, fp_rope *out)
{
	rope_reader r = {.section = section, .config = config, .theta = theta, .original = config->positions, .out = out};
	return read_rope(&r, section, part);
}

static fp_status read_section(const fp_config_reader *reader, fp_config_reader *section)
{
	fp_status status;
	FP_TRY(fp_config_section(reader, "rope_scaling", section)); /* the older key, and the first that counts */
	if (!section->object || json_object_size(section->object) == 0)
		FP_TRY(fp_config_section(reader, "rope_parameters", section));
cleanup:
	return status;
}

fp_status fp_config_rope_score_scale(const fp_config_reader *reader, double *out)
{
	fp_status status;
	fp_config_reader section;
	rope_reader r = {.section = &section};
	const char *type;
	double weight = 0;
	*out = 1;
	FP_TRY(read_section(reader, &section));
	if (!section.object)
		return FP_OK;
	FP_TRY(read_type(&section, &type));
	FP_TRY(fp_config_positive_or(&section, "mscale_all_dim", 0, &weight));
	if (weight <= 0 || strcmp(type, "default") == 0)
		return FP_OK;
	FP_TRY(fp_config_positive_or(&section, "factor", 0, &r.factor));
	FP_TRY(need_factor(&r, type));
	*out = yarn_magnitude(r.factor, weight) * yarn_magnitude(r.factor, weight);
cleanup:
	return status;
}

/* default_part 0: all of a head turns, and the config cannot say otherwise. */
static fp_status read_config(const fp_config_reader *reader, double default_theta, double default_part,
							 fp_model_config *config)
{
	fp_status status;
	fp_config_reader section;
	rope_reader r = {.section = &section, .config = config, .out = &config->rope[0], .whole = default_part <= 0};
	double part;
	config->rotary = true;
	if (config->head_dim % 2 != 0)
		return fp_config_fail(reader, "head_dim", "must be even for rotary positions, but is %lld",
							  (long long)config->head_dim);
	FP_TRY(fp_config_positive_or(reader, "rope_theta", default_theta, &r.theta));
	FP_TRY(fp_config_positive_or(reader, "partial_rotary_factor", default_part > 0 ? default_part : 1, &part));
	FP_TRY(read_section(reader, &section));
	/* Phi-3 has this key outside, where it counts more */
	int64_t outside;
	FP_TRY(fp_config_integer_or(reader, "original_max_position_embeddings", 1, FP_MAX_DIMENSION, 0, &outside));
	r.original = outside > 0 ? outside : config->positions;
	r.fixed_original = outside > 0;
	FP_TRY(read_rope(&r, reader, part));
cleanup:
	return status;
}

fp_status fp_config_rope(const fp_config_reader *reader, double default_theta, fp_model_config *config)
{
	return read_config(reader, default_theta, 0, config);
}

fp_status fp_config_partial_rope(const fp_config_reader *reader, double default_theta, double default_part,
								 fp_model_config *config)
{
	return read_config(reader, default_theta, default_part, config);
}
