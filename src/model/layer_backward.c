/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_backward.c: gradients through one decoder layer.
 *
 * Names are those of layer.c. dX is the gradient with respect to X, and
 *
 *     hidden₁ = hidden + context Woᵀ
 *     hidden₂ = hidden₁ + z Wdownᵀ
 *     gate    = y Wgateᵀ
 *     up      = y Wupᵀ
 *
 * If a norm stands before each block:
 *
 *     dWdown   = dhidden₂ᵀ z
 *     dz       = dhidden₂ Wdown
 *     dgate    = dz ∘ up ∘ φ'(gate)
 *     dup      = dz ∘ φ(gate)
 *     dWgate   = dgateᵀ y
 *     dWup     = dupᵀ y
 *     dy       = dup Wup + dgate Wgate
 *     dhidden₁ = dhidden₂ + norm₁'(dy)
 *     dWo      = dhidden₁ᵀ context
 *     dcontext = dhidden₁ Wo
 *     dQ, dK, dV = attention'(dcontext)
 *     dWq      = dQᵀ x
 *     dWk      = dKᵀ x
 *     dWv      = dVᵀ x
 *     dx       = dQ Wq + dK Wk + dV Wv
 *     dhidden  = dhidden₁ + norm₀'(dx)
 *
 * Without a gate, dup = dz ∘ φ'(up). Where sums are normalised, the gradient first passes through the norm that follows
 * each; where a block's output is normalised or scaled before it is added, dhidden₂ and dhidden₁ pass through that
 * first. In parallel blocks dhidden₁ = dhidden₂, and norm₁'(dy) is added to dhidden. Fitting a layer needs the gradients
 * of its weights, a pass through the whole model needs dhidden; each computes nothing else. Where Q, K and V are made of
 * latents, latent_backward.c has what is between them and x.
 */
#include "model/latent_attention.h"
#include "model/layer_tape.h"
#include "model/model_parts.h"

/* The BF16 copy if the tape has one, else X. */
static fp_matrix rounded_or(const fp_tape *tape, fp_matrix rounded, fp_matrix X)
{
	return fp_matrix_is_absent(rounded) ? X : fp_tape_used(tape, rounded);
}

/* *out ← a copy of X in `rounded` for products to read, or X itself if the tape has no such matrix. */
static fp_status round_once(fp_tape *tape, fp_matrix X, fp_matrix rounded, fp_matrix *out)
{
	*out = rounded_or(tape, rounded, X);
	return fp_matrix_is_absent(rounded) ? FP_OK : tape->be->memory->copy(tape->be, *out, X);
}

/* A view with one head per row. */
static fp_matrix split_heads(fp_matrix X, int64_t heads)
{
	return fp_matrix_reshape(X, X.rows * heads, X.cols / heads);
}

static fp_status normalise_backward(const fp_layer *layer, int which, fp_matrix X, fp_matrix gradient)
{
	fp_backend *be = fp_model_backend(layer->model);
	const fp_model_config *c = fp_model_get_config(layer->model);
	return be->gradients->norm_backward(be, c->norm, X, layer->norm_weight[which], c->norm_epsilon, gradient, gradient);
}

static fp_status prepare_heads(const fp_layer *layer, fp_tape *tape, fp_matrix norm, int64_t heads, fp_matrix raw,
							   fp_matrix X)
{
	fp_status status = FP_OK;
	fp_backend *be = tape->be;
	if (!fp_matrix_is_absent(norm)) {
		FP_TRY(be->memory->copy(be, raw, X));
		FP_TRY(fp_layer_normalise_heads(layer, norm, heads, raw, X));
	}
	FP_TRY(fp_rotate_heads(be, fp_model_get_config(layer->model), &tape->positions, layer->index,
						   (fp_token_range){.length = tape->length, .whole = tape->length}, false, heads, X));
cleanup:
	return status;
}

