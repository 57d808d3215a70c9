/* SPDX-License-Identifier: Apache-2.0 */
/*
 * make_checkpoint: writes a checkpoint with random weights in the shape of a well-known model, for timings
 * and memory figures.
 *
 *     make_checkpoint SHAPE --output DIR [--layers N] [--dtype f16|bf16|f32] [--seed N] [--tokenizer DIR]
 *
 * Weights are normally distributed with standard deviation 0.02, or 0.02/√(2 layers) for operators that
 * write into the residual stream, as in models before training. A few channels of every norm are ten times
 * larger, so that Gram matrices have outliers as in trained models. The bytes depend only on the seed, the
 * shape and the type, not on the number of threads.
 *
 * Without --tokenizer, a byte-level tokenizer is written. A text then has only about a hundred different
 * tokens, so the inputs of the first layers span few dimensions and an exact sparse fit exists. To time
 * solvers, copy a real tokenizer with --tokenizer.
 */
#include "base/file.h"
#include "base/memory.h"
#include "tensor/dtype.h"
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FIRST_BYTE_TOKEN = 4, BLOCK = 1 << 20, QUANTILES = 1 << 16, OUTLIERS = 6 };
static const int64_t shard_limit = 5000000000; /* bytes, as in Hugging Face checkpoints */

struct shape {
	const char *name;
	bool opt;
	int64_t layers, hidden, inner, heads, kv_heads, vocabulary, positions;
	int64_t embedding; /* OPT: width of the token embedding */
	bool post_norm;    /* OPT-350M */
	double rope_theta;
	/* Mixtures of experts: `inner` is the width of each. */
	int64_t experts, active;
	int64_t head_dim; /* with Qwen3's names and norms of heads; 0: hidden / heads, with Mixtral's names */
};

static const struct shape shapes[] = {
	{"opt-125m", true, 12, 768, 3072, 12, 12, 50272, 2048, 768, false, 0, 0, 0, 0},
	{"opt-350m", true, 24, 1024, 4096, 16, 16, 50272, 2048, 512, true, 0, 0, 0, 0},
	{"opt-1.3b", true, 24, 2048, 8192, 32, 32, 50272, 2048, 2048, false, 0, 0, 0, 0},
	{"tinyllama-1.1b", false, 22, 2048, 5632, 32, 4, 32000, 2048, 2048, false, 10000, 0, 0, 0},
	{"llama-15m", false, 6, 288, 768, 6, 6, 32000, 256, 288, false, 10000, 0, 0, 0},
	{"llama-60m", false, 8, 512, 1376, 8, 8, 32000, 1024, 512, false, 10000, 0, 0, 0},
	{"llama-2-7b", false, 32, 4096, 11008, 32, 32, 32000, 4096, 4096, false, 10000, 0, 0, 0},
	{"llama-3-8b", false, 32, 4096, 14336, 32, 8, 128256, 8192, 4096, false, 500000, 0, 0, 0},
	{"llama-3-70b", false, 80, 8192, 28672, 64, 8, 128256, 8192, 8192, false, 500000, 0, 0, 0},
	{"llama-3.1-405b", false, 126, 16384, 53248, 128, 8, 128256, 131072, 16384, false, 500000, 0, 0, 0},
	{"mixtral-8x7b", false, 32, 4096, 14336, 32, 8, 32000, 32768, 4096, false, 1e6, 8, 2, 0},
	{"qwen3-30b-a3b", false, 48, 2048, 768, 32, 4, 151936, 40960, 2048, false, 1e6, 128, 8, 128},
};

enum kind { WEIGHT, RESIDUAL, NORM, BIAS };

struct tensor {
	char name[96];
	enum kind kind;
	int64_t rows, columns; /* columns 0: a vector */
	int64_t bytes;
	int shard;
	int64_t offset; /* in the shard's data, then in its file */
};

