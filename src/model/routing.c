/* SPDX-License-Identifier: Apache-2.0 */
/*
 * routing.c: scores and choice of experts on the host. The device needs to know how many rows each expert has before it
 * can multiply them, so that a batch waits for its logits anyway; and every device routes alike.
 */
#include "model/routing.h"

#include "base/memory.h"

#include <math.h>
#include <string.h>

/* Whether experts are chosen by something else than p. */
static bool has_scores(const fp_experts_config *experts)
{
	return experts->corrected || experts->groups > 0;
}

int64_t fp_routing_bytes(const fp_model *model, int64_t tokens)
{
	const fp_model_config *c = fp_model_get_config(model);
	if (c->experts.count == 0)
		return 0;
	return 2 * tokens * (c->experts.active + (c->experts.shared > 0)) * (int64_t)sizeof(float);
}

fp_status fp_routing_new(fp_routing *out, const fp_model *model, int64_t tokens)
{
	fp_status status = FP_OK;
	fp_backend *be = fp_model_backend(model);
	const fp_model_config *c = fp_model_get_config(model);
	const fp_experts_config *experts = &c->experts;
	int64_t places = tokens * experts->active;
	*out = (fp_routing){
		.be = be, .capacity = tokens, .experts = experts->count, .active = experts->active, .config = experts};
	if (experts->count == 0)
		return FP_OK;
	FP_TRY(FP_NEW(be->ctx, &out->token, places));
	FP_TRY(FP_NEW(be->ctx, &out->place, places));
	FP_TRY(FP_NEW(be->ctx, &out->expert, places));
	FP_TRY(FP_NEW(be->ctx, &out->first, experts->count + 1));
	FP_TRY(FP_NEW(be->ctx, &out->weights, places));
	FP_TRY(FP_NEW(be->ctx, &out->shares, places));
	FP_TRY(FP_NEW(be->ctx, &out->shared_s, tokens));
	FP_TRY(FP_NEW(be->ctx, &out->logits, tokens * fp_routing_columns(experts)));
	FP_TRY(FP_NEW(be->ctx, &out->correction, experts->count));
	if (has_scores(experts))
		FP_TRY(FP_NEW(be->ctx, &out->scores, tokens * experts->count));
	FP_TRY(fp_matrix_new(be, &out->weight, 1, places, FP_F32));
	FP_TRY(fp_matrix_new(be, &out->share, 1, places, FP_F32));
	if (experts->shared > 0) {
		FP_TRY(fp_matrix_new(be, &out->shared_weight, 1, tokens, FP_F32));
		FP_TRY(fp_matrix_new(be, &out->shared_share, 1, tokens, FP_F32));
	}
cleanup:
	if (status != FP_OK)
		fp_routing_free(out);
	return status;
}

void fp_routing_free(fp_routing *routing)
{
	if (!routing->be)
		return;
	fp_matrix *matrices[] = {&routing->weight, &routing->share, &routing->shared_weight, &routing->shared_share};
	void *arrays[] = {routing->token,  routing->place,      routing->expert,  routing->first,  routing->logits,
					  routing->scores, routing->correction, routing->weights, routing->shares, routing->shared_s};
	for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
		fp_matrix_free(routing->be, matrices[i]);
	for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
		fp_free(arrays[i]);
	memset(routing, 0, sizeof *routing);
}

/* x ← softmax(x) over the experts */
static void softmax(float *x, int64_t count)
{
	float largest = x[0];
	double sum = 0;
	for (int64_t i = 1; i < count; i++)
		largest = x[i] > largest ? x[i] : largest;
	for (int64_t i = 0; i < count; i++) {
		x[i] = expf(x[i] - largest);
		sum += x[i];
	}
	for (int64_t i = 0; i < count; i++)
		x[i] = (float)(x[i] / sum);
}

static float sigmoid(float x)
{
	return 1 / (1 + expf(-x));
}

/* The sum of the two largest of `count` scores, or the largest of them alone. */
static float group_score(const float *scores, int64_t count, bool alone)
{
	float first = -INFINITY, second = -INFINITY;
	for (int64_t i = 0; i < count; i++) {
		second = scores[i] > first ? first : fmaxf(second, scores[i]);
		first = fmaxf(first, scores[i]);
	}
	return alone ? first : first + second;
}

/* scores ← −∞ outside the groups from which experts are chosen: those that fewer than `active_groups` others exceed, or
 * equal and precede. */
static void leave_groups(const fp_experts_config *experts, float *scores)
{
	float sums[FP_MAX_EXPERT_GROUPS];
	int64_t size = experts->groups > 0 ? experts->count / experts->groups : 0;
	for (int64_t g = 0; g < experts->groups; g++)
		sums[g] = group_score(scores + g * size, size, experts->groups_by_largest);
	for (int64_t g = 0; g < experts->groups; g++) {
		int64_t before = 0;
		for (int64_t other = 0; other < experts->groups; other++)
			before += sums[other] > sums[g] || (other < g && sums[other] == sums[g]);
		for (int64_t i = 0; before >= experts->active_groups && i < size; i++)
			scores[g * size + i] = -INFINITY;
	}
}

