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

/* Sums for [first, end) of the experts, which borrow the set's workspaces. */
static fp_status new_experts(fp_statistics **out, const fp_group_statistics *set)
{
	const fp_layer_task *task = set->task;
	fp_status status = FP_OK;
	*out = NULL;
	if (set->end == set->first)
		return FP_OK;
	FP_TRY(FP_NEW(task->ctx, out, set->end - set->first));
	for (int64_t e = set->first; e < set->end; e++) {
		fp_statistics_plan plan = plan_of(task, set->dense, set->group, e);
		plan.lender = &set->space;
		FP_TRY(fp_statistics_new(&(*out)[e - set->first], task->be, &plan));
	}
cleanup:
	return status;
}

static void free_experts(fp_statistics *experts, const fp_group_statistics *set)
{
	for (int64_t i = 0; experts && i < set->end - set->first; i++)
		fp_statistics_free(&experts[i]);
	fp_free(experts);
}

static fp_status list_register(const fp_group_statistics *set, fp_statistics *own, fp_statistics *experts,
							   fp_addends *out)
{
	fp_status status = FP_OK;
	if (own->be)
		FP_TRY(fp_statistics_list(own, out));
	for (int64_t i = 0; i < set->end - set->first; i++)
		FP_TRY(fp_statistics_list(&experts[i], out));
cleanup:
	return status;
}

/* Another register, whose workspaces are those of the set. */
static fp_status make_register(void *data, int which, fp_addends *out)
{
	fp_group_statistics *set = data;
	fp_group_register *made;
	fp_status status = FP_OK;
	if (which == 0)
		return list_register(set, &set->own, set->experts, out);
	FP_TRY(FP_NEW(set->task->ctx, &set->registers[which], 1));
	made = set->registers[which];
	if (set->own.be) {
		fp_statistics_plan plan = plan_of(set->task, set->dense, set->group, -1);
		plan.lender = &set->own;
		FP_TRY(fp_statistics_new(&made->own, set->task->be, &plan));
	}
	FP_TRY(new_experts(&made->experts, set));
	FP_TRY(list_register(set, &made->own, made->experts, out));
cleanup:
	return status;
}

static void free_registers(fp_group_statistics *set)
{
	for (int i = 0; i <= FP_PARTS; i++) {
		if (!set->registers[i])
			continue;
		fp_statistics_free(&set->registers[i]->own);
		free_experts(set->registers[i]->experts, set);
		fp_free(set->registers[i]);
		set->registers[i] = NULL;
	}
	fp_part_sum_close(&set->sum);
	set->current = 0;
}

static fp_statistics *current_own(fp_group_statistics *set)
{
	return set->current > 0 ? &set->registers[set->current]->own : &set->own;
}

static fp_statistics *current_experts(fp_group_statistics *set)
{
	return set->current > 0 ? set->registers[set->current]->experts : set->experts;
}

fp_status fp_group_statistics_new(fp_group_statistics *out, const fp_layer_task *task, const fp_layer *dense, int group,
								  int64_t first, int64_t end)
{
	fp_status status = FP_OK;
	bool experts = fp_layer_has_experts(dense) && group >= fp_role_group(FP_UP);
	int64_t count = experts ? dense->router.rows : 0;
	end = end < count ? end : count;
	*out = (fp_group_statistics){.first = first,
								 .end = end,
								 .starts = first == 0,
								 .ends = end == count,
								 .task = task,
								 .dense = dense,
								 .group = group,
								 .divided = task->streams && fp_share_is_divided(&task->streams->share)};
	fp_statistics_plan plan = plan_of(task, dense, group, -1);
	if (plan.inputs > 0 && out->starts)
		FP_TRY(fp_statistics_new(&out->own, task->be, &plan));
	if (end > first) {
		plan = plan_of(task, dense, group, first);
		FP_TRY(fp_statistics_space(&out->space, task->be, &plan));
		FP_TRY(new_experts(&out->experts, out));
	}
	if (out->divided)
		fp_part_sum_open(&out->sum, &task->streams->share, task->be, make_register, out);
	if (out->divided && out->own.centred)
		FP_TRY(fp_part_means_new(&out->means, &out->own, out->sum.share->parts));
cleanup:
	if (status != FP_OK)
		fp_group_statistics_free(out);
	return status;
}

