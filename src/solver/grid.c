/* SPDX-License-Identifier: Apache-2.0 */
#include "solver/grid.h"

#include "solver/method.h"

fp_status fp_grid_new(fp_grid *out, fp_backend *be, const fp_grid_format *format, fp_dtype dtype, int64_t rows,
					  int64_t cols)
{
	const int64_t groups = cols / fp_grid_group(format, cols);
	fp_status status;
	*out = (fp_grid){.format = format, .dtype = dtype};
	FP_TRY(fp_matrix_new(be, &out->scale, rows, groups, FP_F32));
	if (!format->symmetric)
		FP_TRY(fp_matrix_new(be, &out->zero, rows, groups, FP_F32));
cleanup:
	if (status != FP_OK)
		fp_grid_free(be, out);
	return status;
}

void fp_grid_free(fp_backend *be, fp_grid *grid)
{
	fp_matrix_free(be, &grid->scale);
	fp_matrix_free(be, &grid->zero);
	*grid = (fp_grid){0};
}

fp_status fp_grid_fit(fp_backend *be, fp_matrix V, const fp_grid *grid)
{
	fp_matrix weight = {0};
	fp_status status;
	FP_TRY(fp_matrix_new(be, &weight, 1, V.cols, FP_F32));
	FP_TRY(be->memory->fill(be, weight, 1.0F));
	FP_TRY(be->grid->fit(be, weight, 1, 0.0F, V, grid));
cleanup:
	fp_matrix_free(be, &weight);
	return status;
}

fp_quantiser fp_quantiser_of(const fp_settings *settings)
{
	if (fp_is(settings->quantizer, "auto"))
		return fp_method_of(settings)->quantiser;
	return fp_is(settings->quantizer, "descent") ? FP_QUANTISER_DESCENT : FP_QUANTISER_NEAREST;
}
