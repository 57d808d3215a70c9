/* SPDX-License-Identifier: Apache-2.0 */
/* Errors in a config or tensor name the key or tensor, the rule and the value. */
#include "model_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *fixture, *key, *value; /* NULL: the key is removed */
	const char *message;
} broken[] = {
	{"llama-gqa", "architectures", "[\"MambaForCausalLM\"]",
	 "'MambaForCausalLM', which is not supported; supported are OPTForCausalLM, LlamaForCausalLM"},
	{"llama-gqa", "architectures", "\"LlamaForCausalLM\"", "must be a list"},
	{"llama-gqa", "architectures", "[]", "must be a list"},
	{"llama-gqa", "hidden_size", NULL, "'hidden_size' is missing"},
	{"llama-gqa", "hidden_size", "0", "'hidden_size' must be from 1"},
	{"llama-gqa", "hidden_size", "-24", "but is -24"},
	{"llama-gqa", "hidden_size", "24.5", "'hidden_size' must be an integer of at least 1, but is 24.5"},
	{"llama-gqa", "hidden_size", "\"24\"", "but is \"24\""},
	{"llama-gqa", "hidden_size", "{}", "but is an object"},
	{"llama-gqa", "hidden_size", "\"a string that is much longer than any value that this key can have\"",
	 "but is \"a string that is much longer than any value that this ke\"..."},
	{"llama-gqa", "hidden_size", "9223372036854775807", "but is 9223372036854775807"},
	{"llama-gqa", "vocab_size", "41",
	 "tensor 'model.embed_tokens.weight' has shape [40, 24], but config.json requires [41, 24]"},
	{"llama-gqa", "num_hidden_layers", "3", "tensor 'model.layers.2.self_attn.q_proj.weight' is missing"},
	{"llama-gqa", "num_hidden_layers", "100000000", "'num_hidden_layers' must be from 1"},
	{"llama-gqa", "num_key_value_heads", "3",
	 "'num_key_value_heads' must divide num_attention_heads, but 3 does not divide 4"},
	{"llama-gqa", "num_key_value_heads", "4",
	 "tensor 'model.layers.0.self_attn.k_proj.weight' has shape [12, 24], but config.json requires [24, 24]"},
	{"llama-gqa", "head_dim", "7", "'head_dim' must be even"},
	{"llama-gqa", "head_dim", "200000000", "'head_dim' must be at most 1024 for rotary positions"},
	{"llama-gqa", "attention_bias", "true", "tensor 'model.layers.0.self_attn.q_proj.bias' is missing"},
	{"llama-gqa", "attention_bias", "1", "'attention_bias' must be true or false, but is 1"},
	{"llama-gqa", "hidden_act", "\"mish\"", "'mish', an activation that is not supported; supported are relu"},
	{"llama-gqa", "hidden_act", "3", "'hidden_act' must be a string, but is 3"},
	{"llama-gqa", "rms_norm_eps", "0", "'rms_norm_eps' must be a number above 0"},
	{"llama-gqa", "rope_parameters", "{\"rope_type\": \"spiral\", \"factor\": 2.0}",
	 "'rope_parameters.rope_type' is 'spiral', which is not supported; supported are default, dynamic, mrope, linear, "
	 "llama3, yarn, longrope"},
	{"llama-gqa", "rope_parameters", "{\"rope_type\": \"linear\"}", "'rope_parameters.factor' is missing"},
	{"llama-gqa", "rope_parameters", "{\"rope_theta\": -1}", "'rope_parameters.rope_theta' must be a number above 0"},
	{"llama-gqa", "rope_parameters", "{\"partial_rotary_factor\": 0.5}", "'partial_rotary_factor' must be 1"},
	{"llama-gqa", "rope_parameters",
	 "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, \"high_freq_factor\": 4}",
	 "must be above low_freq_factor"},
	{"llama-gqa", "rope_parameters", "[]", "'rope_parameters' must be an object or null, but is a list"},
	{"llama-plain", "rope_scaling", "{\"type\": \"ntk\", \"factor\": 2.0}", "'rope_scaling.rope_type' is 'ntk'"},
	{"llama-tied", "tie_word_embeddings", "false", "tensor 'lm_head.weight' is missing"},
	{"qwen2-window", "layer_types", "[\"full_attention\"]", "'layer_types' must be a list of 2 words"},
	{"qwen2-window", "layer_types", "[\"full_attention\", \"linear_attention\"]",
	 "'layer_types' must be full_attention or sliding_attention for layer 1"},
	{"qwen2-window", "sliding_window", "0", "'sliding_window' must be from 1"},
	{"qwen2-plain", "num_key_value_heads", "null",
	 "tensor 'model.layers.0.self_attn.k_proj.weight' has shape [12, 24], but config.json requires [24, 24]"},
	{"qwen2-plain", "num_key_value_heads", NULL, "must divide num_attention_heads, but 32 does not divide 4"},
	{"qwen3-plain", "head_dim", NULL, "but config.json requires [512, 24]"},
	{"mistral-window", "sliding_window", "-1", "'sliding_window' must be from 1"},
	{"opt-plain", "num_attention_heads", "5",
	 "'num_attention_heads' must divide hidden_size, but 5 does not divide 24"},
	{"opt-plain", "word_embed_proj_dim", "16",
	 "tensor 'model.decoder.embed_tokens.weight' has shape [40, 24], but config.json requires [40, 16]"},
	{"opt-plain", "max_position_embeddings", "64",
	 "tensor 'model.decoder.embed_positions.weight' has shape [34, 24], but config.json requires [66, 24]"},
	{"opt-350m", "do_layer_norm_before", "true", "tensor 'model.decoder.final_layer_norm.weight' is missing"},
	{"llama-gqa", "rope_parameters", "{\"rope_type\": \"longrope\", \"short_factor\": [1.0, 1.0]}",
	 "'rope_parameters.short_factor' must be a list of 3 numbers"},
	{"gemma-plain", "use_bidirectional_attention", "true", "'use_bidirectional_attention' must be false"},
	{"gemma-plain", "num_key_value_heads", NULL, "must divide num_attention_heads, but 16 does not divide 4"},
	{"gemma2-plain", "attn_logit_softcapping", "-1", "'attn_logit_softcapping' must be a number above 0"},
	{"gemma3-plain", "head_dim", NULL, "but config.json requires [1024, 24]"},
	{"gemma3-images", "text_config", NULL, "'text_config' is missing"},
	{"gemma3-images", "text_config", "{\"hidden_size\": 24, \"num_hidden_layers\": 2, \"intermediate_size\": 0}",
	 "'text_config.intermediate_size' must be from 1"},
	{"gemma3-images", "text_config", "{\"hidden_size\": 24, \"num_hidden_layers\": 2, \"intermediate_size\": 40}",
	 "'model.language_model.embed_tokens.weight' has shape [40, 24], but config.json requires [262208, 24]"},
	{"phi3-longrope", "original_max_position_embeddings", NULL, "'original_max_position_embeddings' is missing"},
	{"phi3-plain", "num_key_value_heads", "3",
	 "tensor 'model.layers.0.self_attn.qkv_proj.weight' has shape [40, 24], but config.json requires [72, 24]"},
	{"olmo2-plain", "attention_bias", "true", "tensor 'model.layers.0.self_attn.q_proj.bias' is missing"},
	{"granite-plain", "residual_multiplier", "0", "'residual_multiplier' must be a number above 0"},
	{"gpt_neox-plain", "rope_parameters", "{\"partial_rotary_factor\": 0.1}",
	 "'partial_rotary_factor' is 0.1, so that 0 of a head's 8 entries turn"},
	{"gpt2-plain", "scale_attn_by_inverse_layer_idx", "true", "'scale_attn_by_inverse_layer_idx' must be false"},
	{"gpt2-plain", "scale_attn_weights", "false", "'scale_attn_weights' must be true"},
	{"gpt2-plain", "n_inner", "40",
	 "tensor 'transformer.h.0.mlp.c_fc.weight' has shape [24, 96], but config.json requires [24, 40]"},
	{"gpt2-plain", "n_head", "5", "'n_head' must divide hidden_size"},
	{"stablelm-plain", "qk_layernorm", "true", "'qk_layernorm' is true; norms with weights of their own"},
	{"phi-plain", "qk_layernorm", "true", "'qk_layernorm' is true; LayerNorm on queries and keys"},
	{"falcon-40b", "parallel_attn", "false", "'parallel_attn' must be true in the new decoder architecture"},
	{"falcon-7b", "num_ln_in_parallel_attn", "2", "'num_ln_in_parallel_attn' must be 1"},
	{"falcon-7b", "multi_query", "false",
	 "'transformer.h.0.self_attention.query_key_value.weight' has shape [32, 24], but config.json requires [72, 24]"},
	{"bloom-plain", "apply_residual_connection_post_layernorm", "true",
	 "'apply_residual_connection_post_layernorm' must be false"},
	{"smollm3-plain", "no_rope_layers", "[1]", "'no_rope_layers' must be a list of 2 numbers"},
	{"smollm3-plain", "use_sliding_window", "true", "'use_sliding_window' must be false"},
	{"mixtral-plain", "num_local_experts", NULL,
	 "'model.layers.0.block_sparse_moe.gate.weight' has shape [5, 24], but config.json requires [8, 24]"},
	{"mixtral-plain", "num_experts_per_tok", "6", "'num_experts_per_tok' must be at most the number of experts, 5"},
	{"mixtral-plain", "num_experts_per_tok", "0", "'num_experts_per_tok' must be from 1"},
	{"qwen2_moe-plain", "num_experts", NULL,
	 "'model.layers.1.mlp.gate.weight' has shape [6, 24], but config.json requires [60, 24]"},
	{"qwen2_moe-plain", "moe_intermediate_size", NULL, "but config.json requires [1408, 24]"},
	{"qwen2_moe-plain", "shared_expert_intermediate_size", NULL, "but config.json requires [5632, 24]"},
	{"qwen2_moe-plain", "mlp_only_layers", "[]", "tensor 'model.layers.0.mlp.gate.weight' is missing"},
	{"qwen2_moe-plain", "mlp_only_layers", "3", "'mlp_only_layers' must be a list of layers"},
	{"qwen2_moe-plain", "mlp_only_layers", "[-1]", "'mlp_only_layers' must be a list of layers, from 0"},
	{"qwen2_moe-plain", "decoder_sparse_step", "0", "'decoder_sparse_step' must be from 1"},
	{"qwen2_moe-plain", "qkv_bias", "3", "'qkv_bias' must be true or false"},
	{"qwen3_moe-plain", "num_local_experts", NULL, "but config.json requires [128, 24]"},
	{"qwen3_moe-plain", "moe_intermediate_size", NULL, "but config.json requires [768, 24]"},
	{"qwen3_moe-plain", "head_dim", NULL, "has shape [32, 24], but config.json requires [24, 24]"},
	{"qwen2_5_vl-old", "hidden_size", NULL, "'text_config' is missing"},
	{"qwen2_5_vl-old", "rope_scaling", "{\"type\": \"spiral\"}", "'rope_scaling.rope_type' is 'spiral'"},
	{"qwen3_vl-tied", "tie_word_embeddings", "false", "tensor 'lm_head.weight' is missing"},
	{"ministral3-plain", "rope_parameters", NULL, "'rope_parameters' is missing"},
	{"olmo-plain", "clip_qkv", "8", "'clip_qkv' must be null"},
	{"olmoe-plain", "clip_qkv", "8", "'clip_qkv' must be null"},
	{"olmoe-plain", "num_experts", NULL, "tensor 'model.layers.0.mlp.gate.weight' has shape [6, 24]"},
	{"glm-plain", "head_dim", NULL, "but config.json requires [512, 24]"},
	{"seed_oss-plain", "attention_out_bias", "true", "tensor 'model.layers.0.self_attn.o_proj.bias' is missing"},
	{"ernie4_5-plain", "use_bias", "true", "tensor 'model.layers.0.self_attn.q_proj.bias' is missing"},
	{"exaone4-plain", "layer_types", "[\"full_attention\"]", "'layer_types' must be a list of 2 words"},
	{"starcoder2-plain", "norm_epsilon", "0", "'norm_epsilon' must be a number above 0"},
	{"starcoder2-no-bias", "use_bias", NULL, "tensor 'model.layers.0.self_attn.q_proj.bias' is missing"},
	{"glm4_moe-plain", "n_group", "4",
	 "'n_group' must divide the number of experts into groups of at least 2, but is 4 for 6"},
	{"glm4_moe-plain", "n_group", "6", "1 is always possible"},
	{"glm4_moe-groups", "topk_group", "5", "'topk_group' must be at most n_group, 4, and enough groups of 2 experts"},
	{"glm4_moe-groups", "topk_group", NULL, "for the 3 of a token, but is 1"},
	{"glm4_moe-groups", "n_shared_experts", "0", "'n_shared_experts' must be from 1"},
	{"glm4_moe-groups", "n_shared_experts", "1", "has shape [32, 24], but config.json requires [16, 24]"},
	{"glm4_moe-plain", "n_routed_experts", NULL, "but config.json requires [128, 24]"},
	{"glm4_moe-plain", "first_k_dense_replace", "0", "tensor 'model.layers.0.mlp.gate.weight' is missing"},
	{"glm4_moe-plain", "first_k_dense_replace", "2", "tensor 'model.layers.1.mlp.gate_proj.weight' is missing"},
	{"glm4_moe-plain", "routed_scaling_factor", "0", "'routed_scaling_factor' must be a number above 0"},
	{"ernie4_5_moe-plain", "use_bias", "true", "'use_bias' is true; experts that read every token cannot have biases"},
	{"ernie4_5_moe-plain", "moe_k", "7", "'moe_k' must be at most the number of experts, 6, but is 7"},
	{"ernie4_5_moe-plain", "moe_num_experts", NULL, "tensor 'model.layers.1.mlp.gate.weight' has shape [6, 24]"},
	{"ernie4_5_moe-plain", "moe_layer_start_index", "0", "tensor 'model.layers.0.mlp.gate.weight' is missing"},
	{"ernie4_5_moe-plain", "moe_layer_end_index", "0", "tensor 'model.layers.1.mlp.gate_proj.weight' is missing"},
	{"ernie4_5_moe-plain", "moe_norm_min", "0", "'moe_norm_min' must be a number above 0"},
	{"granitemoe-plain", "num_local_experts", NULL,
	 "tensor 'model.layers.0.block_sparse_moe.router.layer.weight' has shape [5, 24]"},
	{"granitemoe-plain", "intermediate_size", "17",
	 "tensor 'model.layers.0.block_sparse_moe.input_linear.weight' has shape [5, 32, 24], but config.json requires [5, "
	 "34, 24]"},
	{"granitemoeshared-plain", "shared_intermediate_size", "29",
	 "has shape [56, 24], but config.json requires [58, 24]"},
	{"granitemoehybrid-dense", "layer_types", "[\"attention\", \"mamba\"]",
	 "'layer_types' is 'mamba' for layer 1; only layers with attention are supported, not Mamba's"},
	{"granitemoehybrid-dense", "layer_types", NULL, "'layer_types' is 'absent' for layer 0"},
	{"dots1-bias", "n_routed_experts", NULL, "'n_routed_experts' is missing"},
	{"dots1-bias", "num_experts_per_tok", "null", "'num_experts_per_tok' is missing"},
	{"minimax_m2-plain", "rotary_dim", "9", "'rotary_dim' must be from 1 to 8, but is 9"},
	{"minimax_m2-plain", "rotary_dim", "3", "'partial_rotary_factor' is 0.375"},
	{"deepseek_v3-dense", "kv_lora_rank", NULL,
	 "tensor 'model.layers.0.self_attn.kv_a_proj_with_mqa.weight' has shape [14, 24], but config.json requires [516, "
	 "24]"},
	{"deepseek_v3-dense", "q_lora_rank", NULL, "has shape [12, 24], but config.json requires [1536, 24]"},
	{"deepseek_v3-dense", "q_lora_rank", "null", "tensor 'model.layers.0.self_attn.q_proj.weight' is missing"},
	{"deepseek_v3-dense", "qk_rope_head_dim", NULL, "has shape [14, 24], but config.json requires [74, 24]"},
	{"deepseek_v3-dense", "qk_rope_head_dim", "3", "must be even for rotary positions"},
	{"deepseek_v3-dense", "qk_nope_head_dim", NULL, "has shape [40, 12], but config.json requires [528, 12]"},
	{"deepseek_v3-dense", "v_head_dim", "11", "'v_head_dim' must be at most qk_nope_head_dim + qk_rope_head_dim, 10"},
	{"deepseek_v3-dense", "scoring_func", "\"softmax\"", "'scoring_func' must be sigmoid, but is 'softmax'"},
	{"deepseek_v3-groups", "moe_layer_freq", "2", "'moe_layer_freq' must be from 1 to 1, but is 2"},
	{"deepseek_v3-groups", "first_k_dense_replace", NULL, "tensor 'model.layers.1.mlp.gate_proj.weight' is missing"},
	{"deepseek_v3-groups", "rope_scaling", "{\"type\": \"linear\", \"mscale_all_dim\": 1.0}",
	 "'rope_scaling.factor' is missing"},
	{"deepseek_v2-lite", "scoring_func", "\"sigmoid\"", "'scoring_func' must be softmax, but is 'sigmoid'"},
	{"deepseek_v2-lite", "norm_topk_prob", "true", "'norm_topk_prob' must be false"},
	{"deepseek_v2-lite", "topk_method", "\"noaux_tc\"", "must be greedy or group_limited_greedy, but is 'noaux_tc'"},
	{"deepseek_v2-lite", "num_experts_per_tok", "null", "'num_experts_per_tok' is missing"},
	{"deepseek_v2-lite", "mlp_bias", "true", "'mlp_bias' must be false"},
	{"glm4_moe_lite-plain", "mlp_layer_types", "[\"dense\"]", "'mlp_layer_types' must be a list of 2 words"},
	{"glm4_moe_lite-plain", "mlp_layer_types", "[\"dense\", \"thin\"]", "must be dense or sparse for layer 1"},
	{"glm4_moe_lite-plain", "mlp_layer_types", "[\"dense\", \"dense\"]",
	 "tensor 'model.layers.1.mlp.gate_proj.weight' is missing"},
	{"minicpm3-plain", "scale_depth", "0", "'scale_depth' must be a number above 0"},
	{"qwen3_vl_moe-plain", "text_config", NULL, "'text_config' is missing"},
	{"cohere-plain", "use_qk_norm", "true", "'use_qk_norm' is true; norms with weights of their own"},
	{"opt-norm-without-weights", "layer_norm_elementwise_affine", "true",
	 "layers.0.self_attn_layer_norm.weight' is missing"},
};
enum { BROKEN_COUNT = sizeof broken / sizeof broken[0] };

