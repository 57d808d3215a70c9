/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients through a whole layer for every config option, compared with PyTorch's autograd in double
 * precision or, for options that no fixture has, with finite differences of the loss. */
#include "model_fixture.h"

#include "model/layer_backward.h"
#include "model/model_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const cases[] = {
	"opt-plain",
	"opt-350m",
	"opt-no-bias",
	"opt-norm-without-weights",
	"opt-no-final-norm",
	"opt-untied",
	"llama-plain",
	"llama-gqa",
	"llama-multi-query",
	"llama-tied",
	"llama-rope-llama3",
	"llama-rope-linear",
	"llama-head-dim",
	"llama-bias",
	"llama-bin-sharded",
	"mistral-window",
	"qwen2-window",
	"qwen3-plain",
	"qwen3-bias-tied",
	"llama-rope-yarn",
	"llama-rope-yarn-old",
	"gemma-plain",
	"gemma2-plain",
	"gemma2-old",
	"gemma3-plain",
	"gemma3-old",
	"phi3-plain",
	"phi3-longrope",
	"phi3-longrope-long",
	"olmo2-plain",
	"gpt_neox-plain",
	"gpt_neox-sequential",
	"gpt2-plain",
	"granite-plain",
	"granite-bias",
	"stablelm-plain",
	"stablelm-parallel",
	"phi-plain",
	"falcon-7b",
	"falcon-40b",
	"falcon-11b",
	"falcon-rw",
	"bloom-plain",
	"cohere-plain",
	"gemma3-images",
	"olmo3-plain",
	"cohere2-plain",
	"smollm3-plain",
	"mixtral-plain",
	"qwen2_moe-plain",
	"qwen2_moe-window",
	"qwen3_moe-plain",
	"glm-plain",
	"glm4-plain",
	"seed_oss-plain",
	"ernie4_5-plain",
	"ernie4_5-bias",
	"exaone4-plain",
	"exaone4-full",
	"starcoder2-plain",
	"starcoder2-no-bias",
	"olmoe-plain",
	"olmoe-normalised",
	"qwen2_vl-plain",
	"qwen2_5_vl-plain",
	"qwen3_vl-plain",
	"mistral3-plain",
	"ministral-plain",
	"ministral3-plain",
	"olmo-plain",
	"glm4_moe-plain",
	"glm4_moe-groups",
	"ernie4_5_moe-plain",
	"ernie4_5_moe-interval",
	"granitemoe-plain",
	"granitemoe-bias",
	"granitemoeshared-plain",
	"granitemoehybrid-dense",
	"granitemoehybrid-experts",
	"dots1-plain",
	"dots1-bias",
	"minimax_m2-plain",
	"minimax_m2-whole",
	"qwen3_vl_moe-plain",
	"qwen3_vl_moe-hub",
	"deepseek_v2-lite",
	"deepseek_v2-groups",
	"deepseek_v3-dense",
	"deepseek_v3-groups",
	"glm4_moe_lite-plain",
	"minicpm3-plain",
	"minicpm3-query",
};
enum { CASE_COUNT = sizeof cases / sizeof cases[0], LAYER = 1 };

/* A model, the input of one layer, and the matrices for its gradients. */
typedef struct gradient_run {
	model_fixture f;
	expected_output expected;
	fp_layer *layer;
	fp_matrix hidden;
	fp_workspace *workspace;
	fp_tape *tape;
	fp_layer_matrices gradients;
} gradient_run;

/* True with FP_TEST_PRECISION=bf16 on a device that has it. */
static bool rounds(const gradient_run *r)
{
	return fp_backend_rounds(r->f.be, FP_USE_ACTIVATION);
}

