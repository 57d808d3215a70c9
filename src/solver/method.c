/* SPDX-License-Identifier: Apache-2.0 */
/* method.c: the table of methods, and the solve of one operator by the one that the settings name. */
#include "solver/method.h"

#include "backend/work_space.h"

#include <math.h>

static const fp_method *const method_table[] = {
#define METHOD_ROW(name, ...) &fp_method_##name,
	FP_METHOD_LIST(METHOD_ROW)
#undef METHOD_ROW
};

const fp_method *fp_method_named(const char *name)
{
	const fp_method_info *info;
	for (size_t i = 0; (info = fp_method_at(i)); i++)
		if (fp_is(info->name, name))
			return method_table[i];
	return NULL;
}

const fp_method *fp_method_of(const fp_settings *settings)
{
	return fp_method_named(settings->method); /* settings hold only words of the list */
}

fp_feed fp_feed_sequential(const fp_settings *settings)
{
	(void)settings;
	return FP_FEED_SEQUENTIAL;
}

fp_solve_memory fp_no_memory(const fp_backend *be, const fp_settings *settings, const fp_solve_size *size)
{
	(void)be, (void)settings, (void)size;
	return (fp_solve_memory){0};
}

fp_solve_products fp_no_products(const fp_backend *be, const fp_settings *settings)
{
	(void)be, (void)settings;
	return (fp_solve_products){0};
}

double fp_product_floats(const fp_backend *be, fp_use use, const fp_solve_size *size)
{
	return (double)fp_product_bytes(be, use, size->entries, size->inputs * size->inputs) / sizeof(float);
}

double fp_solve_floats(const fp_backend *be, const fp_settings *settings, const fp_solve_size *size)
{
	const double mask = 0.25; /* bytes */
	double mn = (double)size->entries;
	fp_solve_memory memory = fp_method_of(settings)->memory(be, settings, size);
	/* V − W and (V − W)A, and what a device downloads meanwhile */
	double measured = (be->asynchronous ? 3 : 2) * mn + fp_product_floats(be, FP_USE_REFINEMENT, size);
	return mask * mn + memory.kept + fmax(memory.peak, measured);
}

/* The error of the result, which must be finite. */
static fp_status measure(const fp_problem *problem, fp_matrix V, fp_solution *solution)
{
	fp_backend *be = problem->gram->be;
	fp_matrix work[2] = {{0}, {0}};
	double square;
	int finite = 1;
	fp_status status;
	if (problem->unmeasured) {
		FP_TRY(be->linear->finite(be, V, &finite));
	} else {
		FP_TRY(fp_matrix_new(be, &work[0], V.rows, V.cols, FP_F32));
		FP_TRY(fp_matrix_new(be, &work[1], V.rows, V.cols, FP_F32));
		FP_TRY(fp_problem_error(problem, V, work, &square));
		solution->error = sqrt(square);
		finite = isfinite(square);
	}
	if (!finite)
		status = fp_fail(be->ctx, FP_ERROR_NUMERIC, "the solver's result is not finite");
cleanup:
	fp_matrix_free(be, &work[0]);
	fp_matrix_free(be, &work[1]);
	return status;
}

fp_status fp_solve(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_solution *solution)
{
	fp_backend *be = problem->gram->be;
	fp_matrix mask = {0};
	fp_status status;
	*solution = (fp_solution){0};
	FP_TRY(fp_matrix_new(be, &mask, V.rows, V.cols, FP_U8));
	FP_TRY(fp_method_of(settings)->solve(problem, settings, V, mask, solution));
	if (!fp_pattern_prunes(&problem->pattern)) /* many methods compute zeros again, and round */
		FP_TRY(fp_round(problem, V, mask));
	solution->damping = fp_matrix_is_absent(problem->gram->factor) ? 0 : problem->gram->factor_damping;
	FP_TRY(measure(problem, V, solution));
cleanup:
	fp_matrix_free(be, &mask);
	return status;
}
