/* SPDX-License-Identifier: Apache-2.0 */
/* qwen2.c: Qwen2 and Qwen2.5: LLaMA's layer with biases on q, k and v. */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	static const fp_llama_defaults defaults = {.activation = FP_SILU, .positions = 32768, .kv_heads = 32};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_qwen_window(reader, config));
	config->qkv_bias = true;
cleanup:
	return status;
}

const fp_architecture fp_architecture_qwen2 = {
	.name = "Qwen2ForCausalLM",
	.model_type = "qwen2",
	.read_config = read_config,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};
