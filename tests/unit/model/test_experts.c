/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: the choice of experts against plain loops, and the rows that each expert reads. */
#include "model_fixture.h"

#include "model/routing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const models[] = {"mixtral-plain",          "qwen2_moe-plain",          "qwen2_moe-window",
									 "qwen3_moe-plain",        "glm4_moe-plain",           "glm4_moe-groups",
									 "ernie4_5_moe-plain",     "ernie4_5_moe-interval",    "granitemoe-plain",
									 "granitemoeshared-plain", "granitemoehybrid-experts", "dots1-bias",
									 "minimax_m2-plain",       "qwen3_vl_moe-hub"};
enum { MODEL_COUNT = sizeof models / sizeof *models, LAYER = 1, TOKENS = 37 };

static float *download(const model_fixture *f, fp_matrix matrix)
{
	float *out = malloc((size_t)(fp_matrix_size(matrix) + 1) * sizeof *out);
	assert_ok(f->ctx, f->be->memory->download(f->be, out, FP_F32, matrix.cols, matrix));
	assert_ok(f->ctx, f->be->memory->synchronize(f->be));
	return out;
}

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

/* Whether fewer than `most` of `count` values exceed number i, or equal and precede it. */
static bool is_among(const double *values, int64_t count, int64_t i, int64_t most)
{
	int64_t before = 0;
	for (int64_t other = 0; other < count; other++)
		before += values[other] > values[i] || (values[other] == values[i] && other < i);
	return before < most;
}

/* Experts outside the best groups ← −1000. */
static void leave_groups(const fp_experts_config *experts, double *scores)
{
	double sums[16];
	int64_t size = experts->groups > 0 ? experts->count / experts->groups : 0;
	for (int64_t g = 0; g < experts->groups; g++) {
		sums[g] = 0;
		for (int64_t i = 0; i < size; i++)
			sums[g] += is_among(scores + g * size, size, i, 2) ? scores[g * size + i] : 0;
	}
	for (int64_t i = 0; i < experts->groups * size; i++)
		if (!is_among(sums, experts->groups, i / size, experts->active_groups))
			scores[i] = -1000;
}

/* Weights of one token by the definition: how many experts have a larger score decides whether one is chosen. */
static double plain_weights(const fp_experts_config *experts, const float *logits, const float *correction,
							double *weights)
{
	double all = 0, chosen = 0, p[16], scores[16];
	for (int64_t e = 0; e < experts->count; e++)
		all += exp((double)logits[e]);
	for (int64_t e = 0; e < experts->count; e++) {
		p[e] = experts->sigmoid ? sigmoid((double)logits[e]) : exp((double)logits[e]) / all;
		scores[e] = p[e] + (experts->corrected ? (double)correction[e] : 0);
	}
	leave_groups(experts, scores);
	for (int64_t e = 0; e < experts->count; e++) {
		weights[e] = is_among(scores, experts->count, e, experts->active) ? p[e] : 0;
		chosen += weights[e];
	}
	double factor = (experts->scale > 0 ? (double)experts->scale : 1) /
					(experts->normalised ? fmax(chosen, (double)experts->least) : 1);
	for (int64_t e = 0; e < experts->count; e++)
		weights[e] *= factor;
	return chosen * factor;
}

static void check_token(const fp_routing *r, const float *logits, const float *correction, const float *weight,
						const float *share, const float *shared, int64_t token, int64_t *seen)
{
	const fp_experts_config *experts = r->config;
	double want[16], gate = experts->shared_gated ? sigmoid((double)logits[experts->count]) : experts->shared > 0;
	double sum = plain_weights(experts, logits, correction, want) + gate;
	for (int64_t k = 0; k < r->active; k++) {
		int32_t place = r->place[token * r->active + k], expert = r->expert[token * r->active + k];
		assert_true(want[expert] > 0);
		assert_int_equal(r->token[place], token);
		assert_in_range(place, (uintmax_t)r->first[expert], (uintmax_t)r->first[expert + 1] - 1);
		assert_true(fabs((double)weight[place] - want[expert]) < 1e-6);
		assert_true(fabs((double)share[place] - want[expert] / sum) < 1e-6);
		seen[place]++;
	}
	if (experts->shared > 0)
		assert_true(fabs((double)shared[token] - gate) < 1e-6);
}

