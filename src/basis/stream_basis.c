/* SPDX-License-Identifier: Apache-2.0 */
#include "basis/stream_basis.h"

#include "base/memory.h"
#include "base/mersenne.h"
#include "base/numbers.h"
#include "basis/input_cost.h"
#include "basis/layer_inputs.h"
#include "basis/pruned_mass.h"
#include "basis/rotation.h"
#include "basis/stream_pool.h"
#include "model/basis.h"
#include "sharing/row_slices.h"

#include <math.h>

/* A step learns from this many layers, drawn at random, and from so many experts of each. */
enum { LAYERS_PER_STEP = 4, EXPERTS_PER_STEP = 8 };

/* The parts of a layer that ranks share, of about the same cost: q, k and v; all operators that write into the stream;
 * and gate and up, those of experts too. */
enum { UNIT_ATTENTION, UNIT_WRITERS, UNIT_GATE, UNIT_UP, UNIT_COUNT };

typedef struct learner {
	const fp_basis_task *task;
	fp_backend *be;
	fp_pooled_layer *pool;
	int64_t pooled;
	fp_rotation rotation;
	fp_matrix gradient;                /* by R: what is being added to; the rotation's or a register */
	fp_matrix registers[FP_PARTS + 1]; /* for sums over layers, besides the rotation's gradient, which is number 0 */
	fp_mass_space space;
	fp_matrix T;                     /* 1 × the entries of the largest operator */
	fp_matrix UR, KR;                /* hidden × hidden, of the readers `which` of a layer */
	const fp_pooled_layer *costs_of; /* that layer; NULL: R has changed since */
	int costs_which;
	fp_matrix h, g, sum; /* 1 × hidden: h, the gradient by h of one operator and of all that share it */
	int64_t *experts;    /* all of a layer, those of a step first */
	int64_t drawn;       /* how many take part */
} learner;

static void learner_free(learner *l)
{
	for (int64_t i = 0; l->pool && i < l->pooled; i++)
		fp_pooled_layer_free(l->be, &l->pool[i]);
	fp_free(l->pool);
	fp_free(l->experts);
	fp_rotation_free(&l->rotation);
	fp_mass_space_free(l->be, &l->space);
	fp_matrix *all[] = {&l->T, &l->UR, &l->KR, &l->h, &l->g, &l->sum};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		fp_matrix_free(l->be, all[i]);
	for (int i = 0; i <= FP_PARTS; i++)
		fp_matrix_free(l->be, &l->registers[i]);
}

/* The entries of the largest operator, and its most inputs. */
static void largest(const fp_model *model, int64_t *entries, int64_t *inputs)
{
	*entries = *inputs = 0;
	for (int64_t layer = 0; layer < fp_model_get_config(model)->layers; layer++)
		for (int i = 0; i < fp_model_operators(model); i++) {
			const fp_tensor_info *tensor = fp_model_operator(model, layer, i);
			*entries = fp_larger(*entries, tensor ? tensor->elements : 0);
			*inputs = fp_larger(*inputs, tensor ? tensor->shape[1] : 0);
		}
}

static fp_rotation_kind kind_of(const fp_model *model)
{
	return fp_model_get_config(model)->norm == FP_LAYER_NORM ? FP_TURN_KEEP_ONES : FP_TURN_ALL;
}

int64_t fp_learn_stream_bytes(const fp_basis_task *task, int64_t layers)
{
	const fp_model *model = task->model;
	const fp_model_config *c = fp_model_get_config(model);
	int64_t d = c->hidden, entries, inputs, heaviest = fp_heaviest_layer(model, 0, c->layers);
	int64_t factors = c->experts.count > 0 ? FP_READ_COUNT : 2; /* of each layer */
	largest(model, &entries, &inputs);
	int64_t registers = fp_layer_inputs_registers(&task->share) - 1;
	int64_t fixed = fp_rotation_bytes(kind_of(model), d, d) + (3 + registers) * d * d * (int64_t)sizeof(float) +
					fp_mass_space_bytes(entries, inputs) + fp_larger(entries, d * d) * (int64_t)sizeof(float);
	int64_t layer = fp_layer_bytes(model, heaviest) + factors * d * d * fp_dtype_size(fp_pool_factor_type(task->be));
	int64_t inner = fp_most_channels(model);
	/* of one layer, and its factor's space */
	int64_t more = fp_layer_inputs_registers(&task->share) - 1;
	int64_t grams = ((1 + more) * factors * d * d + (2 + more) * inner * inner) * (int64_t)sizeof(float);
	int64_t filling = fp_text_stream_bytes(model, task->windows) + grams + fp_layer_change_basis_bytes(model, heaviest);
	return layers * layer + fp_layer_bytes(model, heaviest) + fp_larger(fixed, filling);
}

