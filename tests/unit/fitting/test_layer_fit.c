/* SPDX-License-Identifier: Apache-2.0 */
/* The layer fit: it reduces the loss, never makes the held-out windows worse, keeps zeros, gives numbers of the
 * checkpoint's type, and gives the same weights twice. */
#include "fit_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void a_fit_reduces_the_loss(void **unused)
{
	(void)unused;
	static const char *const settings[] = {"fit_steps=60", "fit_tokens=192", "fit_rate=0.02", NULL};
	for (int j = 0; j < 2 * FIT_MODEL_COUNT; j++) {
		int i = j / 2;
		fit_fixture fit;
		float *before[FIT_TENSORS], *after[FIT_TENSORS];
		open_fit(&fit, fit_models[i], 40, settings);
		if (j % 2 == 1) /* gradients are summed part by part */
			fit.share = fp_share_divided(NULL, 40);
		prune_by_size(&fit);
		read_weights(&fit, before);
		double start = relative_loss(&fit, 0, 40);
		run_fit(&fit);
		read_weights(&fit, after);
		double end = relative_loss(&fit, 0, 40);
		if (!(end < 0.8 * start && fit.result.loss_after < 0.9 * fit.result.loss_before && fit.result.steps > 0))
			fail_msg("%s: the loss went from %g to %g, on the held-out windows from %g to %g", fit_models[i], start,
					 end, fit.result.loss_before, fit.result.loss_after);
		check_weights(&fit, before, after);
		free_weights(before);
		free_weights(after);
		close_fit(&fit);
	}
}

/* Returns Σ g·e with e = layer(input) − target over the windows that have gradients; *along ← Σ(u·e)², with u the
 * direction that the gradients share. */
static double slope_of(fit_fixture *fit, double *along)
{
	fp_matrix out;
	double sum = 0;
	assert_ok(fit->f.ctx, fp_matrix_new(fit->f.be, &out, fit->input.rows, fit->input.cols, FP_F32));
	forward_fit(fit, fit->layer, out);
	float *y = download_floats(fit, out), *t = download_floats(fit, fit->target),
		  *g = download_floats(fit, fit->gradients);
	*along = 0;
	for (int64_t row = 0; row < fit->gradients.rows; row++) {
		double common = 0;
		for (int64_t k = 0; k < out.cols; k++) {
			int64_t i = row * out.cols + k;
			sum += (double)g[i] * ((double)y[i] - (double)t[i]);
			common += k % 3 == 0 ? (double)y[i] - (double)t[i] : 0;
		}
		*along += common * common;
	}
	free(y);
	free(t);
	free(g);
	fp_matrix_free(fit->f.be, &out);
	return sum;
}

/* The slope of the token loss decreases, and more so with a larger adapt. The metric makes errors along the
 * gradients smaller than the plain metric does. */
static void token_gradients_direct_the_fit(void **unused)
{
	(void)unused;
	static const char *const weights[] = {"adapt=0", "adapt=0.01", "adapt=0.1"};
	for (int i = 0; i < FIT_MODEL_COUNT; i++) {
		double before = 0, slope[4], along[4], start_along; /* [3]: in the plain metric */
		for (int turn = -1; turn < 3; turn++) {
			const char *settings[] = {"fit_steps=60", "fit_tokens=192", "fit_rate=0.05", weights[turn < 0 ? 0 : turn],
									  NULL};
			fit_fixture fit;
			float *start[FIT_TENSORS], *end[FIT_TENSORS];
			open_fit(&fit, fit_models[i], 40, settings);
			prune_by_size(&fit);
			read_weights(&fit, start);
			make_token_gradients(&fit, 30); /* ten windows have none */
			before = slope_of(&fit, &start_along);
			fit.gradient_windows = turn < 0 ? 0 : 30;
			run_fit(&fit);
			assert_true(fit.result.steps > 0 && fit.result.loss_after < fit.result.loss_before);
			int at = turn < 0 ? 3 : turn;
			slope[at] = slope_of(&fit, &along[at]);
			read_weights(&fit, end);
			check_weights(&fit, start, end);
			free_weights(start);
			free_weights(end);
			close_fit(&fit);
		}
		if (!(slope[2] < slope[1] && slope[1] < slope[0] && fabs(slope[0]) < fabs(before) && along[0] < along[3]))
			fail_msg("%s: slopes %g, %g, %g; %g before; errors along the gradients %g, %g in the plain metric",
					 fit_models[i], slope[0], slope[1], slope[2], before, along[0], along[3]);
	}
}