static void each_token_has_the_most_likely_experts(void **unused)
{
	(void)unused;
	for (int m = 0; m < MODEL_COUNT; m++) {
		model_fixture f;
		uint64_t seed = 5;
		open_fixture(&f, models[m]);
		const fp_experts_config *experts = &fp_model_get_config(f.model)->experts;
		int64_t width = fp_routing_columns(experts);
		fp_routing r;
		fp_matrix logits, correction = {0};
		float added[16];
		assert_ok(f.ctx, fp_routing_new(&r, f.model, TOKENS + 3));
		assert_ok(f.ctx, fp_matrix_new(f.be, &logits, TOKENS, width, FP_F32));
		float *host = malloc((size_t)(TOKENS * width) * sizeof *host);
		for (int64_t i = 0; i < TOKENS * width; i++)
			host[i] = 2 * random_normal(&seed);
		for (int64_t e = 0; e < experts->count; e++) {
			host[e] = 0.5F; /* the first token's experts are all alike */
			added[e] = e < 2 ? 0.5F : 0.2F * random_normal(&seed);
		}
		if (experts->corrected) {
			assert_ok(f.ctx, fp_matrix_new(f.be, &correction, 1, experts->count, FP_F32));
			assert_ok(f.ctx, f.be->memory->upload(f.be, correction, added, FP_F32, experts->count));
		}
		assert_ok(f.ctx, f.be->memory->upload(f.be, logits, host, FP_F32, width));
		assert_ok(f.ctx, fp_routing_set(&r, logits, correction));
		assert_int_equal(fp_routing_places(&r), TOKENS * experts->active);
		assert_int_equal(r.first[experts->count], TOKENS * experts->active);
		assert_int_equal(r.expert[0], 0);
		float *weight = download(&f, r.weight), *share = download(&f, r.share),
			  *shared = experts->shared > 0 ? download(&f, r.shared_weight) : NULL;
		int64_t *seen = calloc((size_t)fp_routing_places(&r), sizeof *seen);
		for (int64_t t = 0; t < TOKENS; t++)
			check_token(&r, host + t * width, added, weight, share, shared, t, seen);
		for (int64_t i = 0; i < fp_routing_places(&r); i++)
			assert_int_equal(seen[i], 1);
		host[3] = NAN;
		assert_ok(f.ctx, f.be->memory->upload(f.be, logits, host, FP_F32, width));
		assert_int_equal(fp_routing_set(&r, logits, correction), FP_ERROR_NUMERIC);
		free(seen);
		free(weight);
		free(share);
		free(shared);
		free(host);
		fp_matrix_free(f.be, &logits);
		fp_matrix_free(f.be, &correction);
		fp_routing_free(&r);
		close_fixture(&f);
	}
}

typedef struct batch {
	model_fixture f;
	fp_layer *layer;
	fp_workspace *workspace;
	fp_layer_state state;
} batch;

static void start(batch *b, const char *name)
{
	uint64_t seed = 9;
	open_fixture(&b->f, name);
	const fp_model_config *c = fp_model_get_config(b->f.model);
	assert_ok(b->f.ctx, fp_layer_load(&b->layer, b->f.model, LAYER));
	assert_ok(b->f.ctx, fp_workspace_new(&b->workspace, b->f.model, TOKENS));
	b->state = (fp_layer_state){.sequences = 1, .length = TOKENS};
	assert_ok(b->f.ctx, fp_matrix_new(b->f.be, &b->state.hidden, TOKENS, c->hidden, FP_F32));
	assert_ok(b->f.ctx, fp_matrix_new(b->f.be, &b->state.context, TOKENS, c->heads * c->head_dim, FP_F32));
	float *host = malloc((size_t)(TOKENS * c->hidden) * sizeof *host);
	for (int64_t i = 0; i < TOKENS * c->hidden; i++)
		host[i] = random_normal(&seed);
	assert_ok(b->f.ctx, b->f.be->memory->upload(b->f.be, b->state.hidden, host, FP_F32, c->hidden));
	free(host);
}

static void stop(batch *b)
{
	fp_matrix_free(b->f.be, &b->state.hidden);
	fp_matrix_free(b->f.be, &b->state.context);
	fp_workspace_free(b->workspace);
	fp_layer_free(b->layer);
	close_fixture(&b->f);
}

/* y ← the feed-forward part's input of each token, by the definition of RMSNorm */
static double *plain_input(const batch *b)
{
	const fp_model_config *c = fp_model_get_config(b->f.model);
	float *hidden = download(&b->f, b->state.hidden), *weight = download(&b->f, b->layer->norm_weight[FP_NORM_FEED]);
	double *y = malloc((size_t)(TOKENS * c->hidden) * sizeof *y);
	for (int64_t t = 0; t < TOKENS; t++) {
		double square = 0;
		for (int64_t j = 0; j < c->hidden; j++)
			square += (double)hidden[t * c->hidden + j] * (double)hidden[t * c->hidden + j];
		double factor = 1 / sqrt(square / (double)c->hidden + (double)c->norm_epsilon);
		for (int64_t j = 0; j < c->hidden; j++)
			y[t * c->hidden + j] = (double)hidden[t * c->hidden + j] * factor * (double)weight[j];
	}
	free(hidden);
	free(weight);
	return y;
}