double fp_learn_stream_flops(const fp_basis_task *task, int64_t weights)
{
	const fp_model_config *c = fp_model_get_config(task->model);
	double d = (double)c->hidden, drawn = (double)fp_smaller(LAYERS_PER_STEP, c->layers);
	/* an operator's product with R and the gradient by R; four products of R's order for the costs of inputs, and six for
	 * the step */
	return (double)task->settings->basis_steps * (drawn * (4 * (double)weights * d + 8 * d * d * d) + 12 * d * d * d);
}

static int64_t expert_count(const learner *l)
{
	return fp_model_get_config(l->task->model)->experts.count;
}

/* How many experts each of those that take part stands for. */
static double expert_share(const learner *l)
{
	return (double)expert_count(l) / (double)l->drawn;
}

/* The costs of the inputs of an operator at the end of a block. */
static fp_matrix writer_costs(const fp_pooled_layer *pooled, int number)
{
	const fp_layer *layer = pooled->layer;
	int64_t expert = fp_operator_expert(number);
	if (expert < 0)
		return pooled->h[number == FP_DOWN];
	return fp_matrix_cols(pooled->expert_h, fp_first_channel(layer->model, layer->index, expert),
						  layer->weight[number].cols);
}

/* Adds one operator to the gradient by R and to the objective. */
static fp_status add_operator(learner *l, const fp_pooled_layer *pooled, int number, fp_mass *mass)
{
	fp_backend *be = l->be;
	fp_role role = fp_operator_role(number);
	fp_matrix W = pooled->layer->weight[number], R = l->rotation.R, G = l->gradient;
	fp_matrix T = fp_matrix_reshape(l->T, W.rows, W.cols);
	bool writes = role == FP_OUTPUT || role == FP_DOWN;
	fp_matrix h = writes ? writer_costs(pooled, number) : l->h, g = {0};
	/* drawn experts stand for all of them */
	double weight = pooled->weight[number] * (fp_operator_expert(number) < 0 ? 1 : expert_share(l));
	fp_status status;
	if (!writes)
		g = l->g;
	if (writes)
		FP_TRY(be->linear->gemm(be, 1, R, FP_TRANSPOSED, W, FP_PLAIN, 0, T));
	else
		FP_TRY(be->linear->gemm(be, 1, W, FP_PLAIN, R, FP_PLAIN, 0, T));
	FP_TRY(fp_pruned_mass(&l->space, be, &l->task->pattern, weight, T, h, g, mass));
	if (writes) {
		FP_TRY(be->linear->gemm(be, 1, W, FP_PLAIN, T, FP_TRANSPOSED, 1, G));
	} else {
		FP_TRY(be->linear->gemm(be, 1, W, FP_TRANSPOSED, T, FP_PLAIN, 1, G));
		FP_TRY(be->linear->axpby(be, 1, g, 1, l->sum));
	}
cleanup:
	return status;
}

/* UR, KR = UᵀUR and h of some readers, unless they are there. */
static fp_status turn_costs(learner *l, const fp_pooled_layer *pooled, int which)
{
	fp_backend *be = l->be;
	fp_status status = FP_OK;
	if (l->costs_of == pooled && l->costs_which == which)
		return FP_OK;
	FP_TRY(be->linear->gemm(be, 1, pooled->U[which], FP_PLAIN, l->rotation.R, FP_PLAIN, 0, l->UR));
	FP_TRY(be->linear->gemm(be, 1, pooled->U[which], FP_TRANSPOSED, l->UR, FP_PLAIN, 0, l->KR));
	FP_TRY(be->gradients->column_squares(be, l->UR, 0, l->h));
	FP_TRY(fp_input_cost_reciprocal(be, l->h));
	l->costs_of = pooled;
	l->costs_which = which;
cleanup:
	return status;
}

