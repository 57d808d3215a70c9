/* SPDX-License-Identifier: Apache-2.0 */
#include "api/prune_plan.h"

#include "api/result_text.h"
#include "run/report.h"

/* The operators that would be pruned, with their patterns. */
static json_t *list_operators(const fp_model *model, const fp_selection *selection)
{
	json_t *list = json_array();
	for (int64_t layer = 0; list && layer < fp_model_get_config(model)->layers; layer++)
		for (int i = 0; i < fp_model_operators(model); i++)
			if (fp_selection_has(selection, layer, i))
				json_array_append_new(list, json_pack("{s:s, s:I, s:s, s:s}", "name",
													  fp_model_operator(model, layer, i)->name, "layer",
													  (json_int_t)layer, "operator", fp_role_name(i), "pattern",
													  fp_selection_text(selection, layer, i)));
	return list;
}

fp_status fp_prune_plan_text(char **json, const fp_prune_task *task, const char *model)
{
	fp_prune_plan estimate;
	double rate;
	json_t *document = NULL;
	fp_selection *selection = NULL;
	fp_status status;
	FP_TRY(fp_selection_new(&selection, task->model, task->settings));
	FP_TRY(fp_prune_estimate(&estimate, task));
	FP_TRY(fp_backend_gemm_rate(task->be, &rate));
	document = json_pack("{s:b, s:s, s:s*, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:f, s:f}", "dry_run", 1, "model", model,
						 "stored_as", fp_checkpoint_coding(fp_model_checkpoint(task->model)), "pattern",
						 task->settings->pattern, "method", task->settings->method, "preset", task->settings->preset,
						 "layers", (json_int_t)estimate.layers, "operators", (json_int_t)estimate.operators, "tokens",
						 (json_int_t)estimate.tokens, "memory_bytes", (json_int_t)estimate.memory_bytes, "flops",
						 estimate.flops, "seconds", estimate.flops / rate);
	if (document) {
		json_object_set_new(document, "settings", fp_report_settings(task->settings, task->ctx));
		json_object_set_new(document, "device", json_string(task->be->description));
		json_object_set_new(document, "basis", json_string(fp_basis_word(task->choice)));
		json_object_set_new(document, "selected", list_operators(task->model, selection));
	}
	FP_TRY(fp_result_text(json, task->ctx, document));
cleanup:
	fp_selection_free(selection);
	return status;
}
