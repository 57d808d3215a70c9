/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_plan.c: the matrices that are there at the same time, by group of operators: two layers' weights and the
 * statistics always; while the streams pass, their work space; while an operator is solved, that of the solver. Counted
 * in floats, with an operator of m × n:
 *     statistics  n² (A); with correction 2n² (cross, difference) or mn (the drift); hn each: residual, repair
 *     solver      mn each: C, the drift, R; three that are scaled; and what the search, FISTA or the refit takes
 */
#include "pipeline/memory_plan.h"

#include "base/memory.h"
#include "pipeline/row_importance.h"

#include <math.h>
#include <string.h>

/* The program, its libraries and OpenBLAS's buffers, as measured. */
#define PROGRAM_BYTES ((int64_t)18 << 20)
#define BUFFER_BYTES ((int64_t)2 << 20) /* a thread's */

#define PANEL_BYTES ((int64_t)1 << 30) /* the most that a split product takes for its right operand */

enum {
	SHARED_INVERSES = 12, /* that a search climbs, as a rule */
	MARGIN = 50,          /* a limit has so many parts, and one is left free: the estimate is one */
};

typedef struct group_size {
	int64_t inputs, largest; /* n, and the largest operator's mn */
	int operators;
	bool centred;
} group_size;

typedef struct sizes {
	group_size groups[FP_GROUP_COUNT];
	int64_t weights; /* entries of a layer */
	int64_t largest_bytes;
	bool weighs_rows;
} sizes;

static void measure(sizes *out, const fp_prune_task *task, int64_t layer)
{
	memset(out, 0, sizeof *out);
	for (int group = 0; group < FP_GROUP_COUNT; group++)
		out->groups[group].centred = task->settings->bias_update;
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		const fp_tensor_info *tensor = fp_model_operator(task->model, layer, (fp_role)role);
		if (!tensor)
			continue;
		group_size *group = &out->groups[fp_role_group((fp_role)role)];
		group->inputs = tensor->shape[1];
		group->operators++;
		group->largest = tensor->elements > group->largest ? tensor->elements : group->largest;
		if (!fp_model_operator_bias(task->model, layer, (fp_role)role))
			group->centred = false;
		out->weights += tensor->elements;
		out->largest_bytes = tensor->bytes > out->largest_bytes ? tensor->bytes : out->largest_bytes;
	}
}

/* Matrices of the operator's size that FISTA, the support search or the refit take, whichever takes most. */
static double fista_matrices(const fp_backend *be, const fp_settings *settings, bool searches)
{
	bool convex = settings->iterations > 0, compares = convex || !fp_is(settings->warm_start, "dense");
	/* in halves near the dense weights the steps take five, too, and half a one to make many at once */
	double steps = be->asynchronous ? 5.5 : 5, refit = settings->refit_steps > 0 ? 4 : 0;
	if (settings->restart)
		steps = 7;
	if (!convex)
		steps = 0;
	double search = searches ? 2 + fmax(3.25, refit) + (compares ? 1.25 : 0) : 0;
	return fmax(fmax(steps, search), refit);
}

/* Floats of the solve of a group's largest operator, beside its target: in mn and in n². */
static double solver_floats(const fp_backend *be, const fp_settings *settings, const group_size *group, bool drifts,
							bool frugal)
{
	double mn = 0, square = 0;
	if (fp_is(settings->method, "fista")) {
		bool searches = !fp_is(settings->support_search, "none") && settings->search_steps > 0;
		bool scaled = settings->scaling || searches || settings->ridge > 0;
		mn = fista_matrices(be, settings, searches) + (scaled ? 2 + drifts : 0);
		/* the scaled Gram matrix, and inverses: operators of a group share them where there is room */
		square = scaled + (!searches ? 0 : group->operators > 1 && !frugal ? SHARED_INVERSES : 1);
		/* on a device an inverse is made from the one before: its square, and that in pieces of 16 bits */
		if (searches && be->asynchronous)
			square += 4;
		if (settings->iterations > 0 && be->asynchronous && be->precision == FP_PRECISION_BF16) {
			bool leaps = fp_is(settings->momentum, "literal") && fp_search_is_coarse(settings) &&
						 (!frugal || group->inputs * group->inputs <= 2 * group->largest);
			square += leaps ? 5 : 0.5; /* A in 16 bits; and what makes many steps at once, while it is made */
		}
		if (fp_is(settings->warm_start, "sparsegpt"))
			square += 1;
	} else if (fp_is(settings->method, "admm")) {
		mn = 5;
		square = 2;
	} else if (fp_is(settings->method, "sparsegpt")) {
		square = 1;
	}
	/* a mask of bytes; and in the end the error of the result takes two, beside what a device sends out meanwhile */
	return (0.25 + fmax(mn, be->asynchronous ? 3 : 2)) * (double)group->largest +
		   square * (double)(group->inputs * group->inputs);
}