/* scores ← what experts are chosen by */
static void set_scores(const fp_routing *r, const float *p, float *scores)
{
	for (int64_t e = 0; e < r->experts; e++)
		scores[e] = p[e] + r->correction[e];
	leave_groups(r->config, scores);
}

/* chosen ← the `active` largest of p, largest first. */
static void choose(const float *p, int64_t count, int64_t active, int32_t *chosen)
{
	for (int64_t k = 0; k < active; k++)
		chosen[k] = -1;
	for (int64_t e = 0; e < count; e++) {
		int64_t at = active;
		while (at > 0 && (chosen[at - 1] < 0 || p[e] > p[chosen[at - 1]]))
			at--;
		if (at == active)
			continue;
		memmove(chosen + at + 1, chosen + at, (size_t)(active - at - 1) * sizeof *chosen);
		chosen[at] = (int32_t)e;
	}
}

/* Turns the logits of each token into p and chooses its experts. */
static void route_tokens(fp_routing *r)
{
	int64_t width = fp_routing_columns(r->config);
#pragma omp parallel for num_threads(r->be->threads) schedule(static)
	for (int64_t t = 0; t < r->tokens; t++) {
		float *p = r->logits + t * width;
		float *scores = r->scores ? r->scores + t * r->experts : p;
		if (r->config->sigmoid)
			for (int64_t e = 0; e < r->experts; e++)
				p[e] = sigmoid(p[e]);
		else
			softmax(p, r->experts);
		if (r->scores)
			set_scores(r, p, scores);
		choose(scores, r->experts, r->active, r->expert + t * r->active);
		if (r->config->shared_gated)
			p[r->experts] = sigmoid(p[r->experts]);
	}
}

/* Counts the places of each expert and gives each token its own. */
static void sort_places(fp_routing *r)
{
	int64_t places = fp_routing_places(r);
	memset(r->first, 0, (size_t)(r->experts + 1) * sizeof *r->first);
	for (int64_t i = 0; i < places; i++)
		r->first[r->expert[i] + 1]++;
	for (int64_t e = 0; e < r->experts; e++)
		r->first[e + 1] += r->first[e];
	for (int64_t i = 0; i < places; i++) { /* first[e] runs over e's places, and ends where e + 1 begins */
		r->place[i] = (int32_t)r->first[r->expert[i]]++;
		r->token[r->place[i]] = (int32_t)(i / r->active);
	}
	memmove(r->first + 1, r->first, (size_t)r->experts * sizeof *r->first);
	r->first[0] = 0;
}

/* The factor between p and the weights of a token's experts. *divided ← whether that depends on p. */
static double weight_factor(const fp_routing *r, const float *p, const int32_t *expert, bool *divided)
{
	const fp_experts_config *c = r->config;
	double sum = 0, scale = c->scale > 0 ? (double)c->scale : 1;
	for (int64_t k = 0; k < r->active; k++)
		sum += p[expert[k]];
	*divided = c->normalised && sum > (double)c->least;
	return !c->normalised ? scale : scale / (*divided ? sum : (double)c->least);
}

static void weigh_places(fp_routing *r)
{
	int64_t width = fp_routing_columns(r->config);
	bool has_shared = r->config->shared > 0;
#pragma omp parallel for num_threads(r->be->threads) schedule(static)
	for (int64_t t = 0; t < r->tokens; t++) {
		const float *p = r->logits + t * width;
		const int32_t *expert = r->expert + t * r->active, *place = r->place + t * r->active;
		bool divided;
		double factor = weight_factor(r, p, expert, &divided), sum = 0,
			   shared = r->config->shared_gated ? (double)p[r->experts] : has_shared;
		for (int64_t k = 0; k < r->active; k++)
			sum += p[expert[k]] * factor;
		sum += shared;
		for (int64_t k = 0; k < r->active; k++) {
			r->weights[place[k]] = (float)(p[expert[k]] * factor);
			r->shares[place[k]] = sum > 0 ? (float)(p[expert[k]] * factor / sum) : 0;
		}
		r->shared_s[t] = (float)(shared / sum);
	}
}

/* The shared expert's weight is the gate's, or 1. */
static fp_status upload_shared(fp_routing *r)
{
	fp_backend *be = r->be;
	fp_matrix *matrices[] = {&r->shared_weight, &r->shared_share};
	fp_status status;
	for (int i = 0; i < 2; i++)
		matrices[i]->cols = matrices[i]->stride = r->tokens;
	fp_matrix gates = fp_matrix_reshape(r->shared_weight, r->tokens, 1);
	FP_TRY(r->config->shared_gated
			   ? be->memory->upload(be, gates, r->logits + r->experts, FP_F32, fp_routing_columns(r->config))
			   : be->memory->fill(be, gates, 1));
	FP_TRY(be->memory->upload(be, r->shared_share, r->shared_s, FP_F32, r->tokens));
cleanup:
	return status;
}