static void start(gradient_run *r, const char *name)
{
	memset(r, 0, sizeof *r);
	open_fixture(&r->f, name);
	read_expected(&r->expected, name);
	int64_t tokens = (int64_t)r->expected.sequences * r->expected.length;
	fp_layer_state state = {.sequences = r->expected.sequences, .length = r->expected.length};
	assert_ok(r->f.ctx, fp_matrix_new(r->f.be, &r->hidden, tokens, fp_model_get_config(r->f.model)->hidden, FP_F32));
	state.hidden = r->hidden;
	assert_ok(r->f.ctx, fp_workspace_new(&r->workspace, r->f.model, tokens));
	assert_ok(r->f.ctx, fp_model_embed(r->f.model, r->expected.ids, state.sequences, state.length, r->hidden));
	for (int64_t index = 0; index < LAYER; index++) {
		assert_ok(r->f.ctx, fp_layer_load(&r->layer, r->f.model, index));
		assert_ok(r->f.ctx, fp_layer_forward(r->layer, &state, r->workspace));
		fp_layer_free(r->layer);
	}
	assert_ok(r->f.ctx, fp_layer_load(&r->layer, r->f.model, LAYER));
	assert_ok(r->f.ctx, fp_layer_matrices_new(&r->gradients, r->layer));
}

static void stop(gradient_run *r)
{
	fp_layer_matrices_free(r->f.be, &r->gradients);
	fp_tape_free(r->tape);
	fp_workspace_free(r->workspace);
	fp_layer_free(r->layer);
	fp_matrix_free(r->f.be, &r->hidden);
	free(r->expected.ids);
	free(r->expected.logits);
	close_fixture(&r->f);
}

static float *download(gradient_run *r, fp_matrix matrix)
{
	float *out = malloc((size_t)fp_matrix_size(matrix) * sizeof *out);
	assert_ok(r->f.ctx, r->f.be->memory->download(r->f.be, out, FP_F32, matrix.cols, matrix));
	assert_ok(r->f.ctx, r->f.be->memory->synchronize(r->f.be));
	return out;
}

/* Returns the loss of sequences [first, first + count) after the layer; `backward` computes its gradients. */
static double pass(gradient_run *r, int64_t first, int64_t count, bool backward, bool add)
{
	int64_t length = r->expected.length, width = r->hidden.cols, rows = count * length;
	fp_matrix output;
	if (!r->tape)
		assert_ok(r->f.ctx, fp_tape_new(&r->tape, r->f.model, r->hidden.rows));
	assert_ok(r->f.ctx, fp_layer_forward_taped(r->layer, count, length, fp_matrix_rows(r->hidden, first * length, rows),
											   r->tape, &output));
	float *values = download(r, output);
	double loss = 0;
	for (int64_t i = 0; i < rows * width; i++) {
		double weight = cos(0.7 * (double)(first * length * width + i) + 1);
		loss += weight * (double)values[i];
		values[i] = (float)weight;
	}
	if (backward) {
		assert_ok(r->f.ctx, r->f.be->memory->upload(r->f.be, output, values, FP_F32, width));
		assert_ok(r->f.ctx, fp_layer_backward(r->layer, r->tape, add, &r->gradients));
	}
	free(values);
	return loss;
}

/* ‖a − b‖; *norm ← ‖b‖ */
static double distance(const float *a, const float *b, int64_t count, double *norm)
{
	double off = 0, size = 0;
	for (int64_t i = 0; i < count; i++) {
		off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
		size += (double)b[i] * (double)b[i];
	}
	*norm = sqrt(size);
	return sqrt(off);
}

/* Checks ‖got − wanted‖/‖wanted‖ against the next block of the file and advances the cursor. A zero
 * gradient (the keys' bias shifts all scores of a row equally) is compared with the size of the others.
 * In bf16 most are off by 1%, but those of opt-350m by up to 20% (PyTorch's by 24%), and those of an
 * expert by 17% if rounding sends one token to another one. */
static void compare_block(gradient_run *r, fp_matrix got, const unsigned char **cursor, double size, const char *what)
{
	int32_t shape[2];
	int64_t count = fp_matrix_size(got);
	memcpy(shape, *cursor, sizeof shape);
	*cursor += sizeof shape;
	assert_int_equal(got.rows, shape[0]);
	assert_int_equal(got.cols, shape[1]);
	float *values = download(r, got), *wanted = malloc((size_t)count * sizeof *wanted);
	assert_non_null(wanted);
	memcpy(wanted, *cursor, (size_t)count * sizeof *wanted);
	double norm, off = distance(values, wanted, count, &norm);
	if (!(off <= (rounds(r) ? 0.25 : 1e-4) * norm + size))
		fail_msg("%s: the gradient is off by %g of its size %g", what, off / norm, norm);
	*cursor += 4 * count;
	free(values);
	free(wanted);
}

