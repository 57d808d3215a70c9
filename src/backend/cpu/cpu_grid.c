/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_grid.c: quantised weights. Rows are independent and run in parallel; none of the sums crosses them. */
#include "backend/cpu/cpu_backend.h"

#include "base/numbers.h"

/* One row of a matrix with the first of its scales and zero points. */
typedef struct grid_row {
	fp_grid_rule rule;
	float *scale, *zero; /* zero NULL: the format is symmetric */
} grid_row;

static grid_row row_of(const fp_grid *grid, int64_t row)
{
	return (grid_row){fp_grid_rule_of(grid->format, grid->dtype), fp_cpu_floats(grid->scale) + row * grid->scale.stride,
					  fp_matrix_is_absent(grid->zero) ? NULL : fp_cpu_floats(grid->zero) + row * grid->zero.stride};
}

static float zero_at(const grid_row *row, int64_t group)
{
	return row->zero ? row->zero[group] : 0.0F;
}

static bool has_views(const fp_grid *grid, fp_matrix V)
{
	return fp_grid_fits(grid, V) && fp_cpu_is_f32(grid->scale) &&
		   (fp_matrix_is_absent(grid->zero) || fp_cpu_is_f32(grid->zero));
}

static double rounding_error(fp_grid_rule rule, float scale, float zero, const float *weight, const float *v,
							 int64_t count)
{
	double sum = 0;
	for (int64_t j = 0; j < count; j++) {
		double error = (double)fp_grid_nearest(rule, scale, zero, v[j]) - (double)v[j];
		sum += (double)weight[j] * error * error;
	}
	return sum;
}

typedef struct candidates {
	int count;
	float step;
} candidates;

static void fit_group(grid_row *row, int64_t group, candidates tried, const float *weight, const float *v, int64_t size)
{
	float low = 0.0F, high = 0.0F;
	double least = INFINITY;
	for (int64_t j = 0; j < size; j++) {
		low = fminf(low, v[j]);
		high = fmaxf(high, v[j]);
	}
	for (int i = 0; i < tried.count; i++) {
		float scale, zero;
		fp_grid_scale_of(row->rule, !row->zero, low, high, 1.0F - (float)i * tried.step, &scale, &zero);
		double error = tried.count > 1 ? rounding_error(row->rule, scale, zero, weight, v, size) : 0;
		if (!(error < least))
			continue;
		least = error;
		row->scale[group] = scale;
		if (row->zero)
			row->zero[group] = zero;
	}
}

fp_status fp_cpu_grid_fit(fp_backend *be, fp_matrix weight, int count, float step, fp_matrix V, const fp_grid *grid)
{
	FP_REQUIRE(be, has_views(grid, V) && fp_cpu_is_f32(V) && fp_cpu_is_vector(weight, V.cols) && count > 0);
	const int64_t groups = grid->scale.cols, size = V.cols / groups;
	const candidates tried = {count, step};
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(V) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < V.rows; i++) {
		grid_row row = row_of(grid, i);
		for (int64_t g = 0; g < groups; g++)
			fit_group(&row, g, tried, fp_cpu_floats(weight) + g * size, fp_cpu_floats(V) + i * V.stride + g * size,
					  size);
	}
	return FP_OK;
}

fp_status fp_cpu_grid_round(fp_backend *be, const fp_grid *grid, fp_matrix X, fp_matrix V)
{
	FP_REQUIRE(be, has_views(grid, X) && fp_cpu_is_f32(X) && fp_cpu_same_shape(X, V));
	FP_REQUIRE(be, fp_dtype_is_weight(V.dtype) && fp_cpu_is_view(V, V.dtype));
	const int64_t groups = grid->scale.cols, size = X.cols / groups;
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(X) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < X.rows; i++) {
		const grid_row row = row_of(grid, i);
		const float *x = fp_cpu_floats(X) + i * X.stride;
		char *v = (char *)V.buffer->data + (V.offset + i * V.stride) * fp_dtype_size(V.dtype);
		for (int64_t j = 0; j < X.cols; j++) {
			const int64_t g = j / size;
			float value = fp_grid_nearest(row.rule, row.scale[g], zero_at(&row, g), x[j]);
			fp_from_float(v + j * fp_dtype_size(V.dtype), V.dtype, &value, 1);
		}
	}
	return FP_OK;
}

