/* SPDX-License-Identifier: Apache-2.0 */
/* Every fixture computes the same function in a random basis, in memory and as a checkpoint that is written and opened
 * again; and what a model permits is known. */
#include "basis_fixture.h"

#include "checkpoint/writer.h"
#include "run/model_basis.h"
#include "run/tensor_joiner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Why the stream of a fixture cannot be turned; NULL: it can. */
typedef struct freedom_case {
	const char *name, *stream;
	bool query;
} freedom_case;

static const char post_norms[] = "norms after its blocks", unbiased[] = "have none to take these";
static const freedom_case cases[] = {
	{"opt-plain", NULL, true},
	{"opt-350m", post_norms, true},
	{"opt-350m-bin", post_norms, true},
	{"opt-projected", "it projects its embeddings", true},
	{"opt-no-bias", unbiased, true},
	{"opt-norm-without-weights", NULL, true},
	{"opt-no-final-norm", "it has no final norm", true},
	{"opt-untied", NULL, true},
	{"opt-bin", NULL, true},
	{"opt-bare-names", NULL, true},
	{"llama-plain", NULL, false},
	{"llama-gqa", NULL, false},
	{"llama-multi-query", NULL, false},
	{"llama-tied", NULL, false},
	{"llama-rope-llama3", NULL, false},
	{"llama-rope-linear", NULL, false},
	{"llama-head-dim", NULL, false},
	{"llama-bias", NULL, false},
	{"llama-sharded", NULL, false},
	{"llama-bin", NULL, false},
	{"llama-bin-sharded", NULL, false},
	{"llama-bare-names", NULL, false},
	{"llama-smollm", NULL, false},
	{"qwen2-plain", NULL, false},
	{"qwen2-tied", NULL, false},
	{"qwen2-window", NULL, false},
	{"qwen3-plain", NULL, false},
	{"qwen3-bias-tied", NULL, false},
	{"mistral-plain", NULL, false},
	{"mistral-window", NULL, false},
	{"bloom-plain", "it has a norm on its embeddings", true},
	{"cohere-plain", NULL, false},
	{"falcon-7b", unbiased, false},
	{"falcon-40b", unbiased, false},
	{"falcon-rw", NULL, true},
	{"gemma-plain", NULL, false},
	{"gemma2-plain", post_norms, false},
	{"gemma3-plain", post_norms, false},
	{"gpt2-plain", NULL, true},
	{"gpt2-bare-names", NULL, true},
	{"gpt_neox-plain", NULL, false},
	{"gpt_neox-sequential", unbiased, false},
	{"granite-plain", NULL, false},
	{"granite-bias", NULL, false},
	{"llama-rope-yarn", NULL, false},
	{"olmo2-plain", post_norms, false},
	{"phi-plain", NULL, false},
	{"phi3-plain", NULL, false},
	{"stablelm-plain", unbiased, false},
	{"stablelm-parallel", unbiased, false},
	{"mixtral-plain", NULL, false},
	{"qwen2_moe-plain", NULL, false},
	{"qwen2_moe-window", NULL, false},
	{"qwen3_moe-plain", NULL, false},
	{"glm-plain", NULL, false},
	{"glm4-plain", post_norms, false},
	{"seed_oss-plain", NULL, false},
	{"ernie4_5-plain", NULL, false},
	{"ernie4_5-bias", NULL, false},
	{"exaone4-plain", post_norms, false},
	{"starcoder2-plain", NULL, false},
	{"starcoder2-no-bias", unbiased, false},
	{"olmoe-plain", NULL, false},
	{"qwen2_5_vl-plain", "sees of images", false},
	{"qwen3_vl-plain", "sees of images", false},
	{"mistral3-plain", "sees of images", false},
	{"ministral3-plain", NULL, false},
	{"olmo-plain", NULL, false},
	{"glm4_moe-plain", NULL, false},
	{"glm4_moe-groups", "predict further tokens", false},
	{"ernie4_5_moe-plain", NULL, false},
	{"ernie4_5_moe-interval", "predict further tokens", false},
	{"granitemoe-plain", NULL, false},
	{"granitemoe-bias", NULL, false},
	{"granitemoeshared-plain", NULL, false},
	{"granitemoehybrid-dense", NULL, false},
	{"granitemoehybrid-experts", NULL, false},
	{"dots1-plain", NULL, false},
	{"minimax_m2-plain", NULL, false},
	{"qwen3_vl_moe-plain", "sees of images", false},
	{"qwen3_vl_moe-hub", "sees of images", false},
	{"deepseek_v2-lite", NULL, false},
	{"deepseek_v2-groups", NULL, false},
	{"deepseek_v3-dense", NULL, false},
	{"deepseek_v3-groups", "predict further tokens", false},
	{"glm4_moe_lite-plain", NULL, false},
	{"minicpm3-plain", NULL, false},
	{"minicpm3-query", NULL, false},
};
enum { CASE_COUNT = sizeof cases / sizeof cases[0] };

