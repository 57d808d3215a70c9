/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_backward.c: gradients through one decoder layer.
 *
 * The names are those of layer.c, dX is the gradient with respect to X, hidden₁ and hidden₂ are the sums after the
 * attention and the feed-forward block. gate = y Wgateᵀ, up = y Wupᵀ. With the norm before each block:
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
 *     dQ, dK, dV from dcontext (attention_backward())
 *     dWq      = dQᵀ x
 *     dWk      = dKᵀ x
 *     dWv      = dVᵀ x
 *
 * Without a gate dup = dz ∘ φ'(up). With the norm after each block, the gradient first passes through that norm. A fit
 * needs the gradients of the weights, a pass through the whole model that of the input; each computes only its own.
 */
#include "model/layer_backward.h"

#include "base/memory.h"
#include "model/model_parts.h"
#include "model/rotary.h"

struct fp_tape {
	fp_backend *be; /* borrowed */
	int64_t tokens; /* room */
	int64_t sequences, length;
	fp_matrix input;        /* the caller's */
	fp_matrix x, y;         /* inputs of the two blocks where a norm makes them */
	fp_matrix Q, K, V;      /* as attention sees them */
	fp_matrix raw_Q, raw_K; /* before the norm of each head, where there is one */
	fp_matrix context;
	fp_matrix middle; /* the sum after the attention block */
	fp_matrix end;    /* the sum after the feed-forward block; then its gradient */
	fp_matrix output; /* end through the last norm, where that comes after the block; else end itself */
	fp_matrix up, gate, z;
	fp_matrix dz, dy, dcontext, dQ, dK, dV;
	/* Where products round their operands to BF16 each time, x, y and z are such from the start, unless they have other
	 * uses; these are for what has, and for gradients. */
	fp_matrix narrow_x, narrow_y, narrow_context, narrow_d, dup, dgate;
	fp_matrix cosine, sine, negative_sine;
};

/* Every matrix of the tape with its width; false: the model needs no such matrix. */
typedef struct tape_part {
	fp_matrix *matrix;
	int64_t width;
	bool needed;
	fp_dtype dtype;
} tape_part;
enum { PART_COUNT = 26 };

static void list_parts(fp_tape *t, const fp_model *model, tape_part parts[PART_COUNT])
{
	const fp_model_config *c = fp_model_get_config(model);
	int64_t query = c->heads * c->head_dim, key = c->kv_heads * c->head_dim;
	bool rounds = fp_backend_rounds(fp_model_backend(model), FP_USE_ACTIVATION);
	fp_dtype narrow = rounds ? FP_BF16 : FP_F32, block = c->pre_norm ? narrow : FP_F32;
	const tape_part all[PART_COUNT] = {
		{&t->x, c->hidden, c->pre_norm, block},
		{&t->y, c->hidden, true, block},
		{&t->Q, query, true, FP_F32},
		{&t->K, key, true, FP_F32},
		{&t->V, key, true, FP_F32},
		{&t->raw_Q, query, c->head_norm, FP_F32},
		{&t->raw_K, key, c->head_norm, FP_F32},
		{&t->context, query, true, FP_F32},
		{&t->middle, c->hidden, true, FP_F32},
		{&t->end, c->hidden, true, FP_F32},
		{&t->output, c->hidden, !c->pre_norm, FP_F32},
		{&t->up, c->inner, true, FP_F32},
		{&t->gate, c->inner, c->gated, FP_F32},
		{&t->z, c->inner, true, narrow},
		{&t->dz, c->inner, true, FP_F32},
		{&t->dy, c->hidden, true, FP_F32},
		{&t->dcontext, query, true, FP_F32},
		{&t->dQ, query, true, FP_F32},
		{&t->dK, key, true, FP_F32},
		{&t->dV, key, true, FP_F32},
		{&t->narrow_x, c->hidden, rounds && !c->pre_norm, FP_BF16},
		{&t->narrow_y, c->hidden, rounds && !c->pre_norm, FP_BF16},
		{&t->narrow_context, query, rounds, FP_BF16},
		{&t->narrow_d, c->hidden, rounds, FP_BF16},
		{&t->dup, c->inner, rounds, FP_BF16},
		{&t->dgate, c->inner, rounds && c->gated, FP_BF16},
	};
	for (int i = 0; i < PART_COUNT; i++)
		parts[i] = all[i];
}

static int64_t table_rows(const fp_model_config *c, int64_t tokens)
{
	return tokens < c->positions ? tokens : c->positions;
}

