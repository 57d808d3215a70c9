/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer.c: the forward pass of one decoder layer.
 *
 * With T tokens, h = hidden, q = heads·head_dim, k = kv_heads·head_dim, f = inner:
 *
 *     x       = norm₀(hidden)                          [T × h]
 *     Q, K, V = x Wqᵀ, x Wkᵀ, x Wvᵀ                    [T × q], [T × k], [T × k]
 *     context = attention(Q, K, V)                     [T × q]
 *     hidden ← hidden + context Woᵀ                    [T × h]
 *     y       = norm₁(hidden)                          [T × h]
 *     z       = φ(y Wgateᵀ) ∘ y Wupᵀ, or φ(y Wupᵀ)     [T × f]
 *     hidden ← hidden + z Wdownᵀ                       [T × h]
 *
 * Some models make Q, K and V of latents (fp_latent_config, latent_attention.h). Biases are added if the model has them.
 * Some models apply an RMSNorm to the heads of Q and K and rotate Q and K by position before attention. fp_model_config says
 * where norms stand:
 *
 *     pre_norm       x = norm₀(hidden), y = norm₁(hidden); without it x = y = hidden
 *     branch_norm    what is added is norm₂(context Woᵀ) and norm₃(z Wdownᵀ)
 *     sum_norm       hidden ← norm₀ or norm₁ of each sum
 *     parallel       y is of the layer's input too
 *
 * and residual_scale multiplies what is added. In layers with experts (experts.c), z and the operators around it are those
 * of the expert that reads every token, and z is scaled by its weight.
 */
#include "model/layer.h"

#include "model/layer_workspace.h"
#include "model/model_parts.h"

fp_status fp_linear(fp_backend *be, fp_matrix X, fp_matrix weight, fp_matrix bias, bool add, fp_matrix Y)
{
	fp_status status = be->linear->gemm(be, 1, X, FP_PLAIN, weight, FP_TRANSPOSED, add ? 1.0F : 0.0F, Y);
	if (status == FP_OK && !fp_matrix_is_absent(bias))
		status = be->transformer->add_bias(be, bias, Y);
	return status;
}

fp_status fp_layer_apply(const fp_layer *layer, fp_role role, fp_matrix X, bool add, fp_matrix Y)
{
	fp_backend *be = fp_model_backend(layer->model);
	fp_status status = fp_layer_multiply(layer, role, X, add, Y);
	if (status == FP_OK && !fp_matrix_is_absent(layer->bias[role]))
		status = be->transformer->add_bias(be, layer->bias[role], Y);
	return status;
}

/* A contiguous rows × cols matrix that starts rows·skipped elements into the scratch buffer. */
static fp_matrix scratch_part(const fp_workspace *workspace, int64_t rows, int64_t skipped, int64_t cols)
{
	return (fp_matrix){.buffer = workspace->scratch.buffer,
					   .offset = workspace->scratch.offset + rows * skipped,
					   .rows = rows,
					   .cols = cols,
					   .stride = cols,
					   .dtype = workspace->type};
}

fp_status fp_layer_normalise(const fp_layer *layer, int which, fp_matrix X, fp_matrix Y)
{
	fp_backend *be = fp_model_backend(layer->model);
	const fp_model_config *c = fp_model_get_config(layer->model);
	return be->transformer->norm(be, c->norm, X, layer->norm_weight[which], layer->norm_bias[which], c->norm_epsilon,
								 Y);
}

/* The input of the attention (FP_NORM_ATTENTION) or feed-forward part (FP_NORM_FEED). */
static fp_status block_input(const fp_layer *layer, int which, const fp_layer_state *state, fp_workspace *workspace,
							 fp_matrix *input)
{
	const fp_model_config *c = fp_model_get_config(layer->model);
	*input = state->hidden;
	if (!c->pre_norm)
		return FP_OK;
	if (c->shared_norm)
		which = FP_NORM_ATTENTION;
	*input = fp_matrix_rows(workspace->normalised, 0, state->hidden.rows);
	return fp_layer_normalise(layer, which, state->hidden, *input);
}