static void freedom_follows_the_family(void **unused)
{
	(void)unused;
	for (int i = 0; i < CASE_COUNT; i++) {
		const freedom_case *wanted = &cases[i];
		model_fixture f;
		fp_basis_freedom freedom;
		open_fixture(&f, wanted->name);
		assert_ok(f.ctx, fp_basis_freedom_of(&freedom, f.model));
		if (!wanted->stream != !freedom.stream || (wanted->stream && !strstr(freedom.stream, wanted->stream)))
			fail_msg("%s: the stream: '%s'", wanted->name, freedom.stream ? freedom.stream : "may be turned");
		assert_int_equal(freedom.value, fp_model_get_config(f.model)->latent.rank == 0);
		assert_int_equal(freedom.query, wanted->query);
		close_fixture(&f);
	}
}

/* The losses of a folder or, without one, of a fixture, in its own basis and in a random one. */
static double difference_in_memory(model_fixture *f, const fp_windows *windows, bool needs_stream)
{
	fp_basis_freedom freedom;
	int64_t count = windows->count * windows->length * fp_model_get_config(f->model)->vocabulary;
	assert_ok(f->ctx, fp_basis_freedom_of(&freedom, f->model));
	if (needs_stream && freedom.stream)
		fail_msg("the stream cannot be turned: %s", freedom.stream);
	fp_basis *basis = random_basis(f, &freedom, 17);
	float *before = all_losses(f, windows);
	fp_model_set_basis(f->model, basis);
	float *after = all_losses(f, windows);
	fp_model_set_basis(f->model, NULL);
	float *again = all_losses(f, windows);
	assert_memory_equal(before, again, (size_t)count * sizeof *before);
	double difference = largest_difference(before, after, count);
	fp_basis_free(basis);
	free(before);
	free(after);
	free(again);
	return difference;
}

/* Rounding of float; with weights in 16 bits the rounding of those. */
static double tolerance(const model_fixture *f)
{
	return fp_backend_rounds(f->be, FP_USE_ACTIVATION) ? 0.1 : 5e-5;
}

static void a_random_basis_keeps_the_losses(void **unused)
{
	(void)unused;
	for (int i = 0; i < CASE_COUNT; i++) {
		model_fixture f;
		open_fixture(&f, cases[i].name);
		fp_windows windows = read_windows(cases[i].name);
		double difference = difference_in_memory(&f, &windows, false);
		print_message("  %-26s largest difference of losses %.2e\n", cases[i].name, difference);
		if (!(difference < tolerance(&f)))
			fail_msg("%s: a loss differs by %g", cases[i].name, difference);
		free(windows.ids);
		close_fixture(&f);
	}
}