/* Floats at the peak of one group. */
static double group_floats(const fp_prune_task *task, const sizes *s, int group, const fp_streams_plan *plan)
{
	const fp_settings *settings = task->settings;
	const fp_backend *be = fp_model_backend(task->model);
	const group_size *size = &s->groups[group];
	fp_feed feed = fp_feed_of(settings);
	bool corrected = feed == FP_FEED_INTRA || feed == FP_FEED_CROSS;
	bool two = fp_group_is_corrected(settings, group);
	double n = (double)size->inputs, batch = (double)(plan->batch * task->windows->length);
	double mn = (double)size->largest, hidden = (double)fp_model_get_config(task->model)->hidden;
	double residual = fp_group_repairs(settings, group) ? hidden : 0;
	bool outputs =
		two && size->operators == 1 && fp_drift_by_outputs(size->largest / size->inputs, size->inputs, residual > 0);
	double statistics = n * n, drift = outputs ? mn : 0, fold = two ? batch * n : 0;
	double targets = residual * n + (two && !outputs ? 2 * n * n + residual * n : 0);
	if (outputs) { /* WΔ; and on a device that or W, rounded for a product */
		fold += batch * mn / n;
		if (be->asynchronous && be->precision != FP_PRECISION_FP32)
			fold += 0.5 * fmax(mn, batch * mn / n);
	}
	if (!corrected) { /* of all groups at once */
		statistics = 0;
		for (int g = 0; g < FP_GROUP_COUNT; g++)
			statistics += (double)(s->groups[g].inputs * s->groups[g].inputs);
	}
	fold += residual > 0 ? batch * hidden : 0;
	fold += size->centred ? batch * n * (corrected ? 1 : FP_GROUP_COUNT) : 0;
	double pass = task->windows->count > 0
					  ? (double)fp_streams_pass_bytes(task->model, task->windows->length, plan) / sizeof(float)
					  : 0;
	/* C, the drift, and R where that is more than the drift; what targets are made of goes with the last operator's */
	bool own = residual > 0 || (two && feed == FP_FEED_CROSS && settings->mix != 1);
	double target = (1 + (two && !outputs ? 1 : 0) + (own ? 1 : 0)) * mn;
	double solve = target + solver_floats(be, settings, size, two || own, plan->residence != FP_RESIDENT);
	double making = target + (two && !outputs ? mn : 0);
	if (be->asynchronous && be->precision != FP_PRECISION_FP32) /* operands in three pieces; the right one in panels */
		making += 1.5 * mn + fmin(1.5 * n * n, (double)PANEL_BYTES / sizeof(float));
	double solving = fmax(targets + making, size->operators > 1 ? targets + solve : solve);
	if (plan->residence == FP_RESIDENT)
		return statistics + drift + pass + fmax(targets + fold, solving);
	return statistics + drift + fmax(targets + fold + pass, solving);
}

/* What the embedding keeps in memory: learnt positions, and the projection to the hidden states' width. */
static double outer_bytes(const fp_model *model)
{
	const fp_model_config *c = fp_model_get_config(model);
	int64_t positions = c->rotary ? 0 : (c->positions + c->position_offset) * c->hidden;
	int64_t projection = c->embedding != c->hidden ? c->embedding * c->hidden : 0;
	return (double)(positions + projection) * sizeof(float);
}

