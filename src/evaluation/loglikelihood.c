/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loglikelihood.c: runs the planned batches through the model.
 *
 * As in perplexity.c, layers are loaded one at a time while the hidden states of a chunk of batches
 * stay in memory. They are packed: no padding, and a shared prefix is stored once.
 */
#include "evaluation/loglikelihood.h"

#include "base/memory.h"
#include "base/numbers.h"
#include "evaluation/chunk_memory.h"
#include "evaluation/loglikelihood_plan.h"
#include "model/layer.h"

#include <string.h>

enum { SCORED_ROWS = 512 };

typedef struct scoring {
	fp_model *model;
	fp_backend *be;
	fp_likelihood_request *requests;
	fp_plan plan;
	int64_t chunk_rows; /* packed rows in memory at a time */
	fp_workspace *workspace;
	fp_matrix hidden;   /* chunk_rows × hidden */
	fp_matrix unpacked; /* workspace for an unpacked batch; max(hidden, fp_packing_width()) wide */
	int32_t *ids;       /* of a batch, unpacked */
	fp_row_span *spans;
	int64_t done, total; /* packed rows × (layers + head) */
	/* rows collected for the head */
	fp_matrix scored;
	int32_t targets[SCORED_ROWS], best[SCORED_ROWS];
	float losses[SCORED_ROWS];
	fp_likelihood_request *owner[SCORED_ROWS];
	int64_t scored_count;
} scoring;

static fp_status step_done(scoring *s, int64_t rows)
{
	s->done += rows;
	fp_report_progress(s->be->ctx, "evaluating", s->done, s->total);
	return fp_check_interrupt(s->be->ctx);
}

static fp_status prepare(scoring *s, int64_t memory)
{
	fp_status status;
	const fp_model_config *c = fp_model_get_config(s->model);
	int64_t row = c->hidden * (int64_t)sizeof(float);
	int64_t width = fp_larger(c->hidden, fp_packing_width(s->model));
	int64_t rows = 0;
	for (int64_t i = 0; i < s->plan.batch_count; i++)
		rows += s->plan.batches[i].rows;
	s->total = rows * (c->layers + 1);
	int64_t available = memory - fp_workspace_bytes(s->model, s->plan.most_rows) -
						s->plan.most_unpacked * width * (int64_t)sizeof(float) - SCORED_ROWS * row;
	s->chunk_rows = fp_larger(available / row, s->plan.most_rows);
	if (s->chunk_rows > rows)
		s->chunk_rows = rows;
	FP_TRY(fp_workspace_new(&s->workspace, s->model, s->plan.most_rows));
	FP_TRY(fp_matrix_new(s->be, &s->hidden, s->chunk_rows, c->hidden, FP_F32));
	FP_TRY(fp_matrix_new(s->be, &s->unpacked, s->plan.most_unpacked, width, FP_F32));
	FP_TRY(fp_matrix_new(s->be, &s->scored, SCORED_ROWS, c->hidden, FP_F32));
	FP_TRY(FP_NEW(s->be->ctx, &s->ids, s->plan.most_unpacked));
	FP_TRY(FP_NEW(s->be->ctx, &s->spans, 2 * s->plan.sequence_count)); /* a prefix and a tail per sequence */
cleanup:
	return status;
}

static fp_plan_sequence *batch_sequence(const scoring *s, const fp_plan_batch *batch, int64_t *group, int64_t *member)
{
	const fp_plan_group *at = &s->plan.groups[batch->first_group + *group];
	fp_plan_sequence *sequence = &s->plan.sequences[at->first_sequence + *member];
	if (++*member == at->count) {
		++*group;
		*member = 0;
	}
	return sequence;
}

/* Maps the plan's packed rows to unpacked rows, one sequence after the other. */
static fp_packing batch_packing(scoring *s, const fp_plan_batch *batch)
{
	int64_t group = 0, member = 0, count = 0;
	for (int64_t i = 0; i < batch->sequences; i++) {
		bool leader = member == 0;
		const fp_plan_sequence *sequence = batch_sequence(s, batch, &group, &member);
		int64_t first = i * batch->length;
		s->spans[count++] = (fp_row_span){sequence->start, first, sequence->shared, !leader};
		if (sequence->length > sequence->shared)
			s->spans[count++] =
				(fp_row_span){sequence->tail, first + sequence->shared, sequence->length - sequence->shared, false};
	}
	return (fp_packing){.spans = s->spans, .span_count = count, .workspace = s->unpacked};
}