static void a_broken_config_is_refused(void **unused)
{
	(void)unused;
	for (int i = 0; i < BROKEN_COUNT; i++) {
		model_fixture f;
		char *folder = copy_fixture(broken[i].fixture, broken[i].key, broken[i].value);
		fp_status status = open_directory(&f, folder);
		if (status != FP_ERROR_INPUT || !strstr(fp_context_message(f.ctx), broken[i].message))
			fail_msg("%s with %s = %s gave %s '%s', wanted '%s'", broken[i].fixture, broken[i].key,
					 broken[i].value ? broken[i].value : "(none)", fp_status_name(status), fp_context_message(f.ctx),
					 broken[i].message);
		assert_null(f.model);
		close_fixture(&f);
		remove_folder(folder);
		free(folder);
	}
}

static void a_null_means_the_default(void **unused)
{
	(void)unused;
	model_fixture f;
	char *folder = copy_fixture("llama-plain", "num_key_value_heads", "null");
	assert_int_equal(open_directory(&f, folder), FP_OK);
	assert_int_equal(fp_model_get_config(f.model)->kv_heads, 4);
	close_fixture(&f);
	remove_folder(folder);
	free(folder);
	folder = copy_fixture("llama-plain", "architectures", NULL); /* model_type is enough */
	assert_int_equal(open_directory(&f, folder), FP_OK);
	close_fixture(&f);
	remove_folder(folder);
	free(folder);
}

