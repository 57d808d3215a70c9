/* SPDX-License-Identifier: Apache-2.0 */
/* fold.c: folds a basis into weights (basis.h has the formulas), and gives the tensors that it changes. */
#include "base/memory.h"
#include "base/numbers.h"
#include "model/basis.h"
#include "model/model_parts.h"

enum { BLOCK_ROWS = 1024 };

fp_status fp_turn_rows(const fp_basis *basis, fp_matrix X)
{
	fp_backend *be = basis->be;
	fp_matrix product = {0};
	FP_PRODUCTS_FOR(be, FP_USE_REFINEMENT);
	fp_status status = FP_OK;
	if (!basis->turned)
		return FP_OK;
	FP_TRY(fp_matrix_new(be, &product, fp_smaller(X.rows, BLOCK_ROWS), X.cols, FP_F32));
	for (int64_t first = 0; first < X.rows; first += BLOCK_ROWS) {
		int64_t rows = fp_smaller(X.rows - first, BLOCK_ROWS);
		fp_matrix part = fp_matrix_rows(X, first, rows), turned = fp_matrix_rows(product, 0, rows);
		FP_TRY(be->linear->gemm(be, 1, part, FP_PLAIN, basis->R, FP_PLAIN, 0, turned));
		FP_TRY(be->memory->copy(be, part, turned));
	}
cleanup:
	fp_matrix_free(be, &product);
	return status;
}

fp_status fp_turn_head_rows(fp_backend *be, fp_matrix M, int64_t shared, fp_matrix X, fp_matrix Y)
{
	int64_t n = M.cols, count = M.rows / n;
	fp_blocks blocks = {count, n * M.stride, shared * n * X.stride, shared * n * Y.stride};
	fp_status status = FP_OK;
	for (int64_t i = 0; i < shared && status == FP_OK; i++)
		status = be->linear->gemm_blocks(be, 1, fp_matrix_rows(M, 0, n), FP_TRANSPOSED, fp_matrix_rows(X, i * n, n),
										 FP_PLAIN, 0, fp_matrix_rows(Y, i * n, n), blocks);
	return status;
}

fp_status fp_turn_head_columns(fp_backend *be, fp_matrix M, int64_t shared, fp_matrix X, fp_matrix Y)
{
	int64_t n = M.cols, count = M.rows / n;
	fp_blocks blocks = {count, shared * n, n * M.stride, shared * n};
	fp_status status = FP_OK;
	for (int64_t i = 0; i < shared && status == FP_OK; i++)
		status = be->linear->gemm_blocks(be, 1, fp_matrix_cols(X, i * n, n), FP_PLAIN, fp_matrix_rows(M, 0, n),
										 FP_PLAIN, 0, fp_matrix_cols(Y, i * n, n), blocks);
	return status;
}

/* An operator on its way: W holds it, T is space of the same shape. */
typedef struct folded {
	fp_matrix W, T;
} folded;

static void swap(folded *f)
{
	fp_matrix W = f->W;
	f->W = f->T;
	f->T = W;
}

/* The norm that an operator reads. */
static int norm_of(const fp_layer *layer, int number)
{
	const fp_model_config *c = &layer->model->config;
	fp_role role = fp_operator_role(number);
	bool feeds = role == FP_GATE || role == FP_UP;
	return feeds && !(c->parallel && c->shared_norm) ? FP_NORM_FEED : FP_NORM_ATTENTION;
}

/* b ← b + Wβ, W ← W diag(γ) R */
static fp_status fold_reader(fp_layer *layer, const fp_basis *basis, int number, folded *f)
{
	fp_backend *be = basis->be;
	int norm = norm_of(layer, number);
	fp_matrix weight = layer->norm_weight[norm], bias = layer->norm_bias[norm];
	fp_status status = FP_OK;
	if (!fp_matrix_is_absent(bias))
		FP_TRY(be->linear->gemm(be, 1, bias, FP_PLAIN, f->W, FP_TRANSPOSED, 1, layer->bias[number]));
	if (!fp_matrix_is_absent(weight))
		FP_TRY(be->linear->scale_columns(be, weight, f->W, f->W));
	if (basis->turned) {
		FP_TRY(be->linear->gemm(be, 1, f->W, FP_PLAIN, basis->R, FP_PLAIN, 0, f->T));
		swap(f);
	}
cleanup:
	return status;
}

