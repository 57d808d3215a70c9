/* SPDX-License-Identifier: Apache-2.0 */
#include "model/llama_like.h"

#include <string.h>

fp_status fp_config_divide_heads(const fp_config_reader *reader, const char *key, fp_model_config *config)
{
	if (config->hidden % config->heads != 0)
		return fp_config_fail(reader, key,
							  "must divide hidden_size unless head_dim is set, but %lld does not divide %lld",
							  (long long)config->heads, (long long)config->hidden);
	config->head_dim = config->hidden / config->heads;
	return FP_OK;
}

static fp_status read_head_dim(const fp_config_reader *reader, const fp_llama_defaults *defaults,
							   fp_model_config *config)
{
	const char *key = defaults->head_dim_key ? defaults->head_dim_key : "head_dim";
	fp_status status = fp_config_integer_or(reader, key, 1, FP_MAX_DIMENSION, defaults->head_dim, &config->head_dim);
	if (status != FP_OK || config->head_dim > 0)
		return status;
	return fp_config_divide_heads(reader, "num_attention_heads", config);
}

static fp_status read_size(const fp_config_reader *reader, const char *key, int64_t fallback, int64_t *out)
{
	return fallback > 0 ? fp_config_integer_or(reader, key, 1, FP_MAX_DIMENSION, fallback, out)
						: fp_config_integer(reader, key, 1, FP_MAX_DIMENSION, out);
}

fp_status fp_config_llama_like(const fp_config_reader *reader, const fp_llama_defaults *defaults,
							   fp_model_config *config)
{
	fp_status status;
	FP_TRY(fp_config_integer(reader, "num_hidden_layers", 1, FP_MAX_LAYERS, &config->layers));
	FP_TRY(fp_config_integer(reader, "hidden_size", 1, FP_MAX_DIMENSION, &config->hidden));
	FP_TRY(read_size(reader, "num_attention_heads", defaults->heads, &config->heads));
	FP_TRY(fp_config_integer(reader, "intermediate_size", 1, FP_MAX_DIMENSION, &config->inner));
	FP_TRY(read_size(reader, "vocab_size", defaults->vocabulary, &config->vocabulary));
	FP_TRY(fp_config_integer_or(reader, "max_position_embeddings", 1, FP_MAX_DIMENSION, defaults->positions,
								&config->positions));
	/* null differs from absent here: it means one key/value head per head. */
	int64_t kv_heads = defaults->kv_heads > 0 && !fp_config_is_null(reader, "num_key_value_heads") ? defaults->kv_heads
																								   : config->heads;
	FP_TRY(fp_config_integer_or(reader, "num_key_value_heads", 1, FP_MAX_DIMENSION, kv_heads, &config->kv_heads));
	FP_TRY(read_head_dim(reader, defaults, config));
	FP_TRY(fp_config_activation_or(reader, defaults->activation_key ? defaults->activation_key : "hidden_act",
								   defaults->activation, &config->activation));
	FP_TRY(fp_config_flag_or(reader, "tie_word_embeddings", defaults->tied, &config->tied));
	double epsilon, theta = defaults->theta > 0 ? defaults->theta : 10000.0;
	const char *epsilon_key = defaults->epsilon_key  ? defaults->epsilon_key
							  : defaults->layer_norm ? "layer_norm_eps"
													 : "rms_norm_eps";
	FP_TRY(fp_config_positive_or(reader, epsilon_key, defaults->epsilon > 0 ? defaults->epsilon : 1e-6, &epsilon));
	FP_TRY(defaults->part > 0 ? fp_config_partial_rope(reader, theta, defaults->part, config)
							  : fp_config_rope(reader, theta, config));

	config->norm = defaults->layer_norm ? FP_LAYER_NORM : FP_RMS_NORM;
	config->norm_bias = defaults->layer_norm;
	config->norm_epsilon = (float)epsilon;
	config->norm_affine = true;
	config->pre_norm = true;
	config->final_norm = true;
	config->gated = true;
	config->embedding = config->hidden;
cleanup:
	return status;
}

void fp_config_set_full(fp_model_config *config, int64_t layer)
{
	config->full[layer / 8] |= (uint8_t)(1U << (layer % 8));
}

void fp_config_set_unrotated(fp_model_config *config, int64_t layer)
{
	config->unrotated[layer / 8] |= (uint8_t)(1U << (layer % 8));
}