static void a_repeated_fit_gives_the_same_weights(void **unused)
{
	(void)unused;
	static const char *const settings[] = {"fit_steps=12", "fit_tokens=120", "seed=7", NULL};
	float *first[FIT_TENSORS], *second[FIT_TENSORS];
	for (int turn = 0; turn < 2; turn++) {
		fit_fixture fit;
		open_fit(&fit, "opt-plain", 12, settings);
		prune_by_size(&fit);
		run_fit(&fit);
		assert_true(fit.result.steps > 0);
		read_weights(&fit, turn ? second : first);
		for (int i = 0; i < FIT_TENSORS && turn; i++)
			if (first[i]) {
				fp_matrix matrix = layer_tensor(&fit, i);
				assert_memory_equal(first[i], second[i], (size_t)fp_matrix_size(matrix) * sizeof *first[i]);
			}
		close_fit(&fit);
	}
	free_weights(first);
	free_weights(second);
}

/* Adam's first step moves every weight by the rate, which depends on the number of inputs and on the layer's error. */
static void the_rate_depends_on_width_and_error(void **unused)
{
	(void)unused;
	static const char *const settings[] = {"fit_steps=1", "fit_rate=0.001", "fit_width=16", NULL};
	fit_fixture fit;
	float *before[FIT_TENSORS], *after[FIT_TENSORS];
	open_fit(&fit, "llama-plain", 8, settings); /* float: nothing is rounded */
	prune_by_size(&fit);
	read_weights(&fit, before);
	run_fit(&fit);
	assert_int_equal(fit.result.steps, 1);
	read_weights(&fit, after);
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		fp_matrix weight = fit.layer->weight[role];
		if (fp_matrix_is_absent(weight))
			continue;
		double square = 0, largest = 0, size = (double)fp_matrix_size(weight);
		for (int64_t i = 0; i < fp_matrix_size(weight); i++) {
			square += (double)before[2 * role][i] * (double)before[2 * role][i] / size;
			largest = fmax(largest, fabs((double)after[2 * role][i] - (double)before[2 * role][i]));
		}
		assert_true(weight.cols > 16);
		double length = 0.001 * sqrt(square) * sqrt(16 / (double)weight.cols) * sqrt(fit.result.loss_before);
		assert_true(fabs(largest - length) <= 0.01 * length);
	}
	free_weights(before);
	free_weights(after);
	close_fit(&fit);
}

/* Two windows, one of them held out. The loss at the start shows which one. */
static void the_held_out_window_is_never_worse(void **unused)
{
	(void)unused;
	static const char *const rates[] = {"fit_rate=0.001", "fit_rate=0.02", "fit_rate=0.3", "fit_rate=1"};
	int unchanged = 0, kept = 0;
	for (int i = 0; i < FIT_MODEL_COUNT * 4; i++) {
		fit_fixture fit;
		float *before[FIT_TENSORS], *after[FIT_TENSORS];
		const char *settings[] = {"fit_steps=30", "fit_holdout=0.5", rates[i / FIT_MODEL_COUNT], NULL};
		open_fit(&fit, fit_models[i % FIT_MODEL_COUNT], 2, settings);
		prune_by_size(&fit);
		read_weights(&fit, before);
		double start[2] = {relative_loss(&fit, 0, 1), relative_loss(&fit, 1, 2)};
		run_fit(&fit);
		read_weights(&fit, after);
		int held = fabs(start[0] - fit.result.loss_before) < fabs(start[1] - fit.result.loss_before) ? 0 : 1;
		double end = relative_loss(&fit, held, held + 1);
		/* another batch size sums in another order, which can change a rounding to bf16 */
		double bound = fit.f.be->precision == FP_PRECISION_BF16 ? 1e-2 : 1e-5;
		assert_true(fabs(start[held] - fit.result.loss_before) <= bound * start[held]);
		assert_true(fabs(end - fit.result.loss_after) <= bound * end);
		assert_true(fit.result.loss_after <= fit.result.loss_before);
		if (fit.result.steps == 0) {
			unchanged++;
			assert_true(fit.result.loss_after == fit.result.loss_before);
			for (int k = 0; k < FIT_TENSORS; k++)
				if (before[k]) {
					fp_matrix matrix = layer_tensor(&fit, k);
					assert_memory_equal(before[k], after[k], (size_t)fp_matrix_size(matrix) * sizeof *before[k]);
				}
		} else {
			kept++;
			assert_true(fit.result.loss_after < fit.result.loss_before);
		}
		check_weights(&fit, before, after);
		free_weights(before);
		free_weights(after);
		close_fit(&fit);
	}
	assert_true(kept > 0 && unchanged > 0); /* both cases occurred */
}

