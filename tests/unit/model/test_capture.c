/* SPDX-License-Identifier: Apache-2.0 */
/* Compares each group's input with hooks in transformers, and stepwise passes with the whole layer. */
#include "model_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const cases[] = {
	"opt-plain",     "opt-350m",          "llama-gqa",       "qwen2-plain",   "qwen3-plain",       "mistral-window",
	"gemma2-plain",  "gemma3-plain",      "phi3-plain",      "olmo2-plain",   "gpt_neox-plain",    "gpt2-plain",
	"granite-plain", "stablelm-parallel", "phi-plain",       "falcon-7b",     "falcon-40b",        "bloom-plain",
	"cohere-plain",  "olmo3-plain",       "cohere2-plain",   "smollm3-plain", "glm4-plain",        "ernie4_5-plain",
	"exaone4-plain", "starcoder2-plain",  "ministral-plain", "olmo-plain",    "deepseek_v3-dense", "minicpm3-plain",
};
enum { CASE_COUNT = sizeof cases / sizeof cases[0] };

static float *download(model_fixture *f, fp_matrix matrix)
{
	float *out = malloc((size_t)fp_matrix_size(matrix) * sizeof *out);
	assert_ok(f->ctx, f->be->memory->download(f->be, out, FP_F32, matrix.cols, matrix));
	assert_ok(f->ctx, f->be->memory->synchronize(f->be));
	return out;
}

/* Compares with the next block of captures.bin and advances the cursor. */
static void compare_block(model_fixture *f, fp_matrix got, const unsigned char **cursor, const char *where)
{
	int32_t shape[2];
	memcpy(shape, *cursor, sizeof shape);
	assert_int_equal(got.rows, shape[0]);
	assert_int_equal(got.cols, shape[1]);
	*cursor += sizeof shape;
	float *values = download(f, got);
	double worst = 0;
	for (int64_t i = 0; i < fp_matrix_size(got); i++) {
		float wanted;
		memcpy(&wanted, *cursor + 4 * i, 4);
		worst = fmax(worst, fabs((double)values[i] - wanted));
	}
	if (!(worst < 1e-4)) /* as in test_forward.c */
		fail_msg("%s differs by %g", where, worst);
	*cursor += 4 * fp_matrix_size(got);
	free(values);
}

typedef struct run {
	fp_layer_state state;
	fp_workspace *workspace;
} run;

static void start(model_fixture *f, const expected_output *expected, run *r)
{
	const fp_model_config *c = fp_model_get_config(f->model);
	int64_t tokens = (int64_t)expected->sequences * expected->length;
	r->state = (fp_layer_state){.sequences = expected->sequences, .length = expected->length};
	assert_ok(f->ctx, fp_matrix_new(f->be, &r->state.hidden, tokens, c->hidden, FP_F32));
	assert_ok(f->ctx, fp_matrix_new(f->be, &r->state.context, tokens, c->heads * c->head_dim, FP_F32));
	assert_ok(f->ctx, fp_workspace_new(&r->workspace, f->model, tokens));
	assert_ok(f->ctx, fp_model_embed(f->model, expected->ids, expected->sequences, expected->length, r->state.hidden));
}

static void stop(model_fixture *f, run *r)
{
	fp_matrix_free(f->be, &r->state.hidden);
	fp_matrix_free(f->be, &r->state.context);
	fp_workspace_free(r->workspace);
}

static void inputs_equal_those_of_transformers(void **unused)
{
	(void)unused;
	for (int i = 0; i < CASE_COUNT; i++) {
		model_fixture f;
		expected_output expected;
		run r;
		char name[256];
		size_t size;
		open_fixture(&f, cases[i]);
		read_expected(&expected, cases[i]);
		start(&f, &expected, &r);
		snprintf(name, sizeof name, "tests/fixtures/model/%s/captures.bin", cases[i]);
		unsigned char *bytes = read_whole(source_path(name), &size);
		const unsigned char *cursor = bytes + 8;
		for (int64_t index = 0; index < fp_model_get_config(f.model)->layers; index++) {
			fp_layer *layer;
			assert_ok(f.ctx, fp_layer_load(&layer, f.model, index));
			for (int group = 0; group < FP_GROUP_COUNT; group++) {
				fp_matrix input;
				snprintf(name, sizeof name, "%s: layer %d: input of group %d", cases[i], (int)index, group);
				assert_ok(f.ctx, fp_layer_input(layer, group, &r.state, r.workspace, &input));
				assert_int_equal(fp_matrix_is_absent(input), !fp_model_has_group(f.model, group));
				if (!fp_matrix_is_absent(input))
					compare_block(&f, input, &cursor, name);
				assert_ok(f.ctx, fp_layer_advance(layer, group, input, &r.state, r.workspace));
			}
			snprintf(name, sizeof name, "%s: output of layer %d", cases[i], (int)index);
			compare_block(&f, r.state.hidden, &cursor, name);
			fp_layer_free(layer);
		}
		assert_ptr_equal(cursor, bytes + size);
		free(bytes);
		free(expected.ids);
		free(expected.logits);
		stop(&f, &r);
		close_fixture(&f);
	}
}