/* transformers distinguishes null from an absent key. */
static void absent_and_null_windows_differ(void **unused)
{
	(void)unused;
	static const struct {
		const char *fixture, *key, *value;
		int64_t window[2]; /* by layer */
	} windows[] = {
		{"mistral-window", NULL, NULL, {7, 7}},
		{"mistral-window", "sliding_window", "null", {0, 0}},
		{"mistral-window", "sliding_window", NULL, {4096, 4096}},
		{"mistral-window", "layer_types", "[\"full_attention\", \"sliding_attention\"]", {0, 7}},
		{"qwen2-window", NULL, NULL, {0, 5}},
		{"qwen2-window", "use_sliding_window", "false", {0, 0}},
		{"qwen2-window", "sliding_window", "null", {0, 0}},
		{"qwen2-window-old", NULL, NULL, {0, 5}},
		{"qwen2-window-old", "max_window_layers", NULL, {0, 0}},
		{"qwen2-window-old", "sliding_window", NULL, {0, 4096}},
	};
	for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
		model_fixture f;
		char *folder = copy_fixture(windows[i].fixture, windows[i].key, windows[i].value);
		assert_int_equal(open_directory(&f, folder), FP_OK);
		for (int layer = 0; layer < 2; layer++)
			assert_int_equal(fp_config_window(fp_model_get_config(f.model), layer), windows[i].window[layer]);
		close_fixture(&f);
		remove_folder(folder);
		free(folder);
	}
}

