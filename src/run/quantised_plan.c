/* SPDX-License-Identifier: Apache-2.0 */
#include "run/quantised_plan.h"

#include "base/memory.h"
#include "pruning/selection.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { NAME_SIZE = 1024 };
static const char ending[] = ".weight";

/* Matrices that are not linear modules, so that nobody would quantise them. */
static const char *const embeddings[] = {"embed_tokens", "embed_positions", "embed_in", "word_embeddings", "wte",
										 "wpe"};

static bool ends_with(const char *name, const char *tail)
{
	size_t length = strlen(name), size = strlen(tail);
	return length > size && strcmp(name + length - size, tail) == 0;
}

/* Entries of a row that share a scale; 0: all. */
static int64_t group_of(const fp_quantised_plan *plan, const fp_tensor_info *tensor)
{
	int64_t group = fp_grid_group(plan->format, tensor->shape[1]);
	return plan->format->group % group == 0 && plan->format->group > 0 ? group : 0; /* 0: the whole row */
}

/* Experts that transformers stacks when it loads them: it knows two layouts, without zero points. */
static fp_status check_expert(const fp_quantised_plan *plan, fp_context *ctx, const fp_tensor_info *tensor,
							  int64_t *group)
{
	const fp_grid_format *format = plan->format;
	const int64_t own = group_of(plan, tensor);
	if (!format->symmetric || (!format->is_float && format->bits == 8))
		return fp_fail(ctx, FP_ERROR_USAGE,
					   "quantize %s: loaders read experts, such as '%s', as int4, int4-g32 and fp8 only; use one of "
					   "these",
					   format->name, tensor->name);
	if (*group >= 0 && *group != own)
		return fp_fail(ctx, FP_ERROR_USAGE,
					   "quantize %s: loaders want groups of one size for all experts, but '%s' has rows of %lld "
					   "entries, which %lld does not divide; use %s",
					   format->name, tensor->name, (long long)tensor->shape[1], (long long)format->group,
					   format->group > 32 && tensor->shape[1] % 32 == 0 ? "int4-g32 or fp8" : "fp8");
	*group = own;
	return FP_OK;
}

static fp_status check_operator(const fp_quantised_plan *plan, fp_context *ctx, const fp_tensor_info *tensor)
{
	const fp_tensor_info *stored = tensor->whole ? tensor->whole : tensor;
	if (tensor->transposed)
		return fp_fail(ctx, FP_ERROR_USAGE,
					   "quantize %s: this model stores '%s' with its inputs as rows, which loaders of quantised "
					   "checkpoints do not read; use --quantize none",
					   plan->format->name, tensor->name);
	if (stored->rank > 2)
		return fp_fail(ctx, FP_ERROR_USAGE,
					   "quantize %s: this model stores all experts of a layer in '%s', which loaders of quantised "
					   "checkpoints do not read; use --quantize none",
					   plan->format->name, stored->name);
	if (!ends_with(stored->name, ending) || strlen(stored->name) >= NAME_SIZE || stored->elements == 0)
		return fp_fail(ctx, FP_ERROR_USAGE, "quantize %s: the name of '%s' does not end in %s", plan->format->name,
					   stored->name, ending);
	return FP_OK;
}

/* transformers' Falcon has linear modules of a class of its own, which cannot hold packed weights. */
static fp_status check_family(const fp_quantised_plan *plan, const fp_model *model)
{
	if (strcmp(fp_model_architecture(model), "FalconForCausalLM") != 0 || plan->format->bits == 8)
		return FP_OK;
	return fp_fail(fp_model_backend(model)->ctx, FP_ERROR_USAGE,
				   "quantize %s: transformers does not load Falcon with packed weights; use int8 or fp8",
				   plan->format->name);
}

/* Operators in one tensor share its form: all of them are quantised, or none. */
static fp_status check_parts(const fp_quantised_plan *plan, const fp_model *model, const fp_selection *selection,
							 int64_t layer)
{
	const fp_tensor_info *first = fp_checkpoint_tensor(fp_model_checkpoint(model), 0);
	for (int i = 0; i < fp_model_operators(model); i++) {
		const fp_tensor_info *tensor = fp_model_operator(model, layer, i);
		if (tensor && tensor->whole && plan->tensors[tensor->whole - first] && !fp_selection_has(selection, layer, i))
			return fp_fail(fp_model_backend(model)->ctx, FP_ERROR_USAGE,
						   "quantize %s: '%s' is left out, but other operators in '%s' are not; prune all of them or "
						   "none",
						   plan->format->name, tensor->name, tensor->whole->name);
	}
	return FP_OK;
}

