/* SPDX-License-Identifier: Apache-2.0 */
#include "real_layer.h"

#include "verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const real_source real_sources[] = {
	{"llama-demo", "models/llama-demo", "models/calibration.jsonl", 0},
	{"opt-demo", "models/opt-demo", "models/calibration.jsonl", 0},
};
const int real_source_count = sizeof real_sources / sizeof real_sources[0];
const real_source shared_source = {"stories260K", "models/stories260K", "data/tinystories-calibration.jsonl", 1};

void open_real(model_fixture *f, fp_windows *windows, const real_source *source, int64_t samples, int64_t length)
{
	char model[4096];
	char text[4096];
	snprintf(model, sizeof model, "%s", source->shared ? need_shared_path(source->model) : source_path(source->model));
	snprintf(text, sizeof text, "%s", source->shared ? need_shared_path(source->text) : source_path(source->text));
	const char *paths[] = {text};
	fp_tokenizer *tokenizer;
	fp_status status = open_directory(f, model);
	if (status != FP_OK)
		fail_msg("%s: %s", model, fp_context_message(f->ctx));
	assert_ok(f->ctx, fp_tokenizer_open(&tokenizer, f->ctx, model));
	assert_ok(f->ctx, fp_windows_calibration(windows, f->ctx, tokenizer, paths, 1, "packed", samples, length, 0));
	fp_tokenizer_free(tokenizer);
}

static double *download(model_fixture *f, fp_matrix matrix)
{
	float *floats = malloc((size_t)fp_matrix_size(matrix) * sizeof *floats);
	assert_ok(f->ctx, f->be->memory->download(f->be, floats, FP_F32, matrix.cols, matrix));
	assert_ok(f->ctx, f->be->memory->synchronize(f->be));
	double *out = to_double(floats, fp_matrix_size(matrix));
	free(floats);
	return out;
}

void capture_real(real_operator *out, model_fixture *f, const fp_windows *windows, int64_t index, fp_role role)
{
	const fp_model_config *c = fp_model_get_config(f->model);
	int64_t tokens = windows->count * windows->length;
	fp_layer_state state = {.sequences = windows->count, .length = windows->length};
	fp_workspace *workspace;
	fp_layer *layer;
	fp_matrix input;
	assert_ok(f->ctx, fp_matrix_new(f->be, &state.hidden, tokens, c->hidden, FP_F32));
	assert_ok(f->ctx, fp_matrix_new(f->be, &state.context, tokens, c->heads * c->head_dim, FP_F32));
	assert_ok(f->ctx, fp_workspace_new(&workspace, f->model, tokens));
	assert_ok(f->ctx, fp_model_embed(f->model, windows->ids, windows->count, windows->length, state.hidden));
	for (int64_t i = 0; i < index; i++) {
		assert_ok(f->ctx, fp_layer_load(&layer, f->model, i));
		assert_ok(f->ctx, fp_layer_forward(layer, &state, workspace));
		fp_layer_free(layer);
	}
	assert_ok(f->ctx, fp_layer_load(&layer, f->model, index));
	for (int group = 0; group <= fp_role_group(role); group++) {
		assert_ok(f->ctx, fp_layer_input(layer, group, &state, workspace, &input));
		if (group < fp_role_group(role))
			assert_ok(f->ctx, fp_layer_advance(layer, group, input, &state, workspace));
	}
	out->m = layer->weight[role].rows;
	out->n = layer->weight[role].cols;
	out->p = tokens;
	out->W = download(f, layer->weight[role]);
	out->X = download(f, input);
	fp_layer_free(layer);
	fp_workspace_free(workspace);
	fp_matrix_free(f->be, &state.hidden);
	fp_matrix_free(f->be, &state.context);
}