/* Fills the first `count` elements of a tensor in a copy of a fixture with one safetensors file. */
static char *spoil(const char *fixture, const char *tensor, const void *element, int64_t count)
{
	model_fixture f;
	char path[4200];
	char *folder = copy_fixture(fixture, NULL, NULL);
	assert_int_equal(open_directory(&f, folder), FP_OK);
	const fp_tensor_info *info = fp_checkpoint_find(f.checkpoint, tensor);
	assert_non_null(info);
	assert_true(count <= info->elements);
	snprintf(path, sizeof path, "%s/model.safetensors", folder);
	FILE *file = fopen(path, "r+b");
	assert_non_null(file);
	fseek(file, (long)info->offset, SEEK_SET);
	for (int64_t i = 0; i < count; i++)
		fwrite(element, 1, (size_t)fp_dtype_size(info->dtype), file);
	fclose(file);
	close_fixture(&f);
	return folder;
}

static fp_status try_run(model_fixture *f)
{
	const fp_model_config *c = fp_model_get_config(f->model);
	const int32_t ids[4] = {0, 3, 5, 7};
	fp_status status;
	fp_workspace *workspace = NULL;
	fp_layer *layer = NULL;
	fp_matrix hidden = {0};
	float losses[4];
	FP_TRY(fp_matrix_new(f->be, &hidden, 4, c->hidden, FP_F32));
	FP_TRY(fp_workspace_new(&workspace, f->model, 4));
	FP_TRY(fp_model_embed(f->model, ids, 1, 4, hidden));
	for (int64_t i = 0; i < c->layers; i++) {
		fp_layer_state state = {.sequences = 1, .length = 4, .hidden = hidden};
		FP_TRY(fp_layer_load(&layer, f->model, i));
		FP_TRY(fp_layer_forward(layer, &state, workspace));
		fp_layer_free(layer);
		layer = NULL;
	}
	FP_TRY(fp_model_loss(f->model, hidden, ids, losses, NULL));
cleanup:
	fp_layer_free(layer);
	fp_workspace_free(workspace);
	fp_matrix_free(f->be, &hidden);
	return status;
}

