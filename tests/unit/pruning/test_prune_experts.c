/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pruned experts, verified independently: reported errors against ‖W*X* − WX‖ over the weighted rows of both streams,
 * routed by the dense one; and the same bytes however many experts are in memory at once.
 */
#include "real_layer.h"

#include "base/settings.h"
#include "pruning/prune_layer.h"
#include "verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OPERATORS = 64, LAYER = 1 };

typedef struct expert_run {
	model_fixture f;
	fp_windows windows;
	fp_settings *settings;
	fp_streams streams;
	fp_operator_result results[MOST_OPERATORS];
	void *bytes[MOST_OPERATORS];
} expert_run;

static fp_status take(void *data, const fp_operator_result *result, const void *bytes)
{
	expert_run *run = data;
	assert_null(run->bytes[result->number]);
	run->results[result->number] = *result;
	run->bytes[result->number] = malloc((size_t)result->tensor->bytes);
	memcpy(run->bytes[result->number], bytes, (size_t)result->tensor->bytes);
	return FP_OK;
}

static void prune(expert_run *run, const char *name, const char *const *settings, int64_t at_once,
				  fp_residence residence)
{
	memset(run, 0, sizeof *run);
	open_fixture(&run->f, name);
	run->windows = read_windows(name);
	fp_context *ctx = run->f.ctx;
	run->settings = resolved_settings(ctx, "llama", settings);
	const fp_streams_plan plan = {
		.both = fp_feed_needs_both(fp_feed_of(run->settings)), .batch = 1, .residence = residence, .folder = "."};
	assert_ok(ctx, fp_streams_open(&run->streams, run->f.model, &run->windows, &plan));
	fp_layer_task task = {.be = run->f.be,
						  .ctx = ctx,
						  .model = run->f.model,
						  .settings = run->settings,
						  .streams = &run->streams,
						  .experts_at_once = at_once,
						  .output = {.operator_done = take, .data = run}};
	fp_pattern *pattern = &task.pattern;
	assert_ok(ctx, fp_parse_sparsity(ctx, run->settings->pattern, &pattern->sparsity, &pattern->kept, &pattern->group));
	assert_ok(ctx, fp_pass_layer(&task, 0, NULL));
	assert_ok(ctx, fp_prune_layer(&task, LAYER));
}

static void finish(expert_run *run)
{
	for (int i = 0; i < MOST_OPERATORS; i++)
		free(run->bytes[i]);
	fp_streams_free(&run->streams);
	fp_settings_free(run->settings);
	free(run->windows.ids);
	close_fixture(&run->f);
}

/* Solving some experts after a pass of their own changes nothing. */
static void passes_do_not_matter(void **unused)
{
	(void)unused;
	static const char *const methods[][4] = {{"preset=paper", "pattern=2:4", NULL},
											 {"preset=fast", "pattern=50%", NULL},
											 {"method=wanda", "pattern=50%", NULL},
											 {"method=sparsegpt", "pattern=2:4", NULL},
											 {"method=alps", "pattern=50%", NULL}};
	static const char *const models[] = {"mixtral-plain", "qwen2_moe-plain"};
	for (size_t m = 0; m < sizeof methods / sizeof *methods; m++)
		for (size_t k = 0; k < sizeof models / sizeof *models; k++)
			for (int64_t at_once = 1; at_once < 5; at_once += 2) {
				expert_run whole, parts;
				prune(&whole, models[k], methods[m], 0, FP_RESIDENT);
				prune(&parts, models[k], methods[m], at_once, at_once == 1 ? FP_ON_DISK : FP_RECOMPUTE);
				for (int i = 0; i < fp_model_operators(whole.f.model); i++) {
					assert_int_equal(whole.bytes[i] == NULL, parts.bytes[i] == NULL);
					if (whole.bytes[i])
						assert_memory_equal(whole.bytes[i], parts.bytes[i], (size_t)whole.results[i].tensor->bytes);
				}
				finish(&whole);
				finish(&parts);
			}
}

/* Two streams of the layer, run by the test. */
typedef struct replay {
	fp_layer *layer[FP_STREAM_COUNT];
	fp_layer_state state[FP_STREAM_COUNT];
	fp_workspace *workspace[FP_STREAM_COUNT];
} replay;

static void replay_start(expert_run *run, replay *w)
{
	const fp_model_config *c = fp_model_get_config(run->f.model);
	fp_context *ctx = run->f.ctx;
	fp_backend *be = run->f.be;
	int64_t tokens = run->windows.count * run->windows.length;
	for (int s = 0; s < FP_STREAM_COUNT; s++) {
		fp_layer *before;
		w->state[s] = (fp_layer_state){.sequences = run->windows.count, .length = run->windows.length};
		assert_ok(ctx, fp_layer_load(&w->layer[s], run->f.model, LAYER));
		assert_ok(ctx, fp_matrix_new(be, &w->state[s].hidden, tokens, c->hidden, FP_F32));
		assert_ok(ctx, fp_matrix_new(be, &w->state[s].context, tokens, c->heads * c->head_dim, FP_F32));
		assert_ok(ctx, fp_workspace_new(&w->workspace[s], run->f.model, tokens));
		assert_ok(ctx, fp_model_embed(run->f.model, run->windows.ids, run->windows.count, run->windows.length,
									  w->state[s].hidden));
		assert_ok(ctx, fp_layer_load(&before, run->f.model, 0));
		assert_ok(ctx, fp_layer_forward(before, &w->state[s], w->workspace[s]));
		fp_layer_free(before);
	}
	for (int i = 0; i < fp_model_operators(run->f.model); i++) {
		fp_matrix weight = w->layer[FP_PRUNED]->weight[i];
		if (run->bytes[i])
			assert_ok(ctx, be->memory->upload(be, weight, run->bytes[i], run->results[i].tensor->dtype, weight.cols));
	}
}

