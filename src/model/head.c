/* SPDX-License-Identifier: Apache-2.0 */
/*
 * head.c: turns the hidden states after the last layer into cross-entropies and their gradient.
 *
 *     logits [rows × vocabulary] = cap(scale · project_out(norm(hidden)) headᵀ + bias)
 *
 * Rows are processed in blocks, because the logits of all rows at once would need too much memory
 * (2048 × 50272 floats are 400 MB).
 */
#include "backend/work_space.h"
#include "base/memory.h"
#include "model/model_parts.h"

#include <math.h>

enum { LOGIT_BYTES = 96 << 20, MINIMUM_ROWS = 64, MAXIMUM_ROWS = 512 };

static int64_t block_rows(const fp_model *model)
{
	int64_t rows = LOGIT_BYTES / ((int64_t)sizeof(float) * model->config.vocabulary);
	if (rows < MINIMUM_ROWS)
		return MINIMUM_ROWS;
	return rows < MAXIMUM_ROWS ? rows : MAXIMUM_ROWS;
}

fp_status fp_model_load_head(fp_model *model)
{
	if (model->head_loaded)
		return FP_OK;
	fp_backend *be = model->be;
	const fp_model_config *c = &model->config;
	fp_status status = FP_OK;
	int64_t rows = block_rows(model);
	const struct {
		const fp_tensor_info *tensor;
		fp_matrix *matrix;
	} parts[] = {
		{model->final_weight, &model->norm_weight},      {model->final_bias, &model->norm_bias},
		{model->project_out, &model->output_projection}, {model->head, &model->head_weight},
		{model->head_bias, &model->head_bias_row},
	};
	for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
		if (parts[i].tensor) {
			FP_TRY(fp_model_upload(model, parts[i].tensor, parts[i].matrix));
			if (parts[i].tensor == model->final_weight)
				FP_TRY(fp_model_finish_norm(model, *parts[i].matrix));
		}
	if (model->basis)
		FP_TRY(fp_head_change_basis(model));
	if (c->final_norm)
		FP_TRY(fp_matrix_new(be, &model->normalised, rows, c->hidden, FP_F32));
	if (model->project_out)
		FP_TRY(fp_matrix_new(be, &model->projected, rows, c->embedding, FP_F32));
	FP_TRY(fp_matrix_new(be, &model->losses, 1, rows, FP_F32));
	model->head_loaded = true;
cleanup:
	if (status != FP_OK)
		fp_model_drop_head(model);
	return status;
}

static float logit_scale(const fp_model_config *c)
{
	return c->logit_scale > 0 ? c->logit_scale : 1.0F;
}

/* At most block_rows() rows. */
static fp_status block_logits(fp_model *model, fp_matrix hidden, fp_matrix logits)
{
	fp_backend *be = model->be;
	const fp_model_config *c = &model->config;
	fp_status status = FP_OK;
	fp_matrix features = hidden;
	if (c->final_norm) {
		fp_matrix normalised = fp_matrix_rows(model->normalised, 0, hidden.rows);
		FP_TRY(be->transformer->norm(be, c->norm, features, model->norm_weight, model->norm_bias, c->norm_epsilon,
									 normalised));
		features = normalised;
	}
	if (model->project_out) {
		fp_matrix projected = fp_matrix_rows(model->projected, 0, hidden.rows);
		FP_TRY(fp_linear(be, features, model->output_projection, (fp_matrix){0}, false, projected));
		features = projected;
	}
	const fp_held *held = &model->held_head;
	FP_TRY(fp_matrix_is_absent(held->values)
			   ? fp_linear(be, features, model->head_weight, (fp_matrix){0}, false, logits)
			   : fp_multiply_held(be, 1, &held, features, false, &logits));
	if (logit_scale(c) != 1)
		FP_TRY(be->linear->axpby(be, logit_scale(c), logits, 0, logits));
	if (model->head_bias)
		FP_TRY(be->transformer->add_bias(be, model->head_bias_row, logits));
	if (c->logit_cap > 0)
		FP_TRY(be->transformer->soft_cap(be, c->logit_cap, logits));
cleanup:
	return status;
}

/* On first use. */
static fp_status allocate_logits(fp_model *model, fp_matrix *logits)
{
	if (!fp_matrix_is_absent(*logits))
		return FP_OK;
	return fp_matrix_new(model->be, logits, block_rows(model), model->config.vocabulary, FP_F32);
}

fp_status fp_model_logits(fp_model *model, fp_matrix hidden, fp_matrix *logits)
{
	fp_status status;
	FP_REQUIRE(model->be, hidden.cols == model->config.hidden && hidden.rows <= block_rows(model));
	FP_TRY(fp_model_load_head(model));
	FP_TRY(allocate_logits(model, &model->logits));
	*logits = fp_matrix_rows(model->logits, 0, hidden.rows);
	FP_TRY(block_logits(model, hidden, *logits));
cleanup:
	return status;
}

int64_t fp_model_logit_rows(const fp_model *model)
{
	return block_rows(model);
}

