/* SPDX-License-Identifier: Apache-2.0 */
/* The demo models' token ids and perplexity equal those of transformers 5.17 in fp32
 * (models/train_log.json; ids as an FNV-1a hash over 32-bit words). */
#include "model_fixture.h"

#include "evaluation/perplexity.h"

#include <math.h>
#include <stdio.h>

typedef struct reference {
	const char *model, *text;
	int64_t windows;
	uint64_t hash;
	double perplexity; /* 0: not measured */
} reference;

static const reference references[] = {
	{"models/llama-demo", "models/evaluation.jsonl", 153, 0x5a2ac24846fda9d8u, 3.3557},
	{"models/llama-demo", "models/calibration.jsonl", 307, 0xab148fbe2db3ec0eu, 0},
	{"models/opt-demo", "models/evaluation.jsonl", 169, 0x78dd87137c241f8fu, 3.2683},
	{"models/opt-demo", "models/calibration.jsonl", 340, 0x2243e7b0aabf4a2bu, 0},
	{"models/moe-demo", "models/evaluation.jsonl", 153, 0x5a2ac24846fda9d8u, 3.4572},
};

static uint64_t hash_of(const fp_windows *windows)
{
	uint64_t hash = 14695981039346656037u;
	for (int64_t i = 0; i < windows->count * windows->length; i++)
		hash = (hash ^ (uint32_t)windows->ids[i]) * 1099511628211u;
	return hash;
}

static void equals_transformers(void **unused)
{
	(void)unused;
	for (size_t i = 0; i < sizeof references / sizeof references[0]; i++) {
		const reference *r = &references[i];
		char directory[4096];
		model_fixture f;
		fp_tokenizer *tokenizer;
		fp_windows windows;
		fp_perplexity_result result;
		snprintf(directory, sizeof directory, "%s", source_path(r->model));
		assert_int_equal(open_directory(&f, directory), FP_OK);
		assert_ok(f.ctx, fp_tokenizer_open(&tokenizer, f.ctx, directory));
		assert_ok(f.ctx, fp_windows_evaluation(&windows, f.ctx, tokenizer, source_path(r->text), "documents", 256));
		assert_int_equal(windows.count, r->windows);
		assert_true(hash_of(&windows) == r->hash);
		if (r->perplexity > 0) {
			assert_ok(f.ctx, fp_perplexity(&result, f.model, &windows, 0));
			print_message("%s: perplexity %.4f (transformers: %.4f)\n", r->model, result.perplexity, r->perplexity);
			assert_int_equal(result.windows, r->windows);
			assert_true(fabs(result.perplexity - r->perplexity) < 2e-4);
		}
		fp_windows_free(&windows);
		fp_tokenizer_free(tokenizer);
		close_fixture(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(equals_transformers)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
