/* SPDX-License-Identifier: Apache-2.0 */
/* Sensitivities against differences of the loss. The gradient by a bias is the sum over tokens of the gradients by an
 * operator's outputs; with windows of two tokens only the first one has a loss, so that the sum has one term. In windows
 * of three the query of the second token is the only one that matters, since the first has a single key to look at. */
#include "basis_fixture.h"

#include "basis/sensitivity.h"

#include <math.h>
#include <stdlib.h>

static const char *const models[] = {"opt-plain", "llama-bias", "qwen3-bias-tied", "opt-untied"};
enum { MODEL_COUNT = sizeof models / sizeof models[0] };
static const fp_share alone = {0};

/* The sum of the losses when `step` is added to a bias of a layer. */
static double moved_loss(model_fixture *f, const fp_windows *windows, int64_t where, fp_role role, int64_t output,
						 double step)
{
	int64_t rows = windows->count * windows->length, layers = fp_model_get_config(f->model)->layers;
	fp_layer_state state = {.sequences = windows->count, .length = windows->length};
	fp_workspace *workspace;
	double sum = 0;
	float losses[8];
	int32_t targets[8];
	assert_true(rows <= 8);
	assert_ok(f->ctx, fp_workspace_new(&workspace, f->model, rows));
	assert_ok(f->ctx, fp_matrix_new(f->be, &state.hidden, rows, fp_model_get_config(f->model)->hidden, FP_F32));
	assert_ok(f->ctx, fp_model_embed(f->model, windows->ids, windows->count, windows->length, state.hidden));
	for (int64_t index = 0; index < layers; index++) {
		fp_layer *layer;
		assert_ok(f->ctx, fp_layer_load(&layer, f->model, index));
		if (index == where) {
			float *bias = matrix_floats(f, layer->bias[role]);
			bias[output] += (float)step;
			set_matrix(f, layer->bias[role], bias);
			free(bias);
		}
		assert_ok(f->ctx, fp_layer_forward(layer, &state, workspace));
		fp_layer_free(layer);
	}
	for (int64_t i = 0; i < rows; i++)
		targets[i] = (i + 1) % windows->length == 0 ? -1 : windows->ids[i + 1];
	assert_ok(f->ctx, fp_model_loss(f->model, state.hidden, targets, losses, NULL));
	for (int64_t i = 0; i < rows; i++)
		sum += (double)losses[i];
	fp_matrix_free(f->be, &state.hidden);
	fp_workspace_free(workspace);
	return sum;
}

/* The mean of squares over outputs and tokens, from the differences; < 0: the operator has no bias. */
static double plain_sensitivity(model_fixture *f, const fp_windows *windows, int64_t layer, fp_role role)
{
	const fp_tensor_info *bias = fp_model_operator_bias(f->model, layer, role);
	const double step = 1.0 / 64;
	double sum = 0;
	if (!bias)
		return -1;
	for (int64_t j = 0; j < bias->elements; j++) {
		double up = moved_loss(f, windows, layer, role, j, step), down = moved_loss(f, windows, layer, role, j, -step);
		sum += pow((up - down) / (2 * step), 2);
	}
	return sum / (double)bias->elements / (double)(windows->count * windows->length);
}

static void check_roles(const char *name, int64_t length, const fp_role *roles, int count)
{
	model_fixture f;
	open_fixture(&f, name);
	fp_windows all = read_windows(name), windows = {.ids = all.ids, .count = 1, .length = length};
	int64_t layers = fp_model_get_config(f.model)->layers, compared = 0;
	double *got = malloc((size_t)(layers * FP_ROLE_COUNT) * sizeof *got);
	assert_ok(f.ctx, fp_sensitivities(got, f.model, &windows, &alone));
	for (int64_t layer = 0; layer < layers; layer++)
		for (int i = 0; i < count; i++) {
			double want = plain_sensitivity(&f, &windows, layer, roles[i]),
				   have = got[layer * FP_ROLE_COUNT + roles[i]];
			if (want < 0)
				continue;
			compared++;
			if (!(have > 0 && fabs(have - want) <= 0.02 * want))
				fail_msg("%s, layer %lld, %s: the sensitivity is %g, by differences %g", name, (long long)layer,
						 fp_role_name(roles[i]), have, want);
		}
	assert_true(compared > 0);
	free(got);
	free(all.ids);
	close_fixture(&f);
}