struct model {
	fp_context *ctx;
	struct shape shape;
	fp_dtype dtype;
	uint64_t seed;
	const char *directory;
	const char *tokenizer; /* directory of a tokenizer to copy; NULL: write one */
	struct tensor *tensors;
	int64_t count, capacity;
	int shards;
	float *quantiles;
};

/* ---- tensors ---- */

static fp_status add(struct model *model, enum kind kind, int64_t rows, int64_t columns, const char *format, ...)
	__attribute__((format(printf, 5, 6)));

static fp_status add(struct model *model, enum kind kind, int64_t rows, int64_t columns, const char *format, ...)
{
	fp_status status = FP_GROW(model->ctx, &model->tensors, &model->capacity, model->count + 1);
	if (status != FP_OK)
		return status;
	struct tensor *new = &model->tensors[model->count++];
	*new = (struct tensor){.kind = kind, .rows = rows, .columns = columns};
	new->bytes = rows *(columns ? columns : 1) * fp_dtype_size(model->dtype);
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(new->name, sizeof new->name, format, arguments);
	va_end(arguments);
	return FP_OK;
}

static fp_status add_linear(struct model *model, enum kind kind, int64_t rows, int64_t columns, int layer,
							const char *name)
{
	fp_status status = add(model, kind, rows, columns, "model.decoder.layers.%d.%s.weight", layer, name);
	return status == FP_OK ? add(model, BIAS, rows, 0, "model.decoder.layers.%d.%s.bias", layer, name) : status;
}

static fp_status add_norm(struct model *model, const char *name)
{
	fp_status status = add(model, NORM, model->shape.hidden, 0, "%s.weight", name);
	return status == FP_OK ? add(model, BIAS, model->shape.hidden, 0, "%s.bias", name) : status;
}

static fp_status list_opt(struct model *model)
{
	const struct shape *s = &model->shape;
	fp_status status;
	char name[96];
	FP_TRY(add(model, WEIGHT, s->vocabulary, s->embedding, "model.decoder.embed_tokens.weight"));
	FP_TRY(add(model, WEIGHT, s->positions + 2, s->hidden, "model.decoder.embed_positions.weight"));
	if (s->embedding != s->hidden) {
		FP_TRY(add(model, WEIGHT, s->embedding, s->hidden, "model.decoder.project_out.weight"));
		FP_TRY(add(model, WEIGHT, s->hidden, s->embedding, "model.decoder.project_in.weight"));
	}
	if (!s->post_norm)
		FP_TRY(add_norm(model, "model.decoder.final_layer_norm"));
	for (int i = 0; i < (int)s->layers; i++) {
		FP_TRY(add_linear(model, WEIGHT, s->hidden, s->hidden, i, "self_attn.k_proj"));
		FP_TRY(add_linear(model, WEIGHT, s->hidden, s->hidden, i, "self_attn.v_proj"));
		FP_TRY(add_linear(model, WEIGHT, s->hidden, s->hidden, i, "self_attn.q_proj"));
		FP_TRY(add_linear(model, RESIDUAL, s->hidden, s->hidden, i, "self_attn.out_proj"));
		snprintf(name, sizeof name, "model.decoder.layers.%d.self_attn_layer_norm", i);
		FP_TRY(add_norm(model, name));
		FP_TRY(add_linear(model, WEIGHT, s->inner, s->hidden, i, "fc1"));
		FP_TRY(add_linear(model, RESIDUAL, s->hidden, s->inner, i, "fc2"));
		snprintf(name, sizeof name, "model.decoder.layers.%d.final_layer_norm", i);
		FP_TRY(add_norm(model, name));
	}
cleanup:
	return status;
}