static fp_status choose_tensors(fp_quantised_plan *plan, const fp_model *model, const fp_selection *selection)
{
	fp_context *ctx = fp_model_backend(model)->ctx;
	const fp_checkpoint *checkpoint = fp_model_checkpoint(model);
	int64_t group = -1; /* of the experts */
	fp_status status = FP_OK;
	for (int64_t layer = 0; layer < fp_model_get_config(model)->layers; layer++) {
		for (int i = 0; i < fp_model_operators(model); i++) {
			if (!fp_selection_has(selection, layer, i))
				continue;
			const fp_tensor_info *tensor = fp_model_operator(model, layer, i);
			FP_TRY(check_operator(plan, ctx, tensor));
			if (fp_operator_expert(i) >= 0)
				FP_TRY(check_expert(plan, ctx, tensor, &group));
			plan->tensors[(tensor->whole ? tensor->whole : tensor) - fp_checkpoint_tensor(checkpoint, 0)] = true;
		}
		FP_TRY(check_parts(plan, model, selection, layer));
	}
cleanup:
	return status;
}

/* The next smaller group of some tensor; −1: there is none. */
static int64_t next_group(const fp_quantised_plan *plan, const fp_checkpoint *checkpoint, int64_t below)
{
	int64_t best = -1;
	for (int64_t i = 0; i < fp_checkpoint_tensor_count(checkpoint); i++) {
		int64_t group = plan->tensors[i] ? group_of(plan, fp_checkpoint_tensor(checkpoint, i)) : -1;
		best = group < below && group > best ? group : best;
	}
	return best;
}

static int64_t count_group(const fp_quantised_plan *plan, const fp_checkpoint *checkpoint, int64_t group)
{
	int64_t count = 0;
	for (int64_t i = 0; i < fp_checkpoint_tensor_count(checkpoint); i++)
		count += plan->tensors[i] && group_of(plan, fp_checkpoint_tensor(checkpoint, i)) == group;
	return count;
}

/* out ← an expression for a module of each layer: numbers in its name stand for all numbers. Modules of a loaded model may
 * have a prefix that the checkpoint has not. */
static void module_expression(char *out, size_t size, const char *name)
{
	size_t end = strlen(name) - (sizeof ending - 1), at = (size_t)snprintf(out, size, "re:.*");
	for (size_t i = 0; i < end && at + 4 < size; i++) {
		bool starts = i == 0 || name[i - 1] == '.';
		size_t digits = 0;
		while (starts && isdigit((unsigned char)name[i + digits]))
			digits++;
		if (digits > 0 && name[i + digits] == '.') {
			at += (size_t)snprintf(out + at, size - at, "\\d+");
			i += digits - 1;
			continue;
		}
		if (!isalnum((unsigned char)name[i]) && name[i] != '_' && name[i] != '-')
			out[at++] = '\\';
		out[at++] = name[i];
	}
	snprintf(out + at, size - at, "$");
}

static bool has_text(const json_t *list, const char *text)
{
	for (size_t i = 0; i < json_array_size(list); i++)
		if (strcmp(json_string_value(json_array_get(list, i)), text) == 0)
			return true;
	return false;
}

/* The modules of the tensors with this group. */
static json_t *list_targets(const fp_quantised_plan *plan, const fp_checkpoint *checkpoint, int64_t group)
{
	json_t *targets = json_array();
	for (int64_t i = 0; i < fp_checkpoint_tensor_count(checkpoint); i++) {
		const fp_tensor_info *tensor = fp_checkpoint_tensor(checkpoint, i);
		char text[2 * NAME_SIZE + 16];
		if (!plan->tensors[i] || group_of(plan, tensor) != group)
			continue;
		module_expression(text, sizeof text, tensor->name);
		if (!has_text(targets, text))
			json_array_append_new(targets, json_string(text));
	}
	return targets;
}

static json_t *describe_inputs(const fp_grid_format *format)
{
	if (!format->rounds_inputs)
		return json_null();
	return json_pack("{s:i, s:s, s:b, s:s, s:b}", "num_bits", format->bits, "type", format->is_float ? "float" : "int",
					 "symmetric", 1, "strategy", "token", "dynamic", 1);
}

