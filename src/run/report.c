/* SPDX-License-Identifier: Apache-2.0 */
#include "run/report.h"

#include "base/digest.h"
#include "run/layer_line.h"
#include "run/run_identity.h"
#include "tensor/grid_format.h"

#include <math.h>

static double ratio(double error, double output)
{
	return output > 0 ? sqrt(error / output) : 0.0;
}

json_t *fp_report_operator(const fp_operator_result *result, bool with_times)
{
	const fp_solution *solution = &result->solution;
	json_t *entry = json_pack("{s:s, s:I, s:s, s:f, s:f, s:f, s:I, s:I, s:I}", "name", result->tensor->name, "layer",
							  (json_int_t)result->layer, "operator", fp_role_name(result->number), "sparsity",
							  (double)result->zeros / (double)result->tensor->elements, "relative_error",
							  ratio(result->squared_error, result->squared_output), "lambda", solution->lambda,
							  "iterations", (json_int_t)solution->iterations, "rounds", (json_int_t)solution->rounds,
							  "search_steps", (json_int_t)solution->search_steps);
	if (entry && fp_operator_expert(result->number) >= 0)
		json_object_set_new(entry, "expert", json_integer(fp_operator_expert(result->number)));
	if (entry && result->tokens >= 0)
		json_object_set_new(entry, "tokens", json_integer(result->tokens));
	if (entry && result->pattern[0])
		json_object_set_new(entry, "pattern", json_string(result->pattern));
	if (entry && result->groups > 0)
		json_object_set_new(entry, "group", json_integer(result->tensor->shape[1] / result->groups));
	if (entry && solution->damping > 0)
		json_object_set_new(entry, "damping", json_real(solution->damping));
	if (entry && result->bias_updated)
		json_object_set_new(entry, "bias_change", json_real(result->bias_change));
	if (entry && with_times)
		json_object_set_new(entry, "seconds", json_real(result->seconds));
	return entry;
}

json_t *fp_report_settings(const fp_settings *settings, fp_context *ctx)
{
	json_t *all = json_object();
	const fp_setting_info *info;
	for (size_t i = 0; all && (info = fp_setting_at(i)); i++) {
		char value[FP_SETTING_TEXT_SIZE];
		if (fp_settings_get(settings, ctx, info->name, value, sizeof value) == FP_OK)
			json_object_set_new(all, info->name, json_string(value));
	}
	return all;
}

/* The fitted layers, with losses on the held-out windows. */
static json_t *report_fits(const fp_prune_result *result, bool with_times)
{
	json_t *layers = json_array();
	for (int64_t i = 0; layers && i < result->fit_count; i++) {
		const fp_fit_result *fit = &result->fits[i];
		json_t *entry =
			json_pack("{s:I, s:f, s:f, s:I}", "layer", (json_int_t)fit->layer, "fit_loss_before", fit->loss_before,
					  "fit_loss_after", fit->loss_after, "fit_steps", (json_int_t)fit->steps);
		if (entry && with_times)
			json_object_set_new(entry, "fit_seconds", json_real(fit->seconds));
		json_array_append_new(layers, entry);
	}
	return layers;
}

/* "none", or what was turned and by how much the masses fell that the pattern removes (basis/pruned_mass.h). */
static json_t *report_basis(const fp_prune_task *task, const fp_prune_result *result, bool with_times)
{
	const fp_basis_choice *choice = task->choice;
	const fp_basis_gain *gain = &result->basis;
	if (!choice || !choice->local)
		return json_pack("{s:s}", "kind", "none");
	json_t *basis = json_pack("{s:s, s:[f, f]}", "kind", fp_basis_word(choice), "removed_of_heads", gain->local_before,
							  gain->local_after);
	if (basis && choice->stream) {
		json_object_set_new(basis, "removed", json_pack("[f, f]", gain->stream_before, gain->stream_after));
		json_object_set_new(basis, "untied_head", json_boolean(choice->unties));
		if (choice->unties)
			json_object_set_new(basis, "head_bytes", json_integer(choice->head.bytes));
	}
	if (basis && with_times)
		json_object_set_new(basis, "seconds", json_real(gain->seconds));
	return basis;
}

