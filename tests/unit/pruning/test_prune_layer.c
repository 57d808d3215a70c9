/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pruned layers, verified independently: the test runs both streams through the layer with the bytes that were output,
 * and compares the reported errors with ‖W*X* − WX‖ computed from the activations in double.
 */
#include "real_layer.h"

#include "base/settings.h"
#include "pruning/prune_layer.h"
#include "verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct layer_run {
	model_fixture f;
	fp_windows windows;
	fp_settings *settings;
	fp_streams streams;
	fp_layer_task task;
	fp_operator_result results[FP_ROLE_COUNT];
	void *bytes[FP_ROLE_COUNT];
	void *biases[FP_ROLE_COUNT];
	int64_t layer; /* being pruned */
	int count;
} layer_run;

static fp_status take(void *data, const fp_operator_result *result, const void *bytes)
{
	layer_run *run = data;
	fp_role role = result->number;
	assert_null(run->bytes[role]);
	run->results[role] = *result;
	run->bytes[role] = malloc((size_t)result->tensor->bytes);
	memcpy(run->bytes[role], bytes, (size_t)result->tensor->bytes);
	run->count++;
	return FP_OK;
}

static fp_status take_bias(void *data, const fp_tensor_info *tensor, const void *bytes)
{
	layer_run *run = data;
	for (int role = 0; role < FP_ROLE_COUNT; role++)
		if (fp_model_operator_bias(run->f.model, run->layer, (fp_role)role) == tensor) {
			assert_null(run->biases[role]);
			run->biases[role] = malloc((size_t)tensor->bytes);
			memcpy(run->biases[role], bytes, (size_t)tensor->bytes);
			return FP_OK;
		}
	fail_msg("%s is no bias of layer %d", tensor->name, (int)run->layer);
	return FP_OK;
}

static void forget(layer_run *run)
{
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		free(run->bytes[role]);
		free(run->biases[role]);
		run->bytes[role] = NULL;
		run->biases[role] = NULL;
	}
	run->count = 0;
}

/* The model and windows of run->f are open. Settings are a list that ends with NULL. */
static void start(layer_run *run, const char *const *assignments)
{
	fp_context *ctx = run->f.ctx;
	run->settings = resolved_settings(ctx, "llama", assignments);
	const fp_streams_plan plan = {.both = fp_feed_needs_both(fp_feed_of(run->settings)),
								  .batch =
									  fp_streams_usual_batch(run->f.model, run->windows.count, run->windows.length)};
	assert_ok(ctx, fp_streams_open(&run->streams, run->f.model, &run->windows, &plan));
	run->task = (fp_layer_task){.be = run->f.be,
								.ctx = run->f.ctx,
								.model = run->f.model,
								.settings = run->settings,
								.streams = &run->streams,
								.output = {.operator_done = take, .bias_done = take_bias, .data = run}};
	fp_pattern *pattern = &run->task.pattern;
	assert_ok(ctx, fp_parse_sparsity(ctx, run->settings->pattern, &pattern->sparsity, &pattern->kept, &pattern->group));
}

static void stop(layer_run *run)
{
	forget(run);
	fp_streams_free(&run->streams);
	fp_settings_free(run->settings);
	run->settings = NULL;
}

static void open_tiny(layer_run *run, const char *name)
{
	memset(run, 0, sizeof *run);
	open_fixture(&run->f, name);
	run->windows = read_windows(name);
}

static void close_tiny(layer_run *run)
{
	free(run->windows.ids);
	close_fixture(&run->f);
}

static float *download(layer_run *run, fp_matrix matrix)
{
	float *out = malloc((size_t)fp_matrix_size(matrix) * sizeof *out);
	assert_ok(run->f.ctx, run->f.be->memory->download(run->f.be, out, FP_F32, matrix.cols, matrix));
	assert_ok(run->f.ctx, run->f.be->memory->synchronize(run->f.be));
	return out;
}