/* `g` has room for a block. */
static void descend_row(const grid_row *row, const fp_cpu_loops *loops, fp_matrix A, const float *x, float *v, float *d,
						float *g)
{
	const float scale = row->scale[0], zero = zero_at(row, 0);
	for (int64_t j = 0; j < A.cols; j++) {
		const float *a = fp_cpu_floats(A) + j * A.stride;
		d[j] = 0.0F;
		if (x[j] == 0.0F || !(a[j] > 0.0F))
			continue;
		const float value = fp_grid_nearest(row->rule, scale, zero, v[j] - g[j] / a[j]);
		d[j] = value - v[j];
		v[j] = value;
		if (d[j] != 0.0F)
			loops->axpby(g + j + 1, a + j + 1, A.cols - j - 1, d[j], 1.0F);
	}
}

fp_status fp_cpu_grid_descend(fp_backend *be, const fp_grid *grid, fp_matrix A, fp_matrix X, fp_matrix G, fp_matrix V,
							  fp_matrix D)
{
	FP_REQUIRE(be, has_views(grid, V) && grid->scale.cols == 1 && V.cols <= FP_GRID_BLOCK);
	FP_REQUIRE(be, fp_cpu_is_f32(A) && fp_cpu_is_f32(X) && fp_cpu_is_f32(G) && fp_cpu_is_f32(V) && fp_cpu_is_f32(D));
	FP_REQUIRE(be, A.rows == V.cols && A.cols == V.cols && fp_cpu_same_shape(V, X) && fp_cpu_same_shape(V, G) &&
					   fp_cpu_same_shape(V, D));
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(V) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < V.rows; i++) {
		const grid_row row = row_of(grid, i);
		float g[FP_GRID_BLOCK];
		memcpy(g, fp_cpu_floats(G) + i * G.stride, (size_t)V.cols * sizeof *g);
		descend_row(&row, loops, A, fp_cpu_floats(X) + i * X.stride, fp_cpu_floats(V) + i * V.stride,
					fp_cpu_floats(D) + i * D.stride, g);
	}
	return FP_OK;
}

static void rescale_row(grid_row *row, const float *p, const float *g, float *v, float *d, int64_t count)
{
	const float scale = row->scale[0], zero = zero_at(row, 0);
	double slope = 0, curvature = 0;
	for (int64_t j = 0; j < count; j++) {
		slope += (double)v[j] * (double)g[j];
		curvature += (double)v[j] * (double)p[j];
		d[j] = 0.0F;
	}
	const float next = fp_round_to_type(row->rule.dtype, (float)((double)scale * (1.0 - slope / curvature)));
	const double t = (double)next / (double)scale - 1.0;
	if (!(next > 0.0F && next < INFINITY && 2.0 * slope * t + curvature * t * t < 0))
		return;
	for (int64_t j = 0; j < count; j++) {
		const float code = fp_grid_nearest_code(row->rule, scale, zero, v[j]);
		const float value = fp_grid_code_value(row->rule, next, zero, code);
		d[j] = value - v[j];
		v[j] = value;
	}
	row->scale[0] = next;
}

fp_status fp_cpu_grid_rescale(fp_backend *be, const fp_grid *grid, fp_matrix P, fp_matrix G, fp_matrix V, fp_matrix D)
{
	FP_REQUIRE(be, has_views(grid, V) && grid->scale.cols == 1);
	FP_REQUIRE(be, fp_cpu_is_f32(P) && fp_cpu_is_f32(G) && fp_cpu_is_f32(V) && fp_cpu_is_f32(D));
	FP_REQUIRE(be, fp_cpu_same_shape(V, P) && fp_cpu_same_shape(V, G) && fp_cpu_same_shape(V, D));
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(V) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < V.rows; i++) {
		grid_row row = row_of(grid, i);
		rescale_row(&row, fp_cpu_floats(P) + i * P.stride, fp_cpu_floats(G) + i * G.stride,
					fp_cpu_floats(V) + i * V.stride, fp_cpu_floats(D) + i * D.stride, V.cols);
	}
	return FP_OK;
}