/* A rate twenty times too high ends above the start; lower ones are tried then. */
static void a_failed_fit_is_repeated_with_a_lower_rate(void **unused)
{
	(void)unused;
	static const char *const settings[] = {"fit_steps=60", "fit_tokens=192", "fit_rate=2", NULL};
	for (int i = 0; i < FIT_MODEL_COUNT; i++) {
		fit_fixture fit;
		open_fit(&fit, fit_models[i], 40, settings);
		prune_by_size(&fit);
		run_fit(&fit);
		if (!(fit.result.steps > 0 && fit.result.loss_after < fit.result.loss_before))
			fail_msg("%s: no point was better than the start, with a loss of %g", fit_models[i],
					 fit.result.loss_before);
		close_fit(&fit);
	}
}

/* What the log tells of the measurements of all attempts. */
typedef struct measured {
	int64_t step;         /* of the last measurement */
	bool late_and_worse;  /* it was not better than the start after half of the steps, or later */
	int64_t first, steps; /* of the first attempt, and of the present one */
	int stopped, went_on; /* attempts that ended before their last step for that, and those that did not */
} measured;

static void read_measurement(void *data, fp_log_level level, const char *text)
{
	measured *m = data;
	const char *at = strstr(text, "fit step ");
	(void)level;
	if (!at)
		return;
	char *end;
	int64_t step = strtoll(at + strlen("fit step "), &end, 10);
	double now = strtod(end + strlen(": loss "), &end), start = strtod(end + strlen(", "), NULL);
	bool next = step <= m->step; /* attempt: has half as many steps as the first */
	if (m->late_and_worse && m->step < m->steps)
		*(next ? &m->stopped : &m->went_on) += 1;
	if (next)
		m->steps = (m->first + 1) / 2;
	m->step = step;
	m->late_and_worse = 2 * step >= m->steps && now >= start;
}

static void a_fit_that_is_not_better_at_half_is_stopped(void **unused)
{
	(void)unused;
	static const char *const rates[] = {"fit_rate=0.15", "fit_rate=0.2", "fit_rate=0.25", "fit_rate=0.3",
										"fit_rate=0.4"};
	int stopped = 0;
	for (int i = 0; i < 5 * FIT_MODEL_COUNT; i++) {
		const char *settings[] = {"fit_steps=60", "fit_tokens=192", rates[i / FIT_MODEL_COUNT], NULL};
		measured m = {0};
		fit_fixture fit;
		open_fit(&fit, fit_models[i % FIT_MODEL_COUNT], 6, settings);
		prune_by_size(&fit);
		m.first = m.steps = fp_fit_steps(fit.settings, fit.windows.count, FIT_LENGTH);
		fp_context_set_log(fit.f.ctx, read_measurement, &m, FP_LOG_DEBUG);
		run_fit(&fit);
		assert_int_equal(m.went_on, 0);
		stopped += m.stopped;
		close_fit(&fit);
	}
	assert_true(stopped > 0);
}