/* Adds readers with so many roles, and the gradient through the costs that they share. */
static fp_status add_readers(learner *l, const fp_pooled_layer *pooled, int which, const fp_role *roles, int count,
							 fp_mass *mass)
{
	fp_backend *be = l->be;
	int64_t d = l->h.cols, experts = which == FP_READ_EXPERTS ? l->drawn : 1;
	fp_matrix scaled = fp_matrix_reshape(l->T, d, d);
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(pooled->U[which]))
		return FP_OK;
	FP_TRY(turn_costs(l, pooled, which));
	FP_TRY(be->memory->fill(be, l->sum, 0));
	for (int64_t i = 0; i < experts; i++)
		for (int k = 0; k < count; k++) {
			int number = which == FP_READ_EXPERTS ? fp_expert_operator(l->experts[i], roles[k]) : (int)roles[k];
			if (!fp_matrix_is_absent(pooled->layer->weight[number]))
				FP_TRY(add_operator(l, pooled, number, mass));
		}
	FP_TRY(fp_input_cost_gradient(be, l->h, l->sum));
	FP_TRY(be->linear->scale_columns(be, l->sum, l->KR, scaled));
	FP_TRY(be->linear->axpby(be, 1, scaled, 1, l->gradient));
cleanup:
	return status;
}

static fp_status add_writers(learner *l, const fp_pooled_layer *pooled, fp_mass *mass)
{
	fp_status status;
	FP_TRY(add_operator(l, pooled, FP_OUTPUT, mass));
	if (!fp_matrix_is_absent(pooled->layer->weight[FP_DOWN]))
		FP_TRY(add_operator(l, pooled, FP_DOWN, mass));
	for (int64_t i = 0; fp_layer_has_experts(pooled->layer) && i < l->drawn; i++)
		FP_TRY(add_operator(l, pooled, fp_expert_operator(l->experts[i], FP_DOWN), mass));
cleanup:
	return status;
}

static bool has_unit(const fp_pooled_layer *pooled, int unit)
{
	const fp_layer *layer = pooled->layer;
	return unit != UNIT_GATE || !fp_matrix_is_absent(layer->weight[FP_GATE]) || fp_layer_has_experts(layer);
}

static fp_status add_unit(learner *l, const fp_pooled_layer *pooled, int unit, fp_mass *mass)
{
	static const fp_role attention[] = {FP_QUERY, FP_KEY, FP_VALUE, FP_QUERY_A, FP_KEY_VALUE_A};
	static const fp_role gate[] = {FP_GATE}, up[] = {FP_UP};
	const fp_role *feed = unit == UNIT_GATE ? gate : up;
	FP_PRODUCTS_FOR(l->be, FP_USE_ACTIVATION);
	fp_status status;
	if (unit == UNIT_ATTENTION)
		return add_readers(l, pooled, FP_READ_ATTENTION, attention, sizeof attention / sizeof *attention, mass);
	if (unit == UNIT_WRITERS)
		return add_writers(l, pooled, mass);
	FP_TRY(add_readers(l, pooled, FP_READ_FEED, feed, 1, mass));
	FP_TRY(add_readers(l, pooled, FP_READ_EXPERTS, feed, 1, mass));
cleanup:
	return status;
}

static fp_status add_layer(learner *l, const fp_pooled_layer *pooled, fp_mass *mass)
{
	fp_status status = FP_OK;
	for (int unit = 0; unit < UNIT_COUNT && status == FP_OK; unit++)
		if (has_unit(pooled, unit))
			status = add_unit(l, pooled, unit, mass);
	return status;
}

