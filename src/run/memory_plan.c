/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_plan.c: adds up, for each phase of a layer, the estimates of what is in memory at the same time. Each estimate
 * is next to the code that allocates the memory.
 */
#include "run/memory_plan.h"

#include "backend/work_space.h"
#include "base/numbers.h"
#include "pruning/prune_operator.h"
#include "pruning/row_importance.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The program, its libraries and OpenBLAS's buffers, as measured. */
#define PROGRAM_BYTES ((int64_t)18 << 20)
#define BUFFER_BYTES ((int64_t)2 << 20) /* per thread */

enum { MARGIN = 50 }; /* 1/MARGIN of a limit is left free, since this is an estimate */

typedef enum phase {
	PHASE_BASIS,
	PHASE_FISHER,
	PHASE_ROWS,
	PHASE_STATISTICS,
	PHASE_SOLVE,
	PHASE_FIT,
	PHASE_COUNT
} phase;

typedef struct group_size {
	int64_t inputs, largest; /* n, and mn of the largest operator */
	int64_t rounded;         /* mn of the largest operator that is not in BF16 */
	int operators;
} group_size;

typedef struct sizes {
	group_size groups[FP_GROUP_COUNT]; /* of operators that read every token; operators 0: there are none */
	group_size expert[FP_GROUP_COUNT]; /* of one expert */
	int64_t all_experts, experts;      /* of the layer; whose statistics exist at the same time */
	int64_t layer;                     /* the one that was measured */
	int64_t held;                      /* bytes of its weights on the device */
	int64_t largest_bytes;             /* of a stored tensor */
	int64_t joined_bytes;              /* of those that hold several operators */
	bool narrow;                       /* weights are held in 16 bits */
	bool weighs_rows;
	fp_share share;
	int64_t windows; /* of the rank that has the most */
	int registers;   /* for sums over parts */
} sizes;

static void measure(sizes *out, const fp_prune_task *task, int64_t layer)
{
	const fp_model_config *config = fp_model_get_config(task->model);
	*out = (sizes){.layer = layer, .held = fp_layer_bytes(task->model, layer), .share = fp_prune_share(task)};
	out->windows = fp_share_most(&out->share);
	out->registers = fp_part_sum_registers(&out->share, FP_PARTS);
	out->all_experts = out->experts = fp_config_has_experts(config, layer) ? config->experts.count : 0;
	for (int i = 0; i < fp_model_operators(task->model); i++) {
		const fp_tensor_info *tensor = fp_model_operator(task->model, layer, i);
		if (!tensor)
			continue;
		group_size *group = &(fp_operator_expert(i) < 0 ? out->groups : out->expert)[fp_role_group(i)];
		fp_dtype type = fp_model_held_type(task->model, tensor);
		group->inputs = tensor->shape[1];
		group->operators += fp_operator_expert(i) <= 0; /* those of one expert */
		group->largest = fp_larger(tensor->elements, group->largest);
		group->rounded = type == FP_BF16 ? group->rounded : fp_larger(tensor->elements, group->rounded);
		out->narrow |= type != FP_F32;
		const fp_tensor_info *stored = tensor->whole ? tensor->whole : tensor;
		out->largest_bytes = fp_larger(stored->bytes, out->largest_bytes);
		out->joined_bytes += tensor->whole && tensor->base == 0 && tensor->first == 0 ? stored->bytes : 0;
	}
}

/* A of all groups at once, and of so many experts. */
static double all_grams(const sizes *s, int64_t experts)
{
	double floats = 0;
	for (int g = 0; g < FP_GROUP_COUNT; g++)
		floats += (double)(s->groups[g].inputs * s->groups[g].inputs) +
				  (double)experts * (double)(s->expert[g].inputs * s->expert[g].inputs);
	return floats;
}

/* Groups that have operators. */
static int group_count(const fp_model *model)
{
	int count = 0;
	for (int group = 0; group < FP_GROUP_COUNT; group++)
		count += fp_model_has_group(model, group);
	return count;
}