/* With gradients opposite to the errors, the loss is negative at the start and decreases slowly. */
static void a_negative_loss_does_not_stop_a_fit(void **unused)
{
	(void)unused;
	static const char *const settings[] = {"fit_steps=60", "fit_tokens=192", "fit_rate=0.001", "adapt=1", NULL};
	for (int i = 0; i < FIT_MODEL_COUNT; i++) {
		fit_fixture fit;
		fp_backend *be;
		open_fit(&fit, fit_models[i], 40, settings);
		be = fit.f.be;
		prune_by_size(&fit);
		assert_ok(fit.f.ctx, fp_matrix_new(be, &fit.gradients, fit.input.rows, fit.input.cols, FP_F32));
		forward_fit(&fit, fit.layer, fit.gradients);
		assert_ok(fit.f.ctx, be->linear->axpby(be, 1, fit.target, -1, fit.gradients));
		fit.gradient_windows = 40;
		run_fit(&fit);
		if (!(fit.result.loss_before < 0 && fit.result.steps > 0 && fit.result.loss_after < fit.result.loss_before))
			fail_msg("%s: the loss went from %g to %g in %lld steps", fit_models[i], fit.result.loss_before,
					 fit.result.loss_after, (long long)fit.result.steps);
		close_fit(&fit);
	}
}

/* fit_steps; more with more than 128 windows; at most 25 epochs of a short text. */
static void the_number_of_steps_depends_on_the_text(void **unused)
{
	(void)unused;
	static const char *const assignments[] = {"fit_steps=200", "fit_tokens=4096", "fit_holdout=0.0625", NULL};
	fp_context *ctx = fp_context_new();
	fp_settings *settings = resolved_settings(ctx, "llama", assignments);
	assert_int_equal(fp_fit_steps(settings, 128, 256), 200);
	assert_int_equal(fp_fit_steps(settings, 256, 256), 400);
	assert_int_equal(fp_fit_steps(settings, 2048, 256), 800);
	assert_int_equal(fp_fit_steps(settings, 128, 2048), 200);
	assert_int_equal(fp_fit_steps(settings, 32, 256), 50);
	assert_int_equal(fp_fit_steps(settings, 16, 256), 27); /* 15 of 16 windows in a step */
	assert_int_equal(fp_fit_steps(settings, 32, 2048), 200);
	fp_settings_free(settings);
	fp_context_free(ctx);
}

static void too_few_windows_leave_the_layer_unchanged(void **unused)
{
	(void)unused;
	static const char *const settings[] = {"fit_steps=5", NULL};
	fit_fixture fit;
	open_fit(&fit, "llama-gqa", 1, settings);
	prune_by_size(&fit);
	run_fit(&fit);
	assert_int_equal(fit.result.steps, 0);
	close_fit(&fit);
}

static void a_device_without_gradients_is_an_error(void **unused)
{
	(void)unused;
	static const char *const settings[] = {"fit_steps=5", NULL};
	fit_fixture fit;
	open_fit(&fit, "llama-gqa", 4, settings);
	fit.f.be->capabilities &= ~(unsigned)FP_CAN_DIFFERENTIATE;
	const fp_fit_task task = fit_task(&fit);
	assert_fails(fit.f.ctx, FP_ERROR_DEVICE, "--preset fast", fp_fit_layer(&task, &fit.result));
	close_fit(&fit);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_fit_reduces_the_loss),
		cmocka_unit_test(token_gradients_direct_the_fit),
		cmocka_unit_test(a_repeated_fit_gives_the_same_weights),
		cmocka_unit_test(the_rate_depends_on_width_and_error),
		cmocka_unit_test(the_held_out_window_is_never_worse),
		cmocka_unit_test(a_failed_fit_is_repeated_with_a_lower_rate),
		cmocka_unit_test(a_fit_that_is_not_better_at_half_is_stopped),
		cmocka_unit_test(a_negative_loss_does_not_stop_a_fit),
		cmocka_unit_test(the_number_of_steps_depends_on_the_text),
		cmocka_unit_test(too_few_windows_leave_the_layer_unchanged),
		cmocka_unit_test(a_device_without_gradients_is_an_error),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
