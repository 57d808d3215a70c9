/* SPDX-License-Identifier: Apache-2.0 */
#include "model/layer_workspace.h"

#include "base/memory.h"
#include "base/numbers.h"

static int64_t scratch_width(const fp_model_config *c)
{
	int64_t attention = (c->heads + 2 * c->kv_heads) * c->head_dim;
	int64_t width = fp_larger(c->inner, c->experts.shared), inner = c->gated ? 2 * width : width;
	return attention > inner ? attention : inner;
}

/* Whether products round F32 inputs that they share. */
static bool needs_rounded(const fp_model *model, fp_dtype type)
{
	return fp_backend_rounds(fp_model_backend(model), FP_USE_ACTIVATION) &&
		   (type == FP_F32 || !fp_model_get_config(model)->pre_norm);
}

int64_t fp_workspace_bytes(const fp_model *model, int64_t tokens)
{
	return fp_workspace_bytes_as(model, tokens, FP_F32);
}

int64_t fp_workspace_bytes_as(const fp_model *model, int64_t tokens, fp_dtype type)
{
	return fp_workspace_bytes_past(model, tokens, tokens, type);
}

int64_t fp_workspace_bytes_past(const fp_model *model, int64_t tokens, int64_t positions, fp_dtype type)
{
	const fp_model_config *c = fp_model_get_config(model);
	int64_t row = (c->pre_norm ? c->hidden : 0) + scratch_width(c) + c->heads * c->head_dim;
	int64_t rounded = needs_rounded(model, type) ? tokens * c->hidden * 2 : 0;
	int64_t branch = fp_config_has_branches(c) ? tokens * c->hidden * (int64_t)sizeof(float) : 0;
	return tokens * row * fp_dtype_size(type) + rounded + branch + fp_latent_space_bytes(model, tokens, type) +
		   fp_expert_space_bytes(model, tokens, type) + fp_position_tables_bytes(c, positions, false);
}

fp_status fp_workspace_new(fp_workspace **out, const fp_model *model, int64_t tokens)
{
	return fp_workspace_new_as(out, model, tokens, FP_F32);
}

fp_status fp_workspace_new_as(fp_workspace **out, const fp_model *model, int64_t tokens, fp_dtype type)
{
	return fp_workspace_new_past(out, model, tokens, tokens, type);
}

fp_status fp_workspace_new_past(fp_workspace **out, const fp_model *model, int64_t tokens, int64_t positions,
								fp_dtype type)
{
	fp_status status;
	fp_backend *be = fp_model_backend(model);
	const fp_model_config *c = fp_model_get_config(model);
	fp_workspace *workspace = NULL;
	*out = NULL;
	FP_REQUIRE(be, tokens > 0 && (type == FP_F32 || fp_backend_rounds(be, FP_USE_ACTIVATION)));
	FP_TRY(FP_NEW(be->ctx, &workspace, 1));
	workspace->be = be;
	workspace->tokens = tokens;
	workspace->type = type;
	if (c->pre_norm)
		FP_TRY(fp_matrix_new(be, &workspace->normalised, tokens, c->hidden, type));
	FP_TRY(fp_matrix_new(be, &workspace->scratch, tokens, scratch_width(c), type));
	FP_TRY(fp_matrix_new(be, &workspace->context, tokens, c->heads * c->head_dim, type));
	if (needs_rounded(model, type))
		FP_TRY(fp_matrix_new(be, &workspace->rounded, tokens, c->hidden, FP_BF16));
	if (fp_config_has_branches(c))
		FP_TRY(fp_matrix_new(be, &workspace->branch, tokens, c->hidden, FP_F32));
	FP_TRY(fp_latent_space_new(&workspace->latents, model, tokens, type));
	FP_TRY(fp_expert_space_new(&workspace->experts, model, tokens, type));
	FP_TRY(fp_position_tables_new(&workspace->positions, be, c, positions, false));
	*out = workspace;
	workspace = NULL;
cleanup:
	fp_workspace_free(workspace);
	return status;
}

void fp_workspace_free(fp_workspace *workspace)
{
	if (!workspace)
		return;
	fp_matrix_free(workspace->be, &workspace->normalised);
	fp_matrix_free(workspace->be, &workspace->scratch);
	fp_matrix_free(workspace->be, &workspace->context);
	fp_matrix_free(workspace->be, &workspace->rounded);
	fp_matrix_free(workspace->be, &workspace->branch);
	fp_latent_space_free(workspace->be, &workspace->latents);
	fp_expert_space_free(workspace->be, &workspace->experts);
	fp_position_tables_free(workspace->be, &workspace->positions);
	fp_free(workspace);
}