/* The router and the experts of a layer. */
static fp_status list_experts(struct model *model, int layer)
{
	const struct shape *s = &model->shape;
	const char *part = s->head_dim > 0 ? "mlp" : "block_sparse_moe", *down = s->head_dim > 0 ? "down_proj" : "w2",
			   *gate = s->head_dim > 0 ? "gate_proj" : "w1", *up = s->head_dim > 0 ? "up_proj" : "w3";
	fp_status status;
	FP_TRY(add(model, WEIGHT, s->experts, s->hidden, "model.layers.%d.%s.gate.weight", layer, part));
	for (int e = 0; e < (int)s->experts; e++) {
		FP_TRY(
			add(model, RESIDUAL, s->hidden, s->inner, "model.layers.%d.%s.experts.%d.%s.weight", layer, part, e, down));
		FP_TRY(
			add(model, WEIGHT, s->inner, s->hidden, "model.layers.%d.%s.experts.%d.%s.weight", layer, part, e, gate));
		FP_TRY(add(model, WEIGHT, s->inner, s->hidden, "model.layers.%d.%s.experts.%d.%s.weight", layer, part, e, up));
	}
	if (s->head_dim > 0) {
		FP_TRY(add(model, NORM, s->head_dim, 0, "model.layers.%d.self_attn.q_norm.weight", layer));
		FP_TRY(add(model, NORM, s->head_dim, 0, "model.layers.%d.self_attn.k_norm.weight", layer));
	}
cleanup:
	return status;
}

static fp_status list_llama(struct model *model)
{
	const struct shape *s = &model->shape;
	const int64_t head = s->head_dim ? s->head_dim : s->hidden / s->heads;
	const int64_t keys = head * s->kv_heads, queries = head * s->heads;
	fp_status status;
	FP_TRY(add(model, WEIGHT, s->vocabulary, s->hidden, "model.embed_tokens.weight"));
	for (int i = 0; i < (int)s->layers; i++) {
		FP_TRY(add(model, NORM, s->hidden, 0, "model.layers.%d.input_layernorm.weight", i));
		if (s->experts > 0) {
			FP_TRY(list_experts(model, i));
		} else {
			FP_TRY(add(model, RESIDUAL, s->hidden, s->inner, "model.layers.%d.mlp.down_proj.weight", i));
			FP_TRY(add(model, WEIGHT, s->inner, s->hidden, "model.layers.%d.mlp.gate_proj.weight", i));
			FP_TRY(add(model, WEIGHT, s->inner, s->hidden, "model.layers.%d.mlp.up_proj.weight", i));
		}
		FP_TRY(add(model, NORM, s->hidden, 0, "model.layers.%d.post_attention_layernorm.weight", i));
		FP_TRY(add(model, WEIGHT, keys, s->hidden, "model.layers.%d.self_attn.k_proj.weight", i));
		FP_TRY(add(model, RESIDUAL, s->hidden, queries, "model.layers.%d.self_attn.o_proj.weight", i));
		FP_TRY(add(model, WEIGHT, queries, s->hidden, "model.layers.%d.self_attn.q_proj.weight", i));
		FP_TRY(add(model, WEIGHT, keys, s->hidden, "model.layers.%d.self_attn.v_proj.weight", i));
	}
	FP_TRY(add(model, NORM, s->hidden, 0, "model.norm.weight"));
	FP_TRY(add(model, WEIGHT, s->vocabulary, s->hidden, "lm_head.weight"));
cleanup:
	return status;
}

/* Starts a new shard when the next tensor would exceed the limit. */
static void assign_shards(struct model *model)
{
	int64_t filled = 0;
	model->shards = 1;
	for (int64_t i = 0; i < model->count; i++) {
		if (filled > 0 && filled + model->tensors[i].bytes > shard_limit) {
			model->shards++;
			filled = 0;
		}
		model->tensors[i].shard = model->shards - 1;
		model->tensors[i].offset = filled;
		filled += model->tensors[i].bytes;
	}
}

/* ---- random numbers, a function of seed and position ---- */

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 32) * 0xD6E8FEB86659FD93ULL;
	x = (x ^ x >> 32) * 0xD6E8FEB86659FD93ULL;
	return x ^ x >> 32;
}

static uint64_t tensor_key(const struct model *model, const char *name)
{
	uint64_t key = mix(model->seed + 0x9E3779B97F4A7C15ULL);
	for (; *name; name++)
		key = mix(key ^ (unsigned char)*name);
	return key;
}