int64_t fp_model_head_bytes(const fp_model *model)
{
	const fp_model_config *c = &model->config;
	int64_t projection = model->project_out ? c->hidden * c->embedding : 0;
	int64_t features = (c->final_norm ? c->hidden : 0) + (model->project_out ? c->embedding : 0);
	int64_t block = block_rows(model) * ((c->logit_cap > 0 ? 2 : 1) * c->vocabulary + features + 1);
	int64_t product =
		fp_product_bytes(model->be, FP_USE_ACTIVATION, block_rows(model) * c->vocabulary, c->vocabulary * c->embedding);
	return (c->vocabulary * c->embedding + projection + 2 * c->hidden + block) * (int64_t)sizeof(float) + product;
}

void fp_model_drop_head(fp_model *model)
{
	fp_matrix *all[] = {&model->norm_weight,   &model->norm_bias,   &model->output_projection, &model->head_weight,
						&model->head_bias_row, &model->normalised,  &model->projected,         &model->logits,
						&model->losses,        &model->dense_logits};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		fp_matrix_free(model->be, all[i]);
	fp_held_free(model->be, &model->held_head);
	model->head_loaded = false;
}

static fp_status check_losses(const fp_model *model, const float *losses, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		if (!isfinite(losses[i]))
			return fp_fail(model->be->ctx, FP_ERROR_NUMERIC,
						   "%s: the loss of token %lld of a batch is not finite: its logits contain NaN or infinity",
						   fp_checkpoint_directory(model->checkpoint), (long long)i);
	return FP_OK;
}

/* A block's losses and most likely tokens. */
static fp_status block_scores(fp_model *model, fp_matrix logits, const int32_t *targets, float *losses, int32_t *argmax)
{
	fp_backend *be = model->be;
	fp_matrix row_losses = fp_matrix_cols(model->losses, 0, logits.rows);
	fp_status status = be->transformer->cross_entropy(be, logits, targets, row_losses, argmax);
	return status == FP_OK ? be->memory->download(be, losses, FP_F32, logits.rows, row_losses) : status;
}

fp_status fp_model_loss(fp_model *model, fp_matrix hidden, const int32_t *targets, float *losses, int32_t *argmax)
{
	fp_backend *be = model->be;
	fp_status status;
	FP_REQUIRE(be, hidden.cols == model->config.hidden);
	FP_TRY(fp_model_load_head(model));
	int64_t block = block_rows(model);
	FP_TRY(allocate_logits(model, &model->logits));
	for (int64_t first = 0; first < hidden.rows; first += block) {
		int64_t rows = hidden.rows - first < block ? hidden.rows - first : block;
		fp_matrix logits = fp_matrix_rows(model->logits, 0, rows);
		FP_TRY(block_logits(model, fp_matrix_rows(hidden, first, rows), logits));
		FP_TRY(block_scores(model, logits, targets + first, losses + first, argmax ? argmax + first : NULL));
	}
	FP_TRY(be->memory->synchronize(be));
	FP_TRY(check_losses(model, losses, hidden.rows));
cleanup:
	return status;
}

fp_status fp_model_divergence(fp_model *dense, fp_matrix dense_hidden, fp_model *pruned, fp_matrix pruned_hidden,
							  const int32_t *targets, const fp_divergence_rows *out)
{
	fp_backend *be = pruned->be;
	fp_status status;
	int64_t all = pruned_hidden.rows;
	FP_REQUIRE(be, dense->be == be && dense->config.vocabulary == pruned->config.vocabulary);
	FP_REQUIRE(be, dense_hidden.cols == dense->config.hidden && pruned_hidden.cols == pruned->config.hidden);
	FP_REQUIRE(be, dense_hidden.rows == all);
	FP_TRY(fp_model_load_head(dense));
	FP_TRY(fp_model_load_head(pruned));
	FP_TRY(allocate_logits(pruned, &pruned->logits));
	FP_TRY(allocate_logits(pruned, &pruned->dense_logits));
	int64_t block = block_rows(pruned);
	for (int64_t first = 0; first < all; first += block) {
		int64_t rows = all - first < block ? all - first : block;
		fp_matrix p = fp_matrix_rows(pruned->dense_logits, 0, rows), q = fp_matrix_rows(pruned->logits, 0, rows);
		fp_matrix kl = fp_matrix_cols(pruned->losses, 0, rows);
		FP_TRY(block_logits(dense, fp_matrix_rows(dense_hidden, first, rows), p));
		FP_TRY(block_logits(pruned, fp_matrix_rows(pruned_hidden, first, rows), q));
		FP_TRY(block_scores(dense, p, targets + first, out->losses[0] + first, out->argmax[0] + first));
		FP_TRY(block_scores(pruned, q, targets + first, out->losses[1] + first, out->argmax[1] + first));
		FP_TRY(be->transformer->divergence(be, p, q, kl));
		FP_TRY(be->memory->download(be, out->kl + first, FP_F32, rows, kl));
	}
	FP_TRY(be->memory->synchronize(be));
	FP_TRY(check_losses(dense, out->losses[0], all));
	FP_TRY(check_losses(pruned, out->losses[1], all));
	FP_TRY(check_losses(pruned, out->kl, all));
cleanup:
	return status;
}

