/* SPDX-License-Identifier: Apache-2.0 */
/* mistral.c: the Mistral family: LLaMA's layer with a sliding attention window; and the text part of Mistral Small 3.1 and
 * later, which is the same. */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	static const fp_llama_defaults defaults = {.activation = FP_SILU, .positions = 131072, .kv_heads = 8};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	/* Since Mistral 0.2 the key is null: no window. An absent key means the default window. */
	int64_t window = fp_config_is_null(reader, "sliding_window") ? 0 : 4096;
	FP_TRY(fp_config_integer_or(reader, "sliding_window", 1, FP_MAX_DIMENSION, window, &config->window));
cleanup:
	return status;
}

static fp_status read_images(const fp_config_reader *reader, fp_model_config *config)
{
	return fp_config_images(reader, read_config, config);
}

const fp_architecture fp_architecture_mistral = {
	.name = "MistralForCausalLM",
	.model_type = "mistral",
	.read_config = read_config,
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