/* Quantiles of the normal distribution at (i + ½)/65536, by Newton's method. */
static fp_status make_quantiles(struct model *model)
{
	fp_status status = FP_NEW(model->ctx, &model->quantiles, QUANTILES);
	if (status != FP_OK)
		return status;
	double x = 0;
	for (int i = QUANTILES / 2; i < QUANTILES; i++) {
		const double upper = 1 - (i + 0.5) / QUANTILES;
		for (int k = 0; k < 30; k++) {
			double step = (0.5 * erfc(x / sqrt(2.0)) - upper) * sqrt(2 * M_PI) * exp(x * x / 2);
			x += step;
			if (fabs(step) < 1e-12)
				break;
		}
		model->quantiles[i] = (float)x;
		model->quantiles[QUANTILES - 1 - i] = (float)-x;
	}
	return FP_OK;
}

static double deviation(const struct model *model, enum kind kind)
{
	return kind == RESIDUAL ? 0.02 / sqrt(2.0 * (double)model->shape.layers) : kind == BIAS ? 0.01 : 0.02;
}

/* Norm weights are close to 1, but ten times larger in a few channels, the same in every layer. */
static void fill_norm(const struct model *model, float *out, const struct tensor *tensor)
{
	const uint64_t key = tensor_key(model, tensor->name), channels = tensor_key(model, "outliers");
	for (int64_t i = 0; i < tensor->rows; i++)
		out[i] = 1.0F + 0.1F * model->quantiles[mix(key + (uint64_t)i) & (QUANTILES - 1)];
	for (uint64_t k = 0; k < OUTLIERS; k++)
		out[mix(channels + k) % (uint64_t)tensor->rows] *= 10.0F;
}

/* Elements first … first + count − 1 of a tensor in its type. 64 random bits give four elements. */
static void fill_block(const struct model *model, char *out, const void *table, uint64_t key, int64_t first,
					   int64_t count)
{
	const bool wide = model->dtype == FP_F32;
	for (int64_t i = 0; i < count; i += 4) {
		uint64_t bits = mix(key + (uint64_t)(first + i));
		for (int64_t k = i; k < i + 4 && k < count; k++, bits >>= 16) {
			if (wide)
				((float *)out)[k] = ((const float *)table)[bits & 0xFFFF];
			else
				((uint16_t *)out)[k] = ((const uint16_t *)table)[bits & 0xFFFF];
		}
	}
}

/* ---- files ---- */

static fp_status write_json(const struct model *model, const char *name, json_t *root)
{
	char *path = NULL, *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
	fp_status status;
	if (!text) {
		status = fp_fail(model->ctx, FP_ERROR_MEMORY, "%s: out of memory", name);
		goto cleanup;
	}
	FP_TRY(fp_join_path(&path, model->ctx, model->directory, name));
	FP_TRY(fp_write_file(model->ctx, path, text, (int64_t)strlen(text)));
cleanup:
	free(text);
	fp_free(path);
	json_decref(root);
	return status;
}

static void shard_name(const struct model *model, int shard, char *out, size_t size)
{
	if (model->shards == 1)
		snprintf(out, size, "model.safetensors");
	else
		snprintf(out, size, "model-%05d-of-%05d.safetensors", shard + 1, model->shards);
}