/* Two streams of one layer, run by the test. */
typedef struct replay {
	fp_layer *layer[FP_STREAM_COUNT];
	fp_layer_state state[FP_STREAM_COUNT];
	fp_workspace *workspace[FP_STREAM_COUNT];
	fp_matrix input[FP_STREAM_COUNT];
} replay;

/* hidden: the streams' hidden states before layer `index` */
static void replay_start(layer_run *run, replay *w, int64_t index, fp_matrix hidden[FP_STREAM_COUNT])
{
	const fp_model_config *c = fp_model_get_config(run->f.model);
	fp_context *ctx = run->f.ctx;
	int64_t tokens = run->windows.count * run->windows.length;
	for (int s = 0; s < FP_STREAM_COUNT; s++) {
		w->state[s] = (fp_layer_state){.sequences = run->windows.count, .length = run->windows.length};
		assert_ok(ctx, fp_layer_load(&w->layer[s], run->f.model, index));
		assert_ok(ctx, fp_matrix_new(run->f.be, &w->state[s].hidden, tokens, c->hidden, FP_F32));
		assert_ok(ctx, fp_matrix_new(run->f.be, &w->state[s].context, tokens, c->heads * c->head_dim, FP_F32));
		assert_ok(ctx, fp_workspace_new(&w->workspace[s], run->f.model, tokens));
		assert_ok(ctx, run->f.be->memory->copy(run->f.be, w->state[s].hidden, hidden[s]));
	}
}

static void replay_stop(layer_run *run, replay *w)
{
	for (int s = 0; s < FP_STREAM_COUNT; s++) {
		fp_layer_free(w->layer[s]);
		fp_matrix_free(run->f.be, &w->state[s].hidden);
		fp_matrix_free(run->f.be, &w->state[s].context);
		fp_workspace_free(w->workspace[s]);
	}
}

/* The pruned weights of a role, as the checkpoint will hold them. */
static float *pruned_weights(layer_run *run, replay *w, int role)
{
	fp_matrix weight = w->layer[FP_PRUNED]->weight[role];
	const fp_tensor_info *tensor = run->results[role].tensor;
	assert_ok(run->f.ctx, run->f.be->memory->upload(run->f.be, weight, run->bytes[role], tensor->dtype, weight.cols));
	return download(run, weight);
}

/* What the solve added to a role's bias, in double; zeros if it did not change it. */
static double *bias_change(layer_run *run, replay *w, int role)
{
	fp_matrix bias = w->layer[FP_PRUNED]->bias[role];
	double *change = calloc((size_t)w->layer[FP_PRUNED]->weight[role].rows, sizeof *change);
	assert_int_equal(run->results[role].bias_updated, run->biases[role] != NULL);
	if (!run->biases[role])
		return change;
	const fp_tensor_info *tensor = fp_model_operator_bias(run->f.model, w->layer[FP_PRUNED]->index, (fp_role)role);
	float *before = download(run, w->layer[FP_DENSE]->bias[role]);
	assert_ok(run->f.ctx, run->f.be->memory->upload(run->f.be, bias, run->biases[role], tensor->dtype, bias.cols));
	float *after = download(run, bias);
	double square = 0;
	for (int64_t i = 0; i < bias.cols; i++) {
		change[i] = (double)after[i] - (double)before[i];
		square += change[i] * change[i];
	}
	assert_true(fabs(run->results[role].bias_change - sqrt(square / (double)bias.cols)) <= 1e-5 * sqrt(square) + 1e-9);
	free(before);
	free(after);
	return change;
}

/* ‖VX* + c1ᵀ − WX‖ by appending c to V and a one to each input. */
static double residual_with_change(const double *V, const double *Xstar, const double *W, const double *X,
								   const double *change, int64_t m, int64_t n, int64_t p)
{
	const double *from[] = {V, W, Xstar, X};
	double *wide[4];
	for (int k = 0; k < 4; k++) {
		int64_t rows = k < 2 ? m : p;
		wide[k] = malloc((size_t)(rows * (n + 1)) * sizeof *wide[k]);
		for (int64_t i = 0; i < rows; i++) {
			memcpy(wide[k] + i * (n + 1), from[k] + i * n, (size_t)n * sizeof *wide[k]);
			wide[k][i * (n + 1) + n] = k == 0 ? change[i] : k == 1 ? 0.0 : 1.0;
		}
	}
	double out = verify_residual(wide[0], wide[2], wide[1], wide[3], m, n + 1, p);
	for (int k = 0; k < 4; k++)
		free(wide[k]);
	return out;
}

