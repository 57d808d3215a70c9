/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_plan.c: the matrices that are there at the same time, by group of operators: two layers' weights and the
 * statistics always; while the streams pass, their work space; while an operator is solved, that of the solver. Counted
 * in floats, with an operator of m × n:
 *     statistics  n² (A); with correction 2n² (cross, difference) or mn (the drift); hn each: residual, residual_delta
 *     solver      mn each: C, the drift, R; three that are scaled; and what the search, FISTA or the refit takes
 */
#include "run/memory_plan.h"

#include "backend/work_space.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "pruning/row_importance.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The program, its libraries and OpenBLAS's buffers, as measured. */
#define PROGRAM_BYTES ((int64_t)18 << 20)
#define BUFFER_BYTES ((int64_t)2 << 20) /* a thread's */

enum { MARGIN = 50 }; /* one part in so many of a limit is left free, since this is an estimate */

typedef struct group_size {
	int64_t inputs, largest; /* n, and the largest operator's mn */
	int64_t rounded;         /* the same of those whose weights each product rounds, where it does */
	int operators;
	bool centred;
} group_size;

/* What takes memory at different times. */
typedef enum phase { PHASE_GRADIENTS, PHASE_ROWS, PHASE_STATISTICS, PHASE_SOLVE, PHASE_FIT, PHASE_COUNT } phase;

typedef struct sizes {
	group_size groups[FP_GROUP_COUNT];
	int64_t layer; /* the one that was measured */
	int64_t held;  /* bytes that its weights take on the device */
	int64_t largest_bytes;
	bool narrow; /* they are held in 16 bits */
	bool weighs_rows;
} sizes;

static void measure(sizes *out, const fp_prune_task *task, int64_t layer)
{
	memset(out, 0, sizeof *out);
	out->layer = layer;
	for (int group = 0; group < FP_GROUP_COUNT; group++)
		out->groups[group].centred = task->settings->bias_update;
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		const fp_tensor_info *tensor = fp_model_operator(task->model, layer, (fp_role)role);
		if (!tensor)
			continue;
		group_size *group = &out->groups[fp_role_group((fp_role)role)];
		group->inputs = tensor->shape[1];
		group->operators++;
		fp_dtype type = fp_model_held_type(task->model, tensor);
		group->largest = fp_larger(tensor->elements, group->largest);
		group->rounded = type == FP_BF16 ? group->rounded : fp_larger(tensor->elements, group->rounded);
		if (!fp_model_operator_bias(task->model, layer, (fp_role)role))
			group->centred = false;
		out->held += tensor->elements * fp_dtype_size(type);
		out->narrow |= type != FP_F32;
		out->largest_bytes = fp_larger(tensor->bytes, out->largest_bytes);
	}
}

/* The group as the solver's estimates see it. */
static fp_solve_size solve_size(const group_size *group, bool has_R, bool frugal)
{
	return (fp_solve_size){.inputs = group->inputs,
						   .entries = group->largest,
						   .operators = group->operators,
						   .has_R = has_R,
						   .frugal = frugal};
}

/* Floats that the products of a pass take, one after the other: attention, the group's operators, its statistics. Where
 * products round, one of their operands is in 16 bits already. */
static double pass_floats(const fp_prune_task *task, const group_size *size, const fp_streams_plan *plan)
{
	const fp_backend *be = task->be;
	fp_attention_shape shape = fp_model_attention_shape(task->model, plan->batch, task->windows->length);
	int64_t tokens = plan->batch * task->windows->length, outputs = size->largest / size->inputs;
	bool split = fp_operand_bytes(be, FP_USE_ACTIVATION) > 2;
	int64_t inputs = split ? tokens * size->inputs : 0, results = split ? 0 : tokens * outputs;
	int64_t most = fp_attention_bytes(be, &shape);
	int64_t products[] = {fp_product_bytes(be, FP_USE_ACTIVATION, inputs, size->rounded),
						  fp_product_bytes(be, FP_USE_ACTIVATION, inputs, inputs),
						  fp_product_bytes(be, FP_USE_ACTIVATION, results, 0)};
	for (size_t i = 0; i < sizeof products / sizeof products[0]; i++)
		most = products[i] > most ? products[i] : most;
	return (double)most / sizeof(float);
}

