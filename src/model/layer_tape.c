/* SPDX-License-Identifier: Apache-2.0 */
/* layer_tape.c: allocates the tape and the gradients of a layer's backward pass. */
#include "model/layer_tape.h"

#include "base/memory.h"

/* A matrix of the tape and how to allocate it. */
typedef struct tape_part {
	fp_matrix *matrix;
	int64_t width;
	bool needed;
	fp_dtype dtype;
} tape_part;
enum { PART_COUNT = 30 };

static void list_parts(fp_tape *t, const fp_model *model, tape_part parts[PART_COUNT])
{
	const fp_model_config *c = fp_model_get_config(model);
	int64_t query = c->heads * c->head_dim, key = c->kv_heads * c->head_dim;
	bool rounds = fp_backend_rounds(fp_model_backend(model), FP_USE_ACTIVATION);
	fp_dtype rounded = rounds ? FP_BF16 : FP_F32, block = c->pre_norm ? rounded : FP_F32;
	const tape_part all[PART_COUNT] = {
		{&t->x, c->hidden, c->pre_norm, block},
		{&t->y, c->hidden, (c->pre_norm && !c->shared_norm) || c->sum_norm, block},
		{&t->Q, query, true, FP_F32},
		{&t->K, key, true, FP_F32},
		{&t->V, key, true, FP_F32},
		{&t->raw_Q, query, c->head_norm != FP_HEADS_PLAIN, FP_F32},
		{&t->raw_K, key, c->head_norm != FP_HEADS_PLAIN, FP_F32},
		{&t->branch[0], c->hidden, c->branch_norm, FP_F32},
		{&t->branch[1], c->hidden, c->branch_norm, FP_F32},
		{&t->dbranch, c->hidden, fp_config_has_branches(c), FP_F32},
		{&t->context, query, true, FP_F32},
		{&t->hidden1, c->hidden, true, FP_F32},
		{&t->hidden2, c->hidden, true, FP_F32},
		{&t->output, c->hidden, c->sum_norm, FP_F32},
		{&t->up, c->inner, true, FP_F32},
		{&t->gate, c->inner, c->gated, FP_F32},
		{&t->z, c->inner, true, rounded},
		{&t->dz, c->inner, true, FP_F32},
		{&t->dy, c->hidden, true, FP_F32},
		{&t->dcontext, query, true, FP_F32},
		{&t->dQ, query, true, FP_F32},
		{&t->dK, key, true, FP_F32},
		{&t->dV, key, true, FP_F32},
		{&t->dx, c->hidden, c->parallel, FP_F32},
		{&t->rounded_x, c->hidden, rounds && !c->pre_norm, FP_BF16},
		{&t->rounded_y, c->hidden, rounds && !c->pre_norm, FP_BF16},
		{&t->rounded_context, query, rounds, FP_BF16},
		{&t->rounded_d, c->hidden, rounds, FP_BF16},
		{&t->dup, c->inner, rounds, FP_BF16},
		{&t->dgate, c->inner, rounds && c->gated, FP_BF16},
	};
	for (int i = 0; i < PART_COUNT; i++)
		parts[i] = all[i];
}

int64_t fp_tape_bytes(const fp_model *model, int64_t tokens)
{
	fp_tape tape = {0};
	tape_part parts[PART_COUNT];
	int64_t row = 0;
	list_parts(&tape, model, parts);
	for (int i = 0; i < PART_COUNT; i++)
		row += parts[i].needed ? parts[i].width * fp_dtype_size(parts[i].dtype) : 0;
	return tokens * row + fp_position_tables_bytes(fp_model_get_config(model), tokens, true);
}

fp_status fp_tape_new(fp_tape **out, const fp_model *model, int64_t tokens)
{
	fp_status status;
	fp_backend *be = fp_model_backend(model);
	fp_tape *tape = NULL;
	tape_part parts[PART_COUNT];
	*out = NULL;
	FP_REQUIRE(be, tokens > 0);
	FP_TRY(FP_NEW(be->ctx, &tape, 1));
	tape->model = model;
	tape->be = be;
	tape->tokens = tokens;
	list_parts(tape, model, parts);
	for (int i = 0; i < PART_COUNT; i++)
		if (parts[i].needed)
			FP_TRY(fp_matrix_new(be, parts[i].matrix, tokens, parts[i].width, parts[i].dtype));
	FP_TRY(fp_position_tables_new(&tape->positions, be, fp_model_get_config(model), tokens, true));
	*out = tape;
	tape = NULL;
cleanup:
	fp_tape_free(tape);
	return status;
}

void fp_tape_free(fp_tape *tape)
{
	if (!tape)
		return;
	tape_part parts[PART_COUNT];
	list_parts(tape, tape->model, parts);
	for (int i = 0; i < PART_COUNT; i++)
		fp_matrix_free(tape->be, parts[i].matrix);
	fp_position_tables_free(tape->be, &tape->positions);
	fp_free(tape);
}

fp_status fp_layer_matrices_new(fp_layer_matrices *out, const fp_layer *layer)
{
	fp_backend *be = fp_model_backend(layer->model);
	fp_status status = FP_OK;
	*out = (fp_layer_matrices){0};
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		fp_matrix weight = layer->weight[role], bias = layer->bias[role];
		if (!fp_matrix_is_absent(weight))
			FP_TRY(fp_matrix_new(be, &out->weight[role], weight.rows, weight.cols, FP_F32));
		if (!fp_matrix_is_absent(bias))
			FP_TRY(fp_matrix_new(be, &out->bias[role], 1, bias.cols, FP_F32));
	}
cleanup:
	if (status != FP_OK)
		fp_layer_matrices_free(be, out);
	return status;
}

void fp_layer_matrices_free(fp_backend *be, fp_layer_matrices *matrices)
{
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		fp_matrix_free(be, &matrices->weight[role]);
		fp_matrix_free(be, &matrices->bias[role]);
	}
}
