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
 * In pre-norm models:
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
 * Without a gate, dup = dz ∘ φ'(up). In post-norm models the gradient first passes through the norm
 * that follows each sum. Fitting a layer needs the gradients of its weights, a pass through the
 * whole model needs dhidden; each computes nothing else.
 */
#include "model/layer_tape.h"
#include "model/model_parts.h"

/* The rows of a tape matrix that the current batch uses. */
static fp_matrix used(const fp_tape *tape, fp_matrix part)
{
	return fp_matrix_rows(part, 0, tape->sequences * tape->length);
}

/* The BF16 copy if the tape has one, else X. */
static fp_matrix rounded_or(const fp_tape *tape, fp_matrix rounded, fp_matrix X)
{
	return fp_matrix_is_absent(rounded) ? X : used(tape, rounded);
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
	const fp_model_config *c = fp_model_get_config(layer->model);
	if (!fp_matrix_is_absent(norm)) {
		FP_TRY(be->memory->copy(be, raw, X));
		FP_TRY(be->transformer->norm(be, FP_RMS_NORM, split_heads(raw, heads), norm, (fp_matrix){0}, c->norm_epsilon,
									 split_heads(X, heads)));
	}
	if (c->rotary)
		FP_TRY(be->transformer->rotate(be, FP_PAIR_HALVES, fp_matrix_rows(tape->cosine, 0, tape->length),
									   fp_matrix_rows(tape->sine, 0, tape->length), heads, X));
cleanup:
	return status;
}

static fp_status prepare_heads_backward(const fp_layer *layer, fp_tape *tape, fp_matrix norm, int64_t heads,
										fp_matrix raw, fp_matrix gradient)
{
	fp_status status = FP_OK;
	fp_backend *be = tape->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	if (c->rotary)
		FP_TRY(be->transformer->rotate(be, FP_PAIR_HALVES, fp_matrix_rows(tape->cosine, 0, tape->length),
									   fp_matrix_rows(tape->negative_sine, 0, tape->length), heads, gradient));
	if (!fp_matrix_is_absent(norm))
		FP_TRY(be->gradients->norm_backward(be, FP_RMS_NORM, split_heads(raw, heads), norm, c->norm_epsilon,
											split_heads(gradient, heads), split_heads(gradient, heads)));
cleanup:
	return status;
}

static fp_matrix attention_input(const fp_layer *layer, const fp_tape *tape)
{
	return fp_model_get_config(layer->model)->pre_norm ? used(tape, tape->x) : tape->input;
}

static fp_status forward_attention(const fp_layer *layer, fp_tape *tape)
{
	fp_status status;
	fp_backend *be = tape->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	fp_matrix Q = used(tape, tape->Q), K = used(tape, tape->K), V = used(tape, tape->V);
	fp_matrix hidden1 = used(tape, tape->hidden1), context = used(tape, tape->context);
	fp_attention_shape shape = fp_layer_attention_shape(layer, tape->sequences, tape->length);
	fp_matrix x = attention_input(layer, tape);
	if (c->pre_norm)
		FP_TRY(fp_layer_normalise(layer, 0, tape->input, x));
	FP_TRY(round_once(tape, x, tape->rounded_x, &x));
	FP_TRY(fp_linear(be, x, layer->weight[FP_QUERY], layer->bias[FP_QUERY], false, Q));
	FP_TRY(fp_linear(be, x, layer->weight[FP_KEY], layer->bias[FP_KEY], false, K));
	FP_TRY(fp_linear(be, x, layer->weight[FP_VALUE], layer->bias[FP_VALUE], false, V));
	FP_TRY(prepare_heads(layer, tape, layer->query_norm, c->heads, c->head_norm ? used(tape, tape->raw_Q) : Q, Q));
	FP_TRY(prepare_heads(layer, tape, layer->key_norm, c->kv_heads, c->head_norm ? used(tape, tape->raw_K) : K, K));
	FP_TRY(be->transformer->attention(be, &shape, Q, K, V, context));
	FP_TRY(round_once(tape, context, tape->rounded_context, &context));
	FP_TRY(be->memory->copy(be, hidden1, tape->input));
	FP_TRY(fp_linear(be, context, layer->weight[FP_OUTPUT], layer->bias[FP_OUTPUT], true, hidden1));
cleanup:
	return status;
}

