/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.c: what a prune would take. Only products of matrices are counted; with tokens p, an operator m × n and k GEMMs
 * of its solver: forward 2pmn a pass,  statistics p·n² (A) and with correction what statistics.h says,  solver k·2mn²
 */
#include "run/memory_plan.h"

#include <math.h>
#include <string.h>

/* Whether all steps of FISTA's rounds but the last are made at once (solver/fista_batched_steps.c), as far as settings tell: whether
 * the shrinkage is felt depends on the inputs, too, but from the paper's λ downwards it never was. */
static bool leaps(const fp_backend *be, const fp_settings *settings)
{
	const double felt_from = 2e-5;
	return be->asynchronous && be->precision == FP_PRECISION_BF16 && fp_is(settings->momentum, "literal") &&
		   settings->iterations > 4 && !settings->restart && fp_is(settings->lambda_search, "bisection") &&
		   settings->lambda_start < felt_from;
}

/* Rounds of the λ search, as seen: 8 on small models and 15 at 7B with the paper's ε of 1e-3, 56 with 1e-6. */
static double rounds_for(const fp_settings *settings)
{
	double digits = -log10(fmax(settings->tolerance, 1e-12));
	return settings->iterations > 0 ? 12 + 15 * fmax(digits - 3, 0) : 0;
}

/* GEMMs (or their like) that one operator's solve takes, roughly. */
static double solver_products(const fp_backend *be, const fp_settings *settings)
{
	const double usual_search = 72; /* six steps on each of eleven rungs, and their inverses */
	if (!fp_is(settings->method, "fista"))
		return 2;
	double rounds = rounds_for(settings), steps = (double)settings->iterations;
	double search = fp_is(settings->support_search, "none") ? 0 : fmin((double)settings->search_steps, usual_search);
	/* at once: a product for them, one for the last step, one for the error; and the steps themselves from zero */
	double fista = leaps(be, settings) ? rounds * 3 + steps : rounds * (steps + 2);
	return fista + search + (double)settings->refit_steps + 6;
}

/* Products n × n × n that a Gram matrix takes beside those of its operators. */
static double gram_products(const fp_backend *be, const fp_settings *settings)
{
	/* pairs of steps, of which half of each product is made */
	return fp_is(settings->method, "fista") && leaps(be, settings) ? (double)settings->iterations / 4 : 0;
}

/* What the statistics of a group take for a token beside A: the drift and what the residual's error adds. role: of the
 * group's first operator */
static double target_products(const fp_settings *settings, fp_role role, int64_t outputs, int64_t inputs)
{
	double mn = (double)outputs * (double)inputs, square = (double)inputs * (double)inputs;
	bool only = role == FP_OUTPUT || role == FP_DOWN;
	bool repairs = fp_group_repairs(settings, fp_role_group(role));
	if (!fp_group_is_corrected(settings, fp_role_group(role)))
		return 0;
	if (only && fp_drift_by_outputs(outputs, inputs, repairs))
		return (repairs ? 6 : 4) * mn;
	return 3 * square + (repairs ? 4 : 0) * mn;
}

fp_status fp_prune_estimate(fp_prune_plan *out, const fp_prune_task *task)
{
	const fp_model_config *config = fp_model_get_config(task->model);
	const fp_backend *be = fp_model_backend(task->model);
	fp_context *ctx = be->ctx;
	fp_feed feed = fp_feed_of(task->settings);
	bool both = fp_feed_needs_both(feed);
	bool corrected = feed == FP_FEED_INTRA || feed == FP_FEED_CROSS;
	double tokens = (double)(task->windows->count * task->windows->length);
	int64_t first;
	int64_t end;
	int64_t weights = 0;
	double flops = 0;
	fp_memory_plan memory;
	memset(out, 0, sizeof *out);
	fp_status status = fp_parse_range(ctx, task->settings->layers, config->layers, &first, &end);
	if (status != FP_OK)
		return status;
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		const fp_tensor_info *tensor = fp_model_operator(task->model, first, (fp_role)role);
		if (!tensor)
			continue;
		double m = (double)tensor->shape[0];
		double n = (double)tensor->shape[1];
		bool shares = role == FP_KEY || role == FP_VALUE || (role == FP_UP && config->gated);
		out->operators += end - first;
		weights += tensor->elements;
		flops += (both ? 2 : 1) * (corrected && fp_role_group((fp_role)role) == 2 ? 2 : 1) * 2 * tokens * m * n;
		if (!shares)
			flops +=
				tokens * (n * n + target_products(task->settings, (fp_role)role, tensor->shape[0], tensor->shape[1])) +
				gram_products(be, task->settings) * 2 * n * n * n;
		flops += solver_products(be, task->settings) * 2 * m * n * n;
	}
	out->layers = end - first;
	out->tokens = (int64_t)tokens;
	out->flops = flops * (double)out->layers;
	out->forward_flops = 2 * tokens * (double)weights;
	if (task->windows->count > 0 && task->settings->fit_steps > 0) {
		/* forward, backward by the inputs, backward by the weights */
		int64_t windows = task->windows->count, length = task->windows->length;
		double drawn = (double)(fp_fit_steps(task->settings, windows, length) *
								fp_fit_batch(task->settings, windows, length) * length);
		out->flops += (double)out->layers * 6 * drawn * (double)weights;
		if (fp_token_gradients_wanted(task->settings, task->windows)) {
			/* through the layers forward twice and back once, by the inputs; through the head forward and back */
			double seen = (double)(fp_token_gradients_windows(task->model, task->windows) * length);
			double head = (double)(config->vocabulary * config->embedding);
			out->flops += seen * (6 * (double)config->layers * (double)weights + 4 * head);
		}
	}
	status = fp_memory_plan_make(&memory, task, false);
	out->memory_bytes = memory.bytes;
	return status;
}
