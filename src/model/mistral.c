/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mistral.c: the Mistral family: LLaMA's layer with a sliding attention window; in some layers only where a config lists
 * layer_types, which makes a Mistral a Ministral.
 * Ministral 3 scales the queries of positions beyond its original context, up to which it is supported. Of Mistral 3, which
 * sees images, the text part is one of these.
 */
#include "base/numbers.h"
#include "model/llama_like.h"

#include <string.h>

/* Since Mistral 0.2 the key is null: no window. An absent key means the default window. */
static fp_status read_window(const fp_config_reader *reader, fp_model_config *config)
{
	int64_t window = fp_config_is_null(reader, "sliding_window") ? 0 : 4096;
	return fp_config_integer_or(reader, "sliding_window", 1, FP_MAX_DIMENSION, window, &config->window);
}

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	static const fp_llama_defaults defaults = {.activation = FP_SILU, .positions = 131072, .kv_heads = 8};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(read_window(reader, config));
	if (fp_config_has(reader, "layer_types"))
		FP_TRY(fp_config_layer_types(reader, config));
cleanup:
	return status;
}

static fp_status read_ministral3(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	fp_config_reader rope;
	int64_t original;
	static const fp_llama_defaults defaults = {
		.activation = FP_SILU, .positions = 262144, .kv_heads = 8, .head_dim = 128, .epsilon = 1e-5, .theta = 1000000};
	FP_TRY(fp_config_section(reader, "rope_parameters", &rope));
	if (!rope.object)
		FP_TRY(
			fp_config_fail(reader, "rope_parameters", "is missing; it must be an object, as in the published models"));
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_integer_or(reader, "sliding_window", 1, FP_MAX_DIMENSION, 0, &config->window));
	FP_TRY(fp_config_integer_or(&rope, "original_max_position_embeddings", 1, FP_MAX_DIMENSION, config->positions,
								&original));
	if (fp_config_has(&rope, "llama_4_scaling_beta"))
		config->positions = fp_smaller(config->positions, original);
cleanup:
	return status;
}

static fp_status read_text(const fp_config_reader *reader, fp_model_config *config)
{
	const char *type;
	fp_status status = fp_config_text_or(reader, "model_type", "mistral", &type);
	if (status != FP_OK)
		return status;
	return strcmp(type, "ministral3") == 0 ? read_ministral3(reader, config) : read_config(reader, config);
}

static fp_status read_images(const fp_config_reader *reader, fp_model_config *config)
{
	return fp_config_images(reader, read_text, config);
}

const fp_architecture fp_architecture_mistral = {
	.name = "MistralForCausalLM",
	.model_type = "mistral",
	.read_config = read_config,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};

const fp_architecture fp_architecture_ministral = {
	.name = "MinistralForCausalLM",
	.model_type = "ministral",
	.read_config = read_config,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};

const fp_architecture fp_architecture_ministral3 = {
	.name = "Ministral3ForCausalLM",
	.model_type = "ministral3",
	.read_config = read_ministral3,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};

const fp_architecture fp_architecture_mistral3 = {
	.name = "Mistral3ForConditionalGeneration",
	.model_type = "mistral3",
	.read_config = read_images,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_LAYER_NAMES,
	/* transformers 5's names, and those of the published files */
	.prefixes = {"model.language_model.", "language_model.model."},
	.head = "lm_head",
	.old_head = "language_model.lm_head",
};
