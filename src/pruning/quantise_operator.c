/* SPDX-License-Identifier: Apache-2.0 */
#include "pruning/quantise_operator.h"

#include "base/memory.h"
#include "solver/method.h"

fp_status fp_quantise_begin(const fp_layer_task *task, fp_dtype dtype, fp_problem *problem, fp_grid *grid)
{
	const fp_grid_format *format = fp_grid_format_named(task->settings->quantize);
	fp_status status = FP_OK;
	if (!format)
		return FP_OK;
	FP_TRY(fp_grid_new(grid, task->be, format, dtype, problem->W.rows, problem->W.cols));
	if (fp_quantiser_of(task->settings) != FP_QUANTISER_OWN)
		return FP_OK;
	FP_TRY(fp_grid_fit(task->be, problem->W, grid));
	problem->grid = grid;
cleanup:
	return status;
}

/* V ← on the grid, whose scales are chosen for it; by descent unless that is not wanted, which needs the Gram matrix or, for
 * a start, the inputs' energies. */
static fp_status place(const fp_layer_task *task, const fp_gram *gram, fp_matrix energy, fp_matrix V,
					   const fp_grid *grid)
{
	fp_backend *be = task->be;
	int finite;
	fp_status status;
	FP_TRY(be->linear->finite(be, V, &finite));
	if (!finite)
		FP_TRY(fp_fail(be->ctx, FP_ERROR_NUMERIC, "the solver's result is not finite"));
	if (fp_quantiser_of(task->settings) == FP_QUANTISER_NEAREST) {
		FP_TRY(fp_grid_fit(be, V, grid));
		FP_TRY(be->grid->round(be, grid, V, V));
	} else if (gram->be) {
		FP_TRY(fp_quantise_by_descent(gram, task->settings, V, grid));
	} else {
		FP_TRY(fp_quantise_by_energy(be, energy, V, grid));
	}
cleanup:
	return status;
}

fp_status fp_quantise_end(const fp_layer_task *task, const fp_problem *problem, fp_matrix V, fp_grid *grid)
{
	if (!grid->format || problem->grid)
		return FP_OK;
	return place(task, problem->gram, problem->gram->diagonal, V, grid);
}

fp_status fp_kept_inputs_new(fp_kept_inputs *out, const fp_layer_task *task)
{
	*out = (fp_kept_inputs){0};
	return FP_NEW(task->ctx, &out->energy, fp_model_operators(task->model));
}

void fp_kept_inputs_free(fp_kept_inputs *kept, const fp_layer_task *task)
{
	for (int group = 0; group < FP_GROUP_COUNT; group++)
		fp_matrix_free(task->be, &kept->gram[group]);
	for (int i = 0; kept->energy && i < fp_model_operators(task->model); i++)
		fp_matrix_free(task->be, &kept->energy[i]);
	fp_free(kept->energy);
	*kept = (fp_kept_inputs){0};
}

fp_status fp_keep_inputs(fp_kept_inputs *kept, const fp_layer_task *task, int number, const fp_gram *gram)
{
	fp_backend *be = task->be;
	bool whole = fp_operator_expert(number) < 0;
	fp_matrix *to = whole ? &kept->gram[fp_role_group(number)] : &kept->energy[number];
	const fp_matrix from = whole ? gram->A : gram->diagonal;
	fp_status status = FP_OK;
	if (!fp_layer_is_fitted(task) || !fp_grid_format_named(task->settings->quantize) || !fp_matrix_is_absent(*to))
		return FP_OK;
	FP_TRY(fp_matrix_new(be, to, from.rows, from.cols, FP_F32));
	FP_TRY(be->memory->copy(be, *to, from));
cleanup:
	return status;
}

fp_status fp_quantise_fitted(const fp_layer_task *task, const fp_kept_inputs *kept, const fp_operator_result *result,
							 fp_matrix V, fp_grid *grid)
{
	fp_backend *be = task->be;
	const fp_grid_format *format = fp_grid_format_named(task->settings->quantize);
	const fp_matrix energy = kept->energy[result->number];
	fp_gram gram = {0};
	fp_matrix own = {0}, wide;
	fp_status status = FP_OK;
	if (!format)
		return FP_OK;
	FP_TRY(fp_matrix_widen(be, V, &own, &wide));
	FP_TRY(fp_grid_new(grid, be, format, result->tensor->dtype, V.rows, V.cols));
	if (fp_matrix_is_absent(energy))
		FP_TRY(fp_gram_new(&gram, be, kept->gram[fp_role_group(result->number)]));
	FP_TRY(place(task, &gram, energy, wide, grid));
	if (wide.buffer != V.buffer)
		FP_TRY(be->memory->copy(be, V, wide));
cleanup:
	fp_gram_free(&gram);
	fp_matrix_free(be, &own);
	return status;
}

fp_status fp_fetched_grid_fetch(fp_backend *be, const fp_grid *grid, fp_operator_result *result, fp_fetched_grid *out)
{
	fp_status status = FP_OK;
	if (!grid->format)
		return FP_OK;
	FP_TRY(FP_NEW(be->ctx, &out->scales, fp_matrix_size(grid->scale)));
	FP_TRY(be->memory->download(be, out->scales, FP_F32, grid->scale.cols, grid->scale));
	if (!fp_matrix_is_absent(grid->zero)) {
		FP_TRY(FP_NEW(be->ctx, &out->zeros, fp_matrix_size(grid->zero)));
		FP_TRY(be->memory->download(be, out->zeros, FP_F32, grid->zero.cols, grid->zero));
	}
	result->groups = grid->scale.cols;
	result->scales = out->scales;
	result->zero_points = out->zeros;
cleanup:
	return status;
}

void fp_fetched_grid_free(fp_operator_result *result, fp_fetched_grid *numbers)
{
	result->scales = result->zero_points = NULL;
	fp_free(numbers->scales);
	fp_free(numbers->zeros);
	*numbers = (fp_fetched_grid){0};
}
