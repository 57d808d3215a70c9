/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prune_operator.c: the target of one operator, its solve, and the result in the checkpoint's number type.
 *
 *     T = W(αX + (1 − α)X*) + rE
 *     R = α·WΔX*ᵀ + r·EX*ᵀ
 *     C = WA + R
 *
 * with Δ = X − X* and E = h − h* (statistics.h). α = 1 and r = 0 give the paper's target WX. The reported error is
 * ‖W*X* − WX‖ for every target. With centred statistics all of these are centred, and bias_update.c handles the means.
 */
#include "pruning/prune_operator.h"

#include "base/clock.h"
#include "base/memory.h"
#include "pruning/bias_update.h"
#include "pruning/quantise_operator.h"

#include <math.h>
#include <string.h>

typedef struct operator_space {
	fp_backend *be;
	fp_matrix W, V;        /* F32 copies of the layer's, if that holds another type */
	fp_matrix C, R;        /* of the target; R may be drift.product */
	fp_drift drift;        /* drift.energy = ‖WX* − WX‖² */
	fp_matrix work[2];     /* m × n */
	double target_error;   /* ‖WX* − T‖² */
	double squared_output; /* ‖WX‖² */
} operator_space;

static void space_free(operator_space *space)
{
	if (space->R.buffer == space->drift.product.buffer)
		space->R = (fp_matrix){0};
	fp_matrix *all[] = {&space->W, &space->V, &space->C, &space->R, &space->work[0], &space->work[1]};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		fp_matrix_free(space->be, all[i]);
	fp_drift_free(space->be, &space->drift);
}

/* C ← WA. Where products round, solvers use R and take only sizes from C. */
static fp_status multiply_dense(operator_space *space, fp_matrix W, fp_matrix A)
{
	fp_backend *be = space->be;
	FP_PRODUCTS_FOR(be, be->precision == FP_PRECISION_BF16 ? FP_USE_ACTIVATION : FP_USE_REFINEMENT);
	fp_status status = be->linear->gemm(be, 1.0F, W, FP_PLAIN, A, FP_TRANSPOSED, 0.0F, space->C);
	return status;
}

/* The drift and ‖WX‖², from the statistics; C ← WA */
static fp_status measure_output(operator_space *space, const fp_statistics *statistics, fp_matrix W)
{
	fp_backend *be = space->be;
	double own;
	double cross = 0;
	FP_PRODUCTS_FOR(be, FP_USE_REFINEMENT);
	fp_status status;
	FP_TRY(multiply_dense(space, W, statistics->A));
	FP_TRY(be->linear->dot(be, W, space->C, &own));
	FP_TRY(fp_statistics_drift(statistics, W, &space->drift));
	if (!fp_matrix_is_absent(space->drift.product))
		FP_TRY(be->linear->dot(be, W, space->drift.product, &cross));
	space->squared_output = own + 2.0 * cross + space->drift.energy;
cleanup:
	return status;
}

/* C, R and ‖WX* − T‖² of the target, from the results of measure_output() */
static fp_status make_target(operator_space *space, const fp_statistics *statistics, double mix, double residual)
{
	fp_backend *be = space->be;
	const fp_drift *drift = &space->drift;
	bool drifts = !fp_matrix_is_absent(drift->product) && mix > 0;
	bool repairs = !fp_matrix_is_absent(statistics->residual) && residual > 0;
	fp_status status = FP_OK;
	space->target_error = mix * mix * drift->energy;
	if (repairs)
		space->target_error +=
			2.0 * mix * residual * drift->residual + residual * residual * statistics->residual_energy;
	if (!drifts && !repairs)
		return FP_OK;
	if (drifts && !repairs && mix == 1.0) {
		space->R = drift->product;
	} else {
		FP_TRY(fp_matrix_new(be, &space->R, space->C.rows, space->C.cols, FP_F32));
		FP_TRY(be->memory->fill(be, space->R, 0.0F));
		if (drifts)
			FP_TRY(be->linear->axpby(be, (float)mix, drift->product, 1.0F, space->R));
	}
	if (repairs)
		FP_TRY(be->linear->axpby(be, (float)residual, statistics->residual, 1.0F, space->R));
	FP_TRY(be->linear->axpby(be, 1.0F, space->R, 1.0F, space->C));
cleanup:
	return status;
}

/* r: the share of the residual stream's error that the operator corrects. */
static double residual_share(const fp_layer_task *task, int number)
{
	fp_role role = fp_operator_role(number);
	const fp_settings *settings = task->settings;
	double scale = (double)fp_config_residual_scale(fp_model_get_config(task->model)); /* of the operator's output */
	if (role == FP_DOWN)
		return settings->residual / scale;
	return role == FP_OUTPUT ? settings->residual_output / scale : 0.0;
}