/* The padded header of a shard; *total ← the file's size. Tensor offsets become offsets in the file. */
static fp_status make_header(struct model *model, int shard, char **out, int64_t *size, int64_t *total)
{
	json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
	int64_t end = 0;
	for (int64_t i = 0; i < model->count; i++) {
		const struct tensor *t = &model->tensors[i];
		if (t->shard != shard)
			continue;
		end = t->offset + t->bytes;
		json_t *dimensions = t->columns ? json_pack("[I, I]", (json_int_t)t->rows, (json_int_t)t->columns)
										: json_pack("[I]", (json_int_t)t->rows);
		json_object_set_new(header, t->name,
							json_pack("{s:s, s:o, s:[I, I]}", "dtype", fp_dtype_name(model->dtype), "shape", dimensions,
									  "data_offsets", (json_int_t)t->offset, (json_int_t)end));
	}
	char *text = json_dumps(header, JSON_COMPACT);
	json_decref(header);
	if (!text)
		return fp_fail(model->ctx, FP_ERROR_MEMORY, "out of memory");
	int64_t length = (int64_t)strlen(text), padded = (length + 7) / 8 * 8;
	fp_status status = FP_NEW(model->ctx, out, 8 + padded);
	if (status == FP_OK) {
		const uint64_t prefix = (uint64_t)padded;
		memcpy(*out, &prefix, 8);
		memcpy(*out + 8, text, (size_t)length);
		memset(*out + 8 + length, ' ', (size_t)(padded - length));
		*size = 8 + padded;
		*total = 8 + padded + end;
		for (int64_t i = 0; i < model->count; i++)
			if (model->tensors[i].shard == shard)
				model->tensors[i].offset += 8 + padded;
	}
	free(text);
	return status;
}

static fp_status write_norm(const struct model *model, int file, const char *path, const struct tensor *t)
{
	float *values = NULL;
	char *bytes = NULL;
	fp_status status;
	FP_TRY(FP_NEW(model->ctx, &values, t->rows));
	FP_TRY(FP_NEW(model->ctx, &bytes, t->bytes));
	fill_norm(model, values, t);
	fp_from_float(bytes, model->dtype, values, t->rows);
	FP_TRY(fp_write_at(model->ctx, file, path, bytes, t->bytes, t->offset));
cleanup:
	fp_free(values);
	fp_free(bytes);
	return status;
}

static fp_status write_weights(const struct model *model, int file, const char *path, const struct tensor *t)
{
	const int64_t size = fp_dtype_size(model->dtype), elements = t->bytes / size;
	const int64_t block_elements = elements < BLOCK ? elements : BLOCK;
	const uint64_t key = tensor_key(model, t->name);
	char *table = NULL;
	float *scaled = NULL;
	fp_status status, failed = FP_OK;
	FP_TRY(FP_NEW(model->ctx, &table, QUANTILES * size));
	FP_TRY(FP_NEW(model->ctx, &scaled, QUANTILES));
	for (int i = 0; i < QUANTILES; i++)
		scaled[i] = model->quantiles[i] * (float)deviation(model, t->kind);
	fp_from_float(table, model->dtype, scaled, QUANTILES);
#pragma omp parallel if (elements > BLOCK)
	{
		fp_context *own = fp_context_new(); /* contexts are not shared between threads */
		char *block = NULL;
		fp_status got = own ? FP_NEW(own, &block, block_elements * size) : FP_ERROR_MEMORY;
#pragma omp for schedule(dynamic)
		for (int64_t first = 0; first < elements; first += BLOCK) {
			int64_t count = elements - first < BLOCK ? elements - first : BLOCK;
			if (got != FP_OK)
				continue;
			fill_block(model, block, table, key, first, count);
			got = fp_write_at(own, file, path, block, count * size, t->offset + first * size);
		}
		if (got != FP_OK) {
#pragma omp critical
			failed = fp_fail(model->ctx, got, "%s", own ? fp_context_message(own) : "out of memory");
		}
		fp_free(block);
		fp_context_free(own);
	}
	status = failed;
cleanup:
	fp_free(table);
	fp_free(scaled);
	return status;
}

static fp_status write_shard(struct model *model, int shard)
{
	char name[64], *path = NULL, *header = NULL;
	int64_t header_size = 0, total = 0;
	int file = -1;
	fp_status status;
	shard_name(model, shard, name, sizeof name);
	FP_TRY(fp_join_path(&path, model->ctx, model->directory, name));
	FP_TRY(make_header(model, shard, &header, &header_size, &total));
	FP_TRY(fp_create_file(&file, model->ctx, path, total));
	FP_TRY(fp_write_at(model->ctx, file, path, header, header_size, 0));
	for (int64_t i = 0; i < model->count; i++) {
		const struct tensor *t = &model->tensors[i];
		if (t->shard == shard)
			FP_TRY((t->kind == NORM ? write_norm : write_weights)(model, file, path, t));
	}
cleanup:
	if (file >= 0)
		close(file);
	fp_free(path);
	fp_free(header);
	return status;
}