/* W ← RᵀW, b ← bR */
static fp_status fold_writer(fp_layer *layer, const fp_basis *basis, int number, folded *f)
{
	fp_backend *be = basis->be;
	fp_status status;
	if (!basis->turned)
		return FP_OK;
	FP_TRY(be->linear->gemm(be, 1, basis->R, FP_TRANSPOSED, f->W, FP_PLAIN, 0, f->T));
	swap(f);
	if (!fp_matrix_is_absent(layer->bias[number]))
		FP_TRY(fp_turn_rows(basis, layer->bias[number]));
cleanup:
	return status;
}

/* W ← MᵀW and b ← bM for queries, keys or values */
static fp_status fold_heads(fp_layer *layer, fp_matrix M, fp_role role, folded *f)
{
	fp_backend *be = layer->model->be;
	const fp_model_config *c = &layer->model->config;
	int64_t shared = role == FP_QUERY ? c->heads / c->kv_heads : 1;
	fp_matrix bias = layer->bias[role], turned = {0};
	fp_status status;
	FP_TRY(fp_turn_head_rows(be, M, shared, f->W, f->T));
	swap(f);
	if (!fp_matrix_is_absent(bias)) {
		FP_TRY(fp_matrix_new(be, &turned, 1, bias.cols, FP_F32));
		FP_TRY(fp_turn_head_columns(be, M, shared, bias, turned));
		FP_TRY(be->memory->copy(be, bias, turned));
	}
cleanup:
	fp_matrix_free(be, &turned);
	return status;
}

/* The order of the inner channels: of rows and biases of gate and up, of columns of down. */
static fp_status fold_order(fp_layer *layer, const int32_t *order, int number, folded *f)
{
	fp_backend *be = layer->model->be;
	fp_matrix bias = layer->bias[number], ordered = {0};
	fp_status status;
	if (fp_operator_role(number) == FP_DOWN) {
		FP_TRY(be->linear->permute_columns(be, order, f->W, f->T));
	} else {
		FP_TRY(be->linear->permute_rows(be, order, f->W, f->T));
		if (!fp_matrix_is_absent(bias)) {
			FP_TRY(fp_matrix_new(be, &ordered, 1, bias.cols, FP_F32));
			FP_TRY(be->linear->permute_columns(be, order, bias, ordered));
			FP_TRY(be->memory->copy(be, bias, ordered));
		}
	}
	swap(f);
cleanup:
	fp_matrix_free(be, &ordered);
	return status;
}

static fp_status fold_operator(fp_layer *layer, const fp_basis *basis, int number)
{
	fp_backend *be = basis->be;
	fp_role role = fp_operator_role(number);
	const fp_model_config *c = &layer->model->config;
	const fp_layer_basis *own = &basis->layers[layer->index];
	fp_matrix held = layer->weight[number], space[2] = {{0}, {0}};
	bool inside = role == FP_QUERY_B || role == FP_KEY_VALUE_B; /* what reads latents */
	bool stream = !fp_matrix_is_absent(basis->R) && !inside, writes = role == FP_OUTPUT || role == FP_DOWN;
	fp_matrix M = role == FP_VALUE || role == FP_OUTPUT ? own->value : own->query;
	bool heads = fp_role_group(role) <= fp_role_group(FP_OUTPUT) && !fp_matrix_is_absent(M);
	bool orders = fp_role_group(role) > fp_role_group(FP_OUTPUT) && own->inner;
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(held) || !(stream || heads || orders))
		return FP_OK;
	for (int i = 0; i < 2; i++)
		FP_TRY(fp_matrix_new(be, &space[i], held.rows, held.cols, FP_F32));
	folded f = {space[0], space[1]};
	FP_TRY(be->memory->copy(be, f.W, held));
	if (stream)
		FP_TRY(writes ? fold_writer(layer, basis, number, &f) : fold_reader(layer, basis, number, &f));
	if (heads && role == FP_OUTPUT) {
		FP_TRY(fp_turn_head_columns(be, M, c->heads / c->kv_heads, f.W, f.T));
		swap(&f);
	} else if (heads) {
		FP_TRY(fold_heads(layer, M, role, &f));
	}
	if (orders)
		FP_TRY(fold_order(layer, own->inner + fp_first_channel(layer->model, layer->index, fp_operator_expert(number)),
						  number, &f));
	FP_TRY(be->memory->copy(be, held, f.W));
