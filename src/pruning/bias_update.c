/* SPDX-License-Identifier: Apache-2.0 */
#include "pruning/bias_update.h"

#include <math.h>

/* All 1 × m. */
typedef struct bias_space {
	fp_backend *be;
	fp_matrix before; /* b */
	fp_matrix lost;   /* (W − V)m* */
	fp_matrix drift;  /* Wd; zero if X = X* */
	fp_matrix output; /* W(m* + d), the mean of WX */
	fp_matrix narrow; /* c in the checkpoint's type */
} bias_space;

static void space_free(bias_space *space)
{
	fp_matrix *all[] = {&space->before, &space->lost, &space->drift, &space->output, &space->narrow};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		fp_matrix_free(space->be, all[i]);
}

static fp_status space_new(bias_space *space, fp_matrix bias, fp_dtype dtype)
{
	fp_backend *be = space->be;
	fp_matrix *wide[] = {&space->before, &space->lost, &space->drift, &space->output};
	fp_status status;
	for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++)
		FP_TRY(fp_matrix_new(be, wide[i], 1, bias.cols, FP_F32));
	FP_TRY(fp_matrix_new(be, &space->narrow, 1, bias.cols, dtype));
	FP_TRY(be->memory->copy(be, space->before, bias));
cleanup:
	return status;
}

/* The means of the outputs, from the means of the inputs */
static fp_status multiply_means(bias_space *space, const fp_bias_target *target, fp_matrix V)
{
	fp_backend *be = space->be;
	const fp_statistics *statistics = target->statistics;
	fp_status status;
	FP_TRY(be->linear->gemm(be, 1.0F, statistics->mean, FP_PLAIN, target->W, FP_TRANSPOSED, 0.0F, space->output));
	FP_TRY(be->memory->copy(be, space->lost, space->output));
	FP_TRY(be->linear->gemm(be, -1.0F, statistics->mean, FP_PLAIN, V, FP_TRANSPOSED, 1.0F, space->lost));
	FP_TRY(be->memory->fill(be, space->drift, 0.0F));
	if (!fp_matrix_is_absent(statistics->mean_delta))
		FP_TRY(
			be->linear->gemm(be, 1.0F, statistics->mean_delta, FP_PLAIN, target->W, FP_TRANSPOSED, 0.0F, space->drift));
	FP_TRY(be->linear->axpby(be, 1.0F, space->drift, 1.0F, space->output));
cleanup:
	return status;
}

/* bias ← c, rounded to the checkpoint's type */
static fp_status set_bias(bias_space *space, const fp_bias_target *target, const fp_tensor_info *tensor, fp_matrix bias)
{
	fp_backend *be = space->be;
	fp_matrix E = target->statistics->mean_residual;
	int finite;
	fp_status status;
	FP_TRY(be->linear->axpby(be, 1.0F, space->lost, 1.0F, bias));
	FP_TRY(be->linear->axpby(be, (float)target->mix, space->drift, 1.0F, bias));
	if (!fp_matrix_is_absent(E) && target->residual > 0)
		FP_TRY(be->linear->axpby(be, (float)target->residual, E, 1.0F, bias));
	FP_TRY(be->memory->copy(be, space->narrow, bias));
	FP_TRY(be->memory->copy(be, bias, space->narrow));
	FP_TRY(be->linear->finite(be, bias, &finite));
	if (!finite)
		status = fp_fail(be->ctx, FP_ERROR_NUMERIC, "%s: an updated bias exceeds the range of %s", tensor->name,
						 tensor->dtype_name);
cleanup:
	return status;
}

/* Adds the means' part to the squared error: the mean of VX* + c1ᵀ − (WX + b1ᵀ) is (c − b) − (W − V)m* − Wd. */
static fp_status measure(bias_space *space, double tokens, fp_matrix bias, fp_operator_result *result)
{
	fp_backend *be = space->be;
	fp_matrix error = space->before;
	double square;
	fp_status status;
	FP_TRY(be->linear->dot(be, space->output, space->output, &square));
	result->squared_output += tokens * square;
	FP_TRY(be->linear->axpby(be, 1.0F, bias, -1.0F, error)); /* c − b */
	FP_TRY(be->linear->dot(be, error, error, &square));
	result->bias_change = bias.cols > 0 ? sqrt(square / (double)bias.cols) : 0;
	result->bias_updated = true;
	FP_TRY(be->linear->axpby(be, -1.0F, space->lost, 1.0F, error));
	FP_TRY(be->linear->axpby(be, -1.0F, space->drift, 1.0F, error));
	FP_TRY(be->linear->dot(be, error, error, &square));
	result->squared_error += tokens * square;
cleanup:
	return status;
}

fp_status fp_update_bias(const fp_layer_task *task, const fp_bias_target *target, fp_matrix V, fp_matrix bias,
						 fp_operator_result *result)
{
	bias_space space = {.be = task->be};
	const fp_tensor_info *tensor = fp_model_operator_bias(task->model, result->layer, result->number);
	fp_status status;
	FP_TRY(space_new(&space, bias, tensor->dtype));
	FP_TRY(multiply_means(&space, target, V));
	FP_TRY(set_bias(&space, target, tensor, bias));
	FP_TRY(measure(&space, (double)target->statistics->tokens, bias, result));
cleanup:
	space_free(&space);
	return status;
}