static fp_status prepare_heads_backward(const fp_layer *layer, fp_tape *tape, fp_matrix norm, int64_t heads,
										fp_matrix raw, fp_matrix gradient)
{
	fp_status status;
	fp_backend *be = tape->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	FP_TRY(fp_rotate_heads(be, c, &tape->positions, layer->index,
						   (fp_token_range){.length = tape->length, .whole = tape->length}, true, heads, gradient));
	if (fp_matrix_is_absent(norm))
		goto cleanup;
	if (c->head_norm == FP_HEADS_NORM_EACH) {
		raw = split_heads(raw, heads);
		gradient = split_heads(gradient, heads);
	}
	FP_TRY(be->gradients->norm_backward(be, FP_RMS_NORM, raw, norm, c->norm_epsilon, gradient, gradient));
cleanup:
	return status;
}

static fp_matrix attention_input(const fp_layer *layer, const fp_tape *tape)
{
	return fp_model_get_config(layer->model)->pre_norm ? fp_tape_used(tape, tape->x) : tape->input;
}

/* y: the input of the feed-forward part. */
static fp_matrix inner_input(const fp_layer *layer, const fp_tape *tape)
{
	const fp_model_config *c = fp_model_get_config(layer->model);
	if (c->shared_norm)
		return fp_tape_used(tape, tape->x);
	return fp_tape_used(tape, c->pre_norm || c->sum_norm ? tape->y : tape->hidden1);
}

/* Gradients of heads are computed in place, or from what was there before the norm. */
static fp_matrix raw_heads(const fp_tape *tape, fp_matrix raw, fp_matrix heads)
{
	return fp_matrix_is_absent(raw) ? heads : fp_tape_used(tape, raw);
}

/* hidden ← hidden + what an operator at the end of a block gives; which: 0 for attention, 1 for the feed-forward part */
static fp_status add_block(const fp_layer *layer, fp_tape *tape, int which, fp_matrix input, fp_matrix hidden)
{
	fp_status status;
	const fp_model_config *c = fp_model_get_config(layer->model);
	fp_role role = which == 0 ? FP_OUTPUT : FP_DOWN;
	if (!fp_config_has_branches(c))
		return fp_linear(tape->be, input, layer->weight[role], layer->bias[role], true, hidden);
	fp_matrix work = fp_tape_used(tape, tape->dbranch),
			  raw = c->branch_norm ? fp_tape_used(tape, tape->branch[which]) : work;
	FP_TRY(fp_linear(tape->be, input, layer->weight[role], layer->bias[role], false, raw));
	FP_TRY(fp_layer_add_branch(layer, FP_NORM_BEHIND_ATTENTION + which, raw, work, hidden));
cleanup:
	return status;
}

/* Q, K and V ← the operators of x */
static fp_status make_heads(const fp_layer *layer, fp_matrix x, fp_matrix Q, fp_matrix K, fp_matrix V)
{
	fp_status status;
	fp_backend *be = fp_model_backend(layer->model);
	FP_TRY(fp_linear(be, x, layer->weight[FP_QUERY], layer->bias[FP_QUERY], false, Q));
	FP_TRY(fp_linear(be, x, layer->weight[FP_KEY], layer->bias[FP_KEY], false, K));
	FP_TRY(fp_linear(be, x, layer->weight[FP_VALUE], layer->bias[FP_VALUE], false, V));
cleanup:
	return status;
}

static fp_status forward_attention(const fp_layer *layer, fp_tape *tape)
{
	fp_status status;
	fp_backend *be = tape->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	fp_matrix Q = fp_tape_used(tape, tape->Q), K = fp_tape_used(tape, tape->K), V = fp_tape_used(tape, tape->V);
	fp_matrix hidden1 = fp_tape_used(tape, tape->hidden1), context = fp_tape_used(tape, tape->context);
	fp_attention_shape shape = fp_layer_attention_shape(layer, tape->sequences, tape->length);
	fp_matrix x = attention_input(layer, tape);
	shape.key_bias = tape->positions.key_bias;
	if (c->pre_norm)
		FP_TRY(fp_layer_normalise(layer, FP_NORM_ATTENTION, tape->input, x));
	FP_TRY(round_once(tape, x, tape->rounded_x, &x));
	FP_TRY(c->latent.rank > 0 ? fp_latents_forward_taped(layer, tape, x) : make_heads(layer, x, Q, K, V));
	FP_TRY(prepare_heads(layer, tape, layer->query_norm, c->heads, raw_heads(tape, tape->raw_Q, Q), Q));
	FP_TRY(prepare_heads(layer, tape, layer->key_norm, c->kv_heads, raw_heads(tape, tape->raw_K, K), K));
	FP_TRY(be->transformer->attention(be, &shape, Q, K, V, context));
	FP_TRY(be->memory->copy(be, hidden1, tape->input));
	if (c->latent.rank > 0) {
		FP_TRY(fp_latent_context(be, c, false, context, fp_tape_used(tape, tape->latents.context)));
		context = fp_tape_used(tape, tape->latents.context);
	}
	FP_TRY(add_block(layer, tape, 0, context, hidden1));
cleanup:
	return status;
}

