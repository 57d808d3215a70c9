/* SPDX-License-Identifier: Apache-2.0 */
#include "pruning/group_statistics.h"

#include "base/memory.h"

/* What to accumulate for the group, with the weights of its only operator. */
static fp_statistics_plan plan_of(const fp_layer_task *task, const fp_layer *dense, int group, int64_t expert)
{
	int64_t batch = task->streams ? fp_streams_batch_tokens(task->streams) : 0;
	fp_statistics_plan plan = fp_group_statistics_plan(task->model, task->settings, dense->index, group, expert, batch);
	int first = expert < 0 ? 0 : fp_expert_operator(expert, FP_GATE);
	plan.centred = plan.centred && task->streams;
	for (int i = first; i < first + (expert < 0 ? FP_ROLE_COUNT : FP_EXPERT_ROLES) && plan.only.rows > 0; i++)
		if (fp_role_group(i) == group && !fp_matrix_is_absent(dense->weight[i]))
			plan.only = dense->weight[i];
	return plan;
}

fp_status fp_group_statistics_new(fp_group_statistics *out, const fp_layer_task *task, const fp_layer *dense, int group,
								  int64_t first, int64_t end)
{
	fp_status status = FP_OK;
	bool experts = fp_layer_has_experts(dense) && group >= fp_role_group(FP_UP);
	int64_t count = experts ? dense->router.rows : 0;
	end = end < count ? end : count;
	*out = (fp_group_statistics){.first = first, .end = end, .starts = first == 0, .ends = end == count};
	fp_statistics_plan plan = plan_of(task, dense, group, -1);
	if (plan.inputs > 0 && out->starts)
		FP_TRY(fp_statistics_new(&out->own, task->be, &plan));
	if (end == first)
		goto cleanup;
	FP_TRY(FP_NEW(task->ctx, &out->experts, end - first));
	plan = plan_of(task, dense, group, first);
	FP_TRY(fp_statistics_space(&out->space, task->be, &plan));
	for (int64_t e = first; e < end; e++) {
		plan = plan_of(task, dense, group, e);
		plan.lender = &out->space;
		FP_TRY(fp_statistics_new(&out->experts[e - first], task->be, &plan));
	}
cleanup:
	if (status != FP_OK)
		fp_group_statistics_free(out);
	return status;
}

void fp_group_statistics_free(fp_group_statistics *set)
{
	fp_statistics_free(&set->own);
	for (int64_t i = 0; set->experts && i < set->end - set->first; i++)
		fp_statistics_free(&set->experts[i]);
	fp_statistics_free(&set->space);
	fp_free(set->experts);
	*set = (fp_group_statistics){0};
}

/* out ← h − h* */
static fp_status subtract_hidden(fp_backend *be, const fp_group_rows *dense, const fp_group_rows *pruned, fp_matrix out)
{
	fp_status status = be->memory->copy(be, out, dense->state->hidden);
	return status == FP_OK ? be->linear->axpby(be, -1, pruned->state->hidden, 1, out) : status;
}

static fp_status fold_own(fp_group_statistics *set, const fp_group_rows *dense, const fp_group_rows *pruned)
{
	fp_statistics *own = &set->own;
	fp_matrix hidden = pruned->state->hidden;
	const fp_routing *routing = fp_layer_expert_rows(dense->layer, dense->workspace).routing;
	fp_status status;
	FP_TRY(fp_statistics_fold(own, dense->X, pruned->X));
	if (fp_matrix_is_absent(own->residual))
		goto cleanup;
	if (!routing) {
		FP_TRY(fp_statistics_fold_residual(own, dense->state->hidden, hidden, pruned->X));
		goto cleanup;
	}
	/* an expert that reads every token corrects its share of E */
	fp_matrix E = fp_matrix_rows(own->residual_error, 0, hidden.rows);
	FP_TRY(subtract_hidden(own->be, dense, pruned, E));
	FP_TRY(own->be->transformer->gather_rows(own->be, NULL, routing->shared_share, E, E));
	FP_TRY(fp_statistics_fold_error(own, E, pruned->X));
cleanup:
	return status;
}

/* *E ← the residual stream's error at each place of the experts, if they correct it. */
static fp_status expert_errors(fp_group_statistics *set, const fp_group_rows *dense, const fp_group_rows *pruned,
							   fp_matrix *E)
{
	fp_backend *be = set->space.be;
	fp_matrix all;
	fp_status status;
	*E = (fp_matrix){0};
	if (fp_matrix_is_absent(set->space.residual_error))
		return FP_OK;
	all = fp_matrix_rows(set->space.residual_error, 0, pruned->state->hidden.rows);
	FP_TRY(subtract_hidden(be, dense, pruned, all));
	FP_TRY(fp_layer_expert_errors(pruned->layer, pruned->workspace, all, E));
cleanup:
	return status;
}

fp_status fp_group_statistics_fold(fp_group_statistics *set, const fp_group_rows *dense, const fp_group_rows *pruned)
{
	fp_expert_rows X = fp_layer_expert_rows(dense->layer, dense->workspace),
				   Xstar = fp_layer_expert_rows(pruned->layer, pruned->workspace);
	fp_matrix E = {0};
	fp_status status = FP_OK;
	if (set->own.be)
		FP_TRY(fold_own(set, dense, pruned));
	if (set->end > set->first)
		FP_TRY(expert_errors(set, dense, pruned, &E));
	for (int64_t e = set->first; e < set->end; e++) {
		fp_statistics *statistics = &set->experts[e - set->first];
		fp_matrix rows = fp_routing_rows(Xstar.routing, e, Xstar.rows);
		if (rows.rows == 0)
			continue;
		FP_TRY(fp_statistics_fold(statistics, fp_routing_rows(X.routing, e, X.rows), rows));
		if (!fp_matrix_is_absent(E))
			FP_TRY(fp_statistics_fold_error(statistics, fp_routing_rows(X.routing, e, E), rows));
	}
cleanup:
	return status;
}

fp_status fp_group_statistics_finish(fp_group_statistics *set)
{
	fp_status status = FP_OK;
	if (set->own.be)
		FP_TRY(fp_statistics_finish(&set->own));
	for (int64_t i = 0; i < set->end - set->first; i++)
		FP_TRY(fp_statistics_finish(&set->experts[i]));
	if (set->space.be)
		fp_statistics_free(&set->space);
cleanup:
	return status;
}

fp_status fp_group_statistics_identity(fp_group_statistics *set)
{
	fp_status status = FP_OK;
	if (set->own.be)
		FP_TRY(fp_statistics_identity(&set->own));
	for (int64_t i = 0; i < set->end - set->first; i++)
		FP_TRY(fp_statistics_identity(&set->experts[i]));
cleanup:
	return status;
}
