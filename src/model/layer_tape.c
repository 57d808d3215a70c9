/* SPDX-License-Identifier: Apache-2.0 */
/* layer_tape.c: allocates the tape and the gradients of a layer's backward pass. */
#include "model/layer_tape.h"

#include "base/memory.h"
#include "base/numbers.h"
#include "model/latent_attention.h"

/* A matrix of the tape and how to allocate it. */
typedef struct tape_part {
	fp_matrix *matrix;
	int64_t width;
	bool needed;
	fp_dtype dtype;
} tape_part;
enum { PART_COUNT = 38, EXPERT_PART_COUNT = 14 };

static void list_parts(fp_tape *t, const fp_model *model, tape_part parts[PART_COUNT])
{
	const fp_model_config *c = fp_model_get_config(model);
	int64_t query = c->heads * c->head_dim, key = c->kv_heads * c->head_dim;
	bool rounds = fp_backend_rounds(fp_model_backend(model), FP_USE_ACTIVATION);
	const fp_latent_config *latent = &c->latent;
	bool plain = c->head_norm == FP_HEADS_PLAIN, latents = latent->rank > 0, latent_queries = latent->query_rank > 0;
	fp_dtype rounded = rounds ? FP_BF16 : FP_F32, block = c->pre_norm ? rounded : FP_F32,
			 dheads = plain && !latents ? rounded : FP_F32;
	int64_t inner = fp_larger(c->inner, c->experts.shared); /* 0: only experts that some tokens read */
	const tape_part all[PART_COUNT] = {
		{&t->x, c->hidden, c->pre_norm, block},
		{&t->y, c->hidden, (c->pre_norm && !c->shared_norm) || c->sum_norm, block},
		{&t->Q, query, true, rounded},
		{&t->K, key, true, rounded},
		{&t->V, key, true, rounded},
		{&t->raw_Q, query, !plain, FP_F32},
		{&t->raw_K, key, !plain, FP_F32},
		{&t->branch[0], c->hidden, c->branch_norm, FP_F32},
		{&t->branch[1], c->hidden, c->branch_norm, FP_F32},
		{&t->dbranch, c->hidden, fp_config_has_branches(c), FP_F32},
		{&t->context, query, true, rounded},
		{&t->hidden1, c->hidden, true, FP_F32},
		{&t->hidden2, c->hidden, true, FP_F32},
		{&t->output, c->hidden, c->sum_norm, FP_F32},
		{&t->up, inner, inner > 0, rounded},
		{&t->gate, inner, inner > 0 && c->gated, rounded},
		{&t->z, inner, inner > 0, rounded},
		{&t->dz, inner, inner > 0, rounded},
		{&t->dy, c->hidden, true, FP_F32},
		{&t->dcontext, query, true, rounded},
		{&t->dQ, query, true, dheads},
		{&t->dK, key, true, dheads},
		{&t->dV, key, true, dheads},
		{&t->dx, c->hidden, c->parallel, FP_F32},
		{&t->rounded_x, c->hidden, rounds && !c->pre_norm, FP_BF16},
		{&t->rounded_y, c->hidden, rounds && !c->pre_norm, FP_BF16},
		{&t->rounded_d, c->hidden, rounds, FP_BF16},
		{&t->dup, inner, inner > 0 && rounds, FP_BF16},
		{&t->dgate, inner, inner > 0 && rounds && c->gated, FP_BF16},
		{&t->latents.raw_query, latent->query_rank, latent_queries, FP_F32},
		{&t->latents.query, latent->query_rank, latent_queries, rounded},
		{&t->latents.dquery, latent->query_rank, latent_queries, FP_F32},
		{&t->latents.joint, latent->rank + latent->turned, latents, FP_F32},
		{&t->latents.djoint, latent->rank + latent->turned, latents, FP_F32},
		{&t->latents.latent, latent->rank, latents, rounded},
		{&t->latents.dlatent, latent->rank, latents, FP_F32},
		{&t->latents.wide, fp_latent_width(c), latents, rounded},
		{&t->latents.context, c->heads * latent->value, latents, rounded},
	};
	for (int i = 0; i < PART_COUNT; i++)
		parts[i] = all[i];
}

/* Those of a mixture of experts: the first four for each token, the others for each place. */
enum { EXPERT_TOKEN_PARTS = 4 };
static void list_expert_parts(fp_tape *t, const fp_model *model, tape_part parts[EXPERT_PART_COUNT])
{
	const fp_model_config *c = fp_model_get_config(model);
	const fp_experts_config *experts = &c->experts;
	bool rounds = fp_backend_rounds(fp_model_backend(model), FP_USE_ACTIVATION), some = experts->count > 0,
		 shared = experts->shared > 0;
	fp_dtype rounded = rounds ? FP_BF16 : FP_F32;
	fp_expert_tape *e = &t->experts;
	const tape_part all[EXPERT_PART_COUNT] = {
		{&e->y, c->hidden, some && rounds, FP_F32},
		{&e->logits, fp_routing_columns(experts), some, FP_F32},
		{&e->shared_z, fp_larger(c->inner, experts->shared), shared, rounded},
		{&e->dshared, 1, shared, FP_F32},
		{&e->x, c->hidden, some, rounded},
		{&e->gate, experts->inner, some, FP_F32},
		{&e->up, experts->inner, some, FP_F32},
		{&e->z, experts->inner, some, FP_F32},
		{&e->scaled, experts->inner, some, rounded},
		{&e->out, c->hidden, some, FP_F32},
		{&e->d, c->hidden, some, rounded},
		{&e->dz, experts->inner, some, FP_F32},
		{&e->dgate, experts->inner, some, rounded},
		{&e->dup, experts->inner, some, rounded},
	};
	for (int i = 0; i < EXPERT_PART_COUNT; i++)
		parts[i] = all[i];
}