static void replay_stop(expert_run *run, replay *w)
{
	for (int s = 0; s < FP_STREAM_COUNT; s++) {
		fp_layer_free(w->layer[s]);
		fp_workspace_free(w->workspace[s]);
		fp_matrix_free(run->f.be, &w->state[s].hidden);
		fp_matrix_free(run->f.be, &w->state[s].context);
	}
}

static float *download(expert_run *run, fp_matrix matrix)
{
	float *out = malloc((size_t)(fp_matrix_size(matrix) + 1) * sizeof *out);
	assert_ok(run->f.ctx, run->f.be->memory->download(run->f.be, out, FP_F32, matrix.cols, matrix));
	return out;
}

/* ‖VX* − WX‖² over the rows of an expert, and the ridge's part: few tokens reach each of these experts. */
static double plain_error(expert_run *run, replay *w, int number, fp_expert_rows X, fp_expert_rows Xstar)
{
	fp_matrix weight = w->layer[FP_DENSE]->weight[number];
	int64_t e = fp_operator_expert(number), n = weight.cols, m = weight.rows;
	fp_matrix rows = fp_routing_rows(X.routing, e, X.rows), rows_star = fp_routing_rows(X.routing, e, Xstar.rows);
	float *W = download(run, weight), *V = download(run, w->layer[FP_PRUNED]->weight[number]), *x = download(run, rows),
		  *xs = download(run, rows_star);
	double error = 0, trace = 0, change = 0, few = 4.0 * (double)n / (double)rows.rows;
	for (int64_t t = 0; t < rows.rows; t++)
		for (int64_t i = 0; i < m; i++) {
			double sum = 0;
			for (int64_t j = 0; j < n; j++)
				sum += (double)V[i * n + j] * (double)xs[t * n + j] - (double)W[i * n + j] * (double)x[t * n + j];
			error += sum * sum;
		}
	for (int64_t i = 0; i < rows.rows * n; i++)
		trace += (double)xs[i] * (double)xs[i];
	for (int64_t i = 0; i < m * n; i++)
		change += ((double)V[i] - (double)W[i]) * ((double)V[i] - (double)W[i]);
	assert_int_equal(run->results[number].tokens, rows.rows);
	assert_true(few > 1);
	error += fmin(0.05 * (few - 1), 1) * trace / (double)n * change;
	free(W);
	free(V);
	free(x);
	free(xs);
	return error;
}

static void reported_errors_are_those_of_the_routed_rows(void **unused)
{
	(void)unused;
	static const char *const settings[] = {"preset=paper", "pattern=50%", "bias_update=0", NULL};
	static const char *const models[] = {"mixtral-plain", "qwen3_moe-plain"};
	for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
		expert_run run;
		replay w = {0};
		prune(&run, models[k], settings, 0, FP_RESIDENT);
		replay_start(&run, &w);
		fp_expert_rows rows[FP_STREAM_COUNT];
		for (int group = 0; group < FP_GROUP_COUNT; group++) {
			fp_matrix X;
			for (int s = 0; s < FP_STREAM_COUNT; s++) {
				w.state[s].routing = s == FP_PRUNED && group >= FP_GROUP_FEED ? rows[FP_DENSE].routing : NULL;
				assert_ok(run.f.ctx, fp_layer_input(w.layer[s], group, &w.state[s], w.workspace[s], &X));
				rows[s] = fp_layer_expert_rows(w.layer[s], w.workspace[s]);
				if (group < FP_GROUP_FEED)
					assert_ok(run.f.ctx, fp_layer_advance(w.layer[s], group, X, &w.state[s], w.workspace[s]));
			}
			for (int i = FP_ROLE_COUNT; group >= FP_GROUP_FEED && i < fp_model_operators(run.f.model); i++) {
				if (fp_role_group(i) != group || run.results[i].tokens == 0)
					continue;
				double want = plain_error(&run, &w, i, rows[FP_DENSE], rows[FP_PRUNED]),
					   got = run.results[i].squared_error;
				if (!(fabs(got - want) <= 2e-3 * want))
					fail_msg("%s, operator %d: %.9g is reported, but it is %.9g", models[k], i, got, want);
			}
		}
		replay_stop(&run, &w);
		finish(&run);
	}
}

/* Every token reaches `active` experts, and one that none reaches is pruned all the same. */
static void tokens_are_counted(void **unused)
{
	(void)unused;
	static const char *const settings[] = {"preset=fast", "pattern=2:4", NULL};
	expert_run run;
	prune(&run, "qwen3_moe-plain", settings, 0, FP_RESIDENT);
	const fp_experts_config *experts = &fp_model_get_config(run.f.model)->experts;
	int64_t sum = 0;
	for (int64_t e = 0; e < experts->count; e++) {
		int number = fp_expert_operator(e, FP_DOWN);
		assert_non_null(run.bytes[number]);
		assert_true(2 * run.results[number].zeros == run.results[number].tensor->elements);
		assert_int_equal(run.results[number].tokens, run.results[fp_expert_operator(e, FP_UP)].tokens);
		sum += run.results[number].tokens;
	}
	assert_int_equal(sum, run.windows.count * run.windows.length * experts->active);
	assert_int_equal(run.results[FP_QUERY].tokens, -1);
	finish(&run);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(passes_do_not_matter),
		cmocka_unit_test(reported_errors_are_those_of_the_routed_rows),
		cmocka_unit_test(tokens_are_counted),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