static void check_operator(layer_run *run, replay *w, int role, int corrected, const char *what)
{
	fp_matrix weight = w->layer[FP_DENSE]->weight[role];
	const fp_operator_result *result = &run->results[role];
	int64_t m = weight.rows, n = weight.cols, p = w->input[FP_DENSE].rows;
	float *dense = download(run, weight);
	float *pruned = pruned_weights(run, w, role);
	float *x = download(run, w->input[FP_DENSE]);
	float *xstar = download(run, w->input[corrected ? FP_PRUNED : FP_DENSE]);
	double *W = to_double(dense, m * n), *V = to_double(pruned, m * n);
	double *X = to_double(x, p * n), *Xstar = to_double(xstar, p * n);
	double *zero = calloc((size_t)(m * n), sizeof *zero);
	double *change = bias_change(run, w, role);
	double direct = residual_with_change(V, Xstar, W, X, change, m, n, p);
	double output = verify_residual(zero, Xstar, W, X, m, n, p);
	double got = sqrt(result->squared_error);
	if (!(fabs(got - direct) <= 1e-4 * direct + 1e-5 * output))
		fail_msg("%s %s: error %.7g, directly %.7g (output %.4g)", what, fp_role_name((fp_role)role), got, direct,
				 output);
	assert_true(fabs(sqrt(result->squared_output) - output) <= 1e-4 * output);
	if (fp_is(run->task.settings->method, "wanda")) /* counts in each row */
		for (int64_t i = 0; i < m; i++)
			assert_true(verify_pattern(pruned + i * n, 1, n, &run->task.pattern));
	else
		assert_true(verify_pattern(pruned, m, n, &run->task.pattern));
	assert_int_equal(result->zeros, verify_zeros(pruned, m * n));
	free(dense);
	free(pruned);
	free(x);
	free(xstar);
	free(W);
	free(V);
	free(X);
	free(Xstar);
	free(zero);
	free(change);
}

typedef void (*operator_check)(layer_run *run, replay *w, int role, int corrected, const char *what);

/* Prunes layer `index` (those before it too) and checks every operator of it. */
static void replay_layer(layer_run *run, int64_t index, const char *what, operator_check check)
{
	fp_feed feed = fp_feed_of(run->settings);
	int corrected = feed == FP_FEED_INTRA || feed == FP_FEED_CROSS;
	fp_context *ctx = run->f.ctx;
	replay w = {0};
	for (run->layer = 0; run->layer < index; run->layer++) {
		assert_ok(ctx, fp_prune_layer(&run->task, run->layer));
		forget(run);
	}
	/* without correction the layer reads one stream; the methods Wanda and SparseGPT read the pruned model's */
	fp_matrix dense = run->streams.hidden[FP_DENSE];
	fp_matrix starred = feed == FP_FEED_CROSS || feed == FP_FEED_SEQUENTIAL ? run->streams.hidden[FP_PRUNED] : dense;
	fp_matrix hidden[FP_STREAM_COUNT] = {feed == FP_FEED_SEQUENTIAL ? starred : dense, starred};
	replay_start(run, &w, index, hidden);
	assert_ok(ctx, fp_prune_layer(&run->task, index));
	for (int group = 0; group < FP_GROUP_COUNT; group++) {
		for (int s = 0; s < FP_STREAM_COUNT; s++)
			assert_ok(ctx, fp_layer_input(w.layer[s], group, &w.state[s], w.workspace[s], &w.input[s]));
		for (int role = 0; role < FP_ROLE_COUNT; role++)
			if (fp_role_group((fp_role)role) == group && run->bytes[role])
				check(run, &w, role, corrected, what);
		for (int s = 0; s < FP_STREAM_COUNT; s++)
			assert_ok(ctx, fp_layer_advance(w.layer[s], group, w.input[s], &w.state[s], w.workspace[s]));
	}
	/* the streams that the next layer reads equal the test's */
	for (int s = 0; s < (feed == FP_FEED_CROSS ? FP_STREAM_COUNT : 1); s++) {
		int from = feed == FP_FEED_SEQUENTIAL ? FP_PRUNED : s;
		float *a = download(run, run->streams.hidden[from]);
		float *b = download(run, w.state[from].hidden);
		for (int64_t i = 0; i < fp_matrix_size(w.state[from].hidden); i++)
			assert_true(fabsf(a[i] - b[i]) <= 1e-4F * (1 + fabsf(b[i])));
		free(a);
		free(b);
	}
	replay_stop(run, &w);
}

