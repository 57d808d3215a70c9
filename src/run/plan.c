/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.c: estimates the operations and the memory of a run. Only matrix products are counted. For p tokens, an operator
 * m × n and k products of its solver:
 *
 *     forward pass   2pmn
 *     statistics     p · fp_statistics_flops()
 *     solver         k · 2mn²
 */
#include "run/memory_plan.h"

#include <string.h>

static double statistics_flops(const fp_prune_task *task, int64_t layer, int number)
{
	fp_statistics_plan plan = fp_group_statistics_plan(task->model, task->settings, layer, fp_role_group(number),
													   fp_operator_expert(number), 0);
	return fp_statistics_flops(&plan);
}

fp_status fp_prune_estimate(fp_prune_plan *out, const fp_prune_task *task)
{
	const fp_model_config *config = fp_model_get_config(task->model);
	fp_context *ctx = task->ctx;
	fp_feed feed = fp_feed_of(task->settings);
	bool both = fp_feed_needs_both(feed);
	fp_solve_products products = fp_method_of(task->settings)->products(task->be, task->settings);
	bool corrected = fp_feed_is_corrected(feed);
	double tokens = (double)(task->windows->count * task->windows->length);
	int64_t first;
	int64_t end;
	int64_t weights = 0;
	double flops = 0, read = 0; /* read: weights that a token passes through */
	fp_memory_plan memory;
	fp_selection *selection = NULL;
	memset(out, 0, sizeof *out);
	fp_status status = fp_parse_range(ctx, task->settings->layers, config->layers, &first, &end);
	if (status == FP_OK)
		status = fp_selection_new(&selection, task->model, task->settings);
	if (status != FP_OK)
		return status;
	for (int64_t layer = first; layer < end; layer++)
		for (int i = 0; i < fp_model_operators(task->model); i++)
			out->operators += fp_selection_has(selection, layer, i);
	fp_selection_free(selection);
	int64_t measured = fp_heaviest_layer(task->model, first, end);
	for (int i = 0; i < fp_model_operators(task->model); i++) {
		const fp_tensor_info *tensor = fp_model_operator(task->model, measured, i);
		fp_role role = fp_operator_role(i);
		bool expert = fp_operator_expert(i) >= 0;
		double reached = expert ? tokens * (double)config->experts.active / (double)config->experts.count : tokens;
		if (!tensor)
			continue;
		double m = (double)tensor->shape[0];
		double n = (double)tensor->shape[1];
		bool shares = role == FP_KEY || role == FP_VALUE || role == FP_KEY_VALUE_A || (role == FP_UP && config->gated);
		weights += tensor->elements;
		read += tokens > 0 ? (double)tensor->elements * reached / tokens : 0;
		flops += (both ? 2 : 1) * (corrected && fp_role_group(i) == FP_GROUP_FEED ? 2 : 1) * 2 * reached * m * n;
		if (!shares)
			flops += reached * statistics_flops(task, measured, i) + products.gram * 2 * n * n * n;
		flops += (products.operators + 2) * 2 * m * n * n; /* the 2: WA, and the error of the result */
	}
	out->layers = end - first;
	out->tokens = (int64_t)tokens;
	out->flops = flops * (double)out->layers;
	out->forward_flops = 2 * tokens * read;
	out->flops += fp_basis_flops(task, weights);
	if (task->windows->count > 0 && task->settings->fit_steps > 0) {
		/* forward, gradients by the inputs, gradients by the weights */
		int64_t windows = task->windows->count, length = task->windows->length;
		double drawn = (double)(fp_fit_steps(task->settings, windows, length) *
								fp_fit_batch(task->settings, windows, length) * length);
		out->flops += (double)out->layers * 6 * drawn * read;
		if (fp_fisher_wanted(task->settings, task->windows))
			out->flops += fp_fisher_flops(task->model, task->settings, task->windows, weights);
	}
	status = fp_memory_plan_make(&memory, task, false);
	out->memory_bytes = memory.bytes;
	return status;
}