json_t *fp_report_quantised(const fp_settings *settings)
{
	const fp_grid_format *format = fp_grid_format_named(settings->quantize);
	if (!format)
		return NULL;
	return json_pack("{s:s, s:s, s:i, s:s, s:s}", "format", format->name, "layout", format->layout, "bits",
					 format->bits, "stored_as", format->summary, "zeros",
					 "stored like other numbers: runtimes of this format neither skip them nor save memory by them; "
					 "pack leaves those of 8-bit formats out of the files");
}

static json_t *report_times(const fp_prune_result *result)
{
	json_t *stages = json_object();
	for (int stage = 0; stages && stage < FP_STAGE_COUNT; stage++)
		json_object_set_new(stages, fp_stage_name((fp_stage)stage), json_real(result->stopwatch.seconds[stage]));
	return stages;
}

json_t *fp_report_result(const fp_prune_task *task, const fp_prune_result *result, const char *model, bool with_times)
{
	fp_context *ctx = task->ctx;
	const fp_settings *settings = task->settings;
	json_t *operators = json_array();
	json_int_t biases = 0;
	for (int64_t i = 0; operators && i < result->count; i++) {
		json_array_append_new(operators, fp_report_operator(&result->operators[i], with_times));
		biases += result->operators[i].bias_updated;
	}
	json_t *report = json_pack(
		"{s:s, s:s, s:s*, s:s, s:s, s:s, s:s, s:f, s:f, s:I, s:I}", "program", "fistapruner " FP_VERSION, "model",
		model, "stored_as", fp_checkpoint_coding(fp_model_checkpoint(task->model)), "architecture",
		fp_model_architecture(task->model), "pattern", settings->pattern, "method", settings->method, "preset",
		settings->preset, "sparsity", result->entries > 0 ? (double)result->zeros / (double)result->entries : 0.0,
		"relative_error", ratio(result->squared_error, result->squared_output), "calibration_windows",
		(json_int_t)task->windows->count, "sequence_length", (json_int_t)task->windows->length);
	if (!report) {
		json_decref(operators);
		return NULL;
	}
	char text[FP_DIGEST_TEXT_SIZE];
	fp_windows_digest(text, sizeof text, task->windows);
	json_object_set_new(report, "calibration_digest", json_string(text));
	json_object_set_new(report, "settings", fp_report_settings(settings, ctx));
	json_object_set_new(report, "basis", report_basis(task, result, with_times));
	if (fp_grid_format_named(settings->quantize))
		json_object_set_new(report, "quantized", fp_report_quantised(settings));
	json_object_set_new(report, "operators", operators);
	if (biases > 0)
		json_object_set_new(report, "biases_updated", json_integer(biases));
	fp_expert_counts experts = fp_count_experts(result);
	if (experts.experts > 0)
		json_object_set_new(report, "experts",
							json_pack("{s:I, s:I, s:I}", "pruned", (json_int_t)experts.experts, "few_tokens",
									  (json_int_t)experts.few, "no_tokens", (json_int_t)experts.none));
	if (result->fit_count > 0)
		json_object_set_new(report, "layers", report_fits(result, with_times));
	if (with_times) {
		json_object_set_new(report, "seconds", json_real(result->seconds));
		json_object_set_new(report, "stages", report_times(result));
		json_object_set_new(report, "peak_memory_bytes", json_integer(fp_peak_memory()));
		if (task->be->peak_bytes > 0)
			json_object_set_new(report, "peak_device_memory_bytes", json_integer(task->be->peak_bytes));
		json_object_set_new(report, "device", json_string(task->be->description));
	}
	return report;
}