static void compare_all(gradient_run *r, const char *name)
{
	char text[256];
	size_t size;
	snprintf(text, sizeof text, "tests/fixtures/gradients/%s.bin", name);
	unsigned char *bytes = read_whole(source_path(text), &size);
	const unsigned char *cursor = bytes;
	for (int role = 0; role < fp_model_operators(r->layer->model); role++) {
		if (fp_matrix_is_absent(r->layer->weight[role]))
			continue;
		snprintf(text, sizeof text, "%s: %s", name, fp_role_name(role));
		compare_block(r, r->gradients.weight[role], &cursor, 0, text);
		if (!fp_matrix_is_absent(r->layer->bias[role]))
			compare_block(r, r->gradients.bias[role], &cursor, role != FP_KEY ? 0 : rounds(r) ? 2 : 1e-4, text);
	}
	assert_ptr_equal(cursor, bytes + size);
	free(bytes);
}

static void gradients_equal_those_of_autograd(void **unused)
{
	(void)unused;
	for (int i = 0; i < CASE_COUNT; i++) {
		gradient_run r;
		start(&r, cases[i]);
		pass(&r, 0, r.expected.sequences, true, false);
		compare_all(&r, cases[i]);
		/* Again with the used tape, and in two parts that are added. */
		for (int64_t first = 0; first < r.expected.sequences; first++)
			pass(&r, first, 1, true, first > 0);
		compare_all(&r, cases[i]);
		stop(&r);
	}
}

static void the_taped_forward_is_the_layer_s(void **unused)
{
	(void)unused;
	for (int i = 0; i < CASE_COUNT; i++) {
		gradient_run r;
		fp_matrix output;
		start(&r, cases[i]);
		assert_ok(r.f.ctx, fp_tape_new(&r.tape, r.f.model, r.hidden.rows + 5));
		assert_ok(r.f.ctx,
				  fp_layer_forward_taped(r.layer, r.expected.sequences, r.expected.length, r.hidden, r.tape, &output));
		float *taped = download(&r, output);
		fp_layer_state state = {.sequences = r.expected.sequences, .length = r.expected.length, .hidden = r.hidden};
		assert_ok(r.f.ctx, fp_layer_forward(r.layer, &state, r.workspace));
		float *plain = download(&r, r.hidden);
		double norm, off = distance(taped, plain, fp_matrix_size(output), &norm);
		/* the other pass keeps its activations in float, so that rounding may send a token to other experts */
		double most = fp_model_get_config(r.f.model)->experts.count > 0 ? 0.25 : 0.05;
		if (rounds(&r) && !(off <= most * norm))
			fail_msg("%s: the outputs differ by %g of their size", cases[i], off / norm);
		if (!rounds(&r))
			assert_memory_equal(taped, plain, (size_t)fp_matrix_size(output) * sizeof *taped);
		free(taped);
		free(plain);
		stop(&r);
	}
}

/* layer.weight += step·direction, with a random direction from `seed` */
static double move(gradient_run *r, uint64_t seed, double step)
{
	double slope = 0;
	for (int role = 0; role < fp_model_operators(r->layer->model); role++) {
		fp_matrix weight = r->layer->weight[role];
		if (fp_matrix_is_absent(weight))
			continue;
		float *values = download(r, weight), *gradient = download(r, r->gradients.weight[role]);
		for (int64_t i = 0; i < fp_matrix_size(weight); i++) {
			float direction = random_normal(&seed) * 0.2F;
			values[i] += (float)step * direction;
			slope += (double)direction * (double)gradient[i];
		}
		assert_ok(r->f.ctx, r->f.be->memory->upload(r->f.be, weight, values, FP_F32, weight.cols));
		free(values);
		free(gradient);
	}
	return slope;
}

static void check_by_differences(gradient_run *r, const char *what)
{
	const double step = 1.0 / 128;
	pass(r, 0, r->expected.sequences, true, false);
	double slope = move(r, 11, step);
	double up = pass(r, 0, r->expected.sequences, false, false);
	move(r, 11, -2 * step);
	double down = pass(r, 0, r->expected.sequences, false, false);
	double difference = (up - down) / (2 * step);
	if (!(fabs(difference - slope) <= 3e-3 * fabs(slope)))
		fail_msg("%s: the slope is %.9g, but the loss changes by %.9g", what, slope, difference);
}