/* The test above would not see a basis that nothing applies. */
static void what_is_no_basis_changes_the_losses(void **unused)
{
	(void)unused;
	static const char *const names[] = {"opt-plain", "llama-gqa"};
	for (int i = 0; i < 2; i++)
		for (int part = 0; part < (i == 0 ? 3 : 2); part++) { /* rotary queries are not turned */
			model_fixture f;
			fp_basis_freedom freedom;
			open_fixture(&f, names[i]);
			fp_windows windows = read_windows(names[i]);
			assert_ok(f.ctx, fp_basis_freedom_of(&freedom, f.model));
			fp_basis *basis = random_basis(&f, &freedom, 17);
			fp_matrix M = part == 0 ? basis->R : part == 1 ? basis->layers[0].value : basis->layers[1].query;
			float *before = all_losses(&f, &windows);
			assert_ok(f.ctx, f.be->linear->axpby(f.be, 0, M, 2, M)); /* no longer orthogonal */
			fp_model_set_basis(f.model, basis);
			float *after = all_losses(&f, &windows);
			int64_t count = windows.count * windows.length * fp_model_get_config(f.model)->vocabulary;
			/* a norm behind the stream takes its scale away, except for its ε */
			assert_true(largest_difference(before, after, count) > 1e-3);
			fp_model_set_basis(f.model, NULL);
			fp_basis_free(basis);
			free(before);
			free(after);
			free(windows.ids);
			close_fixture(&f);
		}
}

static double difference_of_folder(const char *folder, const char *fixture, bool needs_stream)
{
	model_fixture f;
	fp_status status = open_directory(&f, folder);
	if (status != FP_OK)
		fail_msg("%s: %s", folder, fp_context_message(f.ctx));
	fp_windows windows = read_windows(fixture);
	double difference = difference_in_memory(&f, &windows, needs_stream);
	assert_true(difference < tolerance(&f));
	free(windows.ids);
	close_fixture(&f);
	return difference;
}

static void norm_weights_of_zero_work(void **unused)
{
	(void)unused;
	static const char *const names[][3] = {
		{"llama-gqa", "model.layers.0.input_layernorm.weight", "model.norm.weight"},
		{"qwen3-plain", "model.layers.1.post_attention_layernorm.weight", "model.norm.weight"},
		{"opt-plain", "model.decoder.layers.1.self_attn_layer_norm.weight",
		 "model.decoder.layers.0.final_layer_norm.weight"}};
	for (int i = 0; i < 3; i++) {
		char *folder = copy_fixture(names[i][0], NULL, NULL);
		spoil_tensor(folder, names[i][1], 3, false);
		spoil_tensor(folder, names[i][2], 5, false);
		difference_of_folder(folder, names[i][0], true);
		remove_folder(folder);
		free(folder);
	}
}

/* The bias of the final norm is divided by its weight. */
static void a_final_weight_of_zero_keeps_the_stream(void **unused)
{
	(void)unused;
	char *folder = copy_fixture("opt-plain", NULL, NULL);
	model_fixture f;
	fp_basis_freedom freedom;
	spoil_tensor(folder, "model.decoder.final_layer_norm.weight", 7, false);
	assert_int_equal(open_directory(&f, folder), FP_OK);
	assert_ok(f.ctx, fp_basis_freedom_of(&freedom, f.model));
	assert_non_null(freedom.stream);
	assert_non_null(strstr(freedom.stream, "final norm has a weight of zero"));
	assert_true(freedom.value && freedom.query);
	close_fixture(&f);
	difference_of_folder(folder, "opt-plain", false);
	/* a bias that is zero too can be divided */
	spoil_tensor(folder, "model.decoder.final_layer_norm.bias", 7, false);
	difference_of_folder(folder, "opt-plain", true);
	remove_folder(folder);
	free(folder);
}

static void a_bad_final_norm_is_named(void **unused)
{
	(void)unused;
	char *folder = copy_fixture("opt-plain", NULL, NULL);
	model_fixture f;
	fp_basis_freedom freedom;
	spoil_tensor(folder, "model.decoder.final_layer_norm.bias", 1, true);
	assert_int_equal(open_directory(&f, folder), FP_OK);
	assert_fails(f.ctx, FP_ERROR_INPUT, "model.decoder.final_layer_norm.bias", fp_basis_freedom_of(&freedom, f.model));
	close_fixture(&f);
	remove_folder(folder);
	free(folder);
}