static fp_status forward_inner(const fp_layer *layer, fp_tape *tape)
{
	fp_status status;
	fp_backend *be = tape->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	int64_t width = layer->weight[FP_UP].rows;
	fp_matrix y = inner_input(layer, tape), up = fp_tape_inner(tape, tape->up, width),
			  z = fp_tape_inner(tape, tape->z, width), hidden2 = fp_tape_used(tape, tape->hidden2);
	fp_matrix hidden1 = fp_tape_used(tape, tape->hidden1), input;
	if (c->sum_norm)
		FP_TRY(fp_layer_normalise(layer, FP_NORM_ATTENTION, hidden1, y));
	else if (c->pre_norm && !c->shared_norm)
		FP_TRY(fp_layer_normalise(layer, FP_NORM_FEED, c->parallel ? tape->input : hidden1, y));
	FP_TRY(round_once(tape, y, tape->rounded_y, &input));
	FP_TRY(fp_linear(be, input, layer->weight[FP_UP], layer->bias[FP_UP], false, up));
	if (c->gated) {
		fp_matrix gate = fp_tape_inner(tape, tape->gate, width);
		FP_TRY(fp_linear(be, input, layer->weight[FP_GATE], layer->bias[FP_GATE], false, gate));
		FP_TRY(be->transformer->activate_gated(be, c->activation, gate, up, z));
	} else {
		FP_TRY(be->transformer->activate(be, c->activation, up, z));
	}
	FP_TRY(be->memory->copy(be, hidden2, c->sum_norm ? y : hidden1));
	FP_TRY(add_block(layer, tape, 1, z, hidden2));
cleanup:
	return status;
}

/* The expert that reads every token: target ← target + what it adds. */
static fp_status forward_shared(const fp_layer *layer, fp_tape *tape, fp_matrix y, fp_matrix target)
{
	fp_status status;
	fp_backend *be = tape->be;
	int64_t width = layer->weight[FP_UP].rows;
	fp_matrix up = fp_tape_inner(tape, tape->up, width), gate = fp_tape_inner(tape, tape->gate, width),
			  z = fp_tape_inner(tape, tape->experts.shared_z, width), scaled = fp_tape_inner(tape, tape->z, width);
	FP_TRY(fp_linear(be, y, layer->weight[FP_UP], layer->bias[FP_UP], false, up));
	FP_TRY(fp_linear(be, y, layer->weight[FP_GATE], layer->bias[FP_GATE], false, gate));
	FP_TRY(be->transformer->activate_gated(be, fp_model_get_config(layer->model)->activation, gate, up, z));
	FP_TRY(be->transformer->gather_rows(be, NULL, tape->experts.routing.shared_weight, z, scaled));
	FP_TRY(fp_linear(be, scaled, layer->weight[FP_DOWN], layer->bias[FP_DOWN], true, target));
cleanup:
	return status;
}

