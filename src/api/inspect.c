/* SPDX-License-Identifier: Apache-2.0 */
/* inspect.c: fp_inspect(): the tensors of a checkpoint, and whether a pattern holds, read from the mapped file. */
#include "api/result_text.h"
#include "base/memory.h"
#include "base/settings.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/tensor_coding.h"
#include "evaluation/audit.h"
#include "model/model.h"

#include <fistapruner/fistapruner.h>
#include <stdio.h>
#include <string.h>

typedef struct inspection {
	fp_context *ctx;
	const fp_checkpoint *checkpoint;
	const fp_model *model;     /* NULL if the architecture is unknown */
	bool *is_operator;         /* by tensor; all false if the architecture is unknown */
	int64_t *layer;            /* by tensor: an operator's layer */
	const char **bias_of;      /* by tensor: the operator whose bias it is, or NULL; borrowed from the checkpoint */
	const fp_audit_rule *rule; /* NULL: none */
	json_t *tensors;
	int64_t parameters, counted, zeros, operator_counted, operator_zeros;
	int64_t negative_zeros, not_finite, violations, broken;
} inspection;

/* The place in the checkpoint of a tensor, or of the one that it is a part of. */
static int64_t place_of(const inspection *in, const fp_tensor_info *tensor)
{
	return (tensor->whole ? tensor->whole : tensor) - fp_checkpoint_tensor(in->checkpoint, 0);
}

/* Marks the linear operators of the decoder layers and their biases. */
static void mark_operators(inspection *in, const fp_model *model)
{
	for (int64_t layer = 0; layer < fp_model_get_config(model)->layers; layer++)
		for (int number = 0; number < fp_model_operators(model); number++) {
			const fp_tensor_info *tensor = fp_model_operator(model, layer, number);
			const fp_tensor_info *bias = fp_model_operator_bias(model, layer, number);
			if (!tensor)
				continue;
			in->is_operator[place_of(in, tensor)] = true;
			in->layer[place_of(in, tensor)] = layer;
			if (bias)
				in->bias_of[place_of(in, bias)] = (tensor->whole ? tensor->whole : tensor)->name;
		}
}

/* How many bits an entry of a quantised matrix has, and how many entries of a row share a scale. */
static void describe_quantised(json_t *row, const fp_tensor_coding *coding)
{
	if (!coding || coding->kind == FP_CODED_MASK || coding->kind == FP_CODED_TWO_OF_FOUR)
		return;
	json_object_set_new(row, "bits", json_integer(coding->kind == FP_CODED_FP8 ? 8 : coding->bits));
	json_object_set_new(row, "group", json_integer(coding->block[1]));
}

static json_t *describe_tensor(const fp_tensor_info *tensor, const fp_audit_result *audit, bool is_operator,
							   bool has_rule)
{
	json_t *row = json_pack("{s:s, s:o, s:s, s:b}", "name", tensor->name, "shape", json_array(), "dtype",
							tensor->dtype_name, "operator", is_operator);
	for (int i = 0; i < tensor->rank; i++)
		json_array_append_new(json_object_get(row, "shape"), json_integer(tensor->shape[i]));
	if (audit->counted) {
		double share = tensor->elements > 0 ? (double)audit->zeros / (double)tensor->elements : 0;
		json_object_set_new(row, "zeros", json_integer(audit->zeros));
		json_object_set_new(row, "sparsity", json_real(share));
		json_object_set_new(row, "negative_zeros", json_integer(audit->negative_zeros));
		if (audit->not_finite > 0)
			json_object_set_new(row, "not_finite", json_integer(audit->not_finite));
	}
	describe_quantised(row, tensor->coding);
	if (is_operator && has_rule)
		json_object_set_new(row, "violations", json_integer(audit->violations));
	return row;
}

/* A tensor that holds several operators must follow the pattern in each of them. */
static fp_status audit_operator(inspection *in, const fp_tensor_info *tensor, int64_t layer, fp_audit_result *out)
{
	fp_audit_result all = {.counted = true};
	bool parts = false;
	fp_status status = FP_OK;
	for (int number = 0; number < fp_model_operators(in->model); number++) {
		const fp_tensor_info *part = fp_model_operator(in->model, layer, number);
		if (!part || part->whole != tensor)
			continue;
		FP_TRY(fp_audit_tensor(out, in->ctx, in->checkpoint, part, in->rule));
		parts = true;
		all.counted = all.counted && out->counted;
		all.zeros += out->zeros;
		all.negative_zeros += out->negative_zeros;
		all.not_finite += out->not_finite;
		all.violations += out->violations;
	}
	if (parts)
		*out = all;
	else
		FP_TRY(fp_audit_tensor(out, in->ctx, in->checkpoint, tensor, in->rule));
cleanup:
	return status;
}

static fp_status inspect_tensor(inspection *in, int64_t index)
{
	const fp_tensor_info *tensor = fp_checkpoint_tensor(in->checkpoint, index);
	bool is_operator = in->is_operator[index];
	fp_audit_result audit;
	fp_status status = is_operator ? audit_operator(in, tensor, in->layer[index], &audit)
								   : fp_audit_tensor(&audit, in->ctx, in->checkpoint, tensor, NULL);
	if (status != FP_OK)
		return status;
	in->parameters += tensor->elements;
	in->violations += audit.violations;
	in->broken += audit.violations > 0;
	in->negative_zeros += audit.negative_zeros;
	in->not_finite += audit.not_finite;
	if (audit.counted) {
		in->counted += tensor->elements;
		in->zeros += audit.zeros;
	}
	if (audit.counted && is_operator) {
		in->operator_counted += tensor->elements;
		in->operator_zeros += audit.zeros;
	}
	json_t *row = describe_tensor(tensor, &audit, is_operator, in->rule != NULL);
	if (in->bias_of[index])
		json_object_set_new(row, "bias_of", json_string(in->bias_of[index]));
	if (json_array_append_new(in->tensors, row) != 0)
		return fp_fail(in->ctx, FP_ERROR_MEMORY, "out of memory for the result");
	return FP_OK;
}

