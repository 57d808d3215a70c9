/* SPDX-License-Identifier: Apache-2.0 */
#include "basis/basis_check.h"

#include "base/memory.h"
#include "base/numbers.h"

enum { MOST_TOKENS = 128 };
/* Everything is computed in float, where rounding causes a divergence of about 1e-9. */
static const double MOST_KL = 1e-5;
/* With experts, a token for which two are nearly alike may be given the other one. */
static const double MOST_KL_OF_EXPERTS = 1e-3;

typedef struct checked {
	fp_backend *be;
	int64_t length;
	fp_model *plain, *turned;
	fp_matrix hidden[2]; /* 0: as in the checkpoint, 1: in the new basis */
	fp_workspace *workspace;
	float *kl, *losses[2];
	int32_t *argmax[2], *targets;
} checked;

static void checked_free(checked *c)
{
	for (int i = 0; i < 2; i++) {
		fp_matrix_free(c->be, &c->hidden[i]);
		fp_free(c->losses[i]);
		fp_free(c->argmax[i]);
	}
	fp_workspace_free(c->workspace);
	fp_free(c->kl);
	fp_free(c->targets);
	fp_model_close(c->plain);
}

static fp_status checked_new(checked *c, const fp_windows *windows)
{
	fp_context *ctx = c->be->ctx;
	int64_t width = fp_model_get_config(c->turned)->hidden;
	fp_model *models[2];
	fp_log_level level = ctx->log_level;
	ctx->log_level = FP_LOG_ERROR; /* warnings about this checkpoint were given when it was first opened */
	fp_status status = fp_model_open(&c->plain, c->be, fp_model_checkpoint(c->turned));
	ctx->log_level = level;
	if (status != FP_OK)
		goto cleanup;
	models[0] = c->plain;
	models[1] = c->turned;
	FP_TRY(FP_NEW(ctx, &c->kl, c->length));
	FP_TRY(FP_NEW(ctx, &c->targets, c->length));
	FP_TRY(fp_workspace_new(&c->workspace, c->plain, c->length));
	for (int i = 0; i < 2; i++) {
		FP_TRY(FP_NEW(ctx, &c->losses[i], c->length));
		FP_TRY(FP_NEW(ctx, &c->argmax[i], c->length));
		FP_TRY(fp_matrix_new(c->be, &c->hidden[i], c->length, width, FP_F32));
		FP_TRY(fp_model_embed(models[i], windows->ids, 1, c->length, c->hidden[i]));
	}
	for (int64_t i = 0; i < c->length; i++)
		c->targets[i] = i + 1 < c->length ? windows->ids[i + 1] : -1;
cleanup:
	return status;
}

/* One loaded layer serves both: first as it is, then in the new basis. */
static fp_status pass_layer(checked *c, int64_t index)
{
	fp_layer *layer = NULL;
	fp_status status;
	FP_TRY(fp_layer_load(&layer, c->plain, index));
	for (int i = 0; i < 2; i++) {
		fp_layer_state state = {.sequences = 1, .length = c->length, .hidden = c->hidden[i]};
		if (i == 1)
			FP_TRY(fp_layer_change_basis(layer, fp_model_basis(c->turned)));
		FP_TRY(fp_layer_forward(layer, &state, c->workspace));
	}
cleanup:
	fp_layer_free(layer);
	return status;
}

static fp_status compare(checked *c, double *kl)
{
	fp_divergence_rows rows = {
		.kl = c->kl, .losses = {c->losses[0], c->losses[1]}, .argmax = {c->argmax[0], c->argmax[1]}};
	fp_status status;
	FP_TRY(fp_model_divergence(c->plain, c->hidden[0], c->turned, c->hidden[1], c->targets, &rows));
	double most = fp_model_get_config(c->turned)->experts.count > 0 ? MOST_KL_OF_EXPERTS : MOST_KL;
	*kl = 0;
	for (int64_t i = 0; i < c->length; i++)
		*kl += (double)c->kl[i] / (double)c->length;
	if (!(*kl <= most))
		status = fp_fail(c->be->ctx, FP_ERROR_NUMERIC,
						 "%s: in the new basis the model's predictions differ from the original's by a divergence of "
						 "%.3g, more than rounding explains (%g); use --basis none",
						 fp_checkpoint_directory(fp_model_checkpoint(c->plain)), *kl, most);
cleanup:
	fp_model_drop_head(c->turned);
	return status;
}

fp_status fp_basis_check(fp_model *model, const fp_basis *basis, const fp_windows *windows, double *kl)
{
	checked c = {.be = fp_model_backend(model), .length = fp_smaller(windows->length, MOST_TOKENS), .turned = model};
	const fp_basis *before = fp_model_basis(model);
	fp_precision precision = c.be->precision;
	fp_status status;
	FP_TRY(
		fp_backend_set_precision(c.be, "fp32", fp_model_get_config(model)->hidden)); /* for the types of weights too */
	fp_model_set_basis(model, basis);
	FP_TRY(checked_new(&c, windows));
	for (int64_t i = 0; i < fp_model_get_config(model)->layers; i++)
		FP_TRY(pass_layer(&c, i));
	FP_TRY(compare(&c, kl));
cleanup:
	checked_free(&c);
	c.be->precision = precision;
	fp_model_set_basis(model, before);
	return status;
}