fp_status fp_routing_set(fp_routing *routing, fp_matrix logits, fp_matrix correction)
{
	fp_routing *r = routing;
	fp_backend *be = r->be;
	int64_t width = fp_routing_columns(r->config), places;
	fp_status status;
	FP_REQUIRE(be, r->experts > 0 && logits.rows <= r->capacity && logits.cols == width);
	FP_REQUIRE(be, r->config->corrected == !fp_matrix_is_absent(correction));
	/* The host's arrays may be on their way to the device until this returns. */
	if (r->config->corrected)
		FP_TRY(be->memory->download(be, r->correction, FP_F32, r->experts, correction));
	FP_TRY(be->memory->download(be, r->logits, FP_F32, width, logits));
	r->tokens = logits.rows;
	places = fp_routing_places(r);
	for (int64_t i = 0; i < logits.rows * width; i++)
		if (!isfinite(r->logits[i]))
			FP_TRY(fp_fail(be->ctx, FP_ERROR_NUMERIC, "the router's output contains NaN or infinity"));
	route_tokens(r);
	sort_places(r);
	weigh_places(r);
	r->weight.cols = r->weight.stride = r->share.cols = r->share.stride = places;
	FP_TRY(be->memory->upload(be, r->weight, r->weights, FP_F32, places));
	FP_TRY(be->memory->upload(be, r->share, r->shares, FP_F32, places));
	if (r->config->shared > 0)
		FP_TRY(upload_shared(r));
cleanup:
	return status;
}

/* With S the chosen experts, w = s p or s p / Σ_S p their weights, d = Σ_S w_j dw_j, and [i ∈ S] = 0 for the others:
 *
 *     p softmax    w = s p            dlogit_i = [i ∈ S] w_i dw_i − p_i d
 *     p softmax    w = s p / Σ_S p    dlogit_i = [i ∈ S] w_i (dw_i − d/s)
 *     p = σ        w = s p            dlogit_i = [i ∈ S] w_i dw_i (1 − p_i)
 *     p = σ        w = s p / Σ_S p    dlogit_i = [i ∈ S] w_i (dw_i − d/s) (1 − p_i)
 *     gate σ                          dlogit = dσ σ(1 − σ) */
static void logit_gradients(const fp_routing *r, const float *dweight, const float *dshared, float *out)
{
	int64_t width = fp_routing_columns(r->config);
	bool sigmoids = r->config->sigmoid;
	double scale = r->config->scale > 0 ? (double)r->config->scale : 1;
#pragma omp parallel for num_threads(r->be->threads) schedule(static)
	for (int64_t t = 0; t < r->tokens; t++) {
		const float *p = r->logits + t * width;
		const int32_t *expert = r->expert + t * r->active, *place = r->place + t * r->active;
		float *d = out + t * width;
		bool divided;
		double sum = 0, factor = weight_factor(r, p, expert, &divided), mean;
		for (int64_t k = 0; k < r->active; k++)
			sum += (double)r->weights[place[k]] * dweight[place[k]];
		for (int64_t e = 0; e < r->experts; e++)
			d[e] = divided || sigmoids ? 0.0F : (float)(-sum * p[e]);
		/* the others' part in the gradient of a chosen expert */
		mean = divided ? sum / scale : sigmoids ? 0 : sum / factor;
		for (int64_t k = 0; k < r->active; k++)
			d[expert[k]] = (float)((double)r->weights[place[k]] * (dweight[place[k]] - mean) *
								   (sigmoids ? 1 - (double)p[expert[k]] : 1));
		if (r->config->shared_gated)
			d[r->experts] = dshared[t] * p[r->experts] * (1 - p[r->experts]);
	}
}

fp_status fp_routing_backward(fp_routing *routing, fp_matrix dweight, fp_matrix dshared, fp_matrix dlogits)
{
	fp_routing *r = routing;
	fp_backend *be = r->be;
	int64_t places = fp_routing_places(r), width = fp_routing_columns(r->config);
	float *by_place = NULL, *by_token = NULL, *out = NULL;
	fp_status status;
	FP_REQUIRE(be, dweight.cols == places && dlogits.rows == r->tokens && dlogits.cols == width);
	FP_TRY(FP_NEW(be->ctx, &by_place, places));
	FP_TRY(FP_NEW(be->ctx, &by_token, r->tokens));
	FP_TRY(FP_NEW(be->ctx, &out, r->tokens * width));
	FP_TRY(be->memory->download(be, by_place, FP_F32, places, dweight));
	if (r->config->shared_gated)
		FP_TRY(be->memory->download(be, by_token, FP_F32, r->tokens, dshared));
	logit_gradients(r, by_place, by_token, out);
	FP_TRY(be->memory->upload(be, dlogits, out, FP_F32, width));
	FP_TRY(be->memory->synchronize(be)); /* before `out` is freed */
cleanup:
	fp_free(by_place);
	fp_free(by_token);
	fp_free(out);
	return status;
}