/* The statistics of a group: of operators that read every token, and of the experts that are there at once. */
static fp_statistics_memory group_statistics(const fp_prune_task *task, const sizes *s, int group,
											 const fp_streams_plan *plan)
{
	int64_t batch = plan->batch * task->windows->length;
	fp_statistics_memory sum = {0};
	for (int64_t expert = -1; expert <= 0; expert++) {
		const group_size *size = expert < 0 ? &s->groups[group] : &s->expert[group];
		double count = expert < 0 ? 1 : (double)s->experts;
		if (size->operators == 0)
			continue;
		fp_statistics_plan folded =
			fp_group_statistics_plan(task->model, task->settings, s->layer, group, expert, batch);
		folded.registers = s->registers;
		fp_statistics_memory memory = fp_statistics_floats(&folded);
		sum.kept += count * memory.kept;
		sum.targets += count * memory.targets;
		sum.registers += count * memory.registers;
		sum.workspace += memory.workspace; /* which experts share */
	}
	if (!fp_feed_is_corrected(fp_feed_of(task->settings))) { /* the statistics of all groups exist at once */
		sum.workspace *= group_count(task->model);
		sum.kept = all_grams(s, s->experts);
		sum.registers = (s->registers - 1) * sum.kept;
	}
	return sum;
}

/* Floats of one group, during its pass and while its operators are solved: those of an expert (0), or that read every
 * token (−1). */
static void group_floats(const fp_prune_task *task, const sizes *s, int group, int64_t expert,
						 const fp_streams_plan *plan, double floats[PHASE_COUNT])
{
	const fp_model *model = task->model;
	const group_size *size = expert < 0 ? &s->groups[group] : &s->expert[group];
	int64_t length = task->windows->length;
	bool resident = plan->residence == FP_RESIDENT;
	if (size->operators == 0)
		return;
	fp_statistics_plan folded =
		fp_group_statistics_plan(model, task->settings, s->layer, group, expert, plan->batch * length);
	fp_statistics_memory statistics = group_statistics(task, s, group, plan);
	double others = statistics.targets - fp_statistics_floats(&folded).targets; /* of what is not solved yet */
	int64_t pass = task->windows->count > 0 ? fp_streams_pass_bytes(model, length, plan) : 0;
	int64_t products =
		fp_streams_product_bytes(model, length, plan, size->inputs, size->largest / size->inputs, size->rounded);
	fp_solve_size solved = {
		.inputs = size->inputs, .entries = size->largest, .operators = size->operators, .frugal = !resident};
	double solving = fp_operator_floats(task->be, task->settings, &folded, solved, s->narrow);
	floats[PHASE_STATISTICS] =
		fmax(floats[PHASE_STATISTICS], statistics.kept + statistics.targets + statistics.registers +
										   statistics.workspace + (double)(pass + products) / sizeof(float));
	floats[PHASE_SOLVE] =
		fmax(floats[PHASE_SOLVE], statistics.kept + others + solving + (resident ? (double)pass / sizeof(float) : 0));
}

/* The products of a fit, one after the other: attention's gradients, the metric's product, and that of an F32 weight,
 * whose left operand has 16 bits if products round. */
static double fit_product_bytes(const fp_prune_task *task, const sizes *s, const fp_streams_plan *plan, bool metric)
{
	const fp_backend *be = task->be;
	const fp_model_config *c = fp_model_get_config(task->model);
	int64_t length = task->windows->length, tokens = plan->batch * length, rounded = 0;
	int64_t drawn = fp_fit_batch(task->settings, task->windows->count, length);
	fp_attention_shape shape = fp_model_attention_shape(task->model, drawn < plan->batch ? drawn : plan->batch, length);
	for (int group = 0; group < FP_GROUP_COUNT; group++)
		rounded = fp_larger(fp_larger(s->groups[group].rounded, s->expert[group].rounded), rounded);
	int64_t widest = fp_larger(fp_larger(c->inner, c->hidden), fp_larger(c->experts.inner, c->experts.shared));
	int64_t left = fp_backend_rounds(be, FP_USE_ACTIVATION) ? 0 : tokens * widest;
	double product = (double)fp_product_bytes(be, FP_USE_ACTIVATION, left, rounded);
	if (metric)
		product =
			fmax(product, (double)fp_product_bytes(be, FP_USE_REFINEMENT, tokens * c->hidden, c->hidden * c->hidden));
	return fmax(product, (double)fp_attention_backward_bytes(be, &shape));
}