static fp_status write_index(const struct model *model)
{
	if (model->shards == 1)
		return FP_OK;
	char name[64];
	int64_t total = 0;
	json_t *map = json_object();
	for (int64_t i = 0; i < model->count; i++) {
		shard_name(model, model->tensors[i].shard, name, sizeof name);
		json_object_set_new(map, model->tensors[i].name, json_string(name));
		total += model->tensors[i].bytes;
	}
	return write_json(model, "model.safetensors.index.json",
					  json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map));
}

static fp_status write_config(const struct model *model)
{
	const struct shape *s = &model->shape;
	const char *type = model->dtype == FP_F32 ? "float32" : model->dtype == FP_F16 ? "float16" : "bfloat16";
	const char *name = s->opt            ? "OPTForCausalLM"
					   : s->head_dim > 0 ? "Qwen3MoeForCausalLM"
					   : s->experts      ? "MixtralForCausalLM"
										 : "LlamaForCausalLM";
	const char *kind = s->opt ? "opt" : s->head_dim > 0 ? "qwen3_moe" : s->experts ? "mixtral" : "llama";
	json_t *config =
		json_pack("{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:i, s:s, s:b}", "architectures", name, "model_type",
				  kind, "vocab_size", (json_int_t)s->vocabulary, "hidden_size", (json_int_t)s->hidden,
				  "num_hidden_layers", (json_int_t)s->layers, "num_attention_heads", (json_int_t)s->heads,
				  "max_position_embeddings", (json_int_t)s->positions, "pad_token_id", 1, "bos_token_id", 2,
				  "eos_token_id", 2, "torch_dtype", type, "tie_word_embeddings", s->opt);
	json_t *more = s->opt ? json_pack("{s:I, s:I, s:b, s:s, s:b, s:b, s:b}", "ffn_dim", (json_int_t)s->inner,
									  "word_embed_proj_dim", (json_int_t)s->embedding, "do_layer_norm_before",
									  !s->post_norm, "activation_function", "relu", "enable_bias", 1,
									  "layer_norm_elementwise_affine", 1, "_remove_final_layer_norm", 0)
						  : json_pack("{s:I, s:I, s:f, s:f, s:s, s:b, s:b}", "intermediate_size", (json_int_t)s->inner,
									  "num_key_value_heads", (json_int_t)s->kv_heads, "rope_theta", s->rope_theta,
									  "rms_norm_eps", 1e-5, "hidden_act", "silu", "attention_bias", 0, "mlp_bias", 0);
	json_object_update(config, more);
	json_decref(more);
	if (s->experts > 0) {
		json_object_set_new(config, s->head_dim > 0 ? "num_experts" : "num_local_experts", json_integer(s->experts));
		json_object_set_new(config, "num_experts_per_tok", json_integer(s->active));
	}
	if (s->head_dim > 0) {
		json_object_set_new(config, "moe_intermediate_size", json_integer(s->inner));
		json_object_set_new(config, "head_dim", json_integer(s->head_dim));
		json_object_set_new(config, "norm_topk_prob", json_true());
	}
	return write_json(model, "config.json", config);
}

/* ---- tokenizer: one token per byte and a few special tokens ---- */

static const char *const special_tokens[FIRST_BYTE_TOKEN] = {"<unk>", "<pad>", "</s>", "<mask>"};
enum { END_TOKEN = 2 };

