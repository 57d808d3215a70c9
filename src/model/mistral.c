/* SPDX-License-Identifier: Apache-2.0 */
/* mistral.c: the Mistral family: LLaMA's layer with a sliding attention window. */
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

const fp_architecture fp_architecture_mistral = {
	.name = "MistralForCausalLM",
	.model_type = "mistral",
	.read_config = read_config,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};