static double fit_bytes(const fp_prune_task *task, const sizes *s, const fp_streams_plan *plan, bool metric)
{
	int64_t length = task->windows->length, hidden = fp_model_get_config(task->model)->hidden;
	bool slope = metric && fp_fisher_keeps_gradients(task->settings);
	int registers = fp_part_sum_registers(&s->share, fp_fit_batch(task->settings, task->windows->count, length));
	double fit = (double)fp_fit_bytes(task->model, s->layer, plan->batch * length, metric, slope, registers);
	if (plan->residence == FP_RESIDENT)
		fit += (double)fp_streams_pass_bytes(task->model, length, plan);
	else
		fit -= (double)s->held; /* the dense layer is freed before the fit */
	if (plan->residence != FP_ON_DISK && slope)
		fit += (double)(fp_smaller(fp_fisher_windows(task->model, task->settings, task->windows), s->windows) * length *
						hidden) *
			   sizeof(float);
	return fit + fit_product_bytes(task, s, plan, metric);
}

static double rows_bytes(const fp_prune_task *task, const fp_streams_plan *plan)
{
	int64_t length = task->windows->length, bytes = fp_row_importance_bytes(task->model, length);
	if (plan->residence == FP_RESIDENT)
		bytes += fp_streams_pass_bytes(task->model, length, plan);
	return (double)bytes;
}

/* bytes[phase] ← the peak of each phase; returns the largest. */
static int64_t peak_bytes(const fp_prune_task *task, const sizes *s, const fp_streams_plan *plan,
						  double bytes[PHASE_COUNT])
{
	const fp_backend *be = task->be;
	int64_t windows = task->windows->count, length = task->windows->length;
	bool fitted = windows > 0 && task->settings->fit_steps > 0;
	bool metric = fitted && fp_fisher_wanted(task->settings, task->windows);
	double fixed = (double)(2 * s->held + fp_model_embedding_bytes(task->model)), host = 0, most = 0;
	fixed += (double)fp_basis_bytes(task);
	memset(bytes, 0, PHASE_COUNT * sizeof *bytes);
	for (int group = 0; group < FP_GROUP_COUNT; group++)
		for (int64_t expert = -1; expert <= 0; expert++)
			group_floats(task, s, group, expert, plan, bytes);
	if (windows > 0)
		fixed += (double)fp_streams_bytes(task->model, s->windows, length, plan);
	if (fitted && plan->residence != FP_ON_DISK)
		fixed += (double)(s->windows * length * fp_model_get_config(task->model)->hidden) * sizeof(float);
	if (fitted && fp_grid_format_named(task->settings->quantize)) /* kept until the fit is done (quantise_operator.h) */
		fixed += all_grams(s, 0) * sizeof(float);
	bytes[PHASE_STATISTICS] = bytes[PHASE_STATISTICS] * sizeof(float) + fixed;
	bytes[PHASE_SOLVE] = bytes[PHASE_SOLVE] * sizeof(float) + fixed;
	if (windows > 0 && s->weighs_rows)
		bytes[PHASE_ROWS] = rows_bytes(task, plan) + fixed;
	if (fitted)
		bytes[PHASE_FIT] = fit_bytes(task, s, plan, metric) + fixed;
	bytes[PHASE_BASIS] = (double)fp_basis_learning_bytes(task);
	if (metric) /* before anything else is allocated */
		bytes[PHASE_FISHER] =
			(double)fp_fisher_bytes(task->model, task->settings, task->windows, s->held, s->registers);
	if (!be->asynchronous) /* on the host: the program, the write buffers and the text */
		host = (double)(PROGRAM_BYTES + be->threads * BUFFER_BYTES + 2 * s->largest_bytes + s->joined_bytes +
						fp_packed_bytes(be)) +
			   4.0 * (double)(windows * length);
	for (int i = 0; i < PHASE_COUNT; i++) {
		bytes[i] += bytes[i] > 0 ? host : 0;
		most = fmax(most, bytes[i]);
	}
	return (int64_t)most;
}

static void log_phases(fp_context *ctx, const double bytes[PHASE_COUNT])
{
	static const char *const names[PHASE_COUNT] = {"basis",      "Fisher matrices", "row importance",
												   "statistics", "solve",           "fit"};
	for (int i = 0; i < PHASE_COUNT; i++)
		if (bytes[i] > 0)
			fp_log(ctx, FP_LOG_DEBUG, "memory: %s: %.0f MiB expected", names[i], bytes[i] / 1048576.0);
}

