/* SPDX-License-Identifier: Apache-2.0 */
/*
 * experts_backward.c: gradients through a mixture of experts. Names are those of experts.c; by places, with the expert of
 * each:
 *
 *     d       = dtarget[t]
 *     dWdown  = dᵀ z'
 *     dz'     = d Wdown
 *     dw      = ⟨dz', z⟩            and from it the gradient of the router's logits (routing.c)
 *     dz      = w dz'
 *     dgate   = dz ∘ up ∘ φ'(gate)
 *     dup     = dz ∘ φ(gate)
 *     dx      = dup Wup + dgate Wgate
 *     dy[t]   = Σ dx over the places of t + dlogits Wrouter
 *
 * The router is not fitted: it has no zeros to make up for, and the choice of experts has no gradient.
 */
#include "model/experts.h"
#include "model/layer_tape.h"

/* The rows of all places. */
static fp_matrix places_of(const fp_tape *tape, fp_matrix part)
{
	return fp_matrix_rows(part, 0, fp_routing_places(&tape->experts.routing));
}

fp_status fp_experts_forward_taped(const fp_layer *layer, fp_tape *tape, fp_matrix y, fp_matrix rounded_y, float beta,
								   fp_matrix target)
{
	fp_status status;
	fp_backend *be = tape->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	fp_expert_tape *own = &tape->experts;
	fp_routing *routing = &own->routing;
	fp_matrix logits = fp_tape_used(tape, own->logits);
	FP_TRY(fp_experts_logits(layer, y, logits));
	FP_TRY(fp_routing_set(routing, logits, layer->correction));
	fp_matrix x = places_of(tape, own->x), gate = places_of(tape, own->gate), up = places_of(tape, own->up),
			  z = places_of(tape, own->z), scaled = places_of(tape, own->scaled), out = places_of(tape, own->out);
	FP_TRY(be->transformer->gather_rows(be, routing->token, (fp_matrix){0}, rounded_y, x));
	FP_TRY(fp_experts_multiply(layer, routing, FP_GATE, x, gate));
	FP_TRY(fp_experts_multiply(layer, routing, FP_UP, x, up));
	FP_TRY(be->transformer->activate_gated(be, c->activation, gate, up, z));
	FP_TRY(be->transformer->gather_rows(be, NULL, routing->weight, z, scaled));
	FP_TRY(fp_experts_multiply(layer, routing, FP_DOWN, scaled, out));
	FP_TRY(be->transformer->add_rows(be, routing->place, routing->active, out, beta, target));
cleanup:
	return status;
}

/* The expert that reads every token: dy ← its part; and the gradient of its weights. */
static fp_status shared_backward(const fp_layer *layer, fp_tape *tape, fp_matrix d, const fp_wanted *want, fp_matrix dy)
{
	fp_status status;
	fp_backend *be = tape->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	fp_expert_tape *own = &tape->experts;
	int64_t width = layer->weight[FP_UP].rows;
	fp_matrix gate = fp_tape_inner(tape, tape->gate, width), up = fp_tape_inner(tape, tape->up, width),
			  dz = fp_tape_inner(tape, tape->dz, width), z = fp_tape_inner(tape, own->shared_z, width);
	fp_matrix dgate = fp_matrix_is_absent(tape->dgate) ? gate : fp_tape_inner(tape, tape->dgate, width),
			  dup = fp_matrix_is_absent(tape->dup) ? up : fp_tape_inner(tape, tape->dup, width);
	fp_matrix y = fp_tape_used(tape, tape->y), dshared = own->dshared;
	dshared.cols = z.rows;
	FP_TRY(fp_operator_backward(layer, FP_DOWN, d, fp_tape_inner(tape, tape->z, width), want, 0, dz));
	FP_TRY(be->linear->row_dot(be, dz, z, dshared));
	FP_TRY(be->transformer->gather_rows(be, NULL, own->routing.shared_weight, dz, dz));
	FP_TRY(be->gradients->activate_gated_backward(be, c->activation, gate, up, dz, dgate, dup));
	FP_TRY(fp_operator_backward(layer, FP_GATE, dgate, y, want, 0, dy));
	FP_TRY(fp_operator_backward(layer, FP_UP, dup, y, want, 1, dy));
cleanup:
	return status;
}

/* The gradients of an operator of each expert, and dX ← d·W + β·dX by its own rows unless dX is absent. */
static fp_status each_backward(const fp_layer *layer, const fp_routing *routing, fp_role role, fp_matrix d, fp_matrix X,
							   const fp_wanted *want, float beta, fp_matrix dX)
{
	fp_status status = FP_OK;
	for (int64_t e = 0; e < routing->experts; e++) {
		int number = fp_expert_operator(e, role);
		fp_matrix rows = fp_routing_rows(routing, e, d), input = fp_routing_rows(routing, e, X);
		if (rows.rows > 0 && !fp_matrix_is_absent(dX))
			FP_TRY(fp_operator_backward(layer, number, rows, input, want, beta, fp_routing_rows(routing, e, dX)));
		else
			FP_TRY(fp_operator_gradients(layer, number, rows, input, want));
	}
cleanup:
	return status;
}

