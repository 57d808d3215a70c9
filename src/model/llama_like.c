/* SPDX-License-Identifier: Apache-2.0 */
#include "model/llama_like.h"

#include <string.h>

static fp_status read_head_dim(const fp_config_reader *reader, int64_t fallback, fp_model_config *config)
{
	fp_status status;
	FP_TRY(fp_config_integer_or(reader, "head_dim", 1, FP_MAX_DIMENSION, fallback, &config->head_dim));
	if (config->head_dim > 0)
		goto cleanup;
	if (config->hidden % config->heads != 0) {
		status = fp_config_fail(reader, "num_attention_heads",
								"must divide hidden_size unless head_dim is set, but %lld does not divide %lld",
								(long long)config->heads, (long long)config->hidden);
		goto cleanup;
	}
	config->head_dim = config->hidden / config->heads;
cleanup:
	return status;
}

fp_status fp_config_llama_like(const fp_config_reader *reader, const fp_llama_defaults *defaults,
							   fp_model_config *config)
{
	fp_status status;
	FP_TRY(fp_config_integer(reader, "num_hidden_layers", 1, FP_MAX_LAYERS, &config->layers));
	FP_TRY(fp_config_integer(reader, "hidden_size", 1, FP_MAX_DIMENSION, &config->hidden));
	FP_TRY(fp_config_integer(reader, "num_attention_heads", 1, FP_MAX_DIMENSION, &config->heads));
	FP_TRY(fp_config_integer(reader, "intermediate_size", 1, FP_MAX_DIMENSION, &config->inner));
	FP_TRY(fp_config_integer(reader, "vocab_size", 1, FP_MAX_DIMENSION, &config->vocabulary));
	FP_TRY(fp_config_integer_or(reader, "max_position_embeddings", 1, FP_MAX_DIMENSION, defaults->positions,
								&config->positions));
	/* null differs from absent here: it means one key/value head per head. */
	int64_t kv_heads = defaults->kv_heads > 0 && !fp_config_is_null(reader, "num_key_value_heads") ? defaults->kv_heads
																								   : config->heads;
	FP_TRY(fp_config_integer_or(reader, "num_key_value_heads", 1, FP_MAX_DIMENSION, kv_heads, &config->kv_heads));
	FP_TRY(read_head_dim(reader, defaults->head_dim, config));
	FP_TRY(fp_config_activation_or(reader, "hidden_act", FP_SILU, &config->activation));
	FP_TRY(fp_config_flag_or(reader, "tie_word_embeddings", false, &config->tied));
	double epsilon;
	FP_TRY(fp_config_positive_or(reader, "rms_norm_eps", 1e-6, &epsilon));
	FP_TRY(fp_config_rope(reader, 10000.0, config));

	config->norm = FP_RMS_NORM;
	config->norm_epsilon = (float)epsilon;
	config->norm_affine = true;
	config->pre_norm = true;
	config->final_norm = true;
	config->gated = true;
	config->rotary = true;
	config->embedding = config->hidden;
cleanup:
	return status;
}

/* Finds the first layer with a sliding window. All later layers must have one too, so that one number
 * describes the model; published models of these families comply. */
static fp_status read_layer_types(const fp_config_reader *reader, const json_t *types, fp_model_config *config)
{
	if (!json_is_array(types) || (int64_t)json_array_size(types) != config->layers)
		return fp_config_fail(reader, "layer_types", "must be a list of %lld words, one for each layer",
							  (long long)config->layers);
	config->window_from = config->layers;
	for (int64_t i = 0; i < config->layers; i++) {
		const char *type = json_string_value(json_array_get(types, (size_t)i));
		bool sliding = type && strcmp(type, "sliding_attention") == 0;
		if (!sliding && (!type || strcmp(type, "full_attention") != 0))
			return fp_config_fail(reader, "layer_types", "must be full_attention or sliding_attention for layer %lld",
								  (long long)i);
		if (sliding && config->window_from > i)
			config->window_from = i;
		if (!sliding && config->window_from < i)
			return fp_config_fail(reader, "layer_types",
								  "has full attention in layer %lld after a sliding layer, which is not supported; "
								  "full layers must come first",
								  (long long)i);
	}
	return FP_OK;
}

fp_status fp_config_qwen_window(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	bool use;
	int64_t window = 0;
	FP_TRY(fp_config_flag_or(reader, "use_sliding_window", false, &use));
	if (!use)
		goto cleanup;
	int64_t fallback = fp_config_is_null(reader, "sliding_window") ? 0 : 4096;
	FP_TRY(fp_config_integer_or(reader, "sliding_window", 1, FP_MAX_DIMENSION, fallback, &window));
	if (fp_config_has(reader, "layer_types"))
		FP_TRY(read_layer_types(reader, json_object_get(reader->object, "layer_types"), config));
	else
		FP_TRY(fp_config_integer_or(reader, "max_window_layers", 0, FP_MAX_LAYERS, 28, &config->window_from));
cleanup:
	config->window = window;
	return status;
}