/* Whether the plan stays within the limit with the statistics of all experts at once, or of as many as fit: further ones
 * take another pass over the layer. */
static bool fits(fp_memory_plan *out, const fp_prune_task *task, sizes *s, int64_t limit, double bytes[PHASE_COUNT])
{
	for (s->experts = s->all_experts;; s->experts = (s->experts + 1) / 2) {
		out->bytes = peak_bytes(task, s, &out->streams, bytes);
		out->experts_at_once = s->experts;
		if (out->bytes <= limit || s->experts <= 1)
			return out->bytes <= limit;
	}
}

/* Finds the fastest plan within the limit. Batches are made smaller only if nothing else helps. */
static bool find_plan(fp_memory_plan *out, const fp_prune_task *task, sizes *s, int64_t limit,
					  double bytes[PHASE_COUNT])
{
	for (int residence = FP_RESIDENT; residence <= (int)FP_ON_DISK; residence++) {
		out->streams.residence = (fp_residence)residence;
		if (fits(out, task, s, limit, bytes))
			return true;
	}
	while (out->streams.batch > 1) {
		out->streams.batch /= 2;
		if (fits(out, task, s, limit, bytes))
			return true;
	}
	return false;
}

/* Fisher's passes take what the phases after them need anyway. What they leave stays on a device if that is within the
 * limit. */
static void choose_fisher_room(fp_memory_plan *out, const fp_prune_task *task, int64_t limit, double passes)
{
	int64_t spare = task->be->asynchronous ? limit - out->bytes : -1;
	out->fisher =
		fp_fisher_choose_room(task->model, task->settings, task->windows, out->bytes - (int64_t)passes, spare);
	if (out->fisher.keeps)
		out->bytes += fp_fisher_kept_bytes(task->model, task->settings, task->windows);
}

fp_status fp_memory_plan_make(fp_memory_plan *out, const fp_prune_task *task, bool sends_streams)
{
	fp_backend *be = task->be;
	int64_t limit, available, total, first, end;
	double bytes[PHASE_COUNT] = {0};
	sizes s;
	fp_pattern pattern;
	fp_selection *selection = NULL;
	fp_status status;
	*out = (fp_memory_plan){0};
	FP_TRY(fp_parse_range(be->ctx, task->settings->layers, fp_model_get_config(task->model)->layers, &first, &end));
	FP_TRY(fp_parse_size(be->ctx, task->settings->memory, &limit));
	measure(&s, task, fp_heaviest_layer(task->model, first, end));
	FP_TRY(fp_parse_sparsity(be->ctx, task->settings->pattern, &pattern.sparsity, &pattern.kept, &pattern.group));
	FP_TRY(fp_selection_new(&selection, task->model, task->settings));
	s.weighs_rows = fp_row_importance_wanted(task->settings, &pattern, selection, be);
	out->streams.fitted = task->settings->fit_steps > 0;
	out->streams.both = sends_streams || fp_feed_needs_both(fp_feed_of(task->settings));
	out->streams.batch = task->windows->count > 0 ? fp_streams_usual_batch(task->model, fp_share_largest_part(&s.share),
																		   task->windows->length)
												  : 1;
	if (limit > 0) {
		limit -= limit / MARGIN;
		if (!find_plan(out, task, &s, limit, bytes))
			status = fp_fail(be->ctx, FP_ERROR_MEMORY, "--memory %s: pruning this model takes %.0fM at least",
							 task->settings->memory, (double)out->bytes * MARGIN / (MARGIN - 1) / 1048576.0 + 0.5);
		goto cleanup;
	}
	FP_TRY(be->memory->available(be, &available, &total));
	int64_t batch = out->streams.batch;
	limit = available / 10 * 9;
	if (!find_plan(out, task, &s, limit, bytes)) { /* only an estimate: try with the usual batch */
		out->streams.batch = batch;
		out->bytes = peak_bytes(task, &s, &out->streams, bytes);
	}
	if (out->streams.residence == FP_ON_DISK)
		fp_log(be->ctx, FP_LOG_INFO, "hidden states are kept on disk: they do not fit into %.1f GiB of free memory",
			   (double)available / 1073741824.0);
cleanup:
	if (status == FP_OK && bytes[PHASE_FISHER] > 0)
		choose_fisher_room(out, task, limit, bytes[PHASE_FISHER]);
	fp_selection_free(selection);
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