/* Floats of one group: while the streams pass, and while its operators are solved. */
static void group_floats(const fp_prune_task *task, const sizes *s, int group, const fp_streams_plan *plan,
						 double floats[PHASE_COUNT])
{
	const fp_settings *settings = task->settings;
	const fp_backend *be = task->be;
	const group_size *size = &s->groups[group];
	fp_feed feed = fp_feed_of(settings);
	bool corrected = fp_feed_is_corrected(feed);
	bool two = fp_group_is_corrected(settings, group);
	double n = (double)size->inputs, batch = (double)(plan->batch * task->windows->length);
	double mn = (double)size->largest, hidden = (double)fp_model_get_config(task->model)->hidden;
	double residual = fp_group_repairs(settings, group) ? hidden : 0;
	bool outputs =
		two && size->operators == 1 && fp_drift_by_outputs(size->largest / size->inputs, size->inputs, residual > 0);
	double statistics = n * n, drift = outputs ? mn : 0, fold = two ? batch * n : 0;
	double targets = residual * n + (two && !outputs ? 2 * n * n + residual * n : 0);
	if (outputs) /* WΔ */
		fold += batch * mn / n;
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
	fp_solve_size solved = solve_size(size, two || own, plan->residence != FP_RESIDENT);
	double solve = target + fp_solve_floats(be, settings, &solved);
	double making = target + (two && !outputs ? mn : 0) + fp_product_floats(be, FP_USE_REFINEMENT, &solved);
	double solving = fmax(targets + making, size->operators > 1 ? targets + solve : solve);
	if (s->narrow) /* W and V themselves */
		solving += 2 * mn;
	bool resident = plan->residence == FP_RESIDENT;
	floats[PHASE_STATISTICS] =
		fmax(floats[PHASE_STATISTICS], statistics + drift + targets + fold + pass + pass_floats(task, size, plan));
	floats[PHASE_SOLVE] = fmax(floats[PHASE_SOLVE], statistics + drift + solving + (resident ? pass : 0));
}

/* What the embedding keeps in memory: learnt positions, and the projection to the hidden states' width. */
static double outer_bytes(const fp_model *model)
{
	const fp_model_config *c = fp_model_get_config(model);
	int64_t positions = c->rotary ? 0 : (c->positions + c->position_offset) * c->hidden;
	int64_t projection = c->embedding != c->hidden ? c->embedding * c->hidden : 0;
	return (double)(positions + projection) * sizeof(float);
}

/* What the products of a fit take, one after the other: attention's gradients, the metric's product, that of a float
 * weight, whose left side is in 16 bits where products round. */
static double fit_product_bytes(const fp_prune_task *task, const sizes *s, const fp_streams_plan *plan, bool metric)
{
	const fp_backend *be = task->be;
	const fp_model_config *c = fp_model_get_config(task->model);
	int64_t length = task->windows->length, tokens = plan->batch * length, rounded = 0;
	int64_t drawn = fp_fit_batch(task->settings, task->windows->count, length);
	fp_attention_shape shape = fp_model_attention_shape(task->model, drawn < plan->batch ? drawn : plan->batch, length);
	for (int group = 0; group < FP_GROUP_COUNT; group++)
		rounded = fp_larger(s->groups[group].rounded, rounded);
	int64_t left =
		fp_backend_rounds(be, FP_USE_ACTIVATION) ? 0 : tokens * (c->inner > c->hidden ? c->inner : c->hidden);
	double product = (double)fp_product_bytes(be, FP_USE_ACTIVATION, left, rounded);
	if (metric)
		product =
			fmax(product, (double)fp_product_bytes(be, FP_USE_REFINEMENT, tokens * c->hidden, c->hidden * c->hidden));
	return fmax(product, (double)fp_attention_backward_bytes(be, &shape));
}

static double fit_bytes(const fp_prune_task *task, const sizes *s, const fp_streams_plan *plan, bool metric)
{
	int64_t length = task->windows->length, hidden = fp_model_get_config(task->model)->hidden;
	double fit = (double)fp_fit_bytes(task->model, s->layer, plan->batch * length, metric);
	if (plan->residence == FP_RESIDENT)
		fit += (double)fp_streams_pass_bytes(task->model, length, plan);
	else
		fit -= (double)s->held; /* the dense layer has gone */
	if (plan->residence != FP_ON_DISK && metric)
		fit += (double)(fp_token_gradients_windows(task->model, task->windows) * length * hidden) * sizeof(float);
	return fit + fit_product_bytes(task, s, plan, metric);
}

/* The rows' importance takes a short pass back through the layer. */
static double rows_bytes(const fp_prune_task *task, const fp_streams_plan *plan)
{
	int64_t length = task->windows->length;
	fp_attention_shape shape = fp_model_attention_shape(task->model, 1, length);
	int64_t bytes = fp_row_importance_bytes(task->model, length) + fp_attention_backward_bytes(task->be, &shape);
	if (plan->residence == FP_RESIDENT)
		bytes += fp_streams_pass_bytes(task->model, length, plan);
	return (double)bytes;
}

