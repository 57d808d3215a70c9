/* SPDX-License-Identifier: Apache-2.0 */
#include "basis/head_basis.h"

#include "base/memory.h"
#include "base/numbers.h"
#include "basis/input_cost.h"
#include "basis/rotation.h"

typedef struct learner {
	const fp_basis_task *task;
	fp_backend *be;
	const fp_layer *layer;
	int64_t n, heads, shared; /* head_dim, query heads, and how many of them share a key-value head */
	fp_rotation rotation;
	fp_mass_space space;
	fp_matrix W[2];               /* F32: the two operators that are turned */
	fp_matrix T;                  /* 1 × the entries of the larger one */
	fp_matrix inputs_h;           /* 1 × hidden: h of the inputs of q, k and v */
	fp_matrix U;                  /* heads·n × n: of the blocks of the inputs of o */
	fp_matrix UM;                 /* n × heads·n, the heads side by side */
	fp_matrix h, g;               /* 1 × heads·n: h of the inputs of o in the new basis, and the gradient by it */
	double weight[FP_ROLE_COUNT]; /* of each operator's mass */
} learner;

static void learner_free(learner *l)
{
	fp_matrix *all[] = {&l->W[0], &l->W[1], &l->T, &l->inputs_h, &l->U, &l->UM, &l->h, &l->g};
	fp_rotation_free(&l->rotation);
	fp_mass_space_free(l->be, &l->space);
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		fp_matrix_free(l->be, all[i]);
}

int64_t fp_learn_heads_bytes(const fp_basis_task *task)
{
	const fp_model_config *c = fp_model_get_config(task->model);
	int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, entries = q * c->hidden;
	int64_t floats = entries + entries + kv * c->hidden + 2 * q * c->head_dim + kv * c->head_dim;
	return floats * (int64_t)sizeof(float) + fp_rotation_bytes(FP_TURN_ALL, kv, c->head_dim) +
		   fp_mass_space_bytes(entries, fp_larger(q, c->hidden));
}

static int64_t step_count(const fp_basis_task *task)
{
	return (task->settings->basis_steps + 1) / 2; /* small rotations need fewer than that of the stream */
}

double fp_learn_heads_flops(const fp_basis_task *task)
{
	const fp_model_config *c = fp_model_get_config(task->model);
	double n = (double)c->head_dim, q = (double)c->heads * n, kv = (double)c->kv_heads * n, d = (double)c->hidden;
	double operators = (task->freedom.value ? kv + q : 0) + (task->freedom.query ? q + kv : 0); /* outputs or inputs */
	return (double)step_count(task) * operators * d * 4 * n;
}

/* U ← the factors of the heads' blocks of K: (UᵀU)⁻¹ = K⁻¹. */
static fp_status factor_blocks(learner *l, fp_matrix K)
{
	fp_backend *be = l->be;
	int64_t refused;
	FP_PRODUCTS_FOR(be, FP_USE_EXACT);
	fp_status status = FP_OK;
	for (int64_t first = 0; first < l->heads * l->n; first += l->n) {
		fp_matrix U = fp_matrix_rows(l->U, first, l->n);
		FP_TRY(be->memory->copy(be, U, fp_matrix_cols(fp_matrix_rows(K, first, l->n), first, l->n)));
		FP_TRY(be->linear->inverse(be, U, &refused));
		FP_TRY(fp_input_cost_check(be->ctx, l->layer, refused));
		FP_TRY(be->linear->inverse_factor(be, U, &refused));
		FP_TRY(fp_input_cost_check(be->ctx, l->layer, refused));
	}
cleanup:
	return status;
}

static fp_status learner_new(learner *l, fp_layer_inputs *inputs)
{
	fp_backend *be = l->be;
	const fp_model_config *c = fp_model_get_config(l->task->model);
	int64_t q = l->heads * l->n, entries = q * c->hidden;
	fp_status status;
	FP_TRY(fp_matrix_new(be, &l->T, 1, entries, FP_F32));
	FP_TRY(fp_matrix_new(be, &l->inputs_h, 1, c->hidden, FP_F32));
	FP_TRY(fp_matrix_new(be, &l->U, q, l->n, FP_F32));
	FP_TRY(fp_matrix_new(be, &l->UM, l->n, q, FP_F32));
	FP_TRY(fp_matrix_new(be, &l->h, 1, q, FP_F32));
	FP_TRY(fp_matrix_new(be, &l->g, 1, q, FP_F32));
	FP_TRY(fp_mass_space_new(&l->space, be, entries, fp_larger(q, c->hidden)));
	FP_TRY(fp_input_cost_inverse(be, l->layer, inputs->H[FP_GROUP_ATTENTION]));
	FP_TRY(be->linear->diagonal(be, inputs->H[FP_GROUP_ATTENTION], l->inputs_h));
	FP_TRY(fp_input_cost_reciprocal(be, l->inputs_h));
	FP_TRY(fp_input_cost_inverse(be, l->layer, inputs->H[FP_GROUP_OUTPUT]));
	FP_TRY(factor_blocks(l, inputs->H[FP_GROUP_OUTPUT]));
cleanup:
	return status;
}