static void check_layer(layer_run *run, int64_t index, const char *what)
{
	replay_layer(run, index, what, check_operator);
}

/* The first rows of the target T + b, p × rows. */
static double *direct_target(layer_run *run, replay *w, int role, int64_t rows)
{
	const fp_settings *settings = run->settings;
	bool cross = fp_feed_of(settings) == FP_FEED_CROSS;
	double mix = cross ? settings->mix : 1.0;
	double share = role == FP_DOWN ? settings->residual : role == FP_OUTPUT && cross ? settings->residual_output : 0;
	int64_t n = w->layer[FP_DENSE]->weight[role].cols, p = w->input[FP_DENSE].rows;
	int64_t hidden = w->state[FP_DENSE].hidden.cols;
	float *W = download(run, w->layer[FP_DENSE]->weight[role]), *b = download(run, w->layer[FP_DENSE]->bias[role]);
	float *X = download(run, w->input[FP_DENSE]), *Xstar = download(run, w->input[FP_PRUNED]);
	float *h = download(run, w->state[FP_DENSE].hidden), *hstar = download(run, w->state[FP_PRUNED].hidden);
	double *target = calloc((size_t)(p * rows), sizeof *target);
	for (int64_t t = 0; t < p; t++)
		for (int64_t i = 0; i < rows; i++) {
			double sum = b[i];
			for (int64_t j = 0; j < n; j++)
				sum += (double)W[i * n + j] * (mix * X[t * n + j] + (1 - mix) * Xstar[t * n + j]);
			if (share > 0)
				sum += share * ((double)h[t * hidden + i] - (double)hstar[t * hidden + i]);
			target[t * rows + i] = sum;
		}
	float *all[] = {W, b, X, Xstar, h, hstar};
	for (int k = 0; k < 6; k++)
		free(all[k]);
	return target;
}