int64_t fp_tape_bytes(const fp_model *model, int64_t tokens)
{
	const fp_model_config *c = fp_model_get_config(model);
	fp_tape tape = {0};
	tape_part parts[PART_COUNT];
	int64_t row = 0;
	list_parts(&tape, model, parts);
	for (int i = 0; i < PART_COUNT; i++)
		row += parts[i].needed ? parts[i].width * fp_dtype_size(parts[i].dtype) : 0;
	int64_t tables = c->rotary ? table_rows(c, tokens) * c->head_dim * 3 / 2 : 0;
	return tokens * row + tables * (int64_t)sizeof(float);
}

fp_status fp_tape_new(fp_tape **out, const fp_model *model, int64_t tokens)
{
	fp_status status;
	fp_backend *be = fp_model_backend(model);
	const fp_model_config *c = fp_model_get_config(model);
	fp_tape *tape = NULL;
	tape_part parts[PART_COUNT];
	*out = NULL;
	FP_REQUIRE(be, tokens > 0);
	FP_TRY(FP_NEW(be->ctx, &tape, 1));
	tape->be = be;
	tape->tokens = tokens;
	list_parts(tape, model, parts);
	for (int i = 0; i < PART_COUNT; i++)
		if (parts[i].needed)
			FP_TRY(fp_matrix_new(be, parts[i].matrix, tokens, parts[i].width, parts[i].dtype));
	if (c->rotary) {
		int64_t rows = table_rows(c, tokens);
		FP_TRY(fp_rotary_tables(be, c, rows, &tape->cosine, &tape->sine));
		FP_TRY(fp_matrix_new(be, &tape->negative_sine, rows, c->head_dim / 2, FP_F32));
		FP_TRY(be->linear->axpby(be, -1, tape->sine, 0, tape->negative_sine));
	}
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
	fp_matrix *all[] = {&tape->x,
						&tape->y,
						&tape->Q,
						&tape->K,
						&tape->V,
						&tape->raw_Q,
						&tape->raw_K,
						&tape->context,
						&tape->middle,
						&tape->end,
						&tape->output,
						&tape->up,
						&tape->gate,
						&tape->z,
						&tape->dz,
						&tape->dy,
						&tape->dcontext,
						&tape->dQ,
						&tape->dK,
						&tape->dV,
						&tape->narrow_x,
						&tape->narrow_y,
						&tape->narrow_context,
						&tape->narrow_d,
						&tape->dup,
						&tape->dgate,
						&tape->cosine,
						&tape->sine,
						&tape->negative_sine};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		fp_matrix_free(tape->be, all[i]);
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

/* The rows in use of one of the tape's matrices. */
static fp_matrix used(const fp_tape *tape, fp_matrix part)
{
	return fp_matrix_rows(part, 0, tape->sequences * tape->length);
}

/* The rows in use of `narrow` where the tape has it, else X. */
static fp_matrix narrow_or(const fp_tape *tape, fp_matrix narrow, fp_matrix X)
{
	return fp_matrix_is_absent(narrow) ? X : used(tape, narrow);
}

/* *out ← what products take in the place of X: its copy in their type where the tape has room for one. */
static fp_status narrow(fp_tape *tape, fp_matrix X, fp_matrix room, fp_matrix *out)
{
	*out = narrow_or(tape, room, X);
	return fp_matrix_is_absent(room) ? FP_OK : tape->be->memory->copy(tape->be, *out, X);
}

/* The view of a matrix of heads with one head in a row. */
static fp_matrix split_heads(fp_matrix X, int64_t heads)
{
	return fp_matrix_reshape(X, X.rows * heads, X.cols / heads);
}

static fp_status normalise(const fp_layer *layer, int which, fp_matrix X, fp_matrix Y)
{
	fp_backend *be = fp_model_backend(layer->model);
	const fp_model_config *c = fp_model_get_config(layer->model);
	return be->transformer->norm(be, c->norm, X, layer->norm_weight[which], layer->norm_bias[which], c->norm_epsilon,
								 Y);
}

static fp_status normalise_backward(const fp_layer *layer, int which, fp_matrix X, fp_matrix gradient)
{
	fp_backend *be = fp_model_backend(layer->model);
	const fp_model_config *c = fp_model_get_config(layer->model);
	return be->gradients->norm_backward(be, c->norm, X, layer->norm_weight[which], c->norm_epsilon, gradient, gradient);
}

static fp_status place_heads(const fp_layer *layer, fp_tape *tape, fp_matrix norm, int64_t heads, fp_matrix raw,
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
		FP_TRY(be->transformer->rotate(be, fp_matrix_rows(tape->cosine, 0, tape->length),
									   fp_matrix_rows(tape->sine, 0, tape->length), heads, X));
cleanup:
	return status;
}

static fp_status place_heads_backward(const fp_layer *layer, fp_tape *tape, fp_matrix norm, int64_t heads,
									  fp_matrix raw, fp_matrix gradient)
{
	fp_status status = FP_OK;
	fp_backend *be = tape->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	if (c->rotary)
		FP_TRY(be->transformer->rotate(be, fp_matrix_rows(tape->cosine, 0, tape->length),
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
	fp_matrix middle = used(tape, tape->middle), context = used(tape, tape->context);
	fp_attention_shape shape = fp_layer_attention_shape(layer, tape->sequences, tape->length);
	fp_matrix x = attention_input(layer, tape);
	if (c->pre_norm)
		FP_TRY(normalise(layer, 0, tape->input, x));
	FP_TRY(narrow(tape, x, tape->narrow_x, &x));
	FP_TRY(fp_linear(be, x, layer->weight[FP_QUERY], layer->bias[FP_QUERY], false, Q));
	FP_TRY(fp_linear(be, x, layer->weight[FP_KEY], layer->bias[FP_KEY], false, K));
	FP_TRY(fp_linear(be, x, layer->weight[FP_VALUE], layer->bias[FP_VALUE], false, V));
	FP_TRY(place_heads(layer, tape, layer->query_norm, c->heads, c->head_norm ? used(tape, tape->raw_Q) : Q, Q));
	FP_TRY(place_heads(layer, tape, layer->key_norm, c->kv_heads, c->head_norm ? used(tape, tape->raw_K) : K, K));
	FP_TRY(be->transformer->attention(be, &shape, Q, K, V, context));
	FP_TRY(narrow(tape, context, tape->narrow_context, &context));
	FP_TRY(be->memory->copy(be, middle, tape->input));
	FP_TRY(fp_linear(be, context, layer->weight[FP_OUTPUT], layer->bias[FP_OUTPUT], true, middle));
cleanup:
	return status;
}

static fp_status forward_inner(const fp_layer *layer, fp_tape *tape)
{
	fp_status status;
	fp_backend *be = tape->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	fp_matrix y = used(tape, tape->y), up = used(tape, tape->up), z = used(tape, tape->z), end = used(tape, tape->end);
	fp_matrix middle = used(tape, tape->middle), input;
	FP_TRY(normalise(layer, c->pre_norm ? 1 : 0, middle, y));
	FP_TRY(narrow(tape, y, tape->narrow_y, &input));
	FP_TRY(fp_linear(be, input, layer->weight[FP_UP], layer->bias[FP_UP], false, up));
	if (c->gated) {
		fp_matrix gate = used(tape, tape->gate);
		FP_TRY(fp_linear(be, input, layer->weight[FP_GATE], layer->bias[FP_GATE], false, gate));
		FP_TRY(be->transformer->activate_gated(be, c->activation, gate, up, z));
	} else {
		FP_TRY(be->transformer->activate(be, c->activation, up, z));
	}
	FP_TRY(be->memory->copy(be, end, c->pre_norm ? middle : y));
	FP_TRY(fp_linear(be, z, layer->weight[FP_DOWN], layer->bias[FP_DOWN], true, end));
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
		FP_TRY(normalise(layer, 1, used(tape, tape->end), used(tape, tape->output)));
	*output = used(tape, pre_norm ? tape->end : tape->output);
cleanup:
	return status;
}

/* What a pass is made for, besides the gradient by the layer's input. Either may be NULL. */
typedef struct wanted {
	fp_layer_matrices *gradients; /* by weights and biases */
	fp_matrix *energies;          /* of the gradients by the operators' outputs, by role */
	bool add;                     /* to what is there */
} wanted;

/* What is wanted of one operator, from the gradient by its output. */
static fp_status own_gradients(const fp_layer *layer, fp_backend *be, fp_role role, fp_matrix gradient, fp_matrix input,
							   const wanted *want)
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

/* An operator's own gradients, and the one by its input: dinput ← gradient·weight + β·dinput. */
static fp_status operator_backward(const fp_layer *layer, fp_backend *be, fp_role role, fp_matrix gradient,
								   fp_matrix input, const wanted *want, float beta, fp_matrix dinput)
{
	fp_status status;
	FP_TRY(own_gradients(layer, be, role, gradient, input, want));
	FP_TRY(be->linear->gemm(be, 1, gradient, FP_PLAIN, layer->weight[role], FP_PLAIN, beta, dinput));
cleanup:
	return status;
}

/* From the gradient d by the block's sum to dy, the one by the block's input (past its norm). */
static fp_status backward_inner(const fp_layer *layer, fp_tape *tape, fp_matrix d, const wanted *want)
{
	fp_status status;
	fp_backend *be = tape->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	fp_matrix up = used(tape, tape->up), dz = used(tape, tape->dz), dy = used(tape, tape->dy);
	fp_matrix y = narrow_or(tape, tape->narrow_y, used(tape, tape->y)), dup = narrow_or(tape, tape->dup, up);
	FP_TRY(narrow(tape, d, tape->narrow_d, &d));
	FP_TRY(operator_backward(layer, be, FP_DOWN, d, used(tape, tape->z), want, 0, dz));
	if (c->gated) {
		fp_matrix gate = used(tape, tape->gate), dgate = narrow_or(tape, tape->dgate, gate);
		FP_TRY(be->gradients->activate_gated_backward(be, c->activation, gate, up, dz, dgate, dup));
		FP_TRY(operator_backward(layer, be, FP_GATE, dgate, y, want, 0, dy));
	} else {
		FP_TRY(be->gradients->activate_backward(be, c->activation, up, dz, dup));
	}
	FP_TRY(operator_backward(layer, be, FP_UP, dup, y, want, c->gated ? 1.0F : 0.0F, dy));
cleanup:
	return status;
}

/* dx ← the gradient by the block's input (past its norm), where it is wanted. */
static fp_status backward_attention(const fp_layer *layer, fp_tape *tape, fp_matrix d, const wanted *want, fp_matrix dx)
{
	fp_status status;
	fp_backend *be = tape->be;
	const fp_model_config *c = fp_model_get_config(layer->model);
	fp_attention_shape shape = fp_layer_attention_shape(layer, tape->sequences, tape->length);
	fp_matrix context = used(tape, tape->context), dcontext = used(tape, tape->dcontext);
	fp_matrix dQ = used(tape, tape->dQ), dK = used(tape, tape->dK), dV = used(tape, tape->dV);
	fp_matrix x = narrow_or(tape, tape->narrow_x, attention_input(layer, tape));
	FP_TRY(narrow(tape, d, tape->narrow_d, &d));
	FP_TRY(
		operator_backward(layer, be, FP_OUTPUT, d, narrow_or(tape, tape->narrow_context, context), want, 0, dcontext));
	FP_TRY(be->gradients->attention_backward(be, &shape, used(tape, tape->Q), used(tape, tape->K), used(tape, tape->V),
											 context, dcontext, dQ, dK, dV));
	FP_TRY(place_heads_backward(layer, tape, layer->query_norm, c->heads, c->head_norm ? used(tape, tape->raw_Q) : dQ,
								dQ));
	FP_TRY(place_heads_backward(layer, tape, layer->key_norm, c->kv_heads, c->head_norm ? used(tape, tape->raw_K) : dK,
								dK));
	FP_TRY(own_gradients(layer, be, FP_QUERY, dQ, x, want));
	FP_TRY(own_gradients(layer, be, FP_KEY, dK, x, want));
	FP_TRY(own_gradients(layer, be, FP_VALUE, dV, x, want));
	if (fp_matrix_is_absent(dx))
		goto cleanup;
	FP_TRY(be->linear->gemm(be, 1, dQ, FP_PLAIN, layer->weight[FP_QUERY], FP_PLAIN, 0, dx));
	FP_TRY(be->linear->gemm(be, 1, dK, FP_PLAIN, layer->weight[FP_KEY], FP_PLAIN, 1, dx));
	FP_TRY(be->linear->gemm(be, 1, dV, FP_PLAIN, layer->weight[FP_VALUE], FP_PLAIN, 1, dx));
cleanup:
	return status;
}

/* *d ← the gradient by the sum after the attention block, from that by the layer's output. */
static fp_status backward_to_middle(const fp_layer *layer, fp_tape *tape, const wanted *want, fp_matrix *d)
{
	fp_status status;
	fp_backend *be = tape->be;
	bool pre_norm = fp_model_get_config(layer->model)->pre_norm;
	fp_matrix dy = used(tape, tape->dy), middle = used(tape, tape->middle);
	*d = used(tape, pre_norm ? tape->end : tape->output);
	if (!pre_norm)
		FP_TRY(normalise_backward(layer, 1, used(tape, tape->end), *d));
	FP_TRY(backward_inner(layer, tape, *d, want));
	if (pre_norm)
		FP_TRY(normalise_backward(layer, 1, middle, dy));
	FP_TRY(be->linear->axpby(be, 1, dy, 1, *d));
	if (!pre_norm)
		FP_TRY(normalise_backward(layer, 0, middle, *d));
cleanup:
	return status;
}

static fp_status backward(const fp_layer *layer, fp_tape *tape, const wanted *want)
{
	fp_status status;
	fp_matrix d;
	FP_PRODUCTS_FOR(tape->be, FP_USE_ACTIVATION);
	FP_TRY(backward_to_middle(layer, tape, want, &d));
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
	FP_TRY(backward_to_middle(layer, tape, &(wanted){0}, &d));
	FP_TRY(backward_attention(layer, tape, d, &(wanted){0}, dx));
	if (fp_model_get_config(layer->model)->pre_norm)
		FP_TRY(normalise_backward(layer, 0, tape->input, dx));
	FP_TRY(be->linear->axpby(be, 1, dx, 1, d));
	*dinput = d;
cleanup:
	return status;
}
