/* SPDX-License-Identifier: Apache-2.0 */
/* Pruning a layer with a fit: the caller receives the fitted weights. */
#include "fit_fixture.h"

#include "pruning/prune_layer.h"

#include <stdlib.h>
#include <string.h>

/* What fp_prune_layer() passes to its callbacks. */
typedef struct received {
	fit_fixture *fit;
	void *bytes[FIT_TENSORS];
	fp_dtype dtype[FIT_TENSORS];
	int fits;
	fp_fit_result result;
} received;

static void take(received *r, int at, const fp_tensor_info *tensor, const void *bytes)
{
	assert_null(r->bytes[at]);
	r->bytes[at] = malloc((size_t)tensor->bytes);
	memcpy(r->bytes[at], bytes, (size_t)tensor->bytes);
	r->dtype[at] = tensor->dtype;
}

static fp_status take_operator(void *data, const fp_operator_result *result, const void *bytes)
{
	take(data, 2 * (int)result->number, result->tensor, bytes);
	assert_int_equal(result->zeros, result->tensor->elements / 2);
	return FP_OK;
}

static fp_status take_bias(void *data, const fp_tensor_info *tensor, const void *bytes)
{
	received *r = data;
	for (int role = 0; role < FP_ROLE_COUNT; role++)
		if (fp_model_operator_bias(r->fit->f.model, 0, (fp_role)role) == tensor) {
			take(r, 2 * role + 1, tensor, bytes);
			return FP_OK;
		}
	fail_msg("%s is not a bias of the layer", tensor->name);
	return FP_ERROR_INTERNAL;
}

static fp_status take_fit(void *data, const fp_fit_result *result)
{
	received *r = data;
	r->fits++;
	r->result = *result;
	return FP_OK;
}

static void upload_received(fit_fixture *fit, const received *r)
{
	for (int i = 0; i < FIT_TENSORS; i++) {
		fp_matrix matrix = layer_tensor(fit, i);
		assert_int_equal(fp_matrix_is_absent(matrix), r->bytes[i] == NULL);
		if (r->bytes[i])
			assert_ok(fit->f.ctx, fit->f.be->memory->upload(fit->f.be, matrix, r->bytes[i], r->dtype[i], matrix.cols));
	}
}

static void callbacks_receive_the_fitted_weights(void **unused)
{
	(void)unused;
	static const char *const feeds[] = {"correction=cross", "correction=intra", "correction=none", "method=sparsegpt"};
	for (int i = 0; i < FIT_MODEL_COUNT * 4; i++) {
		const char *settings[] = {
			"pattern=2:4", "preset=best", "fit_steps=40", "fit_holdout=0.2", feeds[i / FIT_MODEL_COUNT], NULL};
		fit_fixture fit;
		open_fit(&fit, fit_models[i % FIT_MODEL_COUNT], 64, settings);
		received r = {.fit = &fit};
		fp_streams streams;
		fp_feed feed = fp_feed_of(fit.settings);
		const fp_streams_plan plan = {.both = fp_feed_needs_both(feed),
									  .batch =
										  fp_streams_usual_batch(fit.f.model, fit.windows.count, fit.windows.length)};
		assert_ok(fit.f.ctx, fp_streams_open(&streams, fit.f.model, &fit.windows, &plan));
		const fp_layer_task task = {
			.be = fit.f.be,
			.ctx = fit.f.ctx,
			.model = fit.f.model,
			.settings = fit.settings,
			.pattern = {.kept = 2, .group = 4, .sparsity = 0.5},
			.streams = &streams,
			.output = {.operator_done = take_operator, .bias_done = take_bias, .fit_done = take_fit, .data = &r}};
		forward_fit(&fit, fit.layer, fit.target);
		assert_ok(fit.f.ctx, fp_prune_layer(&task, 0));
		assert_int_equal(r.fits, 1);
		if (r.result.steps == 0)
			fail_msg("%s, %s: no point was better than the start, with a loss of %g", fit_models[i % FIT_MODEL_COUNT],
					 settings[4], r.result.loss_before);
		upload_received(&fit, &r);
		/* over all windows; the report has the held-out ones, which are similar */
		double loss = relative_loss(&fit, 0, 64);
		assert_true(loss < 0.5 * (r.result.loss_before + r.result.loss_after));
		/* the pruned stream went through the same weights; with bf16 products it has other rounding errors */
		if ((feed == FP_FEED_CROSS || feed == FP_FEED_SEQUENTIAL) && !fp_backend_rounds(fit.f.be, FP_USE_ACTIVATION)) {
			forward_fit(&fit, fit.layer, fit.target);
			float *a = download_floats(&fit, fit.target), *b = download_floats(&fit, streams.hidden[FP_PRUNED]);
			assert_memory_equal(a, b, (size_t)fp_matrix_size(fit.target) * sizeof *a);
			free(a);
			free(b);
		}
		for (int k = 0; k < FIT_TENSORS; k++)
			free(r.bytes[k]);
		fp_streams_free(&streams);
		close_fit(&fit);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(callbacks_receive_the_fitted_weights),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
