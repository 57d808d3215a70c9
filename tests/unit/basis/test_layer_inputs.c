/* SPDX-License-Identifier: Apache-2.0 */
/* Gram matrices of a layer's inputs against plain loops over the inputs, in more than one batch. */
#include "basis_fixture.h"

#include "basis/layer_inputs.h"
#include "model/basis.h"

#include <math.h>
#include <stdlib.h>

enum { WINDOWS = 600, LENGTH = 8 }; /* 4,800 tokens: two batches */

/* sum ← sum + XᵀX */
static void add_products(double *sum, const float *X, int64_t rows, int64_t n)
{
	for (int64_t t = 0; t < rows; t++)
		for (int64_t i = 0; i < n; i++)
			for (int64_t j = 0; j < n; j++)
				sum[i * n + j] += (double)X[t * n + i] * (double)X[t * n + j];
}

static void check_matrix(model_fixture *f, fp_matrix got, const double *want, int64_t step, const char *what)
{
	float *values = matrix_floats(f, got);
	double largest = 0;
	for (int64_t i = 0; i < fp_matrix_size(got); i++)
		largest = fmax(largest, fabs(want[i * step]));
	for (int64_t i = 0; i < fp_matrix_size(got); i++)
		if (!(fabs((double)values[i] - want[i * step]) < 1e-5 * largest))
			fail_msg("%s: entry %lld is %g, expected %g", what, (long long)i, (double)values[i], want[i * step]);
	free(values);
}

/* n of a group's H. */
static int64_t group_inputs(const fp_layer *layer, int group)
{
	static const fp_role first[FP_GROUP_COUNT] = {[FP_GROUP_ATTENTION] = FP_QUERY,
												  [FP_GROUP_OUTPUT] = FP_OUTPUT,
												  [FP_GROUP_FEED] = FP_UP,
												  [FP_GROUP_DOWN] = FP_DOWN};
	return layer->weight[first[group]].cols;
}

/* The inputs of all groups of the layer; hidden ← its output. */
static void plain_grams(model_fixture *f, const fp_layer *layer, fp_matrix hidden, double *grams[FP_GROUP_COUNT])
{
	const fp_model_config *c = fp_model_get_config(f->model);
	fp_workspace *workspace;
	fp_layer_state state = {.sequences = WINDOWS, .length = LENGTH, .hidden = hidden};
	assert_ok(f->ctx, fp_workspace_new(&workspace, f->model, WINDOWS * LENGTH));
	assert_ok(f->ctx, fp_matrix_new(f->be, &state.context, WINDOWS * LENGTH, c->heads * c->head_dim, FP_F32));
	for (int group = 0; group < FP_GROUP_COUNT; group++) {
		fp_matrix X;
		assert_ok(f->ctx, fp_layer_input(layer, group, &state, workspace, &X));
		int64_t n = fp_matrix_is_absent(X) ? 0 : group_inputs(layer, group);
		assert_int_equal(X.cols, n);
		float *values = n > 0 ? matrix_floats(f, X) : NULL;
		grams[group] = calloc((size_t)(n * n), sizeof **grams);
		if (n > 0)
			add_products(grams[group], values, X.rows, n);
		for (int64_t i = 0; i < n * n; i++)
			grams[group][i] /= WINDOWS * LENGTH;
		free(values);
		assert_ok(f->ctx, fp_layer_advance(layer, group, X, &state, workspace));
	}
	fp_matrix_free(f->be, &state.context);
	fp_workspace_free(workspace);
}

static void grams_are_those_of_plain_loops(void **unused)
{
	(void)unused;
	static const char *const models[] = {"llama-gqa", "opt-plain", "llama-head-dim"};
	static const unsigned wanted[2] = {FP_STREAM_INPUTS, FP_ATTENTION_INPUTS}; /* in the first and the second layer */
	for (int k = 0; k < 6; k++) {
		int m = k / 2;
		fp_share share = k % 2 ? fp_share_divided(NULL, WINDOWS) : (fp_share){0}; /* part by part, or in one sum */
		model_fixture f;
		fp_text_stream stream;
		fp_matrix hidden;
		uint64_t seed = 6;
		open_fixture(&f, models[m]);
		fp_windows windows = {.count = WINDOWS, .length = LENGTH};
		windows.ids = calloc(WINDOWS * LENGTH, sizeof *windows.ids);
		for (int i = 0; i < WINDOWS * LENGTH; i++)
			windows.ids[i] = (int32_t)((double)(random_uniform(&seed) + 1) / 2 * 40) % 40;
		assert_ok(f.ctx, fp_matrix_new(f.be, &hidden, WINDOWS * LENGTH, fp_model_get_config(f.model)->hidden, FP_F32));
		assert_ok(f.ctx, fp_model_embed(f.model, windows.ids, WINDOWS, LENGTH, hidden));
		assert_ok(f.ctx, fp_text_stream_open(&stream, f.model, &windows, &share));
		assert_int_equal(stream.windows, WINDOWS);
		assert_true(stream.batch < WINDOWS);
		for (int64_t i = 0; i < 2; i++) {
			fp_layer *layer;
			fp_layer_inputs inputs;
			double *want[FP_GROUP_COUNT];
			assert_ok(f.ctx, fp_layer_load(&layer, f.model, i));
			plain_grams(&f, layer, hidden, want);
			assert_ok(f.ctx, fp_layer_inputs_measure(&inputs, &stream, layer, wanted[i]));
			for (int group = 0; group < FP_GROUP_COUNT; group++) {
				assert_int_equal(fp_matrix_is_absent(inputs.H[group]), !(wanted[i] >> group & 1U));
				if (!fp_matrix_is_absent(inputs.H[group]))
					check_matrix(&f, inputs.H[group], want[group], 1, models[m]);
			}
			check_matrix(&f, inputs.inner, want[FP_GROUP_COUNT - 1], inputs.inner.cols + 1, models[m]);
			fp_layer_inputs_free(f.be, &inputs);
			fp_layer_free(layer);
			for (int group = 0; group < FP_GROUP_COUNT; group++)
				free(want[group]);
		}
		fp_text_stream_free(&stream);
		fp_matrix_free(f.be, &hidden);
		free(windows.ids);
		close_fixture(&f);
	}
}