/* Rounds the input of several products once instead of once per product. */
static fp_status round_once(const fp_workspace *workspace, fp_matrix input, fp_matrix *out)
{
	fp_backend *be = workspace->be;
	bool wanted = workspace->type == FP_BF16 || fp_backend_rounds(be, be->use);
	*out = input;
	if (input.dtype == FP_BF16 || fp_matrix_is_absent(workspace->rounded) || !wanted)
		return FP_OK;
	*out = fp_matrix_rows(workspace->rounded, 0, input.rows);
	return be->memory->copy(be, *out, input);
}

static fp_status inner_activations(const fp_layer *layer, fp_matrix input, fp_workspace *workspace, fp_matrix *out)
{
	fp_status status;
	fp_backend *be = workspace->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	int64_t inner = layer->weight[FP_UP].rows;
	fp_matrix up = scratch_part(workspace, input.rows, 0, inner);
	if (c->gated || workspace->type == FP_BF16)
		FP_TRY(round_once(workspace, input, &input));
	if (c->gated) {
		static const fp_role roles[] = {FP_UP, FP_GATE};
		fp_matrix both[] = {up, scratch_part(workspace, input.rows, inner, inner)};
		FP_TRY(fp_layer_apply_all(layer, 2, roles, input, both));
		FP_TRY(be->transformer->activate_gated(be, c->activation, both[1], up, up));
	} else {
		FP_TRY(fp_layer_apply(layer, FP_UP, input, false, up));
		FP_TRY(be->transformer->activate(be, c->activation, up, up));
	}
	*out = up;
cleanup:
	return status;
}

/* The input of the operators that attention begins with, as their products read it. */
static fp_status attention_input(const fp_layer *layer, const fp_layer_state *state, fp_workspace *workspace,
								 fp_matrix *input)
{
	fp_status status;
	FP_TRY(block_input(layer, FP_NORM_ATTENTION, state, workspace, input));
	FP_TRY(round_once(workspace, *input, input));
cleanup:
	return status;
}

/* Inputs of the groups that read latents; absent if the layer has no such group. */
static fp_status latents_input(const fp_layer *layer, int group, const fp_layer_state *state, fp_workspace *workspace,
							   fp_matrix *input)
{
	fp_status status;
	fp_latent_space *space = &workspace->latents;
	fp_matrix x;
	*input = (fp_matrix){0};
	if (!fp_model_has_group(layer->model, group))
		return FP_OK;
	FP_TRY(attention_input(layer, state, workspace, &x));
	FP_TRY(fp_latents_make(layer, space, x));
	*input = fp_matrix_rows(group == FP_GROUP_QUERY ? space->query : space->latent, 0, x.rows);
cleanup:
	return status;
}

/* The input of the output operator. */
static fp_status output_input(const fp_layer *layer, const fp_layer_state *state, fp_workspace *workspace,
							  fp_matrix *input)
{
	const fp_model_config *c = fp_model_get_config(layer->model);
	*input = state->context;
	if (c->latent.rank == 0)
		return FP_OK;
	*input = fp_matrix_reshape(workspace->latents.wide, state->context.rows, c->heads * c->latent.value);
	return fp_latent_context(workspace->be, c, false, state->context, *input);
}

/* state->context ← attention's output; of a model with latents after latents_input() for the group that makes keys */
static fp_status attend(const fp_layer *layer, fp_layer_state *state, fp_workspace *workspace)
{
	fp_status status;
	const fp_model_config *c = fp_model_get_config(layer->model);
	int64_t rows = state->hidden.rows, query_width = c->heads * c->head_dim, key_width = c->kv_heads * c->head_dim;
	fp_matrix Q = scratch_part(workspace, rows, 0, query_width);
	fp_matrix K = scratch_part(workspace, rows, query_width, key_width);
	fp_matrix V = scratch_part(workspace, rows, query_width + key_width, key_width);
	fp_matrix x;
	static const fp_role roles[] = {FP_QUERY, FP_KEY, FP_VALUE};
	if (c->latent.rank > 0) {
		FP_TRY(fp_latents_expand(layer, &workspace->latents, Q, K, V));
	} else {
		FP_TRY(attention_input(layer, state, workspace, &x));
		FP_TRY(fp_layer_apply_all(layer, 3, roles, x, (const fp_matrix[]){Q, K, V}));
	}
	FP_TRY(fp_layer_attention(layer, state, workspace, Q, K, V));
cleanup:
	return status;
}