static void numbers_that_are_not_finite_are_named(void **unused)
{
	(void)unused;
	static const uint16_t half_nan = 0x7e00;
	static const uint16_t half_infinity = 0x7c00;
	static const float huge = 3e38F;
	const struct {
		const char *fixture, *tensor;
		const void *element;
		int64_t count;
		fp_status status;
		const char *message;
	} spoiled[] = {
		{"opt-plain", "model.decoder.layers.1.fc1.weight", &half_nan, 1, FP_ERROR_INPUT,
		 "'model.decoder.layers.1.fc1.weight'"},
		{"opt-plain", "model.decoder.layers.0.self_attn.k_proj.bias", &half_infinity, 1, FP_ERROR_INPUT,
		 "k_proj.bias'"},
		{"opt-plain", "model.decoder.embed_tokens.weight", &half_nan, 1, FP_ERROR_INPUT,
		 "'model.decoder.embed_tokens.weight'"},
		{"opt-plain", "model.decoder.embed_positions.weight", &half_nan, 60, FP_ERROR_INPUT, "embed_positions.weight'"},
		{"opt-plain", "model.decoder.final_layer_norm.weight", &half_nan, 1, FP_ERROR_INPUT,
		 "decoder.final_layer_norm.weight'"},
		{"opt-350m", "model.decoder.project_in.weight", &half_nan, 1, FP_ERROR_INPUT, "project_in.weight'"},
		{"opt-350m", "model.decoder.project_out.weight", &half_nan, 1, FP_ERROR_INPUT, "project_out.weight'"},
		{"opt-untied", "lm_head.weight", &half_nan, 1, FP_ERROR_INPUT, "'lm_head.weight'"},
		{"llama-plain", "model.layers.1.mlp.down_proj.weight", &huge, 960, FP_ERROR_NUMERIC, "layer 1"},
		{"llama-plain", "lm_head.weight", &huge, 960, FP_ERROR_NUMERIC, "loss"},
	};
	for (size_t i = 0; i < sizeof spoiled / sizeof spoiled[0]; i++) {
		model_fixture f;
		char *folder = spoil(spoiled[i].fixture, spoiled[i].tensor, spoiled[i].element, spoiled[i].count);
		assert_int_equal(open_directory(&f, folder), FP_OK);
		fp_status status = try_run(&f);
		if (status != spoiled[i].status || !strstr(fp_context_message(f.ctx), spoiled[i].message))
			fail_msg("%s: %s gave %s '%s'", spoiled[i].fixture, spoiled[i].tensor, fp_status_name(status),
					 fp_context_message(f.ctx));
		close_fixture(&f);
		remove_folder(folder);
		free(folder);
	}
}