/* What fp_layer_load() gives has plain norms, also where the checkpoint's are not. */
static void norms_are_plain_in_a_turned_stream(void **unused)
{
	(void)unused;
	static const char *const names[] = {"opt-plain", "llama-gqa", "qwen3-plain"};
	for (int i = 0; i < 3; i++) {
		model_fixture f;
		fp_basis_freedom freedom;
		fp_layer *layer;
		open_fixture(&f, names[i]);
		assert_ok(f.ctx, fp_basis_freedom_of(&freedom, f.model));
		fp_basis *basis = random_basis(&f, &freedom, 5);
		fp_model_set_basis(f.model, basis);
		assert_ok(f.ctx, fp_layer_load(&layer, f.model, 1));
		for (int k = 0; k < 2; k++) {
			fp_matrix parts[2] = {layer->norm_weight[k], layer->norm_bias[k]};
			for (int bias = 0; bias < 2; bias++) {
				if (fp_matrix_is_absent(parts[bias]))
					continue;
				float *values = matrix_floats(&f, parts[bias]);
				for (int64_t j = 0; j < parts[bias].cols; j++)
					assert_true(values[j] == (bias ? 0.0F : 1.0F));
				free(values);
			}
		}
		fp_layer_free(layer);
		fp_model_set_basis(f.model, NULL);
		fp_basis_free(basis);
		close_fixture(&f);
	}
}

/* Where the tensors of a model in a new basis go. */
typedef struct target {
	fp_context *ctx;
	fp_writer *writer;
	fp_tensor_joiner *joiner;
	int64_t count;
} target;

static fp_status put(void *data, const fp_tensor_info *tensor, const void *bytes)
{
	target *to = data;
	to->count++;
	return fp_writer_replace(to->writer, to->ctx, tensor, bytes);
}

static fp_status put_joined(void *data, const fp_tensor_info *tensor, const void *bytes, fp_grid_numbers numbers,
							int64_t groups)
{
	(void)numbers;
	assert_int_equal(groups, 0);
	return put(data, tensor, bytes);
}

static fp_status put_part(void *data, const fp_tensor_info *tensor, const void *bytes)
{
	target *to = data;
	return tensor->whole ? fp_tensor_joiner_put(to->joiner, tensor, bytes) : put(to, tensor, bytes);
}

/* Writes the model in its basis. Returns the number of tensors that were written. */
static int64_t write_model(model_fixture *f, const char *folder)
{
	const fp_model_config *c = fp_model_get_config(f->model);
	bool stream = !fp_matrix_is_absent(fp_model_basis(f->model)->R);
	char name[FP_HEAD_NAME_SIZE];
	fp_tensor_info head = fp_model_untied_head(f->model, name);
	target to = {.ctx = f->ctx};
	assert_ok(f->ctx, fp_writer_open(&to.writer, f->ctx, f->checkpoint, folder,
									 &(fp_output_change){.added = stream && c->tied ? &head : NULL}));
	assert_ok(f->ctx, fp_tensor_joiner_new(&to.joiner, f->ctx, f->checkpoint));
	for (int64_t i = 0; i < c->layers; i++) {
		fp_layer *layer;
		assert_ok(f->ctx, fp_layer_load(&layer, f->model, i));
		for (int number = 0; number < fp_model_operators(f->model); number++)
			assert_ok(f->ctx, fp_layer_give_operator(layer, number, put_part, &to));
		assert_ok(f->ctx, fp_layer_give_vectors(layer, put_part, &to));
		assert_ok(f->ctx, fp_tensor_joiner_flush(to.joiner, put_joined, &to));
		fp_layer_free(layer);
	}
	assert_ok(f->ctx, fp_model_give_outer(f->model, &head, put, &to));
	if (stream && c->tied) {
		char *config = fp_basis_config(to.writer);
		assert_non_null(config);
		assert_ok(f->ctx, fp_writer_add_file(to.writer, "config.json", config, (int64_t)strlen(config)));
		free(config);
	}
	assert_ok(f->ctx, fp_writer_commit(to.writer));
	fp_writer_close(to.writer);
	fp_tensor_joiner_free(to.joiner);
	return to.count;
}

/* The root of the mean square of a − b over that of a's deviations from its mean. */
static double relative_difference(const float *a, const float *b, int64_t count)
{
	double mean = 0, squares = 0, spread = 0;
	for (int64_t i = 0; i < count; i++)
		mean += (double)a[i] / (double)count;
	for (int64_t i = 0; i < count; i++) {
		squares += pow((double)a[i] - (double)b[i], 2);
		spread += pow((double)a[i] - mean, 2);
	}
	return sqrt(squares / spread);
}

