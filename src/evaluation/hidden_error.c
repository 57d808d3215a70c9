/* SPDX-License-Identifier: Apache-2.0 */
#include "evaluation/hidden_error.h"

#include "base/memory.h"
#include "base/numbers.h"
#include "model/layer.h"

#include <math.h>

enum { MOST_TOKENS = 4096, DENSE = 0, PRUNED = 1 };

typedef struct hidden_states {
	const fp_hidden_error_task *task;
	fp_backend *be;
	int64_t sequences, length;
	fp_workspace *workspace;
	fp_matrix hidden[2];  /* tokens × hidden */
	fp_matrix difference; /* the same shape */
	fp_matrix squares;    /* 1 × tokens */
	float *numbers[2];    /* host, tokens each: ‖h‖², ‖h* − h‖² */
} hidden_states;

static void states_free(hidden_states *s)
{
	fp_workspace_free(s->workspace);
	fp_matrix *all[] = {&s->hidden[DENSE], &s->hidden[PRUNED], &s->difference, &s->squares};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		fp_matrix_free(s->be, all[i]);
	fp_free(s->numbers[0]);
	fp_free(s->numbers[1]);
}

static fp_status states_new(hidden_states *s)
{
	fp_model *model = s->task->model;
	const fp_windows *windows = s->task->windows;
	int64_t width = fp_model_get_config(model)->hidden;
	int64_t fits = MOST_TOKENS / windows->length;
	fp_status status;
	s->length = windows->length;
	s->sequences = fp_smaller(windows->count, fits > 1 ? fits : 1);
	int64_t tokens = s->sequences * s->length;
	FP_TRY(fp_workspace_new(&s->workspace, model, tokens));
	for (int i = 0; i < 2; i++) {
		FP_TRY(fp_matrix_new(s->be, &s->hidden[i], tokens, width, FP_F32));
		FP_TRY(fp_model_embed(model, windows->ids, s->sequences, s->length, s->hidden[i]));
		FP_TRY(FP_NEW(s->be->ctx, &s->numbers[i], tokens));
	}
	FP_TRY(fp_matrix_new(s->be, &s->difference, tokens, width, FP_F32));
	FP_TRY(fp_matrix_new(s->be, &s->squares, 1, tokens, FP_F32));
cleanup:
	return status;
}

/* hidden[which] ← layer(hidden[which]), with the overlay's tensors */
static fp_status pass(hidden_states *s, int which, int64_t index, const fp_overlay *overlay)
{
	fp_layer *layer = NULL;
	fp_layer_state state = {.sequences = s->sequences, .length = s->length, .hidden = s->hidden[which]};
	FP_PRODUCTS_FOR(s->be, FP_USE_ACTIVATION);
	fp_model_set_overlay(s->task->model, overlay);
	fp_status status = fp_layer_load(&layer, s->task->model, index);
	fp_model_set_overlay(s->task->model, NULL);
	if (status == FP_OK)
		status = fp_layer_forward(layer, &state, s->workspace);
	fp_layer_free(layer);
	return status;
}

static fp_status pass_pruned(hidden_states *s, int64_t index)
{
	const fp_hidden_error_task *task = s->task;
	fp_overlay *own = NULL;
	fp_status status = FP_OK;
	if (!task->overlay)
		FP_TRY(task->layer_overlay(task->data, index, &own));
	FP_TRY(pass(s, PRUNED, index, own ? own : task->overlay));
cleanup:
	fp_overlay_free(own);
	return status;
}

/* numbers ← ‖row‖² of X */
static fp_status row_squares(hidden_states *s, fp_matrix X, float *numbers)
{
	fp_status status = s->be->linear->row_dot(s->be, X, X, s->squares);
	return status == FP_OK ? s->be->memory->download(s->be, numbers, FP_F32, X.rows, s->squares) : status;
}

static fp_status measure(hidden_states *s, double *out)
{
	fp_backend *be = s->be;
	double sum = 0;
	int64_t counted = 0;
	fp_status status;
	FP_TRY(be->memory->copy(be, s->difference, s->hidden[PRUNED]));
	FP_TRY(be->linear->axpby(be, -1.0F, s->hidden[DENSE], 1.0F, s->difference));
	FP_TRY(row_squares(s, s->hidden[DENSE], s->numbers[0]));
	FP_TRY(row_squares(s, s->difference, s->numbers[1]));
	for (int64_t i = 0; i < s->hidden[DENSE].rows; i++)
		if (s->numbers[0][i] > 0) {
			sum += (double)s->numbers[1][i] / (double)s->numbers[0][i];
			counted++;
		}
	*out = counted > 0 ? sqrt(sum / (double)counted) : 0;
cleanup:
	return status;
}

fp_status fp_hidden_errors(double *errors, const fp_hidden_error_task *task)
{
	hidden_states s = {.task = task, .be = fp_model_backend(task->model)};
	fp_status status;
	FP_TRY(states_new(&s));
	for (int64_t layer = 0; layer < fp_model_get_config(task->model)->layers; layer++) {
		FP_TRY(fp_check_interrupt(s.be->ctx));
		FP_TRY(pass(&s, DENSE, layer, NULL));
		FP_TRY(pass_pruned(&s, layer));
		FP_TRY(measure(&s, &errors[layer]));
	}
cleanup:
	states_free(&s);
	return status;
}