fp_status fp_layer_add_branch(const fp_layer *layer, int which, fp_matrix raw, fp_matrix work, fp_matrix hidden)
{
	fp_backend *be = fp_model_backend(layer->model);
	const fp_model_config *c = fp_model_get_config(layer->model);
	fp_status status = FP_OK;
	if (c->branch_norm)
		FP_TRY(fp_layer_normalise(layer, which, raw, work));
	FP_TRY(be->linear->axpby(be, fp_config_residual_scale(c), c->branch_norm ? work : raw, 1, hidden));
cleanup:
	return status;
}

/* hidden ← hidden + operator(input), with the norms and the factor that the model has there. */
static fp_status add_to_residual(const fp_layer *layer, fp_role role, fp_matrix input, fp_layer_state *state,
								 fp_workspace *workspace)
{
	fp_status status;
	const fp_model_config *c = fp_model_get_config(layer->model);
	bool attention_part = role == FP_OUTPUT;
	if (fp_config_has_branches(c)) {
		fp_matrix branch = fp_matrix_rows(workspace->branch, 0, state->hidden.rows);
		FP_TRY(fp_layer_apply(layer, role, input, false, branch));
		FP_TRY(fp_layer_add_branch(layer, attention_part ? FP_NORM_BEHIND_ATTENTION : FP_NORM_BEHIND_FEED, branch,
								   branch, state->hidden));
	} else {
		FP_TRY(fp_layer_apply(layer, role, input, true, state->hidden));
	}
	if (c->sum_norm)
		FP_TRY(
			fp_layer_normalise(layer, attention_part ? FP_NORM_ATTENTION : FP_NORM_FEED, state->hidden, state->hidden));
cleanup:
	return status;
}

/* The same for a layer with experts, for all of them; `input` is absent unless one of them reads every token. */
static fp_status add_experts(const fp_layer *layer, fp_matrix input, fp_layer_state *state, fp_workspace *workspace)
{
	fp_status status;
	bool branches = fp_config_has_branches(fp_model_get_config(layer->model));
	fp_matrix target = branches ? fp_matrix_rows(workspace->branch, 0, state->hidden.rows) : state->hidden;
	FP_TRY(fp_experts_add(layer, &workspace->experts, branches ? 0.0F : 1.0F, target));
	if (!fp_matrix_is_absent(input))
		FP_TRY(fp_layer_apply(layer, FP_DOWN, input, true, target));
	if (branches)
		FP_TRY(fp_layer_add_branch(layer, FP_NORM_BEHIND_FEED, target, target, state->hidden));
cleanup:
	return status;
}

/* Inputs of the last two groups of a layer with experts. */
static fp_status experts_input(const fp_layer *layer, int group, const fp_layer_state *state, fp_workspace *workspace,
							   fp_matrix *input)
{
	fp_status status;
	fp_backend *be = workspace->be;
	fp_expert_space *space = &workspace->experts;
	fp_matrix y, own = fp_matrix_rows(workspace->normalised, 0, state->hidden.rows);
	y = fp_matrix_is_absent(space->y) ? own : fp_matrix_rows(space->y, 0, state->hidden.rows);
	FP_TRY(fp_layer_normalise(layer, FP_NORM_FEED, state->hidden, y));
	FP_TRY(fp_experts_route(layer, space, y, state->routing));
	if (!fp_matrix_is_absent(space->y))
		FP_TRY(be->memory->copy(be, own, y));
	FP_TRY(fp_experts_input(layer, group, space, own));
	*input = (fp_matrix){0};
	if (!fp_layer_has_shared(layer))
		goto cleanup;
	*input = own;
	if (group == fp_role_group(FP_DOWN))
		FP_TRY(inner_activations(layer, own, workspace, input));
	FP_TRY(be->transformer->gather_rows(be, NULL, space->routed->shared_weight, *input, *input));
cleanup:
	return status;
}

static fp_status check_finite(const fp_layer *layer, fp_matrix hidden)
{
	fp_backend *be = fp_model_backend(layer->model);
	int finite = 1;
	fp_status status = be->linear->finite(be, hidden, &finite);
	if (status == FP_OK && !finite)
		return fp_fail(be->ctx, FP_ERROR_NUMERIC, "%s: layer %lld: the output contains NaN or infinity",
					   fp_checkpoint_directory(fp_model_checkpoint(layer->model)), (long long)layer->index);
	return status;
}

