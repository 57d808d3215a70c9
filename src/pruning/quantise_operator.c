/* SPDX-License-Identifier: Apache-2.0 */
#include "pruning/quantise_operator.h"

#include "base/memory.h"

/* The grid's scales and zero points in the host's memory. */
static fp_status fetch_numbers(fp_backend *be, fp_quantised_operator *quantised)
{
	const fp_matrix scale = quantised->grid.scale, zero = quantised->grid.zero;
	fp_status status;
	FP_TRY(FP_NEW(be->ctx, &quantised->scales, fp_matrix_size(scale)));
	FP_TRY(be->memory->download(be, quantised->scales, FP_F32, scale.cols, scale));
	if (!fp_matrix_is_absent(zero)) {
		FP_TRY(FP_NEW(be->ctx, &quantised->zeros, fp_matrix_size(zero)));
		FP_TRY(be->memory->download(be, quantised->zeros, FP_F32, zero.cols, zero));
	}
cleanup:
	return status;
}

fp_status fp_quantise_operator(const fp_layer_task *task, fp_matrix V, fp_operator_result *result,
							   fp_quantised_operator *out)
{
	fp_backend *be = task->be;
	const fp_grid_format *format = fp_grid_format_named(task->settings->quantize);
	int finite;
	fp_status status = FP_OK;
	if (!format)
		return FP_OK;
	FP_TRY(be->linear->finite(be, V, &finite));
	if (!finite)
		FP_TRY(fp_fail(be->ctx, FP_ERROR_NUMERIC, "the solver's result is not finite"));
	FP_TRY(fp_grid_fit(&out->grid, be, format, result->tensor->dtype, V));
	FP_TRY(fp_grid_round(&out->grid, be, V));
	FP_TRY(fetch_numbers(be, out));
	result->scales = out->scales;
	result->zero_points = out->zeros;
	result->groups = out->grid.scale.cols;
cleanup:
	return status;
}

void fp_quantised_free(fp_backend *be, fp_operator_result *result, fp_quantised_operator *quantised)
{
	result->scales = result->zero_points = NULL;
	fp_grid_free(be, &quantised->grid);
	fp_free(quantised->scales);
	fp_free(quantised->zeros);
	*quantised = (fp_quantised_operator){0};
}