/* gradient ← dhidden from dlogits, for at most block_rows() rows and right after their block_logits(). */
static fp_status block_backward(fp_model *model, fp_matrix hidden, fp_matrix dlogits, fp_matrix gradient)
{
	fp_backend *be = model->be;
	const fp_model_config *c = &model->config;
	fp_status status = FP_OK;
	fp_matrix dfeatures = gradient;
	if (model->project_out)
		dfeatures = fp_matrix_rows(model->projected, 0, hidden.rows);
	FP_TRY(be->linear->gemm(be, logit_scale(c), dlogits, FP_PLAIN, model->head_weight, FP_PLAIN, 0, dfeatures));
	if (model->project_out)
		FP_TRY(be->linear->gemm(be, 1, dfeatures, FP_PLAIN, model->output_projection, FP_PLAIN, 0, gradient));
	if (c->final_norm)
		FP_TRY(
			be->gradients->norm_backward(be, c->norm, hidden, model->norm_weight, c->norm_epsilon, gradient, gradient));
cleanup:
	return status;
}

fp_status fp_model_loss_gradient(fp_model *model, fp_matrix hidden, const int32_t *targets, fp_matrix gradient)
{
	fp_backend *be = model->be;
	fp_status status;
	FP_REQUIRE(be, hidden.cols == model->config.hidden && gradient.cols == hidden.cols && gradient.rows == hidden.rows);
	FP_TRY(fp_model_load_head(model));
	int64_t block = block_rows(model);
	float cap = model->config.logit_cap;
	FP_TRY(allocate_logits(model, &model->logits));
	if (cap > 0)
		FP_TRY(allocate_logits(model, &model->dense_logits));
	for (int64_t first = 0; first < hidden.rows; first += block) {
		int64_t rows = hidden.rows - first < block ? hidden.rows - first : block;
		fp_matrix capped = cap > 0 ? fp_matrix_rows(model->dense_logits, 0, rows) : (fp_matrix){0};
		fp_matrix logits = fp_matrix_rows(model->logits, 0, rows), part = fp_matrix_rows(hidden, first, rows);
		FP_TRY(block_logits(model, part, logits));
		if (cap > 0)
			FP_TRY(be->memory->copy(be, capped, logits));
		FP_TRY(be->gradients->cross_entropy_backward(be, targets + first, logits));
		if (cap > 0)
			FP_TRY(be->gradients->soft_cap_backward(be, cap, capped, logits));
		FP_TRY(block_backward(model, part, logits, fp_matrix_rows(gradient, first, rows)));
	}
cleanup:
	return status;
}

fp_status fp_model_divergence_gradient(fp_model *dense, fp_matrix dense_hidden, fp_model *pruned,
									   fp_matrix pruned_hidden, fp_matrix gradient)
{
	fp_backend *be = pruned->be;
	const float cap = pruned->config.logit_cap;
	int64_t block = block_rows(pruned), all = pruned_hidden.rows;
	fp_matrix capped = {0};
	int32_t *any_token = NULL;
	fp_status status;
	FP_REQUIRE(be, dense->be == be && dense->config.vocabulary == pruned->config.vocabulary);
	FP_REQUIRE(be, dense_hidden.rows == all && gradient.rows == all && gradient.cols == pruned_hidden.cols);
	FP_TRY(fp_model_load_head(dense));
	FP_TRY(fp_model_load_head(pruned));
	FP_TRY(allocate_logits(pruned, &pruned->logits));
	FP_TRY(allocate_logits(pruned, &pruned->dense_logits));
	FP_TRY(FP_NEW(be->ctx, &any_token, block));
	if (cap > 0)
		FP_TRY(fp_matrix_new(be, &capped, block, pruned->config.vocabulary, FP_F32));
	for (int64_t first = 0; first < all; first += block) {
		int64_t rows = all - first < block ? all - first : block;
		fp_matrix p = fp_matrix_rows(pruned->dense_logits, 0, rows), q = fp_matrix_rows(pruned->logits, 0, rows);
		fp_matrix part = fp_matrix_rows(pruned_hidden, first, rows);
		FP_TRY(block_logits(dense, fp_matrix_rows(dense_hidden, first, rows), p));
		FP_TRY(block_logits(pruned, part, q));
		if (cap > 0)
			FP_TRY(be->memory->copy(be, fp_matrix_rows(capped, 0, rows), q));
		/* by the logits of q the gradient is softmax(q) − softmax(p); the token cancels */
		FP_TRY(be->gradients->cross_entropy_backward(be, any_token, p));
		FP_TRY(be->gradients->cross_entropy_backward(be, any_token, q));
		FP_TRY(be->linear->axpby(be, -1, p, 1, q));
		if (cap > 0)
			FP_TRY(be->gradients->soft_cap_backward(be, cap, fp_matrix_rows(capped, 0, rows), q));
		FP_TRY(block_backward(pruned, part, q, fp_matrix_rows(gradient, first, rows)));
	}
cleanup:
	fp_matrix_free(be, &capped);
	fp_free(any_token);
	return status;
}