static fp_status forward_inner(const fp_layer *layer, fp_tape *tape)
{
	fp_status status;
	fp_backend *be = tape->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	fp_matrix y = used(tape, tape->y), up = used(tape, tape->up), z = used(tape, tape->z),
			  hidden2 = used(tape, tape->hidden2);
	fp_matrix hidden1 = used(tape, tape->hidden1), input;
	FP_TRY(fp_layer_normalise(layer, c->pre_norm ? 1 : 0, hidden1, y));
	FP_TRY(round_once(tape, y, tape->rounded_y, &input));
	FP_TRY(fp_linear(be, input, layer->weight[FP_UP], layer->bias[FP_UP], false, up));
	if (c->gated) {
		fp_matrix gate = used(tape, tape->gate);
		FP_TRY(fp_linear(be, input, layer->weight[FP_GATE], layer->bias[FP_GATE], false, gate));
		FP_TRY(be->transformer->activate_gated(be, c->activation, gate, up, z));
	} else {
		FP_TRY(be->transformer->activate(be, c->activation, up, z));
	}
	FP_TRY(be->memory->copy(be, hidden2, c->pre_norm ? hidden1 : y));
	FP_TRY(fp_linear(be, z, layer->weight[FP_DOWN], layer->bias[FP_DOWN], true, hidden2));
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
	bool pre_norm = fp_model_get_config(layer->model)->pre_norm;
	FP_PRODUCTS_FOR(tape->be, FP_USE_ACTIVATION);
	FP_TRY(check_input(layer, sequences, length, input, tape));
	tape->sequences = sequences;
	tape->length = length;
	tape->input = input;
	FP_TRY(forward_attention(layer, tape));
	FP_TRY(forward_inner(layer, tape));
	if (!pre_norm)
		FP_TRY(fp_layer_normalise(layer, 1, used(tape, tape->hidden2), used(tape, tape->output)));
	*output = used(tape, pre_norm ? tape->hidden2 : tape->output);
cleanup:
	return status;
}

/* What a backward pass computes besides the gradient of the layer's input. */
typedef struct wanted {
	fp_layer_matrices *gradients; /* of weights and biases; may be NULL */
	fp_matrix *energies;          /* per role, as in fp_layer_backward_energies(); may be NULL */
	bool add;                     /* to the present values */
} wanted;

/* The gradients or energies of one operator, from the gradient of its output. */
static fp_status operator_gradients(const fp_layer *layer, fp_backend *be, fp_role role, fp_matrix gradient,
									fp_matrix input, const wanted *want)
{
	fp_status status = FP_OK;
	float beta = want->add ? 1.0F : 0.0F;
	fp_layer_matrices *out = want->gradients;
	if (want->energies)
		FP_TRY(be->gradients->column_squares(be, gradient, beta, want->energies[role]));
	if (!out)
		goto cleanup;
	FP_TRY(be->linear->gemm(be, 1, gradient, FP_TRANSPOSED, input, FP_PLAIN, beta, out->weight[role]));
	if (!fp_matrix_is_absent(layer->bias[role]))
		FP_TRY(be->gradients->column_sums(be, gradient, beta, out->bias[role]));
cleanup:
	return status;
}

/* The same, and the gradient of its input: dinput ← gradient·weight + β·dinput. */
static fp_status operator_backward(const fp_layer *layer, fp_backend *be, fp_role role, fp_matrix gradient,
								   fp_matrix input, const wanted *want, float beta, fp_matrix dinput)
{
	fp_status status;
	FP_TRY(operator_gradients(layer, be, role, gradient, input, want));
	FP_TRY(be->linear->gemm(be, 1, gradient, FP_PLAIN, layer->weight[role], FP_PLAIN, beta, dinput));
cleanup:
	return status;
}

/* Computes dy from d = dhidden₂. */
static fp_status backward_inner(const fp_layer *layer, fp_tape *tape, fp_matrix d, const wanted *want)
{
	fp_status status;
	fp_backend *be = tape->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	fp_matrix up = used(tape, tape->up), dz = used(tape, tape->dz), dy = used(tape, tape->dy);
	fp_matrix y = rounded_or(tape, tape->rounded_y, used(tape, tape->y)), dup = rounded_or(tape, tape->dup, up);
	FP_TRY(round_once(tape, d, tape->rounded_d, &d));
	FP_TRY(operator_backward(layer, be, FP_DOWN, d, used(tape, tape->z), want, 0, dz));
	if (c->gated) {
		fp_matrix gate = used(tape, tape->gate), dgate = rounded_or(tape, tape->dgate, gate);
		FP_TRY(be->gradients->activate_gated_backward(be, c->activation, gate, up, dz, dgate, dup));
		FP_TRY(operator_backward(layer, be, FP_GATE, dgate, y, want, 0, dy));
	} else {
		FP_TRY(be->gradients->activate_backward(be, c->activation, up, dz, dup));
	}
	FP_TRY(operator_backward(layer, be, FP_UP, dup, y, want, c->gated ? 1.0F : 0.0F, dy));
cleanup:
	return status;
}

