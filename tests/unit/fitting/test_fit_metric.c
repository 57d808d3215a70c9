/* SPDX-License-Identifier: Apache-2.0 */
/* The metric of the layer fit is compared with its formula, evaluated in double. */
#include "support.h"

#include "fitting/fit_metric.h"

#include <math.h>
#include <stdlib.h>

enum { TOKENS = 50, ROWS = 6, WIDTH = 9 };

typedef struct metric_run {
	fp_context *ctx;
	fp_backend *be;
	float gradients[TOKENS * WIDTH], e[ROWS * WIDTH], g[ROWS * WIDTH];
	fp_matrix device[3];
	double F[WIDTH][WIDTH], mean; /* from the formula */
} metric_run;

static void upload(metric_run *r, int at, const float *values, int64_t rows)
{
	assert_ok(r->ctx, fp_matrix_new(r->be, &r->device[at], rows, WIDTH, FP_F32));
	assert_ok(r->ctx, r->be->memory->upload(r->be, r->device[at], values, FP_F32, WIDTH));
}

static void open_run(metric_run *r)
{
	uint64_t seed = 4;
	r->ctx = fp_context_new();
	assert_ok(r->ctx, fp_backend_open(&r->be, r->ctx, "cpu", 1));
	r->mean = 0;
	for (int i = 0; i < TOKENS * WIDTH; i++) {
		r->gradients[i] = 0.01F * random_normal(&seed) * (float)(1 + i % WIDTH);
		r->mean += (double)r->gradients[i] * (double)r->gradients[i] / (TOKENS * WIDTH);
	}
	for (int i = 0; i < ROWS * WIDTH; i++) {
		r->e[i] = random_normal(&seed);
		r->g[i] = random_normal(&seed) * 0.02F;
	}
	for (int j = 0; j < WIDTH; j++)
		for (int k = 0; k < WIDTH; k++) {
			r->F[j][k] = j == k ? 0.1 : 0;
			for (int t = 0; t < TOKENS; t++)
				r->F[j][k] +=
					(double)r->gradients[t * WIDTH + j] * (double)r->gradients[t * WIDTH + k] / TOKENS / r->mean;
		}
	upload(r, 0, r->gradients, TOKENS);
	upload(r, 1, r->e, ROWS);
	upload(r, 2, r->g, ROWS);
}

static void close_run(metric_run *r)
{
	for (int i = 0; i < 3; i++)
		fp_matrix_free(r->be, &r->device[i]);
	fp_backend_close(r->be);
	fp_context_free(r->ctx);
}

static void it_agrees_with_the_formula(void **unused)
{
	(void)unused;
	metric_run r;
	fp_fit_metric metric;
	double quadratic, linear, wanted = 0, slope = 0;
	float got[ROWS * WIDTH];
	open_run(&r);
	assert_ok(r.ctx, fp_fit_metric_new(&metric, r.be, WIDTH, ROWS + 2));
	assert_ok(r.ctx, r.be->linear->gram(r.be, r.device[0], 0, metric.F));
	assert_ok(r.ctx, fp_fit_metric_finish(&metric, r.be, TOKENS, 0.3));
	for (int i = 0; i < ROWS; i++)
		for (int j = 0; j < WIDTH; j++) {
			slope += 2 * 0.3 / r.mean * (double)r.g[i * WIDTH + j] * (double)r.e[i * WIDTH + j];
			for (int k = 0; k < WIDTH; k++)
				wanted += (double)r.e[i * WIDTH + j] * r.F[j][k] * (double)r.e[i * WIDTH + k];
		}
	assert_ok(r.ctx, fp_fit_metric_measure(&metric, r.be, r.device[1], r.device[2], &quadratic, &linear));
	assert_true(fabs(quadratic - wanted) <= 1e-5 * wanted && fabs(linear - slope) <= 1e-5 * fabs(slope));
	assert_ok(r.ctx, fp_fit_metric_measure(&metric, r.be, r.device[1], (fp_matrix){0}, &quadratic, &linear));
	assert_true(fabs(quadratic - wanted) <= 1e-5 * wanted && linear == 0);
	assert_ok(r.ctx, fp_fit_metric_gradient(&metric, r.be, 0.5F, r.device[1], r.device[2]));
	assert_ok(r.ctx, r.be->memory->download(r.be, got, FP_F32, WIDTH, r.device[1]));
	for (int i = 0; i < ROWS; i++)
		for (int j = 0; j < WIDTH; j++) {
			double half = 0.3 / r.mean * (double)r.g[i * WIDTH + j];
			for (int k = 0; k < WIDTH; k++)
				half += (double)r.e[i * WIDTH + k] * r.F[k][j];
			assert_true(fabs((double)got[i * WIDTH + j] - 0.5 * half) <= 1e-4);
		}
	fp_fit_metric_free(r.be, &metric);
	close_run(&r);
}

static void without_gradients_it_is_the_plain_metric(void **unused)
{
	(void)unused;
	metric_run r;
	fp_fit_metric metric = {0};
	double quadratic, linear, wanted = 0;
	open_run(&r);
	for (int turn = 0; turn < 2; turn++) { /* no gradients; all gradients zero */
		if (turn) {
			assert_ok(r.ctx, fp_fit_metric_new(&metric, r.be, WIDTH, ROWS));
			assert_ok(r.ctx, r.be->memory->fill(r.be, metric.F, 0));
			assert_ok(r.ctx, fp_fit_metric_finish(&metric, r.be, TOKENS, 0.3));
			assert_true(fp_matrix_is_absent(metric.F) && metric.slope == 0);
		}
		wanted = 0;
		for (int i = 0; i < ROWS * WIDTH; i++)
			wanted += (double)r.e[i] * (double)r.e[i];
		assert_ok(r.ctx, fp_fit_metric_measure(&metric, r.be, r.device[1], (fp_matrix){0}, &quadratic, &linear));
		assert_true(fabs(quadratic - wanted) <= 1e-6 * wanted && linear == 0);
	}
	close_run(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_agrees_with_the_formula),
		cmocka_unit_test(without_gradients_it_is_the_plain_metric),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