static void a_request_that_does_not_fit_is_refused(void **unused)
{
	(void)unused;
	static const char *const two[] = {"opt-plain", "llama-plain"};
	for (int i = 0; i < 2; i++) {
		model_fixture f;
		int32_t ids[65] = {0};
		fp_matrix hidden;
		open_fixture(&f, two[i]);
		int64_t positions = fp_model_get_config(f.model)->positions;
		assert_ok(f.ctx, fp_matrix_new(f.be, &hidden, positions + 1, 24, FP_F32));
		assert_fails(f.ctx, FP_ERROR_USAGE, positions == 32 ? "has 32 positions" : "has 64 positions",
					 fp_model_embed(f.model, ids, 1, positions + 1, hidden));
		hidden.rows = positions;
		assert_ok(f.ctx, fp_model_embed(f.model, ids, 1, positions, hidden));
		ids[1] = 40;
		assert_fails(f.ctx, FP_ERROR_INPUT, "token id 40 is outside the model's vocabulary of 40",
					 fp_model_embed(f.model, ids, 1, positions, hidden));
		ids[1] = -1;
		assert_fails(f.ctx, FP_ERROR_INPUT, "token id -1", fp_model_embed(f.model, ids, 1, positions, hidden));
		fp_matrix_free(f.be, &hidden);
		close_fixture(&f);
	}
}

/* Each allocation fails in turn: the message says so and nothing leaks (under ASan). */
static void running_out_of_memory_is_survived(void **unused)
{
	(void)unused;
	static const char *const two[] = {"opt-350m", "llama-gqa"};
	for (int i = 0; i < 2; i++)
		for (int64_t at = 1;; at++) {
			model_fixture f;
			open_fixture(&f, two[i]);
			f.ctx->allocations = 0;
			f.ctx->fail_allocation_at = at;
			fp_status status = try_run(&f);
			bool failed = f.ctx->allocations >= at;
			if (failed)
				assert_int_equal(status, FP_ERROR_MEMORY);
			else
				assert_int_equal(status, FP_OK);
			close_fixture(&f);
			if (!failed)
				break;
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_broken_config_is_refused),
		cmocka_unit_test(a_null_means_the_default),
		cmocka_unit_test(absent_and_null_windows_differ),
		cmocka_unit_test(numbers_that_are_not_finite_are_named),
		cmocka_unit_test(a_request_that_does_not_fit_is_refused),
		cmocka_unit_test(running_out_of_memory_is_survived),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