/* forward_inner() of a layer with experts. */
static fp_status forward_experts(const fp_layer *layer, fp_tape *tape)
{
	fp_status status;
	fp_backend *be = tape->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	bool branches = fp_config_has_branches(c), narrow = !fp_matrix_is_absent(tape->experts.y);
	fp_matrix hidden1 = fp_tape_used(tape, tape->hidden1), hidden2 = fp_tape_used(tape, tape->hidden2);
	fp_matrix rounded_y = fp_tape_used(tape, tape->y), y = narrow ? fp_tape_used(tape, tape->experts.y) : rounded_y;
	fp_matrix work = branches ? fp_tape_used(tape, tape->dbranch) : hidden2,
			  target = c->branch_norm ? fp_tape_used(tape, tape->branch[1]) : work;
	FP_TRY(fp_layer_normalise(layer, FP_NORM_FEED, hidden1, y));
	if (narrow)
		FP_TRY(be->memory->copy(be, rounded_y, y));
	FP_TRY(be->memory->copy(be, hidden2, hidden1));
	FP_TRY(fp_experts_forward_taped(layer, tape, y, rounded_y, branches ? 0.0F : 1.0F, target));
	if (fp_layer_has_shared(layer))
		FP_TRY(forward_shared(layer, tape, rounded_y, target));
	if (branches)
		FP_TRY(fp_layer_add_branch(layer, FP_NORM_BEHIND_FEED, target, work, hidden2));
cleanup:
	return status;
}

static fp_status check_input(const fp_layer *layer, int64_t sequences, int64_t length, fp_matrix input,
							 const fp_tape *tape)
{
	FP_REQUIRE(tape->be, input.rows == sequences * length && input.rows <= tape->tokens);
	FP_REQUIRE(tape->be, input.cols == fp_model_get_config(layer->model)->hidden);
	return fp_model_check_length(layer->model, length);
}

fp_status fp_layer_forward_taped(const fp_layer *layer, int64_t sequences, int64_t length, fp_matrix input,
								 fp_tape *tape, fp_matrix *output)
{
	fp_status status;
	bool sum_norm = fp_model_get_config(layer->model)->sum_norm;
	FP_PRODUCTS_FOR(tape->be, FP_USE_ACTIVATION);
	FP_TRY(check_input(layer, sequences, length, input, tape));
	tape->sequences = sequences;
	tape->length = length;
	tape->input = input;
	FP_TRY(forward_attention(layer, tape));
	FP_TRY(fp_layer_has_experts(layer) ? forward_experts(layer, tape) : forward_inner(layer, tape));
	if (sum_norm)
		FP_TRY(fp_layer_normalise(layer, FP_NORM_FEED, fp_tape_used(tape, tape->hidden2),
								  fp_tape_used(tape, tape->output)));
	*output = fp_tape_used(tape, sum_norm ? tape->output : tape->hidden2);
cleanup:
	return status;
}

/* *out ← the gradient of what an operator at the end of a block gives, from d, that of the sum, rounded for products;
 * which as in add_block() */
static fp_status block_gradient(const fp_layer *layer, fp_tape *tape, int which, fp_matrix d, fp_matrix *out)
{
	fp_status status = FP_OK;
	fp_backend *be = tape->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	if (fp_config_has_branches(c)) {
		fp_matrix branch = fp_tape_used(tape, tape->dbranch);
		FP_TRY(be->linear->axpby(be, fp_config_residual_scale(c), d, 0, branch));
		if (c->branch_norm)
			FP_TRY(normalise_backward(layer, FP_NORM_BEHIND_ATTENTION + which, fp_tape_used(tape, tape->branch[which]),
									  branch));
		d = branch;
	}
	FP_TRY(round_once(tape, d, tape->rounded_d, out));
cleanup:
	return status;
}

/* Computes dy from d = dhidden₂. */
static fp_status backward_inner(const fp_layer *layer, fp_tape *tape, fp_matrix d, const fp_wanted *want)
{
	fp_status status;
	fp_backend *be = tape->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	int64_t width = layer->weight[FP_UP].rows;
	fp_matrix up = fp_tape_inner(tape, tape->up, width), dz = fp_tape_inner(tape, tape->dz, width),
			  dy = fp_tape_used(tape, tape->dy), y = rounded_or(tape, tape->rounded_y, inner_input(layer, tape));
	fp_matrix dup = fp_matrix_is_absent(tape->dup) ? up : fp_tape_inner(tape, tape->dup, width);
	FP_TRY(block_gradient(layer, tape, 1, d, &d));
	if (fp_layer_has_experts(layer))
		return fp_experts_backward(layer, tape, d, want, dy);
	FP_TRY(fp_operator_backward(layer, FP_DOWN, d, fp_tape_inner(tape, tape->z, width), want, 0, dz));
	if (c->gated) {
		fp_matrix gate = fp_tape_inner(tape, tape->gate, width),
				  dgate = fp_matrix_is_absent(tape->dgate) ? gate : fp_tape_inner(tape, tape->dgate, width);
		FP_TRY(be->gradients->activate_gated_backward(be, c->activation, gate, up, dz, dgate, dup));
		FP_TRY(fp_operator_backward(layer, FP_GATE, dgate, y, want, 0, dy));
	} else {
		FP_TRY(be->gradients->activate_backward(be, c->activation, up, dz, dup));
	}
	FP_TRY(fp_operator_backward(layer, FP_UP, dup, y, want, c->gated ? 1.0F : 0.0F, dy));
cleanup:
	return status;
}