/* *mass ← that of all layers of the pool, of which ranks measure some each. */
static fp_status measure(learner *l, fp_mass *mass)
{
	const fp_share *share = &l->task->share;
	fp_mass masses[FP_PARTS] = {{0, 0}};
	int parts = fp_share_is_divided(share) ? FP_PARTS : 1;
	fp_status status;
	*mass = (fp_mass){0};
	l->drawn = expert_count(l);
	l->costs_of = NULL;
	FP_TRY(l->be->memory->fill(l->be, l->rotation.gradient, 0)); /* which is not used */
	for (int64_t i = 0; i < l->pooled; i++) {
		int part = (int)(i * parts / l->pooled);
		if (parts == 1 || (part >= share->begin && part < share->end))
			FP_TRY(add_layer(l, &l->pool[i], &masses[part]));
	}
	FP_TRY(fp_share_gather(share, masses, sizeof masses[0]));
	for (int part = 0; part < parts; part++) {
		mass->removed += masses[part].removed;
		mass->all += masses[part].all;
	}
cleanup:
	return status;
}

/* Makes all masses sum to 1, so that gradients are neither too small nor too large for float. */
static fp_status scale_weights(learner *l, fp_mass *mass)
{
	fp_status status = measure(l, mass);
	for (int64_t i = 0; status == FP_OK && i < l->pooled; i++)
		for (int k = 0; k < fp_model_operators(l->task->model); k++)
			l->pool[i].weight[k] /= mass->all > 0 ? mass->all : 1;
	return status;
}

/* order[0 … count − 1] ← other entries, drawn at random. */
static void draw(fp_mersenne *random, int64_t *order, int64_t all, int64_t count)
{
	for (int64_t i = 0; i < count; i++) {
		int64_t other = i + fp_mersenne_below(random, all - i), drawn = order[other];
		order[other] = order[i];
		order[i] = drawn;
	}
}

fp_share fp_basis_share(fp_comm *comm)
{
	return fp_share_divided(comm, FP_PARTS);
}

static fp_status make_register(void *data, int which, fp_addends *out)
{
	learner *l = data;
	fp_matrix R = l->rotation.R, *made = &l->registers[which];
	fp_status status = FP_OK;
	if (which > 0 && fp_matrix_is_absent(*made)) /* they stay from step to step */
		FP_TRY(fp_matrix_new(l->be, made, R.rows, R.cols, FP_F32));
	FP_TRY(fp_addends_matrix(out, l->be->ctx, which > 0 ? *made : l->rotation.gradient));
cleanup:
	return status;
}

/* rotation.gradient ← the sum over the layers order[0 … count − 1] of the pool, of whose units ranks compute some each. */
static fp_status add_together(learner *l, const int64_t *order, int64_t count, fp_mersenne *expert_random)
{
	const fp_share *share = &l->task->share;
	const int apart = FP_PARTS / (int)(count * UNIT_COUNT); /* each unit is a part */
	fp_part_sum sum;
	int which;
	fp_status status = FP_OK;
	fp_part_sum_open(&sum, share, l->be, make_register, l);
	for (int part = 0; part < FP_PARTS; part++) {
		int number = part / apart;
		sum.used[part] = part % apart == 0 && number < count * UNIT_COUNT &&
						 has_unit(&l->pool[order[number / UNIT_COUNT]], number % UNIT_COUNT);
	}
	for (int number = 0; number < count * UNIT_COUNT; number++) {
		int part = number * apart, unit = number % UNIT_COUNT;
		if (unit == 0)
			draw(expert_random, l->experts, expert_count(l), l->drawn);
		if (part < share->begin || part >= share->end || !sum.used[part])
			continue;
		FP_TRY(fp_part_sum_begin(&sum, part, &which));
		l->gradient = which > 0 ? l->registers[which] : l->rotation.gradient;
		FP_TRY(l->be->memory->fill(l->be, l->gradient, 0));
		FP_TRY(add_unit(l, &l->pool[order[number / UNIT_COUNT]], unit, NULL));
		FP_TRY(fp_part_sum_end(&sum));
	}
	FP_TRY(fp_part_sum_finish_rows(&sum));
cleanup:
	l->gradient = l->rotation.gradient;
	fp_part_sum_close(&sum);
	return status;
}

/* The same by this process alone. */
static fp_status add_alone(learner *l, const int64_t *order, int64_t count, fp_mersenne *expert_random)
{
	fp_status status = l->be->memory->fill(l->be, l->rotation.gradient, 0);
	for (int64_t i = 0; i < count && status == FP_OK; i++) {
		draw(expert_random, l->experts, expert_count(l), l->drawn);
		status = add_layer(l, &l->pool[order[i]], NULL);
	}
	return status;
}

