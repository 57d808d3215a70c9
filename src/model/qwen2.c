/* SPDX-License-Identifier: Apache-2.0 */
/*
 * qwen2.c: Qwen2 and Qwen2.5: LLaMA's layer with biases on q, k and v; and the text part of Qwen2-VL and Qwen2.5-VL, which
 * is the same.
 */
#include "model/llama_like.h"

static fp_status read_with(const fp_config_reader *reader, const fp_llama_defaults *defaults, fp_model_config *config)
{
	fp_status status;
	FP_TRY(fp_config_llama_like(reader, defaults, config));
	FP_TRY(fp_config_qwen_window(reader, config));
	config->qkv_bias = true;
cleanup:
	return status;
}

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	static const fp_llama_defaults defaults = {.activation = FP_SILU, .positions = 32768, .kv_heads = 32};
	return read_with(reader, &defaults, config);
}

static fp_status read_text(const fp_config_reader *reader, fp_model_config *config)
{
	static const fp_llama_defaults defaults = {
		.activation = FP_SILU, .positions = 32768, .kv_heads = 8, .epsilon = 1e-5, .theta = 1000000};
	return read_with(reader, &defaults, config);
}

static fp_status read_images(const fp_config_reader *reader, fp_model_config *config)
{
	return fp_config_images(reader, read_text, config);
}

const fp_architecture fp_architecture_qwen2 = {
	.name = "Qwen2ForCausalLM",
	.model_type = "qwen2",
	.read_config = read_config,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};

#define IMAGES_TENSOR_NAMES                                                                                            \
	FP_LLAMA_NORM_NAMES, FP_LLAMA_LAYER_NAMES,                                                                         \
		.head = "lm_head", .prefixes = {"model.language_model.", "model."} /* the published files' */

const fp_architecture fp_architecture_qwen2_vl = {
	.name = "Qwen2VLForConditionalGeneration",
	.model_type = "qwen2_vl",
	.read_config = read_images,
	IMAGES_TENSOR_NAMES,
};

const fp_architecture fp_architecture_qwen2_5_vl = {
	.name = "Qwen2_5_VLForConditionalGeneration",
	.model_type = "qwen2_5_vl",
	.read_config = read_images,
	IMAGES_TENSOR_NAMES,
};