/* Replaces −0.0 by +0.0 in `count` elements of a weight type; returns the number of zeros. */
static int64_t clean_zeros(void *bytes, fp_dtype dtype, int64_t count, int threads)
{
	(void)threads; /* unused without OpenMP */
	int64_t zeros = 0;
	if (dtype == FP_F32) {
		uint32_t *words = bytes;
#pragma omp parallel for num_threads(threads) reduction(+ : zeros)
		for (int64_t i = 0; i < count; i++)
			if ((words[i] & 0x7FFFFFFFU) == 0) {
				words[i] = 0;
				zeros++;
			}
	} else {
		uint16_t *words = bytes;
#pragma omp parallel for num_threads(threads) reduction(+ : zeros)
		for (int64_t i = 0; i < count; i++)
			if ((words[i] & 0x7FFFU) == 0) {
				words[i] = 0;
				zeros++;
			}
	}
	return zeros;
}

/* A finished operator that is being copied to the host. */
typedef struct outgoing {
	char *bytes;      /* the tensor's, in the buffer of task->output or in `own` */
	char *own;        /* NULL if task->output provides a buffer */
	fp_matrix narrow; /* the source of the copy, until it is complete */
} outgoing;

/* A buffer for the operator's bytes, as large as the layer's largest operator: pinned memory is expensive to allocate. */
static fp_status take_space(const fp_layer_task *task, const fp_operator_result *result, outgoing *out)
{
	int64_t most = 0;
	for (int i = 0; i < fp_model_operators(task->model); i++) {
		const fp_tensor_info *tensor = fp_model_operator(task->model, result->layer, i);
		most = tensor && tensor->bytes > most ? tensor->bytes : most;
	}
	if (task->output.space)
		return task->output.space(task->output.data, most, &out->bytes);
	fp_status status = FP_NEW(task->ctx, &out->own, result->tensor->bytes);
	out->bytes = out->own;
	return status;
}

/* Rounds V to the checkpoint's type, copies its bytes to the host and counts the zeros there. */
static fp_status round_on_host(fp_backend *be, fp_matrix V, fp_operator_result *result, outgoing *out, int *finite)
{
	const fp_tensor_info *tensor = result->tensor;
	fp_status status;
	FP_TRY(be->memory->copy(be, out->narrow, V));
	FP_TRY(be->memory->copy(be, V, out->narrow));
	FP_TRY(be->linear->finite(be, V, finite));
	FP_TRY(be->memory->download(be, out->bytes, tensor->dtype, V.cols, out->narrow));
	result->zeros = clean_zeros(out->bytes, tensor->dtype, tensor->elements, be->threads);
cleanup:
	fp_matrix_free(be, &out->narrow);
	return status;
}

/* Waits until the bytes have arrived. */
static fp_status end_output(fp_backend *be, outgoing *out)
{
	fp_status status = FP_OK;
	if (!fp_matrix_is_absent(out->narrow)) {
		fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_OUTPUT);
		if (fp_backend_can(be, FP_CAN_DOWNLOAD_ASYNC))
			status = be->transfer->end_download(be);
		fp_matrix_free(be, &out->narrow);
		fp_stage_enter(be->ctx, stage);
	}
	return status;
}

/* Rounds V to the checkpoint's type, so that everything after it, including the error, uses the weights that the
 * checkpoint will hold, and starts copying its bytes to the host. */
static fp_status begin_output(const fp_layer_task *task, fp_matrix V, fp_operator_result *result, outgoing *out)
{
	fp_backend *be = task->be;
	const fp_tensor_info *tensor = result->tensor;
	bool async = fp_backend_can(be, FP_CAN_DOWNLOAD_ASYNC);
	int finite = 0;
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_OUTPUT);
	fp_status status;
	FP_TRY(take_space(task, result, out));
	FP_TRY(fp_matrix_new(be, &out->narrow, V.rows, V.cols, tensor->dtype));
	if (async)
		FP_TRY(be->transfer->round_weights(be, V, out->narrow, &result->zeros, &finite));
	else
		FP_TRY(round_on_host(be, V, result, out, &finite));
	if (!finite)
		FP_TRY(fp_fail(be->ctx, FP_ERROR_NUMERIC, "a pruned weight exceeds the range of %s", tensor->dtype_name));
	if (async && task->output.space)
		FP_TRY(be->transfer->begin_download(be, out->bytes, out->narrow));
	else if (async)
		FP_TRY(be->memory->download(be, out->bytes, tensor->dtype, V.cols, out->narrow));
cleanup:
	fp_stage_enter(be->ctx, stage);
	return status;
}

/* Cleans up, after success or failure. */
static void drop_output(fp_backend *be, outgoing *out)
{
	(void)end_output(be, out);
	fp_free(out->own);
}

static fp_status deliver(const fp_layer_task *task, const fp_operator_result *result, const char *bytes)
{
	fp_context *ctx = task->ctx;
	if (!task->output.operator_done)
		return FP_OK;
	fp_stage stage = fp_stage_enter(ctx, FP_STAGE_OUTPUT);
	fp_status status = task->output.operator_done(task->output.data, result, bytes);
	fp_stage_enter(ctx, stage);
	return status;
}