/* Weights and bias together against least squares with an intercept on the same support, in double. */
static void check_intercept(layer_run *run, replay *w, int role, int corrected, const char *what)
{
	enum { ROWS = 6 };
	int64_t n = w->layer[FP_DENSE]->weight[role].cols, p = w->input[FP_DENSE].rows, wide = n + 1;
	float *pruned = pruned_weights(run, w, role);
	double *change = bias_change(run, w, role), *target = direct_target(run, w, role, ROWS);
	float *b = download(run, w->layer[FP_DENSE]->bias[role]), *xstar = download(run, w->input[FP_PRUNED]);
	double *X = malloc((size_t)(p * wide) * sizeof *X), *A = malloc((size_t)(wide * wide) * sizeof *A);
	double *C = malloc((size_t)(ROWS * wide) * sizeof *C), *best = malloc((size_t)(ROWS * wide) * sizeof *best);
	double *V = malloc((size_t)(ROWS * wide) * sizeof *V);
	unsigned char *mask = malloc((size_t)(ROWS * wide));
	(void)corrected;
	for (int64_t t = 0; t < p; t++)
		for (int64_t j = 0; j < wide; j++)
			X[t * wide + j] = j < n ? xstar[t * n + j] : 1.0;
	for (int64_t i = 0; i < ROWS; i++)
		for (int64_t j = 0; j < wide; j++) {
			V[i * wide + j] = j < n ? pruned[i * n + j] : (double)b[i] + change[i];
			mask[i * wide + j] = j == n || pruned[i * n + j] != 0.0F;
		}
	verify_inner(A, X, X, p, wide, wide);
	verify_inner(C, target, X, p, ROWS, wide);
	for (int64_t j = 0; j < wide; j++) /* tiny, but needed: the support may include inputs that are always zero */
		A[j * wide + j] += 1e-9 * A[n * wide + n];
	verify_least_squares(best, A, C, mask, ROWS, wide);
	double energy = verify_dot(target, target, p * ROWS);
	double got = verify_gram_error(V, A, C, ROWS, wide, energy);
	double least = verify_gram_error(best, A, C, ROWS, wide, energy);
	if (!(got <= 1.002 * least + 1e-9 * energy))
		fail_msg("%s %s: squared error %.7g, with an intercept it could be %.7g", what, fp_role_name((fp_role)role),
				 got, least);
	for (int64_t i = 0; i < ROWS; i++) { /* the best intercept leaves errors of mean zero */
		double mean = 0, square = 0;
		for (int64_t t = 0; t < p; t++) {
			double error = verify_dot(V + i * wide, X + t * wide, wide) - target[t * ROWS + i];
			mean += error / (double)p;
			square += target[t * ROWS + i] * target[t * ROWS + i] / (double)p;
		}
		assert_true(fabs(mean) <= 1e-3 * sqrt(square));
	}
	free(pruned);
	free(change);
	free(target);
	free(b);
	free(xstar);
	free(X);
	free(A);
	free(C);
	free(best);
	free(V);
	free(mask);
}

static void an_updated_bias_is_the_best_intercept(void **unused)
{
	(void)unused;
	static const char *const variants[][8] = {
		{"pattern=2:4", "ridge=0", "refit_steps=300", "search_steps=30"},
		{"pattern=60%", "ridge=0", "refit_steps=300", "search_steps=30", "correction=intra"}};
	int seen = 0;
	for (int i = 0; i < real_source_count; i++)
		for (int v = 0; v < 2 && strstr(real_sources[i].model, "opt-demo"); v++) {
			layer_run run = {0};
			open_real(&run.f, &run.windows, &real_sources[i], 8, 256);
			start(&run, variants[v]);
			replay_layer(&run, 1, real_sources[i].name, check_intercept);
			for (int role = 0; role < FP_ROLE_COUNT; role++)
				assert_int_equal(run.bytes[role] != NULL, run.biases[role] != NULL);
			seen++;
			stop(&run);
			fp_windows_free(&run.windows);
			close_fixture(&run.f);
		}
	assert_int_equal(seen, 2);
}

/* A bias changes only if every operator of the group has one and the settings ask for it. */
static void only_existing_biases_change(void **unused)
{
	(void)unused;
	static const struct {
		const char *model, *preset;
		int biases;
	} cases[] = {{"opt-plain", "preset=fast", 6},   {"opt-plain", "preset=paper", 0}, {"opt-no-bias", "preset=fast", 0},
				 {"llama-plain", "preset=fast", 0}, {"llama-bias", "preset=fast", 7}, {"qwen2-plain", "preset=fast", 3},
				 {"opt-plain", "preset=best", 6}};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		layer_run run;
		const char *const all[] = {cases[i].preset, "iterations=2", "search_steps=3", "fit_steps=0", NULL};
		int changed = 0;
		open_tiny(&run, cases[i].model);
		start(&run, all);
		run.layer = 0;
		assert_ok(run.f.ctx, fp_prune_layer(&run.task, 0));
		for (int role = 0; role < FP_ROLE_COUNT; role++)
			changed += run.biases[role] != NULL;
		if (changed != cases[i].biases)
			fail_msg("%s, %s: %d biases change", cases[i].model, cases[i].preset, changed);
		stop(&run);
		close_tiny(&run);
	}
}