/* q, k or v: T = MᵀW. Adds WG_Tᵀ to the gradient by M. */
static fp_status add_rows(learner *l, fp_role role, fp_matrix W, fp_mass *mass)
{
	fp_backend *be = l->be;
	fp_matrix M = l->rotation.R, G = l->rotation.gradient, T = fp_matrix_reshape(l->T, W.rows, W.cols);
	int64_t n = l->n, shared = role == FP_QUERY ? l->shared : 1, step = shared * n * W.cols;
	fp_blocks blocks = {M.rows / n, step, step, n * n};
	fp_status status;
	FP_TRY(fp_turn_head_rows(be, M, shared, W, T));
	FP_TRY(fp_pruned_mass(&l->space, be, &l->task->pattern, l->weight[role], T, l->inputs_h, (fp_matrix){0}, mass));
	for (int64_t i = 0; i < shared; i++)
		FP_TRY(be->linear->gemm_blocks(be, 1, fp_matrix_rows(W, i * n, n), FP_PLAIN, fp_matrix_rows(T, i * n, n),
									   FP_TRANSPOSED, 1, fp_matrix_rows(G, 0, n), blocks));
cleanup:
	return status;
}

/* h ← 1/diag(MᵀKM) */
static fp_status turn_costs(learner *l)
{
	fp_backend *be = l->be;
	fp_matrix M = l->rotation.R;
	int64_t n = l->n;
	fp_blocks blocks = {M.rows / n, l->shared * n * n, n * n, l->shared * n};
	fp_status status;
	for (int64_t i = 0; i < l->shared; i++)
		FP_TRY(be->linear->gemm_blocks(be, 1, fp_matrix_rows(l->U, i * n, n), FP_PLAIN, fp_matrix_rows(M, 0, n),
									   FP_PLAIN, 0, fp_matrix_cols(l->UM, i * n, n), blocks));
	FP_TRY(be->gradients->column_squares(be, l->UM, 0, l->h));
	FP_TRY(fp_input_cost_reciprocal(be, l->h));
cleanup:
	return status;
}

/* Adds −2Uᵀ(UM diag(g_h h²)) to the gradient by M. */
static fp_status add_cost_gradient(learner *l)
{
	fp_backend *be = l->be;
	int64_t n = l->n;
	fp_blocks blocks = {l->rotation.R.rows / n, l->shared * n * n, l->shared * n, n * n};
	fp_status status;
	FP_TRY(fp_input_cost_gradient(be, l->h, l->g));
	FP_TRY(be->linear->scale_columns(be, l->g, l->UM, l->UM));
	for (int64_t i = 0; i < l->shared; i++)
		FP_TRY(be->linear->gemm_blocks(be, 1, fp_matrix_rows(l->U, i * n, n), FP_TRANSPOSED,
									   fp_matrix_cols(l->UM, i * n, n), FP_PLAIN, 1,
									   fp_matrix_rows(l->rotation.gradient, 0, n), blocks));
cleanup:
	return status;
}

/* o: T = W_oM. Adds WᵀG_T and the costs' part to the gradient by M. */
static fp_status add_columns(learner *l, fp_matrix W, fp_mass *mass)
{
	fp_backend *be = l->be;
	fp_matrix M = l->rotation.R, T = fp_matrix_reshape(l->T, W.rows, W.cols);
	int64_t n = l->n;
	fp_blocks blocks = {M.rows / n, l->shared * n, l->shared * n, n * n};
	fp_status status;
	FP_TRY(turn_costs(l));
	FP_TRY(fp_turn_head_columns(be, M, l->shared, W, T));
	FP_TRY(fp_pruned_mass(&l->space, be, &l->task->pattern, l->weight[FP_OUTPUT], T, l->h, l->g, mass));
	for (int64_t i = 0; i < l->shared; i++)
		FP_TRY(be->linear->gemm_blocks(be, 1, fp_matrix_cols(W, i * n, n), FP_TRANSPOSED, fp_matrix_cols(T, i * n, n),
									   FP_PLAIN, 1, fp_matrix_rows(l->rotation.gradient, 0, n), blocks));
	FP_TRY(add_cost_gradient(l));
cleanup:
	return status;
}