/* From dQ, dK and dV, the gradients by what operators of x give. dx is computed unless absent. */
static fp_status heads_backward(const fp_layer *layer, fp_tape *tape, fp_matrix x, const fp_wanted *want, fp_matrix dx)
{
	fp_status status;
	fp_backend *be = tape->be;
	fp_matrix dQ = fp_tape_used(tape, tape->dQ), dK = fp_tape_used(tape, tape->dK), dV = fp_tape_used(tape, tape->dV);
	FP_TRY(fp_operator_gradients(layer, FP_QUERY, dQ, x, want));
	FP_TRY(fp_operator_gradients(layer, FP_KEY, dK, x, want));
	FP_TRY(fp_operator_gradients(layer, FP_VALUE, dV, x, want));
	if (fp_matrix_is_absent(dx))
		goto cleanup;
	FP_TRY(be->linear->gemm(be, 1, dQ, FP_PLAIN, layer->weight[FP_QUERY], FP_PLAIN, 0, dx));
	FP_TRY(be->linear->gemm(be, 1, dK, FP_PLAIN, layer->weight[FP_KEY], FP_PLAIN, 1, dx));
	FP_TRY(be->linear->gemm(be, 1, dV, FP_PLAIN, layer->weight[FP_VALUE], FP_PLAIN, 1, dx));
cleanup:
	return status;
}

/* dcontext ← the gradient of attention's output, from that of what is added; and the gradients of the operator between */
static fp_status output_backward(const fp_layer *layer, fp_tape *tape, fp_matrix d, const fp_wanted *want,
								 fp_matrix dcontext)
{
	fp_status status;
	const fp_model_config *c = fp_model_get_config(layer->model);
	if (c->latent.rank == 0)
		return fp_operator_backward(layer, FP_OUTPUT, d, fp_tape_used(tape, tape->context), want, 0, dcontext);
	fp_matrix input = fp_tape_used(tape, tape->latents.context),
			  dinput = fp_tape_inner(tape, tape->latents.wide, input.cols);
	FP_TRY(fp_operator_backward(layer, FP_OUTPUT, d, input, want, 0, dinput));
	FP_TRY(fp_latent_context(tape->be, c, true, dcontext, dinput));
cleanup:
	return status;
}

/* From d = dhidden₁. dx is computed unless absent. */
static fp_status backward_attention(const fp_layer *layer, fp_tape *tape, fp_matrix d, const fp_wanted *want,
									fp_matrix dx)
{
	fp_status status;
	fp_backend *be = tape->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	fp_attention_shape shape = fp_layer_attention_shape(layer, tape->sequences, tape->length);
	fp_matrix context = fp_tape_used(tape, tape->context), dcontext = fp_tape_used(tape, tape->dcontext);
	fp_matrix dQ = fp_tape_used(tape, tape->dQ), dK = fp_tape_used(tape, tape->dK), dV = fp_tape_used(tape, tape->dV);
	fp_matrix x = rounded_or(tape, tape->rounded_x, attention_input(layer, tape));
	shape.key_bias = tape->positions.key_bias;
	FP_TRY(block_gradient(layer, tape, 0, d, &d));
	FP_TRY(output_backward(layer, tape, d, want, dcontext));
	FP_TRY(be->gradients->attention_backward(be, &shape, fp_tape_used(tape, tape->Q), fp_tape_used(tape, tape->K),
											 fp_tape_used(tape, tape->V), context, dcontext, dQ, dK, dV));
	FP_TRY(prepare_heads_backward(layer, tape, layer->query_norm, c->heads, raw_heads(tape, tape->raw_Q, dQ), dQ));
	FP_TRY(prepare_heads_backward(layer, tape, layer->key_norm, c->kv_heads, raw_heads(tape, tape->raw_K, dK), dK));
	FP_TRY(c->latent.rank > 0 ? fp_latents_backward(layer, tape, x, want, dx)
							  : heads_backward(layer, tape, x, want, dx));
cleanup:
	return status;
}