/* The tensors of the output are those of the source and perhaps a head, in the source's types. */
static void check_output(model_fixture *f, const char *folder, const char *name)
{
	model_fixture g;
	if (open_directory(&g, folder) != FP_OK)
		fail_msg("%s in a new basis: %s", name, fp_context_message(g.ctx));
	bool was_tied = fp_model_get_config(f->model)->tied, stream = !fp_matrix_is_absent(fp_model_basis(f->model)->R);
	assert_int_equal(fp_model_get_config(g.model)->tied, was_tied && !stream);
	for (int64_t i = 0; i < fp_checkpoint_tensor_count(g.checkpoint); i++) {
		const fp_tensor_info *tensor = fp_checkpoint_tensor(g.checkpoint, i);
		const fp_tensor_info *old = fp_checkpoint_find(f->checkpoint, tensor->name);
		if (!old)
			assert_string_equal(tensor->name, "lm_head.weight");
		else
			assert_int_equal(tensor->dtype, old->dtype);
	}
	fp_windows windows = read_windows(name);
	int64_t count = windows.count * windows.length * fp_model_get_config(f->model)->vocabulary;
	float *turned = all_losses(f, &windows);
	fp_model_set_basis(f->model, NULL);
	float *before = all_losses(f, &windows), *after = all_losses(&g, &windows);
	/* what is written is rounded once: to float, to 11 bits or to 8 */
	fp_dtype type = fp_model_operator(f->model, 0, FP_OUTPUT)->dtype;
	double most = type == FP_F32 ? 1e-5 : type == FP_F16 ? 0.003 : 0.02;
	if (type != FP_F32 && fp_model_get_config(f->model)->experts.count > 0)
		most *= 5; /* a token for which two experts are nearly alike may get the other one */
	double difference = relative_difference(before, after, count);
	print_message("  %-26s relative difference of losses %.2e\n", name, difference);
	if (!(difference < most))
		fail_msg("%s, written in a new basis: losses differ by %g", name, difference);
	assert_true(relative_difference(turned, after, count) < most);
	free(before);
	free(turned);
	free(after);
	free(windows.ids);
	close_fixture(&g);
}

static void a_written_basis_is_the_same_model(void **unused)
{
	(void)unused;
	for (int i = 0; i < CASE_COUNT; i++) {
		char *folder = temporary_folder(), path[4200];
		model_fixture f;
		fp_basis_freedom freedom;
		snprintf(path, sizeof path, "%s/out", folder);
		open_fixture(&f, cases[i].name);
		assert_ok(f.ctx, fp_basis_freedom_of(&freedom, f.model));
		fp_basis *basis = random_basis(&f, &freedom, 29 + (uint64_t)i);
		fp_model_set_basis(f.model, basis);
		int64_t written = write_model(&f, path);
		if (!freedom.stream) { /* every tensor of the checkpoint but the head's bias, and a head where there was none */
			char name[FP_HEAD_NAME_SIZE];
			bool added = !fp_checkpoint_find(f.checkpoint, fp_model_untied_head(f.model, name).name);
			bool biased = fp_checkpoint_find(f.checkpoint, "lm_head.bias");
			assert_int_equal(written + biased, fp_checkpoint_tensor_count(f.checkpoint) + added);
		}
		check_output(&f, path, cases[i].name);
		fp_basis_free(basis);
		close_fixture(&f);
		remove_folder(folder);
		free(folder);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(freedom_follows_the_family),
		cmocka_unit_test(a_random_basis_keeps_the_losses),
		cmocka_unit_test(what_is_no_basis_changes_the_losses),
		cmocka_unit_test(norm_weights_of_zero_work),
		cmocka_unit_test(a_final_weight_of_zero_keeps_the_stream),
		cmocka_unit_test(a_bad_final_norm_is_named),
		cmocka_unit_test(norms_are_plain_in_a_turned_stream),
		cmocka_unit_test(a_written_basis_is_the_same_model),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