static fp_status check_state(const fp_layer *layer, const fp_layer_state *state, const fp_workspace *workspace)
{
	fp_backend *be = workspace->be;
	FP_REQUIRE(be, state->packing ? fp_matrix_size(state->packing->workspace) >=
										state->sequences * state->length * fp_packing_width(layer->model)
								  : state->hidden.rows == state->sequences * state->length);
	FP_REQUIRE(be, state->hidden.rows <= workspace->tokens && state->length <= workspace->tokens);
	FP_REQUIRE(be, state->hidden.cols == fp_model_get_config(layer->model)->hidden);
	if (state->past)
		return fp_layer_check_past(layer, state, workspace);
	return fp_model_check_length(layer->model, state->length);
}

fp_status fp_layer_input(const fp_layer *layer, int group, const fp_layer_state *state, fp_workspace *workspace,
						 fp_matrix *input)
{
	fp_status status;
	FP_REQUIRE(workspace->be, group >= 0 && group < FP_GROUP_COUNT);
	FP_TRY(check_state(layer, state, workspace));
	if (fp_layer_has_experts(layer) && group >= fp_role_group(FP_UP)) {
		FP_TRY(experts_input(layer, group, state, workspace, input));
		goto cleanup;
	}
	switch (group) {
	case FP_GROUP_ATTENTION:
		FP_TRY(block_input(layer, FP_NORM_ATTENTION, state, workspace, input));
		break;
	case FP_GROUP_QUERY:
	case FP_GROUP_KEY_VALUE:
		FP_TRY(latents_input(layer, group, state, workspace, input));
		break;
	case FP_GROUP_OUTPUT:
		FP_TRY(output_input(layer, state, workspace, input));
		break;
	case FP_GROUP_FEED:
		FP_TRY(block_input(layer, FP_NORM_FEED, state, workspace, input));
		break;
	default:
		FP_TRY(block_input(layer, FP_NORM_FEED, state, workspace, input));
		FP_TRY(inner_activations(layer, *input, workspace, input));
		break;
	}
cleanup:
	return status;
}

fp_status fp_layer_advance(const fp_layer *layer, int group, fp_matrix input, fp_layer_state *state,
						   fp_workspace *workspace)
{
	fp_status status;
	FP_REQUIRE(workspace->be, group >= 0 && group < FP_GROUP_COUNT);
	bool parallel = fp_model_get_config(layer->model)->parallel;
	FP_REQUIRE(workspace->be, (group > FP_GROUP_OUTPUT && !parallel) || state->context.rows == state->hidden.rows);
	FP_TRY(check_state(layer, state, workspace));
	switch (group) {
	case FP_GROUP_KEY_VALUE:
		FP_TRY(attend(layer, state, workspace));
		break;
	case FP_GROUP_OUTPUT:
		if (!parallel)
			FP_TRY(add_to_residual(layer, FP_OUTPUT, input, state, workspace));
		break;
	case FP_GROUP_DOWN:
		if (parallel)
			FP_TRY(add_to_residual(layer, FP_OUTPUT, state->context, state, workspace));
		FP_TRY(fp_layer_has_experts(layer) ? add_experts(layer, input, state, workspace)
										   : add_to_residual(layer, FP_DOWN, input, state, workspace));
		if (!state->past) /* a wait in every layer for one token's worth of work; its logits are checked */
			FP_TRY(check_finite(layer, state->hidden));
		break;
	default: /* what these groups make, fp_layer_input() or attend() computes for the next */
		break;
	}
cleanup:
	return status;
}

fp_status fp_layer_forward(const fp_layer *layer, fp_layer_state *state, fp_workspace *workspace)
{
	fp_status status = FP_OK;
	fp_layer_state own = *state;
	if (fp_matrix_is_absent(own.context))
		own.context = fp_matrix_rows(workspace->context, 0, own.hidden.rows <= workspace->tokens ? own.hidden.rows : 0);
	for (int group = 0; group < FP_GROUP_COUNT; group++) {
		fp_matrix input;
		if (!fp_group_advances(group)) /* and nobody observes the input */
			continue;
		FP_TRY(fp_layer_input(layer, group, &own, workspace, &input));
		FP_TRY(fp_layer_advance(layer, group, input, &own, workspace));
	}
cleanup:
	return status;
}