static fp_status embed(scoring *s, const fp_plan_batch *batch, fp_matrix hidden)
{
	fp_status status;
	int64_t group = 0, member = 0;
	for (int64_t i = 0; i < batch->sequences; i++) {
		const fp_plan_sequence *sequence = batch_sequence(s, batch, &group, &member);
		for (int64_t j = 0; j < batch->length; j++) /* padding may have any id */
			s->ids[i * batch->length + j] = j < sequence->length ? sequence->ids[j] : 0;
	}
	fp_matrix unpacked = fp_matrix_reshape(s->unpacked, batch->sequences * batch->length, hidden.cols);
	FP_TRY(fp_model_embed(s->model, s->ids, batch->sequences, batch->length, unpacked));
	fp_packing packing = batch_packing(s, batch);
	for (int64_t i = 0; i < packing.span_count; i++) {
		const fp_row_span *span = &packing.spans[i];
		if (!span->copy)
			FP_TRY(s->be->memory->copy(s->be, fp_matrix_rows(hidden, span->packed, span->rows),
									   fp_matrix_rows(unpacked, span->unpacked, span->rows)));
	}
cleanup:
	return status;
}

static fp_status run_layers(scoring *s, int64_t first, int64_t end)
{
	fp_status status = FP_OK;
	fp_layer *layer = NULL;
	FP_PRODUCTS_FOR(s->be, FP_USE_ACTIVATION);
	for (int64_t index = 0; index < fp_model_get_config(s->model)->layers; index++) {
		int64_t row = 0;
		FP_TRY(fp_layer_load(&layer, s->model, index));
		for (int64_t i = first; i < end; i++) {
			const fp_plan_batch *batch = &s->plan.batches[i];
			fp_packing packing = batch_packing(s, batch);
			fp_layer_state state = {.sequences = batch->sequences,
									.length = batch->length,
									.hidden = fp_matrix_rows(s->hidden, row, batch->rows),
									.packing = &packing};
			FP_TRY(fp_layer_forward(layer, &state, s->workspace));
			FP_TRY(step_done(s, batch->rows));
			row += batch->rows;
		}
		fp_layer_free(layer);
		layer = NULL;
	}
cleanup:
	fp_layer_free(layer);
	return status;
}

static fp_status flush(scoring *s)
{
	fp_status status;
	if (s->scored_count == 0)
		return FP_OK;
	FP_TRY(fp_model_loss(s->model, fp_matrix_rows(s->scored, 0, s->scored_count), s->targets, s->losses, s->best));
	for (int64_t i = 0; i < s->scored_count; i++) {
		s->owner[i]->loglikelihood -= s->losses[i];
		s->owner[i]->greedy = s->owner[i]->greedy && s->best[i] == s->targets[i];
	}
	s->scored_count = 0;
cleanup:
	return status;
}

/* Passes only the rows that predict the continuation to the head. first_row: the batch's first in `hidden`. */
static fp_status score(scoring *s, const fp_plan_sequence *sequence, fp_likelihood_request *request, int64_t first_row)
{
	fp_status status = FP_OK;
	const int32_t *targets = request->ids + request->context;
	int64_t first = sequence->length - request->continuation;
	request->loglikelihood = 0;
	request->greedy = true;
	request->truncated = request->context + request->continuation - 1 > sequence->length;
	for (int64_t i = 0; i < request->continuation;) {
		int64_t token = first + i;
		int64_t run = (token < sequence->shared ? sequence->shared : sequence->length) - token;
		if (run > SCORED_ROWS - s->scored_count)
			run = SCORED_ROWS - s->scored_count;
		FP_TRY(s->be->memory->copy(s->be, fp_matrix_rows(s->scored, s->scored_count, run),
								   fp_matrix_rows(s->hidden, first_row + fp_plan_row(sequence, token), run)));
		for (int64_t j = 0; j < run; j++) {
			s->targets[s->scored_count] = targets[i++];
			s->owner[s->scored_count++] = request;
		}
		if (s->scored_count == SCORED_ROWS)
			FP_TRY(flush(s));
	}
cleanup:
	return status;
}

/* Number i of those with the same input. */
static fp_likelihood_request *request_of(const scoring *s, const fp_plan_sequence *sequence, int64_t i)
{
	return &s->requests[s->plan.entries[sequence->first_entry + i].request];
}

