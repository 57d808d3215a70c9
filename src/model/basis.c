/* SPDX-License-Identifier: Apache-2.0 */
/* basis.c: which changes of basis a model permits, and the one that changes nothing. */
#include "model/basis.h"

#include "base/memory.h"
#include "model/model_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The final norm's weights divide its bias: (β/γ)R. *bad ← true if one is zero where the bias is not. */
static fp_status divides_by_zero(fp_model *model, bool *bad)
{
	fp_backend *be = model->be;
	int64_t width = model->config.hidden;
	fp_matrix matrix[2] = {{0}, {0}};
	const fp_tensor_info *tensor[2] = {model->final_weight, model->final_bias};
	float *numbers[2] = {NULL, NULL};
	fp_status status = FP_OK;
	*bad = false;
	if (!tensor[0] || !tensor[1])
		return FP_OK;
	for (int i = 0; i < 2; i++) {
		FP_TRY(FP_NEW(be->ctx, &numbers[i], width));
		FP_TRY(fp_model_upload(model, tensor[i], &matrix[i]));
		FP_TRY(be->memory->download(be, numbers[i], FP_F32, width, matrix[i]));
		FP_TRY(be->memory->synchronize(be));
	}
	for (int64_t j = 0; j < width; j++)
		*bad = *bad || (numbers[0][j] == 0 && numbers[1][j] != 0);
cleanup:
	for (int i = 0; i < 2; i++) {
		fp_matrix_free(be, &matrix[i]);
		fp_free(numbers[i]);
	}
	return status;
}

/* Whether the file has layers behind the model's last one, or such as predict further tokens (MTP). They are not pruned. */
static bool has_further_layers(const fp_model *model)
{
	char layers[64];
	int length = snprintf(layers, sizeof layers, "%s%s.", model->prefix, model->architecture->layers);
	for (int64_t i = 0; i < fp_checkpoint_tensor_count(model->checkpoint); i++) {
		const char *name = fp_checkpoint_tensor(model->checkpoint, i)->name;
		if (strstr(name, "mtp_") || strstr(name, "mtp."))
			return true;
		if (strncmp(name, layers, (size_t)length) == 0 && strtoll(name + length, NULL, 10) >= model->config.layers)
			return true;
	}
	return false;
}

static const char *why_not_stream(const fp_model *model, bool zero_weight)
{
	const fp_model_config *c = &model->config;
	if (!c->pre_norm || c->branch_norm || c->sum_norm)
		return "it has norms after its blocks";
	if (c->embedding_norm)
		return "it has a norm on its embeddings";
	if (!c->final_norm)
		return "it has no final norm";
	if (c->embedding != c->hidden)
		return "it projects its embeddings";
	if (c->norm_affine && c->norm_bias && !(c->qkv_bias && c->mlp_bias))
		return "its norms have biases, but the operators after them have none to take these";
	if (c->sees_images)
		return "what it sees of images is written into the stream in the basis of the checkpoint";
	if (has_further_layers(model))
		return "its file has layers that predict further tokens, which read the stream in the basis of the checkpoint";
	return zero_weight ? "its final norm has a weight of zero" : NULL;
}

fp_status fp_basis_freedom_of(fp_basis_freedom *out, fp_model *model)
{
	const fp_model_config *c = &model->config;
	bool zero_weight;
	fp_status status = divides_by_zero(model, &zero_weight);
	*out = (fp_basis_freedom){.stream = why_not_stream(model, zero_weight),
							  .value = c->latent.rank == 0,
							  .query = c->head_norm == FP_HEADS_PLAIN && !c->rotary};
	return status;
}

fp_status fp_identities(fp_backend *be, fp_matrix *out, int64_t blocks, int64_t n)
{
	fp_matrix ones = {0};
	fp_status status;
	FP_TRY(fp_matrix_new(be, out, blocks * n, n, FP_F32));
	FP_TRY(fp_matrix_new(be, &ones, 1, n, FP_F32));
	FP_TRY(be->memory->fill(be, *out, 0));
	FP_TRY(be->memory->fill(be, ones, 1));
	for (int64_t i = 0; i < blocks; i++)
		FP_TRY(be->linear->add_diagonal(be, fp_matrix_rows(*out, i * n, n), ones));
cleanup:
	fp_matrix_free(be, &ones);
	return status;
}

fp_status fp_basis_new(fp_basis **out, fp_model *model, const fp_basis_freedom *freedom, bool stream)
{
	fp_backend *be = model->be;
	const fp_model_config *c = &model->config;
	fp_basis *basis = NULL;
	fp_status status;
	*out = NULL;
	FP_TRY(FP_NEW(be->ctx, &basis, 1));
	basis->be = be;
	FP_TRY(FP_NEW(be->ctx, &basis->layers, c->layers));
	basis->layer_count = c->layers;
	if (stream)
		FP_TRY(fp_identities(be, &basis->R, 1, c->hidden));
	for (int64_t i = 0; i < c->layers; i++) {
		if (freedom->value)
			FP_TRY(fp_identities(be, &basis->layers[i].value, c->kv_heads, c->head_dim));
		if (freedom->query)
			FP_TRY(fp_identities(be, &basis->layers[i].query, c->kv_heads, c->head_dim));
	}
	*out = basis;
	basis = NULL;
cleanup:
	fp_basis_free(basis);
	return status;
}

int64_t fp_first_channel(const fp_model *model, int64_t layer, int64_t expert)
{
	const fp_tensor_info *down = fp_model_operator(model, layer, FP_DOWN);
	return expert < 0 ? 0 : (down ? down->shape[1] : 0) + expert * model->config.experts.inner;
}

int64_t fp_layer_channels(const fp_model *model, int64_t layer)
{
	const fp_model_config *c = &model->config;
	return fp_first_channel(model, layer, fp_config_has_experts(c, layer) ? c->experts.count : 0);
}

void fp_basis_free(fp_basis *basis)
{
	if (!basis)
		return;
	fp_matrix_free(basis->be, &basis->R);
	for (int64_t i = 0; i < basis->layer_count; i++) {
		fp_matrix_free(basis->be, &basis->layers[i].value);
		fp_matrix_free(basis->be, &basis->layers[i].query);
		fp_free(basis->layers[i].inner);
	}
	fp_free(basis->layers);
	fp_free(basis);
}

fp_tensor_info fp_model_untied_head(const fp_model *model, char name[FP_HEAD_NAME_SIZE])
{
	fp_tensor_info head = *model->head;
	if (model->config.tied) {
		snprintf(name, FP_HEAD_NAME_SIZE, "%s.weight", model->architecture->head);
		head.name = name;
	}
	return head;
}