/* The element type of most of the bytes. Borrowed. */
static const char *main_dtype(const fp_checkpoint *checkpoint)
{
	const char *best = "none";
	int64_t most = 0;
	int64_t count = fp_checkpoint_tensor_count(checkpoint);
	for (int64_t i = 0; i < count; i++) {
		const char *name = fp_checkpoint_tensor(checkpoint, i)->dtype_name;
		int64_t bytes = 0;
		if (strcmp(name, best) == 0)
			continue;
		for (int64_t j = i; j < count; j++) {
			const fp_tensor_info *other = fp_checkpoint_tensor(checkpoint, j);
			if (strcmp(other->dtype_name, name) == 0)
				bytes += other->bytes;
		}
		if (bytes > most) {
			most = bytes;
			best = name;
		}
	}
	return best;
}

static const char *config_architecture(const fp_checkpoint *checkpoint)
{
	const json_t *config = fp_checkpoint_config(checkpoint);
	const char *name = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
	if (!name)
		name = json_string_value(json_object_get(config, "model_type"));
	return name ? name : "unknown";
}

static double share(int64_t part, int64_t whole)
{
	return whole > 0 ? (double)part / (double)whole : 0;
}

static json_t *describe_model(const inspection *in, const char *name, const fp_model *model, const char *note,
							  const char *pattern)
{
	/* if the architecture is unknown, so are its operators: all tensors count */
	double sparsity = model ? share(in->operator_zeros, in->operator_counted) : share(in->zeros, in->counted);
	json_t *document =
		json_pack("{s:s, s:s*, s:s, s:s, s:I, s:I, s:f, s:f, s:I, s:I, s:I}", "model", name, "stored_as",
				  fp_checkpoint_coding(in->checkpoint), "architecture",
				  model ? fp_model_architecture(model) : config_architecture(in->checkpoint), "dtype",
				  main_dtype(in->checkpoint), "files", (json_int_t)fp_checkpoint_shard_count(in->checkpoint),
				  "parameters", (json_int_t)in->parameters, "sparsity", sparsity, "total_sparsity",
				  share(in->zeros, in->counted), "negative_zeros", (json_int_t)in->negative_zeros, "not_finite",
				  (json_int_t)in->not_finite, "violations", (json_int_t)in->violations);
	if (model)
		json_object_set_new(document, "layers", json_integer(fp_model_get_config(model)->layers));
	else
		json_object_set_new(document, "note", json_string(note));
	if (pattern)
		json_object_set_new(document, "pattern", json_string(pattern));
	json_object_set(document, "tensors", in->tensors);
	return document;
}

fp_status fp_inspect(char **json, fp_context *ctx, const char *model_name, const char *pattern)
{
	fp_status status;
	fp_checkpoint *checkpoint = NULL;
	fp_backend *backend = NULL;
	fp_model *model = NULL;
	fp_audit_rule rule = {0};
	char note[FP_MESSAGE_SIZE] = "";
	inspection in = {.ctx = ctx, .tensors = json_array()};

	*json = NULL;
	if (pattern) {
		FP_TRY(fp_parse_sparsity(ctx, pattern, &rule.sparsity, &rule.kept, &rule.group));
		in.rule = &rule;
	}
	FP_TRY(fp_checkpoint_open(&checkpoint, ctx, model_name));
	in.checkpoint = checkpoint;
	FP_TRY(FP_NEW(ctx, &in.is_operator, fp_checkpoint_tensor_count(checkpoint)));
	FP_TRY(FP_NEW(ctx, &in.layer, fp_checkpoint_tensor_count(checkpoint)));
	FP_TRY(FP_NEW(ctx, &in.bias_of, fp_checkpoint_tensor_count(checkpoint)));
	FP_TRY(fp_backend_open(&backend, ctx, "cpu", 0));
	status = fp_model_open(&model, backend, checkpoint);
	/* A checkpoint that cannot be run can still be listed; only the audit needs to know the operators. */
	if (status == FP_ERROR_INPUT && !pattern) {
		snprintf(note, sizeof note, "%s", fp_context_message(ctx));
		fp_clear_message(ctx);
	} else if (status != FP_OK) {
		goto cleanup;
	} else {
		in.model = model;
		mark_operators(&in, model);
	}
	int64_t count = fp_checkpoint_tensor_count(checkpoint);
	for (int64_t i = 0; i < count; i++) {
		FP_TRY(inspect_tensor(&in, i));
		fp_report_progress(ctx, "reading tensors", i + 1, count);
	}
	FP_TRY(fp_result_text(json, ctx, describe_model(&in, model_name, model, note, pattern)));
	if (in.violations > 0)
		status = fp_fail(ctx, FP_ERROR_CHECK, "%s: pattern %s is broken %lld time%s in %lld tensor%s", model_name,
						 pattern, (long long)in.violations, in.violations == 1 ? "" : "s", (long long)in.broken,
						 in.broken == 1 ? "" : "s");

cleanup:
	json_decref(in.tensors);
	fp_free(in.is_operator);
	fp_free(in.layer);
	fp_free(in.bias_of);
	fp_model_close(model);
	fp_backend_close(backend);
	fp_checkpoint_close(checkpoint);
	return status;
}