static const char *const feeds[][5] = {
	{"preset=paper", "correction=none"},
	{"preset=paper", "correction=intra"},
	{"preset=paper", "correction=cross"},
	{"preset=fast", "search_steps=9"},
	{"preset=fast", "correction=intra", "search_steps=9"},
	{"preset=fast", "bias_update=0", "search_steps=9"},
	{"method=wanda"},
	{"method=sparsegpt"},
	{"method=magnitude"},
	{"method=admm"},
};
enum { FEED_COUNT = sizeof feeds / sizeof feeds[0] };

static void every_feed_reports_the_direct_error(void **unused)
{
	(void)unused;
	static const char *const models[] = {"llama-gqa",         "opt-plain",      "opt-350m",      "llama-plain",
										 "gemma2-plain",      "gpt_neox-plain", "granite-plain", "gpt2-plain",
										 "deepseek_v3-dense", "minicpm3-query"};
	static const char *const patterns[] = {"pattern=50%", "pattern=2:4"};
	for (size_t i = 0; i < sizeof models / sizeof *models; i++)
		for (int k = 0; k < FEED_COUNT; k++)
			for (int p = 0; p < 2; p++) {
				layer_run run;
				const char *all[8] = {patterns[p]};
				for (int j = 0; j < 5; j++)
					all[j + 1] = feeds[k][j];
				open_tiny(&run, models[i]);
				start(&run, all);
				check_layer(&run, 1, models[i]);
				const fp_model_config *c = fp_model_get_config(run.f.model);
				assert_int_equal(run.count, c->latent.query_rank > 0 ? 8 : c->gated ? 7 : 6);
				stop(&run);
				close_tiny(&run);
			}
}

/* Real layers at 20% and 90%, where cancellation in the Gram form would show. */
static void check_real_layers(const real_source *sources, int count)
{
	static const char *const variants[][4] = {{"pattern=20%", "preset=paper", "iterations=5"},
											  {"pattern=90%", "preset=fast", "search_steps=6"},
											  {"pattern=20%", "method=wanda"}};
	for (int i = 0; i < count; i++)
		for (int v = 0; v < 3; v++) {
			layer_run run = {0};
			open_real(&run.f, &run.windows, &sources[i], 2, 64);
			start(&run, variants[v]);
			check_layer(&run, 1, sources[i].name);
			stop(&run);
			fp_windows_free(&run.windows);
			close_fixture(&run.f);
		}
}

static void real_layers_report_the_direct_error(void **unused)
{
	(void)unused;
	check_real_layers(real_sources, real_source_count);
}

static void a_shared_model_reports_the_direct_error(void **unused)
{
	(void)unused;
	check_real_layers(&shared_source, 1);
}