fp_status fp_config_layer_types(const fp_config_reader *reader, fp_model_config *config)
{
	const json_t *types = json_object_get(reader->object, "layer_types");
	if (!json_is_array(types) || (int64_t)json_array_size(types) != config->layers)
		return fp_config_fail(reader, "layer_types", "must be a list of %lld words, one for each layer",
							  (long long)config->layers);
	for (int64_t i = 0; i < config->layers; i++) {
		const char *type = json_string_value(json_array_get(types, (size_t)i));
		bool sliding = type && strcmp(type, "sliding_attention") == 0;
		if (!sliding && (!type || strcmp(type, "full_attention") != 0))
			return fp_config_fail(reader, "layer_types", "must be full_attention or sliding_attention for layer %lld",
								  (long long)i);
		if (!sliding)
			fp_config_set_full(config, i);
	}
	return FP_OK;
}

fp_status fp_config_window_period(const fp_config_reader *reader, const char *period_key, int64_t period,
								  fp_model_config *config)
{
	fp_status status;
	int64_t fallback = fp_config_is_null(reader, "sliding_window") ? 0 : 4096;
	FP_TRY(fp_config_integer_or(reader, "sliding_window", 1, FP_MAX_DIMENSION, fallback, &config->window));
	if (fp_config_has(reader, "layer_types")) {
		FP_TRY(fp_config_layer_types(reader, config));
		goto cleanup;
	}
	if (period_key)
		FP_TRY(fp_config_integer_or(reader, period_key, 1, FP_MAX_LAYERS, period, &period));
	for (int64_t i = 0; i < config->layers; i++)
		if ((i + 1) % period == 0)
			fp_config_set_full(config, i);
cleanup:
	return status;
}

fp_status fp_config_rope_by_layer(const fp_config_reader *reader, double theta, double local_theta,
								  fp_model_config *config)
{
	fp_status status;
	fp_config_reader all, part = {.ctx = reader->ctx, .directory = reader->directory, .section = ""};
	FP_TRY(fp_config_section(reader, "rope_parameters", &all));
	config->local_rope = true;
	if (all.object && fp_config_has(&all, "full_attention")) {
		FP_TRY(fp_config_section(&all, "full_attention", &part));
		FP_TRY(fp_config_rope_section(&part, theta, 1, config, &config->rope[0]));
		part.object = NULL;
	}
	if (all.object && fp_config_has(&all, "sliding_attention"))
		FP_TRY(fp_config_section(&all, "sliding_attention", &part));
	FP_TRY(fp_config_rope_section(&part, local_theta, 1, config, &config->rope[1]));
cleanup:
	return status;
}

fp_status fp_config_qwen_window(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	bool use;
	int64_t window = 0, from = 0;
	FP_TRY(fp_config_flag_or(reader, "use_sliding_window", false, &use));
	if (!use)
		goto cleanup;
	int64_t fallback = fp_config_is_null(reader, "sliding_window") ? 0 : 4096;
	FP_TRY(fp_config_integer_or(reader, "sliding_window", 1, FP_MAX_DIMENSION, fallback, &window));
	if (fp_config_has(reader, "layer_types"))
		FP_TRY(fp_config_layer_types(reader, config));
	else
		FP_TRY(fp_config_integer_or(reader, "max_window_layers", 0, FP_MAX_LAYERS, 28, &from));
	for (int64_t i = 0; i < from && i < config->layers; i++)
		fp_config_set_full(config, i);
cleanup:
	config->window = window;
	return status;
}

fp_status fp_config_no_clip(const fp_config_reader *reader)
{
	if (!fp_config_has(reader, "clip_qkv"))
		return FP_OK;
	return fp_config_fail(reader, "clip_qkv", "must be null: queries, keys and values cannot be clipped");
}

fp_status fp_config_images(const fp_config_reader *reader,
						   fp_status (*read_text)(const fp_config_reader *reader, fp_model_config *config),
						   fp_model_config *config)
{
	fp_config_reader text;
	fp_status status;
	FP_TRY(fp_config_section(reader, "text_config", &text));
	if (!text.object && !fp_config_has(reader, "hidden_size"))
		FP_TRY(
			fp_config_fail(reader, "text_config", "is missing; it must be an object with the sizes of the text model"));
	FP_TRY(read_text(text.object ? &text : reader, config));
	FP_TRY(fp_config_flag_or(reader, "tie_word_embeddings", config->tied, &config->tied));
	config->sees_images = true;
cleanup:
	return status;
}