cleanup:
	fp_matrix_free(be, &space[0]);
	fp_matrix_free(be, &space[1]);
	return status;
}

/* The router or a gate: W ← W diag(γ) R */
static fp_status fold_router(fp_layer *layer, const fp_basis *basis, fp_matrix W)
{
	fp_backend *be = basis->be;
	fp_matrix norm = layer->norm_weight[FP_NORM_FEED];
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(W) || fp_matrix_is_absent(basis->R))
		return FP_OK;
	if (!fp_matrix_is_absent(norm))
		FP_TRY(be->linear->scale_columns(be, norm, W, W));
	FP_TRY(fp_turn_rows(basis, W));
cleanup:
	return status;
}

fp_status fp_layer_change_basis(fp_layer *layer, const fp_basis *basis)
{
	fp_backend *be = basis->be;
	FP_PRODUCTS_FOR(be, FP_USE_REFINEMENT);
	fp_status status = FP_OK;
	for (int i = 0; i < fp_model_operators(layer->model); i++)
		FP_TRY(fold_operator(layer, basis, i));
	FP_TRY(fold_router(layer, basis, layer->router));
	FP_TRY(fold_router(layer, basis, layer->shared_gate));
	for (int i = FP_NORM_ATTENTION; i <= FP_NORM_FEED && !fp_matrix_is_absent(basis->R); i++) {
		if (!fp_matrix_is_absent(layer->norm_weight[i]))
			FP_TRY(be->memory->fill(be, layer->norm_weight[i], 1));
		if (!fp_matrix_is_absent(layer->norm_bias[i]))
			FP_TRY(be->memory->fill(be, layer->norm_bias[i], 0));
	}
cleanup:
	return status;
}

int64_t fp_layer_change_basis_bytes(const fp_model *model, int64_t index)
{
	int64_t most = 0;
	for (int i = 0; i < fp_model_operators(model); i++) {
		const fp_tensor_info *tensor = fp_model_operator(model, index, i);
		most = fp_larger(most, tensor ? tensor->elements : 0);
	}
	return 2 * most * (int64_t)sizeof(float);
}

/* The final norm's bias ← (β/γ)R. Where γ is zero, β is too (fp_basis_freedom_of() sees to that). */
static fp_status fold_final_bias(fp_model *model)
{
	fp_backend *be = model->be;
	int64_t width = model->config.hidden;
	float *weight = NULL, *bias = NULL;
	fp_status status;
	FP_TRY(FP_NEW(be->ctx, &weight, width));
	FP_TRY(FP_NEW(be->ctx, &bias, width));
	FP_TRY(be->memory->download(be, weight, FP_F32, width, model->norm_weight));
	FP_TRY(be->memory->download(be, bias, FP_F32, width, model->norm_bias));
	FP_TRY(be->memory->synchronize(be));
	for (int64_t j = 0; j < width; j++)
		bias[j] = weight[j] != 0 ? bias[j] / weight[j] : 0;
	FP_TRY(be->memory->upload(be, model->norm_bias, bias, FP_F32, width));
	FP_TRY(fp_turn_rows(model->basis, model->norm_bias));
	FP_TRY(be->memory->synchronize(be)); /* before `bias` is freed */
cleanup:
	fp_free(weight);
	fp_free(bias);
	return status;
}

fp_status fp_head_change_basis(fp_model *model)
{
	fp_backend *be = model->be;
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(model->basis->R))
		return FP_OK;
	if (!fp_matrix_is_absent(model->norm_weight)) {
		FP_TRY(be->linear->scale_columns(be, model->norm_weight, model->head_weight, model->head_weight));
		if (!fp_matrix_is_absent(model->norm_bias))
			FP_TRY(fold_final_bias(model));
		FP_TRY(be->memory->fill(be, model->norm_weight, 1));
	}
	FP_TRY(fp_turn_rows(model->basis, model->head_weight));
cleanup:
	return status;
}