/* Experts: the Gram matrix of all rows that their gates read, and the squares of the channels of each. */
static void grams_of_experts(model_fixture *f, const fp_layer *layer, fp_layer_state *state, double *gram,
							 double *squares)
{
	const fp_experts_config *experts = &fp_model_get_config(f->model)->experts;
	int64_t own = fp_first_channel(f->model, layer->index, 0), places = WINDOWS * LENGTH * experts->active;
	fp_workspace *workspace;
	fp_matrix X;
	assert_ok(f->ctx, fp_workspace_new(&workspace, f->model, WINDOWS * LENGTH));
	for (int group = 0; group < FP_GROUP_COUNT; group++) {
		assert_ok(f->ctx, fp_layer_input(layer, group, state, workspace, &X));
		fp_expert_rows read = fp_layer_expert_rows(layer, workspace);
		float *values = group >= FP_GROUP_FEED ? matrix_floats(f, read.rows) : NULL;
		if (group == FP_GROUP_FEED) {
			add_products(gram, values, read.rows.rows, read.rows.cols);
			for (int64_t i = 0; i < read.rows.cols * read.rows.cols; i++)
				gram[i] /= (double)places;
		}
		for (int64_t e = 0; group == FP_GROUP_DOWN && e < experts->count; e++)
			for (int64_t i = read.routing->first[e]; i < read.routing->first[e + 1]; i++)
				for (int64_t j = 0; j < experts->inner; j++)
					squares[own + e * experts->inner + j] +=
						pow((double)values[i * experts->inner + j], 2) /
						(double)(read.routing->first[e + 1] - read.routing->first[e]);
		free(values);
		assert_ok(f->ctx, fp_layer_advance(layer, group, X, state, workspace));
	}
	fp_workspace_free(workspace);
}

static void experts_are_those_of_plain_loops(void **unused)
{
	(void)unused;
	static const char *const models[] = {"mixtral-plain", "qwen3_moe-plain"};
	for (int k = 0; k < 4; k++) {
		int m = k / 2;
		fp_share share = k % 2 ? fp_share_divided(NULL, WINDOWS) : (fp_share){0};
		model_fixture f;
		fp_text_stream stream;
		fp_layer *layer;
		fp_layer_inputs inputs;
		uint64_t seed = 7;
		open_fixture(&f, models[m]);
		const fp_model_config *c = fp_model_get_config(f.model);
		fp_layer_state state = {.sequences = WINDOWS, .length = LENGTH};
		fp_windows windows = {.count = WINDOWS, .length = LENGTH};
		windows.ids = calloc(WINDOWS * LENGTH, sizeof *windows.ids);
		for (int i = 0; i < WINDOWS * LENGTH; i++)
			windows.ids[i] = (int32_t)((double)(random_uniform(&seed) + 1) / 2 * 40) % 40;
		assert_ok(f.ctx, fp_matrix_new(f.be, &state.hidden, WINDOWS * LENGTH, c->hidden, FP_F32));
		assert_ok(f.ctx, fp_matrix_new(f.be, &state.context, WINDOWS * LENGTH, c->heads * c->head_dim, FP_F32));
		assert_ok(f.ctx, fp_model_embed(f.model, windows.ids, WINDOWS, LENGTH, state.hidden));
		assert_ok(f.ctx, fp_text_stream_open(&stream, f.model, &windows, &share));
		assert_ok(f.ctx, fp_layer_load(&layer, f.model, 0));
		double *gram = calloc((size_t)(c->hidden * c->hidden), sizeof *gram);
		double *squares = calloc((size_t)fp_layer_channels(f.model, 0), sizeof *squares);
		grams_of_experts(&f, layer, &state, gram, squares);
		assert_ok(f.ctx, fp_layer_inputs_measure(&inputs, &stream, layer, FP_STREAM_INPUTS));
		assert_true(fp_matrix_is_absent(inputs.H[FP_GROUP_FEED]) && fp_matrix_is_absent(inputs.H[FP_GROUP_DOWN]));
		assert_int_equal(inputs.inner.cols, fp_layer_channels(f.model, 0));
		check_matrix(&f, inputs.experts, gram, 1, models[m]);
		check_matrix(&f, inputs.inner, squares, 1, models[m]);
		free(gram);
		free(squares);
		fp_layer_inputs_free(f.be, &inputs);
		fp_layer_free(layer);
		fp_text_stream_free(&stream);
		fp_matrix_free(f.be, &state.hidden);
		fp_matrix_free(f.be, &state.context);
		free(windows.ids);
		close_fixture(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(grams_are_those_of_plain_loops),
									   cmocka_unit_test(experts_are_those_of_plain_loops)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