void fp_group_statistics_free(fp_group_statistics *set)
{
	free_registers(set);
	fp_statistics_free(&set->own);
	free_experts(set->experts, set);
	fp_statistics_free(&set->space);
	fp_part_means_free(&set->means);
	*set = (fp_group_statistics){0};
}

/* out ← h − h* */
static fp_status subtract_hidden(fp_backend *be, const fp_group_rows *dense, const fp_group_rows *pruned, fp_matrix out)
{
	return be->linear->combine(be, 1, dense->state->hidden, -1, pruned->state->hidden, out);
}

static fp_status fold_own(fp_group_statistics *set, const fp_group_rows *dense, const fp_group_rows *pruned)
{
	fp_statistics *own = current_own(set);
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
		fp_statistics *statistics = &current_experts(set)[e - set->first];
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

fp_status fp_group_statistics_begin_part(fp_group_statistics *set, int part)
{
	fp_status status = FP_OK;
	if (!set->divided)
		return FP_OK;
	FP_TRY(fp_part_sum_begin(&set->sum, part, &set->current));
	if (set->own.be)
		FP_TRY(fp_statistics_clear(current_own(set)));
	for (int64_t i = 0; i < set->end - set->first; i++)
		FP_TRY(fp_statistics_clear(&current_experts(set)[i]));
cleanup:
	return status;
}

fp_status fp_group_statistics_end_part(fp_group_statistics *set)
{
	fp_status status = FP_OK;
	if (!set->divided)
		return FP_OK;
	if (set->own.be)
		FP_TRY(fp_statistics_end_part(current_own(set)));
	for (int64_t i = 0; i < set->end - set->first; i++)
		FP_TRY(fp_statistics_end_part(&current_experts(set)[i]));
	if (set->means.values)
		FP_TRY(fp_part_means_take(&set->means, current_own(set), set->sum.next));
	FP_TRY(fp_part_sum_end(&set->sum));
cleanup:
	return status;
}

fp_status fp_group_statistics_add(fp_group_statistics *set)
{
	fp_status status = FP_OK;
	if (!set->divided)
		return FP_OK;
	FP_TRY(fp_part_sum_finish(&set->sum, false));
	if (set->means.values)
		FP_TRY(fp_part_means_gather(&set->means, set->sum.share));
	free_registers(set);
	if (set->own.be)
		fp_statistics_added(&set->own);
	for (int64_t i = 0; i < set->end - set->first; i++)
		fp_statistics_added(&set->experts[i]);
cleanup:
	return status;
}

/* From rank 0 to one that has none of it yet. */
static fp_status give(const fp_group_statistics *set, fp_statistics *statistics, int rank)
{
	const fp_share *share = &set->task->streams->share;
	fp_backend *be = set->task->be;
	int me = fp_share_rank(share);
	fp_addends list = {0};
	fp_status status = FP_OK;
	if (rank == 0 || (me != 0 && me != rank))
		return FP_OK;
	FP_TRY(fp_statistics_list(statistics, &list));
	FP_TRY(me == 0 ? fp_addends_send(&list, share, be, rank) : fp_addends_receive(&list, share, be, 0));
	fp_statistics_added(statistics);
cleanup:
	fp_addends_free(&list);
	return status;
}

fp_status fp_group_statistics_give(fp_group_statistics *set, const bool *own, const int *experts)
{
	const fp_share *share = &set->task->streams->share;
	int me = fp_share_rank(share);
	fp_status status = FP_OK;
	for (int rank = 1; set->own.be && rank < fp_share_ranks(share); rank++)
		if (own[rank])
			FP_TRY(give(set, &set->own, rank));
	if (!own[me])
		fp_statistics_free(&set->own);
	for (int64_t i = 0; i < set->end - set->first; i++) {
		FP_TRY(give(set, &set->experts[i], experts[i]));
		if (experts[i] != me)
			fp_statistics_free(&set->experts[i]);
	}
cleanup:
	return status;
}

fp_status fp_group_statistics_finish(fp_group_statistics *set)
{
	fp_status status = FP_OK;
	if (set->own.be && set->means.values)
		FP_TRY(fp_part_means_join(&set->means, &set->own));
	if (set->own.be)
		FP_TRY(fp_statistics_finish(&set->own));
	for (int64_t i = 0; i < set->end - set->first; i++)
		if (set->experts[i].be)
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
