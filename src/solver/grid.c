/* SPDX-License-Identifier: Apache-2.0 */
/* grid.c: on the host: the weights travel there and back. */
#include "solver/grid.h"

#include "base/memory.h"

enum { AT_A_TIME = 256 };

/* A grid and its weights, row by row, in the host's memory. */
typedef struct host_grid {
	float *weights, *scales, *zeros; /* zeros: of a symmetric format too */
} host_grid;

static void host_free(host_grid *host)
{
	fp_free(host->weights);
	fp_free(host->scales);
	fp_free(host->zeros);
}

/* Allocates, and fetches the weights. */
static fp_status host_new(host_grid *out, fp_backend *be, fp_matrix V, int64_t groups)
{
	fp_status status;
	*out = (host_grid){0};
	FP_TRY(FP_NEW(be->ctx, &out->weights, fp_matrix_size(V)));
	FP_TRY(FP_NEW(be->ctx, &out->scales, V.rows * groups));
	FP_TRY(FP_NEW(be->ctx, &out->zeros, V.rows * groups));
	FP_TRY(be->memory->download(be, out->weights, FP_F32, V.cols, V));
cleanup:
	return status;
}

fp_status fp_grid_fit(fp_grid *out, fp_backend *be, const fp_grid_format *format, fp_dtype dtype, fp_matrix V)
{
	const int64_t size = fp_grid_group(format, V.cols), groups = V.cols / size;
	host_grid host;
	fp_status status;
	*out = (fp_grid){.format = format, .dtype = dtype};
	FP_TRY(host_new(&host, be, V, groups));
	FP_TRY(fp_matrix_new(be, &out->scale, V.rows, groups, FP_F32));
	if (!format->symmetric)
		FP_TRY(fp_matrix_new(be, &out->zero, V.rows, groups, FP_F32));
#pragma omp parallel for schedule(static) num_threads(be->threads)
	for (int64_t i = 0; i < V.rows * groups; i++)
		fp_grid_fit_group(format, dtype, host.weights + i * size, size, &host.scales[i], &host.zeros[i]);
	FP_TRY(be->memory->upload(be, out->scale, host.scales, FP_F32, groups));
	if (!format->symmetric)
		FP_TRY(be->memory->upload(be, out->zero, host.zeros, FP_F32, groups));
cleanup:
	host_free(&host);
	return status;
}

void fp_grid_free(fp_backend *be, fp_grid *grid)
{
	fp_matrix_free(be, &grid->scale);
	fp_matrix_free(be, &grid->zero);
}

static void round_group(const fp_grid *grid, float scale, float zero, float *v, int64_t count)
{
	uint16_t narrow[AT_A_TIME];
	for (int64_t first = 0; first < count; first += AT_A_TIME) {
		const int64_t some = count - first < AT_A_TIME ? count - first : AT_A_TIME;
		float *at = v + first;
		fp_grid_codes(grid->format, scale, zero, at, at, some);
		for (int64_t i = 0; i < some; i++)
			at[i] = (at[i] - zero) * scale + 0.0F; /* never −0.0 */
		if (grid->dtype != FP_F32) {               /* as fp_grid_value(), many at a time */
			fp_from_float(narrow, grid->dtype, at, some);
			fp_to_float(at, narrow, grid->dtype, some);
		}
	}
}

fp_status fp_grid_round(const fp_grid *grid, fp_backend *be, fp_matrix V)
{
	const int64_t groups = grid->scale.cols, size = V.cols / groups;
	host_grid host;
	fp_status status;
	FP_TRY(host_new(&host, be, V, groups));
	FP_TRY(be->memory->download(be, host.scales, FP_F32, groups, grid->scale));
	if (!fp_matrix_is_absent(grid->zero))
		FP_TRY(be->memory->download(be, host.zeros, FP_F32, groups, grid->zero));
#pragma omp parallel for schedule(static) num_threads(be->threads)
	for (int64_t i = 0; i < V.rows * groups; i++)
		round_group(grid, host.scales[i], host.zeros[i], host.weights + i * size, size);
	FP_TRY(be->memory->upload(be, V, host.weights, FP_F32, V.cols));
cleanup:
	host_free(&host);
	return status;
}
