/* SPDX-License-Identifier: Apache-2.0 */
/*
 * latent_backward.c: gradients through latents. Names are those of fp_latent_config; with u' = x Wq_aᵀ before its norm:
 *
 *     dWq_b   = dqᵀ u
 *     du      = dq Wq_b
 *     dWq_a   = norm'(du)ᵀ x
 *     dWkv_b  = (dk' ‖ dv)ᵀ norm(c)
 *     dc      = norm'((dk' ‖ dv) Wkv_b)
 *     dr      = Σ dk in the entries that turn, over the heads
 *     dWkv_a  = (dc ‖ dr)ᵀ x
 *     dx      = norm'(du) Wq_a + (dc ‖ dr) Wkv_a
 */
#include "model/latent_attention.h"
#include "model/layer_tape.h"
#include "model/model_parts.h"

/* The columns of the tape's c ‖ r, or of its gradient. */
static fp_matrix part_c(const fp_model_config *c, fp_matrix joint)
{
	return fp_matrix_cols(joint, 0, c->latent.rank);
}

static fp_matrix part_r(const fp_model_config *c, fp_matrix joint)
{
	return fp_matrix_cols(joint, c->latent.rank, c->latent.turned);
}

fp_status fp_latents_forward_taped(const fp_layer *layer, fp_tape *tape, fp_matrix x)
{
	fp_status status;
	fp_backend *be = tape->be;
	fp_latent_tape *own = &tape->latents;
	const fp_model_config *c = fp_model_get_config(layer->model);
	bool latent_queries = c->latent.query_rank > 0;
	fp_matrix q = fp_tape_inner(tape, own->wide, fp_latent_query_width(c)),
			  wide = fp_tape_inner(tape, own->wide, fp_latent_key_value_width(c));
	fp_matrix joint = fp_tape_used(tape, own->joint), latent = fp_tape_used(tape, own->latent), input = x;
	fp_role role = latent_queries ? FP_QUERY_B : FP_QUERY;
	if (latent_queries) {
		fp_matrix raw = fp_tape_used(tape, own->raw_query);
		input = fp_tape_used(tape, own->query);
		FP_TRY(fp_linear(be, x, layer->weight[FP_QUERY_A], layer->bias[FP_QUERY_A], false, raw));
		FP_TRY(fp_latent_normalise(be, layer->query_latent_norm, raw, input));
	}
	FP_TRY(fp_linear(be, input, layer->weight[role], layer->bias[role], false, q));
	FP_TRY(fp_latent_queries(be, c, false, q, fp_tape_used(tape, tape->Q)));
	FP_TRY(fp_linear(be, x, layer->weight[FP_KEY_VALUE_A], layer->bias[FP_KEY_VALUE_A], false, joint));
	FP_TRY(fp_latent_normalise(be, layer->latent_norm, part_c(c, joint), latent));
	FP_TRY(fp_linear(be, latent, layer->weight[FP_KEY_VALUE_B], layer->bias[FP_KEY_VALUE_B], false, wide));
	FP_TRY(fp_latent_keys(be, c, wide, part_r(c, joint), fp_tape_used(tape, tape->K), fp_tape_used(tape, tape->V)));
cleanup:
	return status;
}

/* The gradients of an operator, and dinput ← gradient·weight + β·dinput unless dinput is absent. */
static fp_status operator_backward(const fp_layer *layer, fp_role role, fp_matrix gradient, fp_matrix input,
								   const fp_wanted *want, float beta, fp_matrix dinput)
{
	return fp_matrix_is_absent(dinput) ? fp_operator_gradients(layer, role, gradient, input, want)
									   : fp_operator_backward(layer, role, gradient, input, want, beta, dinput);
}

static fp_status queries_backward(const fp_layer *layer, fp_tape *tape, fp_matrix x, const fp_wanted *want,
								  fp_matrix dx)
{
	fp_status status;
	fp_backend *be = tape->be;
	fp_latent_tape *own = &tape->latents;
	const fp_model_config *c = fp_model_get_config(layer->model);
	fp_matrix dq = fp_tape_inner(tape, own->wide, fp_latent_query_width(c));
	FP_TRY(fp_latent_queries(be, c, true, dq, fp_tape_used(tape, tape->dQ)));
	if (c->latent.query_rank == 0)
		return operator_backward(layer, FP_QUERY, dq, x, want, 0, dx);
	fp_matrix du = fp_tape_used(tape, own->dquery);
	FP_TRY(fp_operator_backward(layer, FP_QUERY_B, dq, fp_tape_used(tape, own->query), want, 0, du));
	FP_TRY(be->gradients->norm_backward(be, FP_RMS_NORM, fp_tape_used(tape, own->raw_query), layer->query_latent_norm,
										FP_LATENT_EPSILON, du, du));
	FP_TRY(operator_backward(layer, FP_QUERY_A, du, x, want, 0, dx));
cleanup:
	return status;
}

fp_status fp_latents_backward(const fp_layer *layer, fp_tape *tape, fp_matrix x, const fp_wanted *want, fp_matrix dx)
{
	fp_status status;
	fp_backend *be = tape->be;
	fp_latent_tape *own = &tape->latents;
	const fp_model_config *c = fp_model_get_config(layer->model);
	fp_matrix dwide = fp_tape_inner(tape, own->wide, fp_latent_key_value_width(c));
	fp_matrix joint = fp_tape_used(tape, own->joint), djoint = fp_tape_used(tape, own->djoint);
	fp_matrix latent = fp_tape_used(tape, own->latent), dlatent = fp_tape_used(tape, own->dlatent);
	FP_TRY(queries_backward(layer, tape, x, want, dx));
	FP_TRY(fp_latent_keys_backward(be, c, fp_tape_used(tape, tape->dK), fp_tape_used(tape, tape->dV), dwide,
								   part_r(c, djoint)));
	FP_TRY(fp_operator_backward(layer, FP_KEY_VALUE_B, dwide, latent, want, 0, dlatent));
	FP_TRY(be->gradients->norm_backward(be, FP_RMS_NORM, part_c(c, joint), layer->latent_norm, FP_LATENT_EPSILON,
										dlatent, part_c(c, djoint)));
	FP_TRY(operator_backward(layer, FP_KEY_VALUE_A, djoint, x, want, 1, dx));
cleanup:
	return status;
}