/* The gradient by M, and the mass of the two operators unless NULL, which is added to. */
static fp_status measure(learner *l, bool values, fp_mass *mass)
{
	FP_PRODUCTS_FOR(l->be, FP_USE_ACTIVATION);
	fp_status status;
	FP_TRY(l->be->memory->fill(l->be, l->rotation.gradient, 0));
	FP_TRY(add_rows(l, values ? FP_VALUE : FP_QUERY, l->W[0], mass));
	FP_TRY(values ? add_columns(l, l->W[1], mass) : add_rows(l, FP_KEY, l->W[1], mass));
cleanup:
	return status;
}

/* *falls ← whether what is learned removes less. The masses are added to. */
static fp_status steps(learner *l, bool values, fp_mass *before, fp_mass *after, bool *falls)
{
	const fp_basis_task *task = l->task;
	int64_t count = step_count(task);
	fp_mass mass = {0}, first;
	fp_status status;
	FP_TRY(measure(l, values, &mass));
	first = mass;
	double all = mass.all > 0 ? mass.all : 1;
	before->removed += mass.removed;
	before->all += mass.all;
	for (int role = 0; role < FP_ROLE_COUNT; role++) /* gradients are then neither too small nor too large for float */
		l->weight[role] /= all;
	for (int64_t step = 0; step < count; step++) {
		FP_TRY(fp_check_interrupt(task->ctx));
		FP_TRY(measure(l, values, NULL));
		FP_TRY(fp_rotation_step(&l->rotation, fp_basis_rate(task, step, count)));
	}
	FP_TRY(fp_rotation_finish(&l->rotation));
	mass = (fp_mass){0};
	FP_TRY(measure(l, values, &mass));
	*falls = mass.removed * all < first.removed;
	after->removed += *falls ? mass.removed * all : first.removed;
	after->all += *falls ? mass.all * all : first.all;
cleanup:
	return status;
}

/* M ← M·(what is learned), for values and o or for queries and keys. */
static fp_status learn(learner *l, bool values, fp_matrix M, fp_mass *before, fp_mass *after)
{
	fp_backend *be = l->be;
	int64_t n = l->n;
	const fp_role roles[2] = {values ? FP_VALUE : FP_QUERY, values ? FP_OUTPUT : FP_KEY};
	fp_matrix turn = {0};
	bool falls;
	fp_status status = FP_OK;
	for (int i = 0; i < 2; i++) {
		fp_matrix held = l->layer->weight[roles[i]];
		FP_TRY(fp_matrix_new(be, &l->W[i], held.rows, held.cols, FP_F32));
		FP_TRY(be->memory->copy(be, l->W[i], held));
	}
	FP_TRY(fp_identities(be, &turn, M.rows / n, n));
	FP_TRY(fp_rotation_new(&l->rotation, be, FP_TURN_ALL, turn));
	FP_TRY(steps(l, values, before, after, &falls));
	if (!falls) /* the heads stay as they are */
		goto cleanup;
	FP_TRY(be->linear->gemm_blocks(be, 1, fp_matrix_rows(M, 0, n), FP_PLAIN, fp_matrix_rows(turn, 0, n), FP_PLAIN, 0,
								   fp_matrix_rows(l->rotation.product, 0, n),
								   (fp_blocks){M.rows / n, n * n, n * n, n * n}));
	FP_TRY(be->memory->copy(be, M, l->rotation.product));
cleanup:
	fp_rotation_free(&l->rotation);
	fp_matrix_free(be, &turn);
	for (int i = 0; i < 2; i++)
		fp_matrix_free(be, &l->W[i]);
	return status;
}

fp_status fp_learn_heads(const fp_basis_task *task, const fp_layer *layer, const double *sensitivities,
						 fp_layer_inputs *inputs, fp_layer_basis *own, fp_mass *before, fp_mass *after)
{
	const fp_model_config *c = fp_model_get_config(task->model);
	learner l = {.task = task,
				 .be = task->be,
				 .layer = layer,
				 .n = c->head_dim,
				 .heads = c->heads,
				 .shared = c->heads / c->kv_heads};
	fp_status status;
	if (fp_matrix_is_absent(own->value) && fp_matrix_is_absent(own->query))
		return FP_OK;
	FP_TRY(learner_new(&l, inputs));
	for (int values = 0; values < 2; values++) {
		fp_matrix M = values ? own->value : own->query;
		for (int role = 0; role < FP_ROLE_COUNT; role++)
			l.weight[role] = sensitivities[role];
		if (!fp_matrix_is_absent(M))
			FP_TRY(learn(&l, values, M, before, after));
	}
cleanup:
	learner_free(&l);
	return status;
}