/* From d = dhidden₁. dx is computed unless absent. */
static fp_status backward_attention(const fp_layer *layer, fp_tape *tape, fp_matrix d, const wanted *want, fp_matrix dx)
{
	fp_status status;
	fp_backend *be = tape->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	fp_attention_shape shape = fp_layer_attention_shape(layer, tape->sequences, tape->length);
	fp_matrix context = used(tape, tape->context), dcontext = used(tape, tape->dcontext);
	fp_matrix dQ = used(tape, tape->dQ), dK = used(tape, tape->dK), dV = used(tape, tape->dV);
	fp_matrix x = rounded_or(tape, tape->rounded_x, attention_input(layer, tape));
	FP_TRY(round_once(tape, d, tape->rounded_d, &d));
	FP_TRY(operator_backward(layer, be, FP_OUTPUT, d, rounded_or(tape, tape->rounded_context, context), want, 0,
							 dcontext));
	FP_TRY(be->gradients->attention_backward(be, &shape, used(tape, tape->Q), used(tape, tape->K), used(tape, tape->V),
											 context, dcontext, dQ, dK, dV));
	FP_TRY(prepare_heads_backward(layer, tape, layer->query_norm, c->heads, c->head_norm ? used(tape, tape->raw_Q) : dQ,
								  dQ));
	FP_TRY(prepare_heads_backward(layer, tape, layer->key_norm, c->kv_heads,
								  c->head_norm ? used(tape, tape->raw_K) : dK, dK));
	FP_TRY(operator_gradients(layer, be, FP_QUERY, dQ, x, want));
	FP_TRY(operator_gradients(layer, be, FP_KEY, dK, x, want));
	FP_TRY(operator_gradients(layer, be, FP_VALUE, dV, x, want));
	if (fp_matrix_is_absent(dx))
		goto cleanup;
	FP_TRY(be->linear->gemm(be, 1, dQ, FP_PLAIN, layer->weight[FP_QUERY], FP_PLAIN, 0, dx));
	FP_TRY(be->linear->gemm(be, 1, dK, FP_PLAIN, layer->weight[FP_KEY], FP_PLAIN, 1, dx));
	FP_TRY(be->linear->gemm(be, 1, dV, FP_PLAIN, layer->weight[FP_VALUE], FP_PLAIN, 1, dx));
cleanup:
	return status;
}

/* *d ← dhidden₁, from the gradient of the layer's output. */
static fp_status backward_to_hidden1(const fp_layer *layer, fp_tape *tape, const wanted *want, fp_matrix *d)
{
	fp_status status;
	fp_backend *be = tape->be;
	bool pre_norm = fp_model_get_config(layer->model)->pre_norm;
	fp_matrix dy = used(tape, tape->dy), hidden1 = used(tape, tape->hidden1);
	*d = used(tape, pre_norm ? tape->hidden2 : tape->output);
	if (!pre_norm)
		FP_TRY(normalise_backward(layer, 1, used(tape, tape->hidden2), *d));
	FP_TRY(backward_inner(layer, tape, *d, want));
	if (pre_norm)
		FP_TRY(normalise_backward(layer, 1, hidden1, dy));
	FP_TRY(be->linear->axpby(be, 1, dy, 1, *d));
	if (!pre_norm)
		FP_TRY(normalise_backward(layer, 0, hidden1, *d));
cleanup:
	return status;
}

static fp_status backward(const fp_layer *layer, fp_tape *tape, const wanted *want)
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
	return backward(layer, tape, &(wanted){.gradients = gradients, .add = add});
}

fp_status fp_layer_backward_energies(const fp_layer *layer, fp_tape *tape, bool add, fp_matrix energies[FP_ROLE_COUNT])
{
	return backward(layer, tape, &(wanted){.energies = energies, .add = add});
}

fp_status fp_layer_backward_input(const fp_layer *layer, fp_tape *tape, fp_matrix *dinput)
{
	fp_status status;
	fp_backend *be = tape->be;
	fp_matrix d, dx = used(tape, tape->dy);
	FP_PRODUCTS_FOR(be, FP_USE_ACTIVATION);
	FP_TRY(backward_to_hidden1(layer, tape, &(wanted){0}, &d));
	FP_TRY(backward_attention(layer, tape, d, &(wanted){0}, dx));
	if (fp_model_get_config(layer->model)->pre_norm)
		FP_TRY(normalise_backward(layer, 0, tape->input, dx));
	FP_TRY(be->linear->axpby(be, 1, dx, 1, d));
	*dinput = d;
cleanup:
	return status;
}