/* Energies of gate and up are those of outputs scaled by w: from dz', which is the gradient by w z. */
static fp_status gate_energies(const fp_layer *layer, fp_tape *tape, fp_matrix dz, const fp_wanted *want)
{
	fp_status status;
	fp_backend *be = tape->be;
	fp_expert_tape *own = &tape->experts;
	const fp_wanted energies = {.energies = want->energies, .add = want->add};
	fp_matrix dgate = places_of(tape, own->dgate), dup = places_of(tape, own->dup), x = places_of(tape, own->x);
	FP_TRY(be->gradients->activate_gated_backward(be, fp_model_get_config(layer->model)->activation,
												  places_of(tape, own->gate), places_of(tape, own->up), dz, dgate,
												  dup));
	FP_TRY(each_backward(layer, &own->routing, FP_GATE, dgate, x, &energies, 0, (fp_matrix){0}));
	FP_TRY(each_backward(layer, &own->routing, FP_UP, dup, x, &energies, 0, (fp_matrix){0}));
cleanup:
	return status;
}

/* dy ← dy + what reaches it through the router and the shared expert's gate. */
static fp_status router_backward(const fp_layer *layer, fp_tape *tape, fp_matrix dy)
{
	fp_status status;
	fp_backend *be = tape->be;
	fp_expert_tape *own = &tape->experts;
	fp_matrix dlogits = fp_tape_used(tape, own->logits), dweight = own->dweight, dshared = own->dshared;
	int64_t count = layer->router.rows;
	FP_PRODUCTS_FOR(be, FP_USE_EXACT);
	dweight.cols = fp_routing_places(&own->routing);
	dshared.cols = dlogits.rows;
	FP_TRY(fp_routing_backward(&own->routing, dweight, dshared, dlogits));
	FP_TRY(be->linear->gemm(be, 1, fp_matrix_cols(dlogits, 0, count), FP_PLAIN, layer->router, FP_PLAIN, 1, dy));
	if (!fp_matrix_is_absent(layer->shared_gate))
		FP_TRY(
			be->linear->gemm(be, 1, fp_matrix_cols(dlogits, count, 1), FP_PLAIN, layer->shared_gate, FP_PLAIN, 1, dy));
cleanup:
	return status;
}

fp_status fp_experts_backward(const fp_layer *layer, fp_tape *tape, fp_matrix d, const fp_wanted *want, fp_matrix dy)
{
	fp_status status = FP_OK;
	fp_backend *be = tape->be;
	fp_expert_tape *own = &tape->experts;
	const fp_routing *routing = &own->routing;
	const fp_wanted gradients = {.gradients = want->gradients, .add = want->add};
	bool shared = fp_layer_has_shared(layer);
	fp_matrix rows = places_of(tape, own->d), x = places_of(tape, own->x), z = places_of(tape, own->z),
			  dz = places_of(tape, own->dz), dgate = places_of(tape, own->dgate), dup = places_of(tape, own->dup),
			  dx = places_of(tape, own->out), dweight = own->dweight;
	dweight.cols = z.rows;
	if (shared)
		FP_TRY(shared_backward(layer, tape, d, want, dy));
	FP_TRY(be->transformer->gather_rows(be, routing->token, (fp_matrix){0}, d, rows));
	FP_TRY(each_backward(layer, routing, FP_DOWN, rows, places_of(tape, own->scaled), want, 0, dz));
	FP_TRY(be->linear->row_dot(be, dz, z, dweight));
	if (want->energies)
		FP_TRY(gate_energies(layer, tape, dz, want));
	FP_TRY(be->transformer->gather_rows(be, NULL, routing->weight, dz, dz));
	FP_TRY(be->gradients->activate_gated_backward(be, fp_model_get_config(layer->model)->activation,
												  places_of(tape, own->gate), places_of(tape, own->up), dz, dgate,
												  dup));
	FP_TRY(each_backward(layer, routing, FP_GATE, dgate, x, &gradients, 0, dx));
	FP_TRY(each_backward(layer, routing, FP_UP, dup, x, &gradients, 1, dx));
	FP_TRY(be->transformer->add_rows(be, routing->place, routing->active, dx, shared ? 1.0F : 0.0F, dy));
	FP_TRY(router_backward(layer, tape, dy));
cleanup:
	return status;
}