/* hidden += step·direction and returns the slope. The direction is random with the signs of `gradient`,
 * so that the loss changes. */
static double move_input(gradient_run *r, const float *gradient, double step)
{
	uint64_t seed = 17;
	double slope = 0;
	float *values = download(r, r->hidden);
	for (int64_t i = 0; i < fp_matrix_size(r->hidden); i++) {
		double direction = copysign(fabs((double)random_normal(&seed)), (double)gradient[i]);
		values[i] += (float)(step * direction);
		slope += direction * (double)gradient[i];
	}
	assert_ok(r->f.ctx, r->f.be->memory->upload(r->f.be, r->hidden, values, FP_F32, r->hidden.cols));
	free(values);
	return slope;
}

static void the_input_s_gradient_follows_the_loss(void **unused)
{
	(void)unused;
	const double step = 1.0 / 1024;
	for (int i = 0; i < CASE_COUNT; i++) {
		gradient_run r;
		fp_matrix output, dinput;
		start(&r, cases[i]);
		if (rounds(&r)) { /* which hides small differences of the loss */
			stop(&r);
			skip_because("in bf16 small differences of the loss are rounding errors");
		}
		int64_t sequences = r.expected.sequences, size = fp_matrix_size(r.hidden);
		assert_ok(r.f.ctx, fp_tape_new(&r.tape, r.f.model, r.hidden.rows));
		assert_ok(r.f.ctx, fp_layer_forward_taped(r.layer, sequences, r.expected.length, r.hidden, r.tape, &output));
		float *values = download(&r, output);
		for (int64_t k = 0; k < size; k++)
			values[k] = (float)cos(0.7 * (double)k + 1); /* as in pass() */
		assert_ok(r.f.ctx, r.f.be->memory->upload(r.f.be, output, values, FP_F32, output.cols));
		assert_ok(r.f.ctx, fp_layer_backward_input(r.layer, r.tape, NULL, &dinput));
		float *gradient = download(&r, dinput);
		double slope = move_input(&r, gradient, step);
		double up = pass(&r, 0, sequences, false, false);
		move_input(&r, gradient, -2 * step);
		double down = pass(&r, 0, sequences, false, false), difference = (up - down) / (2 * step);
		if (!(fabs(difference - slope) <= 3e-3 * fabs(slope)))
			fail_msg("%s: the slope is %.9g, but the loss changes by %.9g", cases[i], slope, difference);
		free(values);
		free(gradient);
		stop(&r);
	}
}

static void switches_without_a_fixture_follow_the_loss(void **unused)
{
	(void)unused;
	gradient_run r;
	start(&r, "llama-gqa");
	if (rounds(&r)) {
		stop(&r);
		skip_because("in bf16 small differences of the loss are rounding errors");
	}
	check_by_differences(&r, "as it is");
	stop(&r);
	start(&r, "llama-gqa");
	r.f.model->config.window = 5;
	check_by_differences(&r, "a sliding window");
	stop(&r);
	start(&r, "llama-gqa");
	r.f.model->config.head_norm = FP_HEADS_NORM_EACH;
	fp_matrix *norms[] = {&r.layer->query_norm, &r.layer->key_norm};
	for (int i = 0; i < 2; i++) {
		float weights[64];
		uint64_t seed = 5;
		for (int k = 0; k < 64; k++)
			weights[k] = 1 + 0.3F * random_normal(&seed);
		assert_ok(r.f.ctx, fp_matrix_new(r.f.be, norms[i], 1, r.f.model->config.head_dim, FP_F32));
		assert_ok(r.f.ctx, r.f.be->memory->upload(r.f.be, *norms[i], weights, FP_F32, 64));
	}
	check_by_differences(&r, "norms of heads");
	stop(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gradients_equal_those_of_autograd),
		cmocka_unit_test(the_taped_forward_is_the_layer_s),
		cmocka_unit_test(the_input_s_gradient_follows_the_loss),
		cmocka_unit_test(switches_without_a_fixture_follow_the_loss),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