/* Bytes at the peak of each phase; returns the most. */
static int64_t peak_bytes(const fp_prune_task *task, const sizes *s, const fp_streams_plan *plan,
						  double bytes[PHASE_COUNT])
{
	const fp_backend *be = task->be;
	int64_t windows = task->windows->count, length = task->windows->length;
	bool fitted = windows > 0 && task->settings->fit_steps > 0;
	bool metric = fitted && fp_token_gradients_wanted(task->settings, task->windows);
	double fixed = 2.0 * (double)s->held + outer_bytes(task->model), host = 0, most = 0;
	memset(bytes, 0, PHASE_COUNT * sizeof *bytes);
	for (int group = 0; group < FP_GROUP_COUNT; group++)
		group_floats(task, s, group, plan, bytes);
	if (windows > 0)
		fixed += (double)fp_streams_bytes(task->model, windows, length, plan);
	if (fitted && plan->residence != FP_ON_DISK)
		fixed += (double)(windows * length * fp_model_get_config(task->model)->hidden) * sizeof(float);
	bytes[PHASE_STATISTICS] = bytes[PHASE_STATISTICS] * sizeof(float) + fixed;
	bytes[PHASE_SOLVE] = bytes[PHASE_SOLVE] * sizeof(float) + fixed;
	if (windows > 0 && s->weighs_rows)
		bytes[PHASE_ROWS] = rows_bytes(task, plan) + fixed;
	if (fitted)
		bytes[PHASE_FIT] = fit_bytes(task, s, plan, metric) + fixed;
	if (metric) /* before anything else is there */
		bytes[PHASE_GRADIENTS] = (double)fp_token_gradients_bytes(task->model, task->windows, s->held);
	if (!be->asynchronous) /* on the host: the program, what is on its way to the disk, and the text */
		host = (double)(PROGRAM_BYTES + be->threads * BUFFER_BYTES + 2 * s->largest_bytes) +
			   4.0 * (double)(windows * length);
	for (int i = 0; i < PHASE_COUNT; i++) {
		bytes[i] += bytes[i] > 0 ? host : 0;
		most = fmax(most, bytes[i]);
	}
	return (int64_t)most;
}

static void log_phases(fp_context *ctx, const double bytes[PHASE_COUNT])
{
	static const char *const names[PHASE_COUNT] = {"token gradients", "row importance", "statistics", "solve", "fit"};
	for (int i = 0; i < PHASE_COUNT; i++)
		if (bytes[i] > 0)
			fp_log(ctx, FP_LOG_DEBUG, "memory: %s: %.0f MiB expected", names[i], bytes[i] / 1048576.0);
}

/* Batches get smaller, down to one window, only when nothing else helps. */
static bool find_plan(fp_memory_plan *out, const fp_prune_task *task, const sizes *s, int64_t limit,
					  double bytes[PHASE_COUNT])
{
	for (int residence = FP_RESIDENT; residence <= (int)FP_ON_DISK; residence++) {
		out->streams.residence = (fp_residence)residence;
		out->bytes = peak_bytes(task, s, &out->streams, bytes);
		if (out->bytes <= limit)
			return true;
	}
	while (out->streams.batch > 1) {
		out->streams.batch /= 2;
		out->bytes = peak_bytes(task, s, &out->streams, bytes);
		if (out->bytes <= limit)
			return true;
	}
	return false;
}

fp_status fp_memory_plan_make(fp_memory_plan *out, const fp_prune_task *task, bool onward)
{
	fp_backend *be = task->be;
	int64_t limit, available, total, first, end;
	double bytes[PHASE_COUNT] = {0};
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
		if (!find_plan(out, task, &s, limit - limit / MARGIN, bytes))
			status = fp_fail(be->ctx, FP_ERROR_MEMORY, "--memory %s: pruning this model takes %.0fM at least",
							 task->settings->memory, (double)out->bytes * MARGIN / (MARGIN - 1) / 1048576.0 + 0.5);
		goto cleanup;
	}
	FP_TRY(be->memory->available(be, &available, &total));
	int64_t batch = out->streams.batch;
	if (!find_plan(out, task, &s, available / 10 * 9, bytes)) { /* an estimate: try, with the usual batch */
		out->streams.batch = batch;
		out->bytes = peak_bytes(task, &s, &out->streams, bytes);
	}
	if (out->streams.residence == FP_ON_DISK)
		fp_log(be->ctx, FP_LOG_INFO, "hidden states wait on the disk: %.1f GiB are free, keeping them needs more",
			   (double)available / 1073741824.0);
cleanup:
	if (status == FP_OK)
		log_phases(be->ctx, bytes);
	return status;
}

void fp_memory_log_stages(fp_backend *be, const char *what)
{
	char text[512] = "";
	size_t used = 0;
	for (int stage = 0; stage < FP_STAGE_COUNT && used < sizeof text; stage++)
		if (be->stage_bytes[stage] > 0)
			used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %.0f", used > 0 ? ", " : "",
									 fp_stage_name((fp_stage)stage), (double)be->stage_bytes[stage] / 1048576.0);
	if (used > 0)
		fp_log(be->ctx, FP_LOG_DEBUG, "memory: %s: %s MiB held at the peak", what, text);
	memset(be->stage_bytes, 0, sizeof be->stage_bytes);
}