static fp_status learn(learner *l)
{
	const fp_basis_task *task = l->task;
	fp_mersenne random, expert_random;
	int64_t steps = task->settings->basis_steps, count = fp_smaller(l->pooled, LAYERS_PER_STEP), *order = NULL;
	fp_status status;
	FP_TRY(FP_NEW(task->ctx, &order, l->pooled));
	for (int64_t i = 0; i < l->pooled; i++)
		order[i] = i;
	fp_mersenne_seed(&random, (uint64_t)task->settings->seed);
	fp_mersenne_seed(&expert_random, (uint64_t)task->settings->seed);
	l->drawn = fp_smaller(expert_count(l), EXPERTS_PER_STEP);
	for (int64_t step = 0; step < steps; step++) {
		FP_TRY(fp_check_interrupt(task->ctx));
		fp_report_progress(task->ctx, "basis", step, steps);
		draw(&random, order, l->pooled, count);
		FP_TRY(fp_share_is_divided(&task->share) ? add_together(l, order, count, &expert_random)
												 : add_alone(l, order, count, &expert_random));
		FP_TRY(fp_rotation_step(&l->rotation, fp_basis_rate(task, step, steps)));
		l->costs_of = NULL;
	}
	FP_TRY(fp_rotation_finish(&l->rotation));
cleanup:
	fp_free(order);
	return status;
}

static fp_status learner_new(learner *l, fp_basis *basis)
{
	fp_backend *be = l->be;
	int64_t d = basis->R.rows, entries, inputs;
	fp_status status;
	largest(l->task->model, &entries, &inputs);
	FP_TRY(FP_NEW(be->ctx, &l->pool, l->pooled));
	FP_TRY(FP_NEW(be->ctx, &l->experts, expert_count(l)));
	for (int64_t i = 0; i < expert_count(l); i++)
		l->experts[i] = i;
	FP_TRY(fp_matrix_new(be, &l->T, 1, fp_larger(entries, d * d), FP_F32));
	FP_TRY(fp_matrix_new(be, &l->h, 1, d, FP_F32));
	FP_TRY(fp_matrix_new(be, &l->g, 1, d, FP_F32));
	FP_TRY(fp_matrix_new(be, &l->sum, 1, d, FP_F32));
cleanup:
	return status;
}

/* After the pool is filled, whose Gram matrices need memory too. */
static fp_status start(learner *l, fp_basis *basis)
{
	fp_backend *be = l->be;
	int64_t d = basis->R.rows, entries, inputs;
	fp_status status;
	largest(l->task->model, &entries, &inputs);
	FP_TRY(fp_matrix_new(be, &l->UR, d, d, FP_F32));
	FP_TRY(fp_matrix_new(be, &l->KR, d, d, FP_F32));
	FP_TRY(fp_mass_space_new(&l->space, be, entries, inputs));
	FP_TRY(fp_rotation_new(&l->rotation, be, kind_of(l->task->model), basis->R));
	fp_rotation_divide(&l->rotation, &l->task->share);
	l->gradient = l->rotation.gradient;
cleanup:
	return status;
}

/* As many layers as fit into memory, at least one. */
static int64_t pool_size(const fp_basis_task *task)
{
	int64_t count = fp_model_get_config(task->model)->layers;
	while (count > 1 && fp_learn_stream_bytes(task, count) > task->memory)
		count--;
	return count;
}

fp_status fp_learn_stream(const fp_basis_task *task, fp_basis *basis, const double *sensitivities, fp_basis_gain *gain)
{
	learner l = {.task = task, .be = task->be, .pooled = pool_size(task)};
	fp_mass before, after;
	fp_status status;
	FP_TRY(learner_new(&l, basis));
	FP_TRY(fp_fill_pool(task, l.pool, l.pooled, sensitivities));
	FP_TRY(start(&l, basis));
	FP_TRY(scale_weights(&l, &before));
	FP_TRY(learn(&l));
	basis->turned = true;
	FP_TRY(measure(&l, &after));
	gain->stream_before = before.all > 0 ? before.removed / before.all : 0;
	gain->stream_after = after.removed;
cleanup:
	learner_free(&l);
	return status;
}