static int64_t expert_rows(const fp_model *model, int part, int64_t tokens)
{
	return part < EXPERT_TOKEN_PARTS ? tokens : tokens * fp_model_get_config(model)->experts.active;
}

static int64_t expert_bytes(const fp_model *model, int64_t tokens)
{
	fp_tape tape = {0};
	tape_part parts[EXPERT_PART_COUNT];
	int64_t bytes = fp_routing_bytes(model, tokens);
	list_expert_parts(&tape, model, parts);
	for (int i = 0; i < EXPERT_PART_COUNT; i++)
		if (parts[i].needed)
			bytes += expert_rows(model, i, tokens) * parts[i].width * fp_dtype_size(parts[i].dtype);
	return bytes + tokens * fp_model_get_config(model)->experts.active * (int64_t)sizeof(float); /* dweight */
}

static fp_status new_expert_parts(fp_tape *tape)
{
	fp_status status = FP_OK;
	tape_part parts[EXPERT_PART_COUNT];
	int64_t places = tape->tokens * fp_model_get_config(tape->model)->experts.active;
	list_expert_parts(tape, tape->model, parts);
	for (int i = 0; i < EXPERT_PART_COUNT; i++)
		if (parts[i].needed)
			FP_TRY(fp_matrix_new(tape->be, parts[i].matrix, expert_rows(tape->model, i, tape->tokens), parts[i].width,
								 parts[i].dtype));
	FP_TRY(fp_routing_new(&tape->experts.routing, tape->model, tape->tokens));
	if (places > 0)
		FP_TRY(fp_matrix_new(tape->be, &tape->experts.dweight, 1, places, FP_F32));
	if (!fp_matrix_is_absent(tape->experts.dshared)) /* a row in place of a column */
		tape->experts.dshared = fp_matrix_reshape(tape->experts.dshared, 1, tape->tokens);
cleanup:
	return status;
}

static void free_expert_parts(fp_tape *tape)
{
	tape_part parts[EXPERT_PART_COUNT];
	list_expert_parts(tape, tape->model, parts);
	for (int i = 0; i < EXPERT_PART_COUNT; i++)
		fp_matrix_free(tape->be, parts[i].matrix);
	fp_matrix_free(tape->be, &tape->experts.dweight);
	fp_routing_free(&tape->experts.routing);
}

int64_t fp_tape_bytes(const fp_model *model, int64_t tokens)
{
	fp_tape tape = {0};
	tape_part parts[PART_COUNT];
	int64_t row = 0;
	list_parts(&tape, model, parts);
	for (int i = 0; i < PART_COUNT; i++)
		row += parts[i].needed ? parts[i].width * fp_dtype_size(parts[i].dtype) : 0;
	return tokens * row + expert_bytes(model, tokens) +
		   fp_position_tables_bytes(fp_model_get_config(model), tokens, true);
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
	FP_TRY(new_expert_parts(tape));
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
	free_expert_parts(tape);
	fp_position_tables_free(tape->be, &tape->positions);
	fp_free(tape);
}

fp_status fp_layer_matrices_empty(fp_layer_matrices *out, const fp_model *model)
{
	fp_context *ctx = fp_model_backend(model)->ctx;
	fp_status status;
	*out = (fp_layer_matrices){.count = fp_model_operators(model)};
	FP_TRY(FP_NEW(ctx, &out->weight, out->count));
	FP_TRY(FP_NEW(ctx, &out->bias, out->count));
cleanup:
	if (status != FP_OK)
		fp_layer_matrices_free(fp_model_backend(model), out);
	return status;
}

fp_status fp_layer_matrices_new(fp_layer_matrices *out, const fp_layer *layer)
{
	fp_backend *be = fp_model_backend(layer->model);
	fp_status status;
	FP_TRY(fp_layer_matrices_empty(out, layer->model));
	for (int i = 0; i < out->count; i++) {
		fp_matrix weight = layer->weight[i], bias = layer->bias[i];
		if (!fp_matrix_is_absent(weight))
			FP_TRY(fp_matrix_new(be, &out->weight[i], weight.rows, weight.cols, FP_F32));
		if (!fp_matrix_is_absent(bias))
			FP_TRY(fp_matrix_new(be, &out->bias[i], 1, bias.cols, FP_F32));
	}
cleanup:
	if (status != FP_OK)
		fp_layer_matrices_free(be, out);
	return status;
}

void fp_layer_matrices_free(fp_backend *be, fp_layer_matrices *matrices)
{
	for (int i = 0; i < matrices->count; i++) {
		if (matrices->weight)
			fp_matrix_free(be, &matrices->weight[i]);
		if (matrices->bias)
			fp_matrix_free(be, &matrices->bias[i]);
	}
	fp_free(matrices->weight);
	fp_free(matrices->bias);
	*matrices = (fp_layer_matrices){0};
}