/* row·Wᵀ */
static void plain_product(const float *W, int64_t rows, int64_t cols, const double *row, double *out)
{
	for (int64_t i = 0; i < rows; i++) {
		out[i] = 0;
		for (int64_t j = 0; j < cols; j++)
			out[i] += (double)W[i * cols + j] * row[j];
	}
}

/* The rows of each expert are its tokens' inputs and inner activations, times their weights. */
static void experts_read_their_own_tokens(void **unused)
{
	(void)unused;
	for (int m = 0; m < MODEL_COUNT; m++) {
		batch b;
		fp_matrix X;
		start(&b, models[m]);
		const fp_model_config *c = fp_model_get_config(b.f.model);
		int64_t n = c->hidden, f = c->experts.inner;
		double *y = plain_input(&b), gate[64], up[64];
		assert_ok(b.f.ctx, fp_layer_input(b.layer, fp_role_group(FP_GATE), &b.state, b.workspace, &X));
		fp_expert_rows outer = fp_layer_expert_rows(b.layer, b.workspace);
		assert_int_equal(outer.rows.rows, TOKENS * c->experts.active);
		float *weight = download(&b.f, outer.routing->weight), *rows = download(&b.f, outer.rows);
		for (int64_t i = 0; i < outer.rows.rows * n; i++) {
			double want = (double)weight[i / n] * y[outer.routing->token[i / n] * n + i % n];
			assert_true(fabs((double)rows[i] - want) < 1e-5);
		}
		free(rows);
		assert_ok(b.f.ctx, fp_layer_input(b.layer, fp_role_group(FP_DOWN), &b.state, b.workspace, &X));
		fp_expert_rows inner = fp_layer_expert_rows(b.layer, b.workspace);
		rows = download(&b.f, inner.rows);
		for (int64_t e = 0; e < c->experts.count; e++) {
			float *Wgate = download(&b.f, b.layer->weight[fp_expert_operator(e, FP_GATE)]),
				  *Wup = download(&b.f, b.layer->weight[fp_expert_operator(e, FP_UP)]);
			for (int64_t i = inner.routing->first[e]; i < inner.routing->first[e + 1]; i++) {
				plain_product(Wgate, f, n, y + inner.routing->token[i] * n, gate);
				plain_product(Wup, f, n, y + inner.routing->token[i] * n, up);
				for (int64_t j = 0; j < f; j++)
					assert_true(fabs((double)rows[i * f + j] - (double)weight[i] * gate[j] * sigmoid(gate[j]) * up[j]) <
								1e-4);
			}
			free(Wgate);
			free(Wup);
		}
		free(rows);
		free(weight);
		free(y);
		stop(&b);
	}
}

/* A stream that follows another's routing has its rows for the same tokens, whatever its own router says. */
static void a_stream_follows_another(void **unused)
{
	(void)unused;
	batch leader, follower;
	fp_matrix X;
	start(&leader, "mixtral-plain");
	start(&follower, "mixtral-plain");
	assert_ok(leader.f.ctx, leader.f.be->linear->axpby(leader.f.be, 0, leader.layer->router, -1, leader.layer->router));
	assert_ok(leader.f.ctx, fp_layer_input(leader.layer, FP_GROUP_FEED, &leader.state, leader.workspace, &X));
	assert_ok(follower.f.ctx, fp_layer_input(follower.layer, FP_GROUP_FEED, &follower.state, follower.workspace, &X));
	fp_expert_rows ahead = fp_layer_expert_rows(leader.layer, leader.workspace),
				   own = fp_layer_expert_rows(follower.layer, follower.workspace);
	size_t size = (size_t)fp_routing_places(own.routing) * sizeof *own.routing->token;
	assert_memory_not_equal(own.routing->token, ahead.routing->token, size);
	follower.state.routing = ahead.routing;
	assert_ok(follower.f.ctx, fp_layer_input(follower.layer, FP_GROUP_FEED, &follower.state, follower.workspace, &X));
	own = fp_layer_expert_rows(follower.layer, follower.workspace);
	assert_ptr_equal(own.routing, ahead.routing);
	float *rows = download(&follower.f, own.rows), *wanted = download(&leader.f, ahead.rows);
	for (int64_t i = 0; i < fp_matrix_size(own.rows); i++)
		assert_true(rows[i] == wanted[i]);
	free(rows);
	free(wanted);
	stop(&follower);
	stop(&leader);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_token_has_the_most_likely_experts),
		cmocka_unit_test(experts_read_their_own_tokens),
		cmocka_unit_test(a_stream_follows_another),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