static json_t *describe_group(const fp_grid_format *format, int64_t group, json_t *targets)
{
	json_t *weights =
		json_pack("{s:i, s:s, s:b, s:s, s:b}", "num_bits", format->bits, "type", format->is_float ? "float" : "int",
				  "symmetric", format->symmetric, "strategy", group > 0 ? "group" : "channel", "dynamic", 0);
	if (weights && group > 0)
		json_object_set_new(weights, "group_size", json_integer(group));
	return json_pack("{s:o, s:o, s:o, s:n, s:s}", "targets", targets, "weights", weights, "input_activations",
					 describe_inputs(format), "output_activations", "format", format->layout);
}

static bool is_embedding(const char *name)
{
	char tail[64];
	for (size_t i = 0; i < sizeof embeddings / sizeof embeddings[0]; i++) {
		snprintf(tail, sizeof tail, "%s%s", embeddings[i], ending);
		if (strcmp(name, tail) == 0 || ends_with(name, tail))
			return true;
	}
	return false;
}

/* The linear modules that are left alone: the head, which may be tied and without a tensor, and what is not pruned. */
static json_t *list_ignored(const fp_quantised_plan *plan, const fp_checkpoint *checkpoint)
{
	json_t *ignored = json_pack("[s]", "lm_head");
	for (int64_t i = 0; ignored && i < fp_checkpoint_tensor_count(checkpoint); i++) {
		const fp_tensor_info *tensor = fp_checkpoint_tensor(checkpoint, i);
		if (plan->tensors[i] || tensor->rank != 2 || !ends_with(tensor->name, ending) || is_embedding(tensor->name))
			continue;
		json_t *name = json_stringn(tensor->name, strlen(tensor->name) - (sizeof ending - 1));
		if (name && !has_text(ignored, json_string_value(name)))
			json_array_append(ignored, name);
		json_decref(name);
	}
	return ignored;
}

/* The group size of most tensors belongs to all linear modules that are left; the others are listed before. */
static json_t *make_config(const fp_quantised_plan *plan, const fp_checkpoint *checkpoint)
{
	json_t *groups = json_object();
	int64_t most = -1;
	int number = 0;
	char name[32];
	for (int64_t group = INT64_MAX; (group = next_group(plan, checkpoint, group)) >= 0;)
		if (most < 0 || count_group(plan, checkpoint, group) > count_group(plan, checkpoint, most))
			most = group;
	for (int64_t group = INT64_MAX; groups && (group = next_group(plan, checkpoint, group)) >= 0;) {
		if (group == most)
			continue;
		snprintf(name, sizeof name, "group_%d", number++);
		json_object_set_new(groups, name, describe_group(plan->format, group, list_targets(plan, checkpoint, group)));
	}
	snprintf(name, sizeof name, "group_%d", number);
	if (groups && most >= 0)
		json_object_set_new(groups, name, describe_group(plan->format, most, json_pack("[s]", "Linear")));
	return json_pack("{s:s, s:s, s:s, s:o, s:o}", "quant_method", "compressed-tensors", "format", plan->format->layout,
					 "quantization_status", "compressed", "ignore", list_ignored(plan, checkpoint), "config_groups",
					 groups);
}

fp_status fp_quantised_plan_make(fp_quantised_plan *out, const fp_model *model, const fp_settings *settings)
{
	fp_context *ctx = fp_model_backend(model)->ctx;
	const fp_checkpoint *checkpoint = fp_model_checkpoint(model);
	fp_selection *selection = NULL;
	fp_status status = FP_OK;
	*out = (fp_quantised_plan){.format = fp_grid_format_named(settings->quantize)};
	if (!out->format)
		return FP_OK;
	FP_TRY(check_family(out, model));
	FP_TRY(FP_NEW(ctx, &out->tensors, fp_checkpoint_tensor_count(checkpoint)));
	FP_TRY(fp_selection_new(&selection, model, settings));
	FP_TRY(choose_tensors(out, model, selection));
	out->config = make_config(out, checkpoint);
	if (!out->config)
		FP_TRY(fp_fail(ctx, FP_ERROR_MEMORY, "out of memory for config.json"));
cleanup:
	fp_selection_free(selection);
	if (status != FP_OK)
		fp_quantised_plan_free(out);
	return status;
}

void fp_quantised_plan_free(fp_quantised_plan *plan)
{
	fp_free(plan->tensors);
	json_decref(plan->config);
	*plan = (fp_quantised_plan){0};
}