/* With nothing to prune the layer's bytes do not change, errors are rounding errors, and the streams remain equal. */
static void nothing_to_prune_changes_nothing(void **unused)
{
	(void)unused;
	static const char *const models[] = {"llama-gqa", "opt-plain"};
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < FEED_COUNT; k++) {
			layer_run run;
			const char *all[8] = {"pattern=0%"};
			for (int j = 0; j < 5; j++)
				all[j + 1] = feeds[k][j];
			open_tiny(&run, models[i]);
			start(&run, all);
			/* SparseGPT drops the weights of inputs that are always zero */
			bool drops = fp_is(run.settings->method, "sparsegpt");
			for (int64_t index = 0; index < 2; index++) {
				fp_layer *layer;
				run.layer = index;
				assert_ok(run.f.ctx, fp_prune_layer(&run.task, index));
				assert_ok(run.f.ctx, fp_layer_load(&layer, run.f.model, index));
				for (int role = 0; role < FP_ROLE_COUNT; role++) {
					if (!run.bytes[role])
						continue;
					float *before = download(&run, layer->weight[role]);
					fp_matrix weight = layer->weight[role];
					assert_ok(run.f.ctx, run.f.be->memory->upload(run.f.be, weight, run.bytes[role],
																  run.results[role].tensor->dtype, weight.cols));
					float *after = download(&run, weight);
					for (int64_t j = 0; j < fp_matrix_size(weight); j++)
						if (!(fabsf(before[j] - after[j]) <= 1e-2F * fabsf(before[j]) + 1e-4F) &&
							!(drops && after[j] == 0.0F))
							fail_msg("%s, feed %d, layer %d, %s: entry %d was %g and is %g", models[i], k, (int)index,
									 fp_role_name((fp_role)role), (int)j, (double)before[j], (double)after[j]);
					assert_true(run.results[role].squared_error <= 1e-6 * run.results[role].squared_output);
					free(before);
					free(after);
				}
				fp_layer_free(layer);
				forget(&run);
			}
			if (fp_feed_of(run.settings) == FP_FEED_CROSS) {
				float *a = download(&run, run.streams.hidden[FP_DENSE]);
				float *b = download(&run, run.streams.hidden[FP_PRUNED]);
				for (int64_t j = 0; j < fp_matrix_size(run.streams.hidden[FP_DENSE]); j++)
					assert_true(fabsf(a[j] - b[j]) <= 1e-3F * (1 + fabsf(a[j])));
				free(a);
				free(b);
			}
			stop(&run);
			close_tiny(&run);
		}
}

static void skipping_a_layer_leaves_the_streams_identical(void **unused)
{
	(void)unused;
	layer_run run;
	const char *const all[] = {"correction=cross", NULL};
	open_tiny(&run, "llama-gqa");
	start(&run, all);
	assert_ok(run.f.ctx, fp_pass_layer(&run.task, 0, NULL));
	float *a = download(&run, run.streams.hidden[FP_DENSE]);
	float *b = download(&run, run.streams.hidden[FP_PRUNED]);
	assert_memory_equal(a, b, (size_t)fp_matrix_size(run.streams.hidden[FP_DENSE]) * sizeof *a);
	assert_int_equal(run.count, 0);
	free(a);
	free(b);
	stop(&run);
	close_tiny(&run);
}

/* Fails each allocation in turn: an error, no leak and no double free (under AddressSanitizer). */
static void every_allocation_may_fail(void **unused)
{
	(void)unused;
	static const char *const recipes[][8] = {
		{"preset=fast", "search_steps=3", "refit_steps=2"},
		{"preset=fast", "search_steps=3", "refit_steps=2"},
		{"preset=paper", "warm_start=sparsegpt", "iterations=2", "patience=1"},
		{"method=sparsegpt"},
	};
	for (int r = 0; r < 4; r++) {
		fp_status status = FP_ERROR_MEMORY;
		layer_run run;
		int64_t n = 0;
		open_tiny(&run, r == 1 ? "opt-plain" : "llama-gqa");
		while (status != FP_OK) {
			const char *all[10] = {"tolerance=1"};
			for (int j = 0; j < 8; j++)
				all[j + 1] = recipes[r][j];
			start(&run, all);
			run.f.ctx->fail_allocation_at = run.f.ctx->allocations + ++n;
			status = fp_prune_layer(&run.task, 0);
			run.f.ctx->fail_allocation_at = 0;
			if (status != FP_OK)
				assert_int_equal(status, FP_ERROR_MEMORY);
			stop(&run);
		}
		print_message("%d allocations\n", (int)n - 1);
		close_tiny(&run);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_feed_reports_the_direct_error),
		cmocka_unit_test(real_layers_report_the_direct_error),
		cmocka_unit_test(an_updated_bias_is_the_best_intercept),
		cmocka_unit_test(only_existing_biases_change),
		cmocka_unit_test(nothing_to_prune_changes_nothing),
		cmocka_unit_test(skipping_a_layer_leaves_the_streams_identical),
		cmocka_unit_test(every_allocation_may_fail),
	};
	const struct CMUnitTest shared_model[] = {cmocka_unit_test(a_shared_model_reports_the_direct_error)};
	TEST_PART(shared_model);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