static int64_t peak_bytes(const fp_prune_task *task, const sizes *s, const fp_streams_plan *plan)
{
	const fp_backend *be = fp_model_backend(task->model);
	int64_t windows = task->windows->count, length = task->windows->length;
	bool fitted = windows > 0 && task->settings->fit_steps > 0;
	double most = 0;
	for (int group = 0; group < FP_GROUP_COUNT; group++) {
		double floats = group_floats(task, s, group, plan);
		most = floats > most ? floats : most;
	}
	double fixed = 2.0 * (double)s->weights * sizeof(float) + outer_bytes(task->model), peak = most * sizeof(float);
	if (windows > 0)
		fixed += (double)fp_streams_bytes(task->model, windows, length, plan);
	if (windows > 0 && s->weighs_rows) {
		double importance = (double)fp_row_importance_bytes(task->model, length);
		if (plan->residence == FP_RESIDENT)
			importance += (double)fp_streams_pass_bytes(task->model, length, plan);
		peak = importance > peak ? importance : peak;
	}
	if (fitted) {
		bool metric = fp_token_gradients_wanted(task->settings, task->windows);
		double fit = (double)fp_fit_bytes(task->model, s->weights, plan->batch * length, metric);
		if (plan->residence == FP_RESIDENT)
			fit += (double)fp_streams_pass_bytes(task->model, length, plan);
		else
			fit -= (double)s->weights * sizeof(float); /* the dense layer has gone */
		if (plan->residence != FP_PARKED)
			fixed += (double)(windows * length * fp_model_get_config(task->model)->hidden) * sizeof(float);
		if (plan->residence != FP_PARKED && metric)
			fit += (double)(fp_token_gradients_windows(task->model, task->windows) * length *
							fp_model_get_config(task->model)->hidden) *
				   sizeof(float);
		peak = fit > peak ? fit : peak;
		/* before anything else is there */
		double pass = metric ? (double)fp_token_gradients_bytes(task->model, task->windows, s->weights) : 0;
		peak = pass - fixed > peak ? pass - fixed : peak;
	}
	if (!be->asynchronous) /* on the host: the program, what is on its way to the disk, and the text */
		fixed += (double)(PROGRAM_BYTES + be->threads * BUFFER_BYTES + 2 * s->largest_bytes) +
				 4.0 * (double)(windows * length);
	return (int64_t)(fixed + peak);
}

/* Batches get smaller, down to one window, only when nothing else helps. */
static bool find_plan(fp_memory_plan *out, const fp_prune_task *task, const sizes *s, int64_t limit)
{
	for (int residence = FP_RESIDENT; residence <= (int)FP_PARKED; residence++) {
		out->streams.residence = (fp_residence)residence;
		out->bytes = peak_bytes(task, s, &out->streams);
		if (out->bytes <= limit)
			return true;
	}
	while (out->streams.batch > 1) {
		out->streams.batch /= 2;
		out->bytes = peak_bytes(task, s, &out->streams);
		if (out->bytes <= limit)
			return true;
	}
	return false;
}

fp_status fp_memory_plan_make(fp_memory_plan *out, const fp_prune_task *task, bool onward)
{
	fp_backend *be = fp_model_backend(task->model);
	int64_t limit, available, total, first, end;
	sizes s;
	fp_pattern pattern;
	fp_status status;
	*out = (fp_memory_plan){0};
	FP_TRY(fp_parse_range(be->ctx, task->settings->layers, fp_model_get_config(task->model)->layers, &first, &end));
	FP_TRY(fp_parse_size(be->ctx, task->settings->memory, &limit));
	measure(&s, task, first);
	FP_TRY(fp_parse_sparsity(be->ctx, task->settings->pattern, &pattern.sparsity, &pattern.kept, &pattern.group));
	s.weighs_rows = fp_row_importance_wanted(task->settings, &pattern, be);
	out->streams.fitted = task->settings->fit_steps > 0;
	out->streams.both = onward || fp_feed_needs_both(fp_feed_of(task->settings));
	out->streams.batch =
		task->windows->count > 0 ? fp_streams_usual_batch(task->model, task->windows->count, task->windows->length) : 1;
	if (limit > 0) {
		if (!find_plan(out, task, &s, limit - limit / MARGIN))
			status = fp_fail(be->ctx, FP_ERROR_MEMORY, "--memory %s: pruning this model takes %.0fM at least",
							 task->settings->memory, (double)out->bytes * MARGIN / (MARGIN - 1) / 1048576.0 + 0.5);
		goto cleanup;
	}
	FP_TRY(be->ops->memory(be, &available, &total));
	int64_t batch = out->streams.batch;
	if (!find_plan(out, task, &s, available / 10 * 9)) { /* an estimate: try, with the usual batch */
		out->streams.batch = batch;
		out->bytes = peak_bytes(task, &s, &out->streams);
	}
	if (out->streams.residence == FP_PARKED)
		fp_log(be->ctx, FP_LOG_INFO, "hidden states wait on the disk: %.1f GiB are free, keeping them needs more",
			   (double)available / 1073741824.0);
cleanup:
	return status;
}
