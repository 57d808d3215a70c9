/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row_importance.c: J is the Jacobian of the layer's output by the output y = Vx of an operator. An error e in y changes
 * the layer's output by Je, and if the entries of e are uncorrelated,
 *
 *     E‖Je‖² = Σᵣ E[eᵣ²]·‖Jᵣ‖²      with Jᵣ the columns of J
 *
 * Hutchinson's estimator finds the norms without J: for a vector s of random signs
 *
 *     E[(Jᵀs)ᵣ²] = ‖Jᵣ‖²
 *
 * and a backward pass from s computes Jᵀs for all operators of the layer. The mean is taken over some tokens of the
 * calibration text.
 */
#include "pruning/row_importance.h"

#include "backend/work_space.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "model/layer_backward.h"
#include "sharing/row_slices.h"

#include <math.h>

enum {
	PASS_TOKENS = 1024, /* per pass */
	PASSES = 8,
};
static const double FLOOR = 0.0025; /* added to each square, relative to the mean square, so that none is zero */

/* Tokens per window, and windows per pass. */
static int64_t part_length(int64_t length)
{
	return length < PASS_TOKENS ? length : PASS_TOKENS;
}

static int64_t pass_windows(int64_t length)
{
	return PASS_TOKENS / part_length(length);
}

bool fp_row_importance_wanted(const fp_settings *settings, const fp_pattern *pattern, const fp_selection *selection,
							  const fp_backend *be)
{
	bool unstructured = selection ? fp_selection_has_unstructured(selection) : pattern->group == 0;
	return settings->row_importance && unstructured && fp_method_of(settings)->has_presets &&
		   fp_backend_can(be, FP_CAN_DIFFERENTIATE);
}

int64_t fp_row_importance_bytes(const fp_model *model, int64_t length)
{
	int64_t tokens = pass_windows(length) * part_length(length), hidden = fp_model_get_config(model)->hidden;
	fp_attention_shape shape = fp_model_attention_shape(model, 1, length);
	return fp_tape_bytes(model, tokens) + (2 * tokens + length) * hidden * (int64_t)sizeof(float) +
		   fp_attention_backward_bytes(fp_model_backend(model), &shape);
}

typedef struct space {
	fp_tape *tape;
	fp_matrix signs, input, window;
} space;

static void space_free(fp_backend *be, space *s)
{
	fp_tape_free(s->tape);
	fp_matrix_free(be, &s->signs);
	fp_matrix_free(be, &s->input);
	fp_matrix_free(be, &s->window);
}

/* Random signs by Vigna's splitmix64, 64 at a time; the same for every layer, device and rank. */
static fp_status draw_signs(fp_backend *be, fp_matrix out)
{
	float *signs = NULL;
	uint64_t state = 0, bits = 0;
	int64_t count = fp_matrix_size(out);
	fp_status status;
	FP_TRY(FP_NEW(be->ctx, &signs, count));
	for (int64_t i = 0; i < count; i++, bits >>= 1) {
		if (i % 64 == 0) {
			state += 0x9E3779B97F4A7C15U;
			bits = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9U;
			bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBU;
			bits ^= bits >> 31;
		}
		signs[i] = bits & 1 ? 1.0F : -1.0F;
	}
	FP_TRY(be->memory->upload(be, out, signs, FP_F32, out.cols));
cleanup:
	fp_free(signs);
	return status;
}

static fp_status space_new(space *s, const fp_model *model, int64_t length)
{
	fp_backend *be = fp_model_backend(model);
	int64_t tokens = pass_windows(length) * part_length(length), hidden = fp_model_get_config(model)->hidden;
	fp_status status;
	FP_TRY(fp_tape_new(&s->tape, model, tokens));
	FP_TRY(fp_matrix_new(be, &s->signs, tokens, hidden, FP_F32));
	FP_TRY(fp_matrix_new(be, &s->input, tokens, hidden, FP_F32));
	FP_TRY(fp_matrix_new(be, &s->window, length, hidden, FP_F32));
	FP_TRY(draw_signs(be, s->signs));
cleanup:
	return status;
}

/* The sums of squares, in a register for each part of the text that is not added yet. */
typedef struct energy_sums {
	const fp_layer *dense;
	fp_layer_matrices registers[FP_PARTS + 1]; /* as weights: 1 × outputs */
} energy_sums;

static fp_status make_register(void *data, int which, fp_addends *out)
{
	energy_sums *sums = data;
	const fp_layer *dense = sums->dense;
	fp_backend *be = fp_model_backend(dense->model);
	fp_layer_matrices *made = &sums->registers[which];
	fp_status status;
	FP_TRY(fp_layer_matrices_empty(made, dense->model));
	for (int i = 0; i < made->count; i++) {
		if (!fp_matrix_is_absent(dense->weight[i]))
			FP_TRY(fp_matrix_new(be, &made->weight[i], 1, dense->weight[i].rows, FP_F32));
		FP_TRY(fp_addends_matrix(out, be->ctx, made->weight[i]));
	}
cleanup:
	return status;
}