/* The character of a byte in a byte-level vocabulary: itself if printable, else from U+0100 on. */
static void byte_character(int byte, char out[3])
{
	int code = byte, hidden = 0;
	for (int b = 0; b <= byte; b++) {
		bool seen = (b > 32 && b < 127) || (b > 160 && b != 173);
		code = seen ? b : 256 + hidden++;
	}
	if (code < 128) {
		out[0] = (char)code;
		out[1] = '\0';
	} else {
		out[0] = (char)(0xC0 | code >> 6);
		out[1] = (char)(0x80 | (code & 0x3F));
		out[2] = '\0';
	}
}

static fp_status write_tokenizer(const struct model *model)
{
	json_t *vocabulary = json_object(), *added = json_array();
	for (int i = 0; i < FIRST_BYTE_TOKEN; i++) {
		json_object_set_new(vocabulary, special_tokens[i], json_integer(i));
		json_array_append_new(added,
							  json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", i, "content", special_tokens[i],
										"single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1));
	}
	for (int byte = 0; byte < 256; byte++) {
		char character[3];
		byte_character(byte, character);
		json_object_set_new(vocabulary, character, json_integer(FIRST_BYTE_TOKEN + byte));
	}
	json_t *byte_level = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets",
								   1, "use_regex", 1);
	const char *first = special_tokens[END_TOKEN]; /* OPT starts with its end token */
	json_t *start = json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", first, "type_id", 0);
	json_t *text = json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0);
	json_t *second = json_pack("{s:{s:s, s:i}}", "Sequence", "id", "B", "type_id", 1);
	json_t *processor = json_pack("{s:s, s:[O, O], s:[O, O, o], s:{s:{s:s, s:[i], s:[s]}}}", "type",
								  "TemplateProcessing", "single", start, text, "pair", start, text, second,
								  "special_tokens", first, "id", first, "ids", END_TOKEN, "tokens", first);
	json_decref(start);
	json_decref(text);
	json_t *bpe = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:o, s:[]}", "type", "BPE", "dropout", "unk_token",
							"continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
							"vocab", vocabulary, "merges");
	json_t *root = json_pack("{s:s, s:n, s:n, s:o, s:n, s:O, s:o, s:o, s:o}", "version", "1.0", "truncation", "padding",
							 "added_tokens", added, "normalizer", "pre_tokenizer", byte_level, "post_processor",
							 processor, "decoder", byte_level, "model", bpe);
	fp_status status = write_json(model, "tokenizer.json", root);
	if (status != FP_OK)
		return status;
	return write_json(model, "tokenizer_config.json",
					  json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:I}", "tokenizer_class", "PreTrainedTokenizerFast",
								"bos_token", first, "eos_token", first, "unk_token", "<unk>", "pad_token", "<pad>",
								"add_bos_token", 1, "model_max_length", (json_int_t)model->shape.positions));
}

static fp_status copy_file(const struct model *model, const char *name, bool *found)
{
	char *from = NULL, *to = NULL, *text = NULL;
	int64_t size = 0;
	fp_status status;
	FP_TRY(fp_join_path(&from, model->ctx, model->tokenizer, name));
	FP_TRY(fp_join_path(&to, model->ctx, model->directory, name));
	if (access(from, R_OK) != 0)
		goto cleanup;
	FP_TRY(fp_read_file(&text, &size, model->ctx, from, 1 << 28));
	FP_TRY(fp_write_file(model->ctx, to, text, size));
	*found = true;
cleanup:
	fp_free(from);
	fp_free(to);
	fp_free(text);
	return status;
}

static fp_status copy_tokenizer(const struct model *model)
{
	static const char *const files[] = {"tokenizer.json", "tokenizer.model", "tokenizer_config.json",
										"special_tokens_map.json"};
	bool found = false, ignored;
	fp_status status = FP_OK;
	for (size_t i = 0; i < sizeof files / sizeof files[0] && status == FP_OK; i++)
		status = copy_file(model, files[i], i < 2 ? &found : &ignored);
	if (status == FP_OK && !found)
		status =
			fp_fail(model->ctx, FP_ERROR_IO, "%s: has neither tokenizer.json nor tokenizer.model", model->tokenizer);
	return status;
}