static void steps_equal_the_whole_layer_bit_for_bit(void **unused)
{
	(void)unused;
	for (int i = 0; i < CASE_COUNT; i++) {
		model_fixture f;
		expected_output expected;
		run steps;
		run whole;
		open_fixture(&f, cases[i]);
		read_expected(&expected, cases[i]);
		start(&f, &expected, &steps);
		start(&f, &expected, &whole);
		for (int64_t index = 0; index < fp_model_get_config(f.model)->layers; index++) {
			fp_layer *layer;
			assert_ok(f.ctx, fp_layer_load(&layer, f.model, index));
			for (int group = 0; group < FP_GROUP_COUNT; group++) {
				fp_matrix input;
				assert_ok(f.ctx, fp_layer_input(layer, group, &steps.state, steps.workspace, &input));
				assert_ok(f.ctx, fp_layer_advance(layer, group, input, &steps.state, steps.workspace));
			}
			assert_ok(f.ctx, fp_layer_forward(layer, &whole.state, whole.workspace));
			float *a = download(&f, steps.state.hidden);
			float *b = download(&f, whole.state.hidden);
			assert_memory_equal(a, b, (size_t)fp_matrix_size(steps.state.hidden) * sizeof *a);
			free(a);
			free(b);
			fp_layer_free(layer);
		}
		free(expected.ids);
		free(expected.logits);
		stop(&f, &steps);
		stop(&f, &whole);
		close_fixture(&f);
	}
}

static void roles_have_groups_and_tensors(void **unused)
{
	(void)unused;
	static const int groups[FP_ROLE_COUNT] = {0, 0, 0, 0, 0, 1, 2, 3, 4, 4, 5};
	model_fixture f;
	for (int role = 0; role < FP_ROLE_COUNT; role++)
		assert_int_equal(fp_role_group((fp_role)role), groups[role]);
	open_fixture(&f, "llama-gqa");
	assert_string_equal(fp_model_operator(f.model, 1, FP_DOWN)->name, "model.layers.1.mlp.down_proj.weight");
	assert_string_equal(fp_model_architecture(f.model), "LlamaForCausalLM");
	assert_null(fp_model_operator(f.model, 2, FP_DOWN));
	close_fixture(&f);
	open_fixture(&f, "opt-plain");
	assert_string_equal(fp_model_operator(f.model, 0, FP_UP)->name, "model.decoder.layers.0.fc1.weight");
	assert_null(fp_model_operator(f.model, 0, FP_GATE));
	close_fixture(&f);
	open_fixture(&f, "phi3-plain"); /* several operators in a tensor */
	const fp_tensor_info *key = fp_model_operator(f.model, 1, FP_KEY), *up = fp_model_operator(f.model, 1, FP_UP);
	assert_string_equal(key->name, "model.layers.1.self_attn.qkv_proj.weight:k");
	assert_ptr_equal(key->whole, fp_model_operator(f.model, 1, FP_VALUE)->whole);
	assert_int_equal(key->first, 24);
	assert_string_equal(up->whole->name, "model.layers.1.mlp.gate_up_proj.weight");
	assert_int_equal(up->first, 40);
	assert_null(fp_model_operator(f.model, 1, FP_DOWN)->whole);
	close_fixture(&f);
	open_fixture(&f, "gpt2-plain"); /* stored as inputs × outputs */
	const fp_tensor_info *fc = fp_model_operator(f.model, 0, FP_UP);
	assert_string_equal(fc->name, "transformer.h.0.mlp.c_fc.weight");
	assert_true(fc->transposed && fc->shape[0] == 96 && fc->shape[1] == 24);
	close_fixture(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(inputs_equal_those_of_transformers),
		cmocka_unit_test(steps_equal_the_whole_layer_bit_for_bit),
		cmocka_unit_test(roles_have_groups_and_tensors),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
