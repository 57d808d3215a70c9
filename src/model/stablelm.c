/* SPDX-License-Identifier: Apache-2.0 */
/* stablelm.c: StableLM: LLaMA's layer with LayerNorm and a part of each head that turns; some have parallel blocks. */
#include "model/llama_like.h"

static fp_status read_config(const fp_config_reader *reader, fp_model_config *config)
{
	fp_status status;
	bool norms;
	static const fp_llama_defaults defaults = {
		.activation = FP_SILU, .positions = 4096, .kv_heads = 32, .epsilon = 1e-5, .part = 0.25, .layer_norm = true};
	FP_TRY(fp_config_llama_like(reader, &defaults, config));
	FP_TRY(fp_config_flag_or(reader, "use_qkv_bias", false, &config->qkv_bias));
	FP_TRY(fp_config_flag_or(reader, "use_parallel_residual", false, &config->parallel));
	FP_TRY(fp_config_flag_or(reader, "qk_layernorm", false, &norms));
	if (norms)
		FP_TRY(fp_config_fail(reader, "qk_layernorm",
							  "is true; norms with weights of their own for each head are not "
							  "supported, only false is"));
	config->shared_norm = config->parallel;
cleanup:
	return status;
}

const fp_architecture fp_architecture_stablelm = {
	.name = "StableLmForCausalLM",
	.model_type = "stablelm",
	.read_config = read_config,
	FP_LLAMA_NORM_NAMES,
	FP_LLAMA_TENSOR_NAMES,
};