/* The first request with a sequence that has the same tokens as its request number i: maybe that one. It is scored for all of
 * them, because the head may round a row by its place, and equal choices of a task must be equally likely. */
static fp_likelihood_request *first_equal(const scoring *s, const fp_plan_sequence *sequence, int64_t i)
{
	fp_likelihood_request *own = request_of(s, sequence, i);
	size_t bytes = (size_t)(own->context + own->continuation) * sizeof *own->ids;
	for (int64_t k = 0; k < i; k++) {
		fp_likelihood_request *other = request_of(s, sequence, k);
		if (other->context == own->context && other->continuation == own->continuation &&
			memcmp(other->ids, own->ids, bytes) == 0)
			return other;
	}
	return own;
}

static fp_status score_batch(scoring *s, const fp_plan_batch *batch, int64_t first_row)
{
	fp_status status = FP_OK;
	int64_t group = 0, member = 0;
	for (int64_t i = 0; i < batch->sequences; i++) {
		const fp_plan_sequence *sequence = batch_sequence(s, batch, &group, &member);
		for (int64_t j = 0; j < sequence->entry_count; j++) {
			fp_likelihood_request *request = request_of(s, sequence, j);
			if (first_equal(s, sequence, j) == request)
				FP_TRY(score(s, sequence, request, first_row));
		}
	}
	FP_TRY(step_done(s, batch->rows));
cleanup:
	return status;
}

static void copy_scores(const scoring *s)
{
	for (int64_t i = 0; i < s->plan.sequence_count; i++) {
		const fp_plan_sequence *sequence = &s->plan.sequences[i];
		for (int64_t j = 0; j < sequence->entry_count; j++) {
			fp_likelihood_request *request = request_of(s, sequence, j);
			const fp_likelihood_request *scored = first_equal(s, sequence, j);
			request->loglikelihood = scored->loglikelihood;
			request->greedy = scored->greedy;
			request->truncated = scored->truncated;
		}
	}
}

static fp_status run_chunk(scoring *s, int64_t first, int64_t end)
{
	fp_status status = FP_OK;
	int64_t row = 0;
	for (int64_t i = first; i < end; row += s->plan.batches[i++].rows)
		FP_TRY(embed(s, &s->plan.batches[i], fp_matrix_rows(s->hidden, row, s->plan.batches[i].rows)));
	FP_TRY(run_layers(s, first, end));
	row = 0;
	for (int64_t i = first; i < end; row += s->plan.batches[i++].rows)
		FP_TRY(score_batch(s, &s->plan.batches[i], row));
	FP_TRY(flush(s));
cleanup:
	return status;
}

fp_status fp_loglikelihoods(fp_model *model, fp_likelihood_request *requests, int64_t count, int64_t length,
							int64_t memory)
{
	fp_status status;
	scoring *s = NULL;
	fp_context *ctx = fp_model_backend(model)->ctx;
	if (count == 0)
		return FP_OK;
	for (int64_t i = 0; i < count; i++)
		FP_REQUIRE(fp_model_backend(model),
				   requests[i].context > 0 && requests[i].continuation > 0 && requests[i].continuation <= length);
	FP_TRY(fp_model_check_length(model, length));
	FP_TRY(FP_NEW(ctx, &s, 1));
	s->model = model;
	s->be = fp_model_backend(model);
	s->requests = requests;
	FP_TRY(fp_evaluation_memory(s->be, memory, &memory));
	FP_TRY(fp_plan_make(&s->plan, ctx, requests, count, length, fp_evaluation_batch(model, memory)));
	FP_TRY(prepare(s, memory));
	for (int64_t first = 0; first < s->plan.batch_count;) {
		int64_t end = first;
		for (int64_t rows = 0; end < s->plan.batch_count && rows + s->plan.batches[end].rows <= s->chunk_rows; end++)
			rows += s->plan.batches[end].rows;
		FP_TRY(run_chunk(s, first, end));
		first = end;
	}
	copy_scores(s);
cleanup:
	if (s) {
		fp_free(s->spans);
		fp_free(s->ids);
		fp_matrix_free(s->be, &s->scored);
		fp_matrix_free(s->be, &s->unpacked);
		fp_matrix_free(s->be, &s->hidden);
		fp_workspace_free(s->workspace);
		fp_plan_free(&s->plan);
	}
	fp_free(s);
	return status;
}