/* ---- the command ---- */

static fp_status check_free_space(const struct model *model)
{
	int64_t needed = 0, available;
	for (int64_t i = 0; i < model->count; i++)
		needed += model->tensors[i].bytes;
	fp_status status = fp_free_space(&available, model->ctx, model->directory);
	if (status == FP_OK && needed > available)
		status = fp_fail(model->ctx, FP_ERROR_IO, "%s: needs %.1f GB, but %.1f GB are free; use fewer --layers",
						 model->directory, (double)needed / 1e9, (double)available / 1e9);
	return status;
}

static fp_status make(struct model *model)
{
	fp_status status;
	if (mkdir(model->directory, 0777) != 0)
		return fp_fail(model->ctx, FP_ERROR_IO, "%s: cannot create the directory: %s", model->directory,
					   strerror(errno));
	FP_TRY(model->shape.opt ? list_opt(model) : list_llama(model));
	assign_shards(model);
	FP_TRY(check_free_space(model));
	FP_TRY(make_quantiles(model));
	FP_TRY(write_config(model));
	FP_TRY(model->tokenizer ? copy_tokenizer(model) : write_tokenizer(model));
	FP_TRY(write_index(model));
	for (int i = 0; i < model->shards; i++)
		FP_TRY(write_shard(model, i));
cleanup:
	if (status != FP_OK)
		fp_remove_tree(model->directory);
	fp_free(model->tensors);
	fp_free(model->quantiles);
	return status;
}

static int usage(void)
{
	fprintf(
		stderr,
		"usage: make_checkpoint SHAPE --output DIR [--layers N] [--dtype f16|bf16|f32] [--seed N] [--tokenizer DIR]\n"
		"shapes:");
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
		fprintf(stderr, " %s", shapes[i].name);
	fprintf(stderr, "\n");
	return 2;
}

static bool read_number(const char *text, int64_t minimum, int64_t *out)
{
	char *end;
	errno = 0;
	*out = strtoll(text, &end, 10);
	return errno == 0 && end != text && *end == '\0' && *out >= minimum;
}

static bool read_options(struct model *model, int count, char **words)
{
	static const struct option options[] = {
		{"output", required_argument, NULL, 'o'},    {"layers", required_argument, NULL, 'l'},
		{"dtype", required_argument, NULL, 't'},     {"seed", required_argument, NULL, 's'},
		{"tokenizer", required_argument, NULL, 'k'}, {0}};
	int64_t layers = 0, seed = 0;
	for (int option; (option = getopt_long(count, words, "o:", options, NULL)) != -1;) {
		if (option == 'o')
			model->directory = optarg;
		else if (option == 'k')
			model->tokenizer = optarg;
		else if (option == 't' && strcmp(optarg, "f16") == 0)
			model->dtype = FP_F16;
		else if (option == 't' && strcmp(optarg, "bf16") == 0)
			model->dtype = FP_BF16;
		else if (option == 't' && strcmp(optarg, "f32") == 0)
			model->dtype = FP_F32;
		else if (!(option == 'l' && read_number(optarg, 1, &layers) && layers <= 1000) &&
				 !(option == 's' && read_number(optarg, 0, &seed)))
			return false;
	}
	if (optind != count - 1 || !model->directory)
		return false;
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
		if (strcmp(shapes[i].name, words[optind]) == 0)
			model->shape = shapes[i];
	if (layers > 0 && model->shape.name)
		model->shape.layers = layers;
	model->seed = (uint64_t)seed;
	return model->shape.name != NULL;
}

int main(int count, char **words)
{
	struct model model = {.ctx = fp_context_new(), .dtype = FP_F16};
	if (!model.ctx || !read_options(&model, count, words)) {
		fp_context_free(model.ctx);
		return usage();
	}
	fp_status status = make(&model);
	if (status != FP_OK)
		fprintf(stderr, "make_checkpoint: %s\n", fp_context_message(model.ctx));
	fp_context_free(model.ctx);
	return fp_status_exit_code(status);
}
