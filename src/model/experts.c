/* SPDX-License-Identifier: Apache-2.0 */
/*
 * experts.c: the forward pass of a mixture of experts.
 *
 * With P places (routing.h), each of a token t and an expert e of weight w:
 *
 *     x  = y[t]                                  [P × h]
 *     z  = φ(x Wgateᵀ) ∘ x Wupᵀ                  [P × f]     by the expert of each place
 *     z' = w z                                   [P × f]
 *     what is added to t = Σ z' Wdownᵀ over its places
 *
 * The weights are applied before down and not behind it: an error of down then counts as much as it changes the layer's
 * output, and the gradient of a weight follows from the narrow z.
 */
#include "model/layer_workspace.h"
#include "model/model_parts.h"

int64_t fp_expert_space_bytes(const fp_model *model, int64_t tokens, fp_dtype type)
{
	const fp_model_config *c = fp_model_get_config(model);
	const fp_experts_config *experts = &c->experts;
	bool narrow = type != FP_F32;
	int64_t places = tokens * experts->active, wide = (int64_t)sizeof(float);
	if (experts->count == 0)
		return 0;
	return fp_routing_bytes(model, tokens) + tokens * wide * (fp_routing_columns(experts) + (narrow ? c->hidden : 0)) +
		   places * (fp_dtype_size(type) * (c->hidden + 2 * experts->inner) + (narrow ? wide * c->hidden : 0));
}

fp_status fp_expert_space_new(fp_expert_space *out, const fp_model *model, int64_t tokens, fp_dtype type)
{
	fp_backend *be = fp_model_backend(model);
	const fp_model_config *c = fp_model_get_config(model);
	const fp_experts_config *experts = &c->experts;
	int64_t places = tokens * experts->active;
	fp_status status = FP_OK;
	*out = (fp_expert_space){0};
	if (experts->count == 0)
		return FP_OK;
	FP_TRY(fp_routing_new(&out->routing, model, tokens));
	FP_TRY(fp_matrix_new(be, &out->logits, tokens, fp_routing_columns(experts), FP_F32));
	FP_TRY(fp_matrix_new(be, &out->rows, places, c->hidden, type));
	FP_TRY(fp_matrix_new(be, &out->gate, places, experts->inner, type));
	FP_TRY(fp_matrix_new(be, &out->up, places, experts->inner, type));
	if (type != FP_F32) {
		FP_TRY(fp_matrix_new(be, &out->y, tokens, c->hidden, FP_F32));
		FP_TRY(fp_matrix_new(be, &out->out, places, c->hidden, FP_F32));
	}
cleanup:
	if (status != FP_OK)
		fp_expert_space_free(be, out);
	return status;
}

void fp_expert_space_free(fp_backend *be, fp_expert_space *space)
{
	fp_matrix *all[] = {&space->y, &space->logits, &space->rows, &space->gate, &space->up, &space->out};
	fp_routing_free(&space->routing);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		fp_matrix_free(be, all[i]);
	*space = (fp_expert_space){0};
}

fp_status fp_experts_logits(const fp_layer *layer, fp_matrix y, fp_matrix logits)
{
	fp_backend *be = fp_model_backend(layer->model);
	int64_t count = layer->router.rows;
	FP_PRODUCTS_FOR(be, FP_USE_EXACT);
	fp_status status;
	FP_TRY(be->linear->gemm(be, 1, y, FP_PLAIN, layer->router, FP_TRANSPOSED, 0, fp_matrix_cols(logits, 0, count)));
	if (!fp_matrix_is_absent(layer->shared_gate))
		FP_TRY(be->linear->gemm(be, 1, y, FP_PLAIN, layer->shared_gate, FP_TRANSPOSED, 0,
								fp_matrix_cols(logits, count, 1)));
cleanup:
	return status;
}

fp_status fp_experts_multiply(const fp_layer *layer, const fp_routing *routing, fp_role role, fp_matrix X, fp_matrix Y)
{
	fp_status status = FP_OK;
	for (int64_t e = 0; e < routing->experts && status == FP_OK; e++) {
		fp_matrix rows = fp_routing_rows(routing, e, X);
		if (rows.rows > 0)
			status = fp_layer_multiply(layer, fp_expert_operator(e, role), rows, false, fp_routing_rows(routing, e, Y));
	}
	return status;
}

fp_status fp_experts_route(const fp_layer *layer, fp_expert_space *space, fp_matrix y, const fp_routing *follow)
{
	fp_backend *be = fp_model_backend(layer->model);
	fp_matrix logits = fp_matrix_rows(space->logits, 0, y.rows);
	fp_status status = FP_OK;
	space->routed = follow ? follow : &space->routing;
	FP_REQUIRE(be, !follow || follow->tokens == y.rows);
	if (follow)
		return FP_OK;
	FP_TRY(fp_experts_logits(layer, y, logits));
	FP_TRY(fp_routing_set(&space->routing, logits, layer->correction));
cleanup:
	return status;
}

fp_status fp_experts_input(const fp_layer *layer, int group, fp_expert_space *space, fp_matrix y)
{
	fp_backend *be = fp_model_backend(layer->model);
	const fp_model_config *c = fp_model_get_config(layer->model);
	const fp_routing *routing = space->routed;
	int64_t places = fp_routing_places(routing);
	bool inner = group == fp_role_group(FP_DOWN);
	const fp_matrix none = {0};
	fp_matrix rows = fp_matrix_rows(space->rows, 0, places), gate = fp_matrix_rows(space->gate, 0, places),
			  up = fp_matrix_rows(space->up, 0, places);
	fp_status status;
	FP_TRY(be->transformer->gather_rows(be, routing->token, inner ? none : routing->weight, y, rows));
	space->input = rows;
	if (!inner)
		goto cleanup;
	FP_TRY(fp_experts_multiply(layer, routing, FP_GATE, rows, gate));
	FP_TRY(fp_experts_multiply(layer, routing, FP_UP, rows, up));
	FP_TRY(be->transformer->activate_gated(be, c->activation, gate, up, up));
	FP_TRY(be->transformer->gather_rows(be, NULL, routing->weight, up, up));
	space->input = up;
cleanup:
	return status;
}

fp_status fp_experts_add(const fp_layer *layer, fp_expert_space *space, float beta, fp_matrix target)
{
	fp_backend *be = fp_model_backend(layer->model);
	const fp_routing *routing = space->routed;
	fp_matrix out =
		fp_matrix_rows(fp_matrix_is_absent(space->out) ? space->rows : space->out, 0, fp_routing_places(routing));
	fp_status status;
	FP_TRY(fp_experts_multiply(layer, routing, FP_DOWN, space->input, out));
	FP_TRY(be->transformer->add_rows(be, routing->place, routing->active, out, beta, target));
cleanup:
	return status;
}

fp_expert_rows fp_layer_expert_rows(const fp_layer *layer, const fp_workspace *workspace)
{
	return fp_layer_has_experts(layer) ? (fp_expert_rows){workspace->experts.input, workspace->experts.routed}
									   : (fp_expert_rows){0};
}

fp_status fp_layer_expert_errors(const fp_layer *layer, fp_workspace *workspace, fp_matrix E, fp_matrix *out)
{
	const fp_expert_space *space = &workspace->experts;
	FP_REQUIRE(workspace->be, fp_layer_has_experts(layer) && space->routed->tokens == E.rows);
	*out =
		fp_matrix_rows(fp_matrix_is_absent(space->out) ? space->rows : space->out, 0, fp_routing_places(space->routed));
	return workspace->be->transformer->gather_rows(workspace->be, space->routed->token, space->routed->share, E, *out);
}
