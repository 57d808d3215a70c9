/* SPDX-License-Identifier: Apache-2.0 */
/* Losses of every fixture compared with those of transformers in fp32. */
#include "model_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Single precision gives about 1e-5 for logits of this size; a wrong option gives 1e-2 or more. */
static const double tolerance = 1e-4;

static const char *const cases[] = {
	"opt-plain",
	"opt-350m",
	"opt-350m-bin",
	"opt-projected",
	"opt-no-bias",
	"opt-norm-without-weights",
	"opt-no-final-norm",
	"opt-untied",
	"opt-bin",
	"opt-bare-names",
	"llama-plain",
	"llama-gqa",
	"llama-multi-query",
	"llama-tied",
	"llama-rope-llama3",
	"llama-rope-llama3-old",
	"llama-rope-linear",
	"llama-rope-linear-old",
	"llama-head-dim",
	"llama-bias",
	"llama-sharded",
	"llama-bin",
	"llama-bin-sharded",
	"llama-bare-names",
	"llama-smollm",
	"qwen2-plain",
	"qwen2-tied",
	"qwen2-window",
	"qwen2-window-old",
	"qwen3-plain",
	"qwen3-bias-tied",
	"mistral-plain",
	"mistral-window",
	"llama-rope-yarn",
	"llama-rope-yarn-old",
	"llama-rope-dynamic",
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
	"gpt2-bare-names",
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
	"gemma3-images-old",
	"olmo3-plain",
	"cohere2-plain",
	"smollm3-plain",
	"qwen3-fp8",
	"qwen3-fp8-ragged",
	"qwen3_moe-fp8",
	"phi3-fp8",
	"llama-fp8-tensor",
	"llama-fp8-rows",
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
	"qwen2_5_vl-old",
	"qwen3_vl-plain",
	"qwen3_vl-tied",
	"mistral3-plain",
	"mistral3-old",
	"ministral-plain",
	"ministral3-plain",
	"mistral3-ministral3",
	"olmo-plain",
	"glm4_moe-plain",
	"glm4_moe-groups",
	"ernie4_5_moe-plain",
	"ernie4_5_moe-interval",
	"granitemoe-plain",
	"granitemoe-bias",
	"granitemoeshared-plain",
	"granitemoeshared-none",
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
enum { CASE_COUNT = sizeof cases / sizeof cases[0] };

static double reference_loss(const float *logits, int32_t count, int32_t target)
{
	double largest = -INFINITY;
	double sum = 0;
	for (int32_t i = 0; i < count; i++)
		largest = fmax(largest, logits[i]);
	for (int32_t i = 0; i < count; i++)
		sum += exp(logits[i] - largest);
	return largest + log(sum) - logits[target];
}

static int32_t largest_index(const float *logits, int32_t count)
{
	int32_t best = 0;
	for (int32_t i = 1; i < count; i++)
		if (logits[i] > logits[best])
			best = i;
	return best;
}

/* Compares −log p of every token of the vocabulary, and the likeliest token, at each position. */
static void compare_losses(model_fixture *f, fp_matrix hidden, const expected_output *expected, const char *name)
{
	int64_t rows = hidden.rows;
	int32_t *targets = malloc((size_t)rows * sizeof *targets);
	int32_t *argmax = malloc((size_t)rows * sizeof *argmax);
	float *losses = malloc((size_t)rows * sizeof *losses);
	double worst = 0;
	for (int32_t target = -1; target < expected->vocabulary; target++) { /* −1: no target, no loss */
		for (int64_t i = 0; i < rows; i++)
			targets[i] = target;
		assert_ok(f->ctx, fp_model_loss(f->model, hidden, targets, losses, argmax));
		for (int64_t i = 0; i < rows; i++) {
			const float *logits = expected->logits + i * expected->vocabulary;
			double wanted = target < 0 ? 0 : reference_loss(logits, expected->vocabulary, target);
			worst = fmax(worst, fabs(losses[i] - wanted));
			if (!(fabs(losses[i] - wanted) < tolerance))
				fail_msg("%s: loss of token %d at row %lld is %g, expected %g", name, (int)target, (long long)i,
						 losses[i], wanted);
			assert_int_equal(argmax[i], largest_index(logits, expected->vocabulary));
		}
	}
	print_message("  %-26s largest difference of losses %.2e\n", name, worst);
	free(targets);
	free(argmax);
	free(losses);
}

static void losses_equal_those_of_transformers(void **unused)
{
	(void)unused;
	for (int i = 0; i < CASE_COUNT; i++) {
		model_fixture f;
		expected_output expected;
		fp_matrix hidden;
		open_fixture(&f, cases[i]);
		read_expected(&expected, cases[i]);
		run_model(&f, expected.ids, expected.sequences, expected.length, &hidden);
		compare_losses(&f, hidden, &expected, cases[i]);
		free(expected.ids);
		free(expected.logits);
		fp_matrix_free(f.be, &hidden);
		close_fixture(&f);
	}
}

/* A sequence alone gives the same result as in a batch: attention and positions do not cross sequences. */
static void sequences_do_not_mix(void **unused)
{
	(void)unused;
	static const char *const two[] = {"opt-plain", "llama-gqa"};
	for (int i = 0; i < 2; i++) {
		model_fixture f;
		expected_output expected;
		fp_matrix hidden;
		open_fixture(&f, two[i]);
		read_expected(&expected, two[i]);
		expected_output second = expected;
		second.sequences = 1;
		second.ids += expected.length;
		second.logits += expected.length * expected.vocabulary;
		run_model(&f, second.ids, 1, second.length, &hidden);
		compare_losses(&f, hidden, &second, two[i]);
		free(expected.ids);
		free(expected.logits);
		fp_matrix_free(f.be, &hidden);
		close_fixture(&f);
	}
}

/* A head in the file counts although the config ties it, if it differs from the embedding. */
static void a_head_of_its_own_counts(void **unused)
{
	(void)unused;
	static const char *const two[] = {"llama-gqa", "opt-untied"};
	for (int i = 0; i < 2; i++) {
		model_fixture f;
		expected_output expected;
		fp_matrix hidden;
		char *folder = copy_fixture(two[i], "tie_word_embeddings", "true");
		assert_int_equal(open_directory(&f, folder), FP_OK);
		assert_false(fp_model_get_config(f.model)->tied);
		read_expected(&expected, two[i]);
		run_model(&f, expected.ids, expected.sequences, expected.length, &hidden);
		compare_losses(&f, hidden, &expected, two[i]);
		free(expected.ids);
		free(expected.logits);
		fp_matrix_free(f.be, &hidden);
		close_fixture(&f);
		remove_folder(folder);
		free(folder);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(losses_equal_those_of_transformers),
		cmocka_unit_test(sequences_do_not_mix),
		cmocka_unit_test(a_head_of_its_own_counts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