/* *d ← dhidden₁, from the gradient of the layer's output; of parallel blocks dy remains to be added. */
static fp_status backward_to_hidden1(const fp_layer *layer, fp_tape *tape, const fp_wanted *want, fp_matrix *d)
{
	fp_status status;
	fp_backend *be = tape->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	fp_matrix dy = fp_tape_used(tape, tape->dy), hidden1 = fp_tape_used(tape, tape->hidden1);
	*d = fp_tape_used(tape, c->sum_norm ? tape->output : tape->hidden2);
	if (c->sum_norm)
		FP_TRY(normalise_backward(layer, FP_NORM_FEED, fp_tape_used(tape, tape->hidden2), *d));
	FP_TRY(backward_inner(layer, tape, *d, want));
	if (c->parallel)
		goto cleanup;
	if (c->pre_norm)
		FP_TRY(normalise_backward(layer, FP_NORM_FEED, hidden1, dy));
	FP_TRY(be->linear->axpby(be, 1, dy, 1, *d));
	if (c->sum_norm)
		FP_TRY(normalise_backward(layer, FP_NORM_ATTENTION, hidden1, *d));
cleanup:
	return status;
}

static fp_status backward(const fp_layer *layer, fp_tape *tape, const fp_wanted *want)
{
	fp_status status;
	fp_matrix d;
	FP_PRODUCTS_FOR(tape->be, FP_USE_ACTIVATION);
	FP_TRY(backward_to_hidden1(layer, tape, want, &d));
	FP_TRY(backward_attention(layer, tape, d, want, (fp_matrix){0}));
cleanup:
	return status;
}

fp_status fp_layer_backward(const fp_layer *layer, fp_tape *tape, bool add, fp_layer_matrices *gradients)
{
	return backward(layer, tape, &(fp_wanted){.gradients = gradients, .add = add});
}

fp_status fp_layer_backward_energies(const fp_layer *layer, fp_tape *tape, bool add, fp_matrix *energies)
{
	return backward(layer, tape, &(fp_wanted){.energies = energies, .add = add});
}

static fp_status backward_to_input(const fp_layer *layer, fp_tape *tape, const fp_wanted *want, fp_matrix *dinput)
{
	fp_status status;
	fp_backend *be = tape->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	fp_matrix d, dy = fp_tape_used(tape, tape->dy), dx = c->parallel ? fp_tape_used(tape, tape->dx) : dy;
	FP_PRODUCTS_FOR(be, FP_USE_ACTIVATION);
	FP_TRY(backward_to_hidden1(layer, tape, want, &d));
	FP_TRY(backward_attention(layer, tape, d, want, dx));
	if (c->parallel && c->shared_norm)
		FP_TRY(be->linear->axpby(be, 1, dy, 1, dx));
	if (c->pre_norm)
		FP_TRY(normalise_backward(layer, FP_NORM_ATTENTION, tape->input, dx));
	if (c->parallel && !c->shared_norm) {
		if (c->pre_norm)
			FP_TRY(normalise_backward(layer, FP_NORM_FEED, tape->input, dy));
		FP_TRY(be->linear->axpby(be, 1, dy, 1, d));
	}
	FP_TRY(be->linear->axpby(be, 1, dx, 1, d));
	*dinput = d;
cleanup:
	return status;
}

fp_status fp_layer_backward_input(const fp_layer *layer, fp_tape *tape, fp_matrix *energies, fp_matrix *dinput)
{
	return backward_to_input(layer, tape, &(fp_wanted){.energies = energies, .add = true}, dinput);
}

fp_status fp_layer_backward_through(const fp_layer *layer, fp_tape *tape, fp_layer_matrices *gradients,
									fp_matrix *dinput)
{
	return backward_to_input(layer, tape, &(fp_wanted){.gradients = gradients}, dinput);
}