/* Gives a matrix as the bytes of `tensor`. The weight of a norm is stored less one if the model adds one. */
static fp_status give(const fp_model *model, const fp_tensor_info *tensor, bool norm, fp_matrix matrix,
					  fp_tensor_sink sink, void *data)
{
	fp_backend *be = model->be;
	fp_matrix stored = {0};
	char *bytes = NULL;
	fp_status status;
	if (norm && model->config.norm_plus_one) {
		FP_TRY(fp_matrix_new(be, &stored, matrix.rows, matrix.cols, FP_F32));
		FP_TRY(be->memory->fill(be, stored, 1));
		FP_TRY(be->linear->axpby(be, 1, matrix, -1, stored));
		matrix = stored;
	}
	FP_TRY(FP_NEW(be->ctx, &bytes, tensor->bytes));
	FP_TRY(be->memory->download(be, bytes, tensor->dtype, matrix.cols, matrix));
	FP_TRY(be->memory->synchronize(be));
	FP_TRY(sink(data, tensor, bytes));
cleanup:
	fp_matrix_free(be, &stored);
	fp_free(bytes);
	return status;
}

fp_status fp_layer_give_vectors(const fp_layer *layer, fp_tensor_sink sink, void *data)
{
	fp_layer source = *layer;
	fp_status status = FP_OK;
	for (int i = 0; i < fp_layer_part_count(layer->model) && status == FP_OK; i++) {
		fp_layer_part part = fp_layer_part_at(&source, i);
		if (part.tensor && !part.is_operator)
			status = give(layer->model, part.tensor, part.is_norm, *part.matrix, sink, data);
	}
	return status;
}

fp_status fp_layer_give_operator(const fp_layer *layer, int number, fp_tensor_sink sink, void *data)
{
	const fp_tensor_info *tensor = fp_model_operator(layer->model, layer->index, number);
	return tensor ? give(layer->model, tensor, false, layer->weight[number], sink, data) : FP_OK;
}

fp_status fp_layer_round_vectors(fp_layer *layer)
{
	fp_backend *be = layer->model->be;
	fp_matrix narrow = {0};
	fp_status status = FP_OK;
	for (int i = 0; i < fp_layer_part_count(layer->model); i++) {
		fp_layer_part part = fp_layer_part_at(layer, i);
		/* the weights of norms are the checkpoint's, or all 1 */
		if (!part.tensor || part.is_operator || part.is_norm || part.tensor->dtype == FP_F32)
			continue;
		FP_TRY(fp_matrix_new(be, &narrow, part.matrix->rows, part.matrix->cols, part.tensor->dtype));
		FP_TRY(be->memory->copy(be, narrow, *part.matrix));
		FP_TRY(be->memory->copy(be, *part.matrix, narrow));
		fp_matrix_free(be, &narrow);
	}
cleanup:
	fp_matrix_free(be, &narrow);
	return status;
}

/* Embeddings or positions. */
static fp_status give_turned(fp_model *model, const fp_tensor_info *tensor, fp_tensor_sink sink, void *data)
{
	fp_matrix rows = {0};
	fp_status status;
	FP_TRY(fp_model_upload(model, tensor, &rows));
	FP_TRY(fp_turn_rows(model->basis, rows));
	FP_TRY(give(model, tensor, false, rows, sink, data));
cleanup:
	fp_matrix_free(model->be, &rows);
	return status;
}

fp_status fp_model_give_outer(fp_model *model, const fp_tensor_info *head, fp_tensor_sink sink, void *data)
{
	fp_status status;
	if (!model->basis || fp_matrix_is_absent(model->basis->R))
		return FP_OK;
	FP_TRY(give_turned(model, model->embedding, sink, data));
	if (model->positions)
		FP_TRY(give_turned(model, model->positions, sink, data));
	FP_TRY(fp_model_load_head(model));
	if (model->final_weight)
		FP_TRY(give(model, model->final_weight, true, model->norm_weight, sink, data));
	if (model->final_bias)
		FP_TRY(give(model, model->final_bias, false, model->norm_bias, sink, data));
	FP_TRY(give(model, head, false, model->head_weight, sink, data));
cleanup:
	fp_model_drop_head(model);
	return status;
}