fp_status fp_finish_operator(const fp_layer_task *task, fp_matrix V, const fp_grid *grid, fp_operator_result *result)
{
	fp_backend *be = task->be;
	outgoing out = {0};
	fp_fetched_grid numbers = {0};
	fp_matrix own = {0}, wide;
	fp_status status;
	FP_TRY(fp_matrix_widen(be, V, &own, &wide));
	FP_TRY(begin_output(task, wide, result, &out));
	FP_TRY(end_output(be, &out));
	FP_TRY(fp_fetched_grid_fetch(be, grid, result, &numbers));
	FP_TRY(deliver(task, result, out.bytes));
cleanup:
	drop_output(be, &out);
	fp_fetched_grid_free(result, &numbers);
	fp_matrix_free(be, &own);
	return status == FP_OK ? status : fp_fail_in(be->ctx, status, "%s", result->tensor->name);
}

fp_status fp_prune_operator(const fp_layer_task *task, const fp_statistics *statistics, fp_statistics *last,
							fp_gram *gram, const fp_operator *own, fp_operator_result *result)
{
	fp_backend *be = task->be;
	const fp_settings *settings = task->settings;
	bool narrow = own->W.dtype != FP_F32;
	fp_matrix W, V;
	operator_space space = {.be = be};
	outgoing out = {0};
	fp_fetched_grid numbers = {0};
	double started = fp_clock();
	double mix = fp_feed_of(settings) == FP_FEED_CROSS ? settings->mix : 1.0;
	double residual = residual_share(task, result->number);
	fp_status status;
	FP_TRY(fp_matrix_widen(be, own->W, &space.W, &W));
	FP_TRY(fp_matrix_widen(be, own->V, &space.V, &V));
	FP_TRY(fp_matrix_new(be, &space.C, W.rows, W.cols, FP_F32));
	FP_TRY(measure_output(&space, statistics, W));
	FP_TRY(make_target(&space, statistics, mix, residual));
	if (last)
		fp_statistics_forget_targets(last);

	fp_problem problem = {.gram = gram,
						  .W = W,
						  .C = space.C,
						  .R = space.R,
						  .held = narrow ? own->W : (fp_matrix){0},
						  .pattern = fp_layer_task_pattern(task, result->layer, result->number),
						  .importance = own->importance,
						  .inverse_importance = own->inverse_importance,
						  .constant = space.target_error,
						  .unmeasured = true};
	if (!fp_layer_is_fitted(task))
		FP_TRY(fp_quantise_begin(task, result->tensor->dtype, &problem, own->grid));
	FP_TRY(fp_solve_together(&problem, settings, V, &result->solution));
	FP_TRY(fp_quantise_end(task, &problem, V, own->grid));

	problem.R = space.drift.product;
	problem.constant = space.drift.energy;
	result->squared_output = space.squared_output;
	FP_TRY(begin_output(task, V, result, &out));
	if (narrow)
		FP_TRY(be->memory->copy(be, own->V, V));
	FP_TRY(fp_matrix_new(be, &space.work[0], W.rows, W.cols, FP_F32));
	FP_TRY(fp_matrix_new(be, &space.work[1], W.rows, W.cols, FP_F32));
	FP_TRY(fp_problem_error(&problem, V, space.work, &result->squared_error));
	if (!isfinite(result->squared_error))
		FP_TRY(fp_fail(be->ctx, FP_ERROR_NUMERIC, "the solver's result is not finite"));
	if (statistics->centred)
		FP_TRY(fp_update_bias(task, &(fp_bias_target){statistics, W, mix, residual}, V, own->bias, result));
	FP_TRY(end_output(be, &out));
	result->seconds = fp_clock() - started;
	if (!fp_layer_defers_output(task)) {
		FP_TRY(fp_fetched_grid_fetch(be, own->grid, result, &numbers));
		FP_TRY(deliver(task, result, out.bytes));
	}
cleanup:
	drop_output(be, &out);
	fp_fetched_grid_free(result, &numbers);
	space_free(&space);
	return status == FP_OK ? status : fp_fail_in(be->ctx, status, "%s", result->tensor->name);
}

double fp_operator_floats(const fp_backend *be, const fp_settings *settings, const fp_statistics_plan *plan,
						  fp_solve_size size, bool narrow)
{
	double mn = (double)size.entries, targets = fp_statistics_floats(plan).targets;
	bool drifts = plan->two_streams && !fp_statistics_by_outputs(plan); /* else the drift is in the statistics */
	bool own_R = plan->residual_outputs > 0 ||
				 (plan->two_streams && fp_feed_of(settings) == FP_FEED_CROSS && settings->mix != 1);
	size.has_R = plan->two_streams || own_R;
	double target = (1 + drifts + own_R) * mn; /* C, WΔX*ᵀ, R */
	double making = targets + target + drifts * mn + fp_product_floats(be, FP_USE_REFINEMENT, &size);
	double quantising = fp_grid_format_named(settings->quantize) ? fp_quantise_floats(mn) : 0;
	double solving =
		target + fmax(fp_solve_floats(be, settings, &size), quantising) + (size.operators > 1 ? targets : 0);
	return fmax(making, solving) + (narrow ? 2 * mn : 0); /* W and V in F32 */
}