/* One pass over `windows` of the chosen windows, of which there are `count` at equal distances in the text. */
static fp_status add_pass(space *s, const fp_layer *dense, fp_streams *streams, int64_t count, int64_t first,
						  int64_t windows, bool add, fp_matrix *energies)
{
	fp_backend *be = fp_model_backend(dense->model);
	int64_t length = part_length(streams->length), at_once = pass_windows(streams->length), rows = windows * length;
	fp_matrix input = fp_matrix_rows(s->input, 0, rows), output;
	fp_status status = FP_OK;
	for (int64_t i = 0; i < windows; i++) {
		FP_TRY(fp_streams_read(streams, FP_DENSE, (first + i) * streams->share.windows / count, s->window));
		FP_TRY(be->memory->copy(be, fp_matrix_rows(input, i * length, length), fp_matrix_rows(s->window, 0, length)));
	}
	FP_TRY(fp_layer_forward_taped(dense, windows, length, input, s->tape, &output));
	for (int64_t i = 0; i < windows; i++) /* each window has its signs, in whatever pass it is */
		FP_TRY(be->memory->copy(be, fp_matrix_rows(output, i * length, length),
								fp_matrix_rows(s->signs, (first + i) % at_once * length, length)));
	FP_TRY(fp_layer_backward_energies(dense, s->tape, add, energies));
cleanup:
	return status;
}

/* Sums the squares of Jᵀs over windows at equal distances in the text; energies[0] ← the sum over all parts. */
static fp_status add_energies(space *s, fp_streams *streams, energy_sums *energies)
{
	const fp_layer *dense = energies->dense;
	const fp_share *share = &streams->share;
	int64_t at_once = pass_windows(streams->length), all = share->windows, first = 0;
	int64_t count = all < PASSES * at_once ? all : PASSES * at_once;
	fp_part_sum sum;
	fp_status status = FP_OK;
	fp_part_sum_open(&sum, share, fp_model_backend(dense->model), make_register, energies);
	for (int part = 0; part < share->parts; part++) {
		int64_t begin = first, end = fp_share_window(share, part + 1);
		int which;
		while (first < count && first * all / count < end)
			first++;
		sum.used[part] = first > begin;
		if (first == begin || part < share->begin || part >= share->end)
			continue;
		FP_TRY(fp_part_sum_begin(&sum, part, &which));
		for (int64_t i = begin; i < first; i += at_once)
			FP_TRY(add_pass(s, dense, streams, count, i, fp_smaller(at_once, first - i), i > begin,
							energies->registers[which].weight));
		FP_TRY(fp_part_sum_end(&sum));
	}
	FP_TRY(fp_part_sum_finish_rows(&sum));
cleanup:
	fp_part_sum_close(&sum);
	return status;
}

/* weight ← the square roots of the energies relative to their mean; inverse ← the reciprocals. */
static fp_status take_roots(fp_backend *be, fp_matrix energy, fp_matrix *weight, fp_matrix *inverse)
{
	float *host = NULL, *over = NULL;
	int64_t count = energy.cols;
	double mean = 0;
	fp_status status;
	FP_TRY(FP_NEW(be->ctx, &host, count));
	FP_TRY(FP_NEW(be->ctx, &over, count));
	FP_TRY(be->memory->download(be, host, FP_F32, count, energy));
	for (int64_t i = 0; i < count; i++)
		mean += host[i] / (double)count;
	if (!isfinite(mean) || mean <= 0) /* the operator has no effect on the layer's output: no weights */
		goto cleanup;
	for (int64_t i = 0; i < count; i++) {
		host[i] = (float)sqrt((host[i] / mean + FLOOR) / (1 + FLOOR));
		over[i] = 1 / host[i];
	}
	FP_TRY(fp_matrix_new(be, weight, 1, count, FP_F32));
	FP_TRY(fp_matrix_new(be, inverse, 1, count, FP_F32));
	FP_TRY(be->memory->upload(be, *weight, host, FP_F32, count));
	FP_TRY(be->memory->upload(be, *inverse, over, FP_F32, count));
cleanup:
	fp_free(host);
	fp_free(over);
	return status;
}

fp_status fp_row_importance_new(fp_row_importance *out, const fp_layer *dense, fp_streams *streams)
{
	fp_backend *be = fp_model_backend(dense->model);
	energy_sums energies = {.dense = dense};
	fp_context *ctx = be->ctx;
	space s = {0};
	fp_stage stage = fp_stage_enter(be->ctx, FP_STAGE_STATISTICS);
	fp_status status;
	*out = (fp_row_importance){0};
	FP_TRY(space_new(&s, dense->model, streams->length));
	FP_TRY(add_energies(&s, streams, &energies));
	out->count = energies.registers[0].count;
	FP_TRY(FP_NEW(ctx, &out->weight, out->count));
	FP_TRY(FP_NEW(ctx, &out->inverse, out->count));
	for (int i = 0; i < out->count; i++)
		if (!fp_matrix_is_absent(dense->weight[i]))
			FP_TRY(take_roots(be, energies.registers[0].weight[i], &out->weight[i], &out->inverse[i]));
cleanup:
	for (int i = 0; i <= FP_PARTS; i++)
		fp_layer_matrices_free(be, &energies.registers[i]);
	space_free(be, &s);
	if (status != FP_OK)
		fp_row_importance_free(be, out);
	fp_stage_enter(be->ctx, stage);
	return status;
}

void fp_row_importance_free(fp_backend *be, fp_row_importance *importance)
{
	for (int i = 0; i < importance->count && importance->inverse; i++) {
		fp_matrix_free(be, &importance->weight[i]);
		fp_matrix_free(be, &importance->inverse[i]);
	}
	fp_free(importance->weight);
	fp_free(importance->inverse);
	*importance = (fp_row_importance){0};
}
