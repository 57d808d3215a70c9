/* SPDX-License-Identifier: Apache-2.0 */
/* The first 200 examples of real task files on real models, against the figures of lm-evaluation-harness
 * (tests/fixtures/tasks/shared.json, made by generate.py there). */
#include "model_fixture.h"

#include "evaluation/tasks.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { EXAMPLES = 200 };

static const struct {
	const char *task, *file;
} files[] = {
	{"arc_easy", "ARC-Easy-Test.jsonl"},
	{"arc_challenge", "ARC-Challenge-Test.jsonl"},
	{"winogrande", "winogrande-dev.jsonl"},
	{"boolq", "boolq-val.jsonl"},
	{"rte", "rte-dev.tsv"},
	{"qnli", "qnli-dev.tsv"},
	{"wnli", "wnli-dev.tsv"},
};

/* FNV-1a over the chosen digits. */
static fp_status hash_choice(void *data, const fp_task_sample *sample)
{
	uint64_t *hash = data;
	*hash = (*hash ^ (uint64_t)('0' + sample->chosen)) * 0x100000001B3u;
	return FP_OK;
}

static void check_task(model_fixture *f, fp_tokenizer *tokenizer, const char *task, const char *path,
					   const json_t *wanted)
{
	uint64_t hash = 0xCBF29CE484222325u;
	char digits[32];
	const fp_task_options options = {
		.limit = EXAMPLES, .length = fp_model_get_config(f->model)->positions, .sampled = hash_choice, .data = &hash};
	fp_task_result result;
	assert_ok(f->ctx, fp_task_evaluate(&result, f->model, tokenizer, task, path, &options));
	double sum = json_number_value(json_object_get(wanted, "loglikelihood_sum"));
	print_message("  %s: acc %.4f, log-likelihoods %.3f; the harness has %.4f and %.3f\n", task, result.acc,
				  result.loglikelihood_sum, json_number_value(json_object_get(wanted, "acc")), sum);
	snprintf(digits, sizeof digits, "%016" PRIx64, hash);
	assert_string_equal(digits, json_string_value(json_object_get(wanted, "chosen_fnv1a")));
	assert_int_equal(result.samples, json_integer_value(json_object_get(wanted, "samples")));
	assert_true(fabs(result.acc - json_number_value(json_object_get(wanted, "acc"))) < 1e-12);
	assert_true(fabs(result.acc_stderr - json_number_value(json_object_get(wanted, "acc_stderr"))) < 1e-12);
	if (result.has_acc_norm)
		assert_true(fabs(result.acc_norm - json_number_value(json_object_get(wanted, "acc_norm"))) < 1e-12);
	assert_true(fabs(result.loglikelihood_sum / sum - 1) < 5e-6);
}

static void check(const char *name)
{
	char directory[4096], path[4096], inside[256];
	model_fixture f;
	fp_tokenizer *tokenizer;
	json_error_t error;
	snprintf(inside, sizeof inside, "models/%s", name);
	need_shared_path("data/tasks");
	snprintf(directory, sizeof directory, "%s", need_shared_path(inside));
	json_t *expected = json_load_file(source_path("tests/fixtures/tasks/shared.json"), 0, &error);
	assert_non_null(expected);
	const json_t *tasks = json_object_get(json_object_get(expected, "models"), name);
	fp_status status = open_directory(&f, directory);
	assert_ok(f.ctx, status);
	assert_ok(f.ctx, fp_tokenizer_open(&tokenizer, f.ctx, directory));
	for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
		snprintf(inside, sizeof inside, "data/tasks/%s", files[i].file);
		assert_non_null(json_object_get(tasks, files[i].task));
		assert_non_null(shared_path(inside));
		snprintf(path, sizeof path, "%s", shared_path(inside));
		check_task(&f, tokenizer, files[i].task, path, json_object_get(tasks, files[i].task));
	}
	fp_tokenizer_free(tokenizer);
	close_fixture(&f);
	json_decref(expected);
}

static void stories15m(void **unused)
{
	(void)unused;
	check("stories15M");
}

static void opt_stories_26m(void **unused)
{
	(void)unused;
	check("opt-stories-26m");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stories15m),
		cmocka_unit_test(opt_stories_26m),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
