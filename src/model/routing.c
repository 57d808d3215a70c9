/* SPDX-License-Identifier: Apache-2.0 */
/*
 * routing.c: softmax and choice of experts on the host. The device needs to know how many rows each expert has before it
 * can multiply them, so that a batch waits for its logits anyway; and every device routes alike.
 */
#include "model/routing.h"

#include "base/memory.h"

#include <math.h>
#include <string.h>

static int64_t columns(const fp_model_config *c)
{
	return c->experts.count + (c->experts.shared > 0);
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
	*out = (fp_routing){.be = be,
						.capacity = tokens,
						.experts = experts->count,
						.active = experts->active,
						.normalised = experts->normalised,
						.has_shared = experts->shared > 0};
	if (experts->count == 0)
		return FP_OK;
	FP_TRY(FP_NEW(be->ctx, &out->token, places));
	FP_TRY(FP_NEW(be->ctx, &out->place, places));
	FP_TRY(FP_NEW(be->ctx, &out->expert, places));
	FP_TRY(FP_NEW(be->ctx, &out->first, experts->count + 1));
	FP_TRY(FP_NEW(be->ctx, &out->weights, places));
	FP_TRY(FP_NEW(be->ctx, &out->shares, places));
	FP_TRY(FP_NEW(be->ctx, &out->shared_s, tokens));
	FP_TRY(FP_NEW(be->ctx, &out->logits, tokens * columns(c)));
	FP_TRY(fp_matrix_new(be, &out->weight, 1, places, FP_F32));
	FP_TRY(fp_matrix_new(be, &out->share, 1, places, FP_F32));
	if (out->has_shared) {
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
	void *arrays[] = {routing->token,  routing->place,   routing->expert, routing->first,
					  routing->logits, routing->weights, routing->shares, routing->shared_s};
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

/* Turns the logits of each token into probabilities and chooses its experts. */
static void route_tokens(fp_routing *r)
{
	int64_t width = r->experts + r->has_shared;
#pragma omp parallel for num_threads(r->be->threads) schedule(static)
	for (int64_t t = 0; t < r->tokens; t++) {
		float *p = r->logits + t * width;
		softmax(p, r->experts);
		choose(p, r->experts, r->active, r->expert + t * r->active);
		if (r->has_shared)
			p[r->experts] = 1 / (1 + expf(-p[r->experts]));
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

static void weigh_places(fp_routing *r)
{
	int64_t width = r->experts + r->has_shared;
#pragma omp parallel for num_threads(r->be->threads) schedule(static)
	for (int64_t t = 0; t < r->tokens; t++) {
		const float *p = r->logits + t * width;
		const int32_t *expert = r->expert + t * r->active, *place = r->place + t * r->active;
		double chosen = 0, shared = r->has_shared ? (double)p[r->experts] : 0;
		for (int64_t k = 0; k < r->active; k++)
			chosen += p[expert[k]];
		double scale = r->normalised ? 1 / chosen : 1, sum = chosen * scale + shared;
		for (int64_t k = 0; k < r->active; k++) {
			r->weights[place[k]] = (float)(p[expert[k]] * scale);
			r->shares[place[k]] = (float)(p[expert[k]] * scale / sum);
		}
		r->shared_s[t] = (float)(shared / sum);
	}
}

fp_status fp_routing_set(fp_routing *routing, fp_matrix logits)
{
	fp_routing *r = routing;
	fp_backend *be = r->be;
	int64_t width = r->experts + r->has_shared, places;
	fp_status status;
	FP_REQUIRE(be, r->experts > 0 && logits.rows <= r->capacity && logits.cols == width);
	/* The host's arrays may be on their way to the device until this returns. */
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
	if (r->has_shared) {
		fp_matrix *matrices[] = {&r->shared_weight, &r->shared_share};
		for (int i = 0; i < 2; i++)
			matrices[i]->cols = matrices[i]->stride = r->tokens;
		fp_matrix gates = fp_matrix_reshape(r->shared_weight, r->tokens, 1);
		FP_TRY(be->memory->upload(be, gates, r->logits + r->experts, FP_F32, width));
		FP_TRY(be->memory->upload(be, r->shared_share, r->shared_s, FP_F32, r->tokens));
	}
cleanup:
	return status;
}

/* With p the probabilities, S the chosen experts and w their weights:
 *
 *     w = p             dlogit_i = p_i (dw_i [i ∈ S] − Σ_S p_j dw_j)
 *     w = p / Σ_S p     dlogit_i = w_i (dw_i − Σ_S w_j dw_j) for i ∈ S, else 0
 *     gate σ            dlogit = dσ σ(1 − σ) */
static void logit_gradients(const fp_routing *r, const float *dweight, const float *dshared, float *out)
{
	int64_t width = r->experts + r->has_shared;
#pragma omp parallel for num_threads(r->be->threads) schedule(static)
	for (int64_t t = 0; t < r->tokens; t++) {
		const float *p = r->logits + t * width;
		const int32_t *expert = r->expert + t * r->active, *place = r->place + t * r->active;
		float *d = out + t * width;
		double sum = 0;
		for (int64_t k = 0; k < r->active; k++)
			sum += (double)r->weights[place[k]] * dweight[place[k]];
		for (int64_t e = 0; e < r->experts; e++)
			d[e] = r->normalised ? 0.0F : (float)(-sum * p[e]);
		for (int64_t k = 0; k < r->active; k++)
			d[expert[k]] = (float)((double)r->weights[place[k]] * (dweight[place[k]] - sum));
		if (r->has_shared)
			d[r->experts] = dshared[t] * p[r->experts] * (1 - p[r->experts]);
	}
}

fp_status fp_routing_backward(fp_routing *routing, fp_matrix dweight, fp_matrix dshared, fp_matrix dlogits)
{
	fp_routing *r = routing;
	fp_backend *be = r->be;
	int64_t places = fp_routing_places(r), width = r->experts + r->has_shared;
	float *by_place = NULL, *by_token = NULL, *out = NULL;
	fp_status status;
	FP_REQUIRE(be, dweight.cols == places && dlogits.rows == r->tokens && dlogits.cols == width);
	FP_TRY(FP_NEW(be->ctx, &by_place, places));
	FP_TRY(FP_NEW(be->ctx, &by_token, r->tokens));
	FP_TRY(FP_NEW(be->ctx, &out, r->tokens * width));
	FP_TRY(be->memory->download(be, by_place, FP_F32, places, dweight));
	if (r->has_shared)
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