static void sensitivities_agree_with_differences_of_the_loss(void **unused)
{
	(void)unused;
	static const fp_role one_term[] = {FP_VALUE, FP_OUTPUT, FP_GATE, FP_UP, FP_DOWN}, query[] = {FP_QUERY};
	for (int i = 0; i < MODEL_COUNT; i++) {
		check_roles(models[i], 2, one_term, 5);
		check_roles(models[i], 3, query, 1);
	}
}

/* Queries and keys of a first token decide nothing; a role that the model lacks has 0. */
static void what_decides_nothing_is_zero(void **unused)
{
	(void)unused;
	model_fixture f;
	double got[2 * FP_ROLE_COUNT];
	open_fixture(&f, "opt-plain");
	fp_windows all = read_windows("opt-plain"), windows = {.ids = all.ids, .count = 1, .length = 2};
	assert_int_equal(fp_model_get_config(f.model)->layers, 2);
	assert_ok(f.ctx, fp_sensitivities(got, f.model, &windows, &alone));
	for (int layer = 0; layer < 2; layer++)
		for (int role = 0; role < FP_ROLE_COUNT; role++) {
			double value = got[layer * FP_ROLE_COUNT + role];
			if (!fp_model_operator(f.model, layer, (fp_role)role))
				assert_true(value == 0);
			else if (role == FP_QUERY || role == FP_KEY)
				assert_true(fabs(value) < 1e-12);
			else
				assert_true(value > 0);
		}
	free(all.ids);
	close_fixture(&f);
}

/* Windows that do not fit into one batch give the mean of those that do. */
static void batches_add_up(void **unused)
{
	(void)unused;
	enum { LENGTH = 24, COUNT = 120 }; /* 2,880 tokens: two batches */
	model_fixture f;
	double whole[2 * FP_ROLE_COUNT], parts[2 * FP_ROLE_COUNT], sum[2 * FP_ROLE_COUNT] = {0};
	static int32_t ids[LENGTH * COUNT];
	uint64_t seed = 4;
	open_fixture(&f, "llama-gqa");
	for (int i = 0; i < LENGTH * COUNT; i++)
		ids[i] = (int32_t)((double)(random_uniform(&seed) + 1) / 2 * 40) % 40;
	fp_windows all = {.ids = ids, .count = COUNT, .length = LENGTH};
	assert_ok(f.ctx, fp_sensitivities(whole, f.model, &all, &alone));
	for (int part = 0; part < 2; part++) {
		fp_windows half = {.ids = ids + part * LENGTH * COUNT / 2, .count = COUNT / 2, .length = LENGTH};
		assert_ok(f.ctx, fp_sensitivities(parts, f.model, &half, &alone));
		for (int i = 0; i < 2 * FP_ROLE_COUNT; i++)
			sum[i] += parts[i] / 2;
	}
	fp_share sixteenths = fp_share_divided(NULL, 0);
	assert_ok(f.ctx, fp_sensitivities(parts, f.model, &all, &sixteenths));
	for (int i = 0; i < 2 * FP_ROLE_COUNT; i++) {
		assert_int_equal(whole[i] > 0, fp_model_operator(f.model, i / FP_ROLE_COUNT, i % FP_ROLE_COUNT) != NULL);
		assert_true(fabs(whole[i] - sum[i]) <= 1e-4 * sum[i]);
		assert_true(fabs(whole[i] - parts[i]) <= 1e-4 * sum[i]);
	}
	close_fixture(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sensitivities_agree_with_differences_of_the_loss),
		cmocka_unit_test(what_decides_nothing_is_zero),
		cmocka_unit_test(batches_add_up),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
