/* SPDX-License-Identifier: Apache-2.0 */
/* Compares task scores with those of lm-evaluation-harness (tests/fixtures/tasks/expected.json, written by
 * generate.py there) and checks the errors for bad files and names. */
#include "support.h"

#include "evaluation/loglikelihood.h"
#include "evaluation/loglikelihood_plan.h"
#include "evaluation/tasks.h"
#include "evaluation/tasks_examples.h"

#include <fistapruner/tasks.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct subject {
	fp_context *ctx;
	fp_checkpoint *checkpoint;
	fp_backend *be;
	fp_model *model;
	fp_tokenizer *tokenizer;
} subject;

static void open_subject(subject *s, const char *name)
{
	char path[256];
	snprintf(path, sizeof path, "models/%s", name);
	s->ctx = fp_context_new();
	assert_ok(s->ctx, fp_checkpoint_open(&s->checkpoint, s->ctx, source_path(path)));
	assert_ok(s->ctx, fp_backend_open(&s->be, s->ctx, "cpu", 1));
	assert_ok(s->ctx, fp_model_open(&s->model, s->be, s->checkpoint));
	assert_ok(s->ctx, fp_tokenizer_open(&s->tokenizer, s->ctx, source_path(path)));
}

static void close_subject(subject *s)
{
	fp_tokenizer_free(s->tokenizer);
	fp_model_close(s->model);
	fp_backend_close(s->be);
	fp_checkpoint_close(s->checkpoint);
	fp_context_free(s->ctx);
}

static fp_status compare_choice(void *data, const fp_task_sample *sample)
{
	const json_t *chosen = json_object_get(data, "chosen");
	assert_int_equal(sample->chosen, json_integer_value(json_array_get(chosen, (size_t)sample->index)));
	return FP_OK;
}

static void compare_number(const char *task, const char *key, const json_t *figures, double got, double tolerance)
{
	double wanted = json_number_value(json_object_get(figures, key));
	if (!(fabs(got - wanted) <= tolerance))
		fail_msg("%s: %s is %.9g, the harness has %.9g", task, key, got, wanted);
}

static const char *file_of(const char *task, char out[static 64])
{
	if (strncmp(task, "arc_", 4) == 0)
		return "arc.jsonl";
	if (strcmp(task, "multiple_choice") == 0)
		return "choices.jsonl";
	if (strcmp(task, "lambada_openai") == 0)
		return "lambada.jsonl";
	bool table = !strcmp(task, "rte") || !strcmp(task, "qnli") || !strcmp(task, "wnli");
	snprintf(out, 64, "%s.%s", task, table ? "tsv" : "jsonl");
	return out;
}

static void compare_task(subject *s, const char *task, json_t *figures, int64_t memory)
{
	char name[64], file[128], path[1024];
	snprintf(file, sizeof file, "tests/fixtures/tasks/%s", file_of(task, name));
	snprintf(path, sizeof path, "%s", source_path(file));
	const fp_task_options options = {.length = fp_model_get_config(s->model)->positions,
									 .memory = memory,
									 .sampled = compare_choice,
									 .data = figures};
	fp_task_result result;
	assert_ok(s->ctx, fp_task_evaluate(&result, s->model, s->tokenizer, task, path, &options));
	assert_int_equal(result.samples, json_integer_value(json_object_get(figures, "samples")));
	assert_int_equal(result.has_acc_norm, json_object_get(figures, "acc_norm") != NULL);
	compare_number(task, "loglikelihood_sum", figures, result.loglikelihood_sum, 2e-3);
	compare_number(task, "acc", figures, result.acc, 1e-12);
	compare_number(task, "acc_stderr", figures, result.acc_stderr, 1e-12);
	if (result.has_acc_norm) {
		compare_number(task, "acc_norm", figures, result.acc_norm, 1e-12);
		compare_number(task, "acc_norm_stderr", figures, result.acc_norm_stderr, 1e-12);
	}
	if (result.has_perplexity)
		assert_true(fabs(result.perplexity / json_number_value(json_object_get(figures, "perplexity")) - 1) < 1e-4);
	if (strcmp(task, "boolq") == 0) /* one passage is longer than the model's context; it has two choices */
		assert_int_equal(result.truncated, 2);
}

static void test_harness(void **state)
{
	(void)state;
	json_error_t error;
	json_t *expected = json_load_file(source_path("tests/fixtures/tasks/expected.json"), 0, &error);
	assert_non_null(expected);
	const char *name, *task;
	json_t *tasks, *figures;
	int compared = 0;
	json_object_foreach(json_object_get(expected, "models"), name, tasks)
	{
		subject s = {0};
		open_subject(&s, name);
		json_object_foreach(tasks, task, figures)
		{
			compare_task(&s, task, figures, 0);
			compared++;
		}
		/* With so little memory every batch is a chunk. */
		compare_task(&s, "arc_easy", json_object_get(tasks, "arc_easy"), 1);
		close_subject(&s);
	}
	assert_int_equal(compared, 24);
	json_decref(expected);
}

/* Four sequences: one input of two requests, two with a common prefix, and one without. */
static void test_plan(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	static const int32_t ids[][8] = {
		{1, 2, 3, 4, 5, 6, 7}, {1, 2, 3, 4, 5, 6, 8}, {1, 2, 3, 4, 5, 9, 7}, {1, 9, 9, 9, 9}, {1, 2, 3, 4, 5, 9, 7, 7}};
	fp_likelihood_request requests[] = {{.ids = ids[0], .context = 6, .continuation = 1},
										{.ids = ids[1], .context = 6, .continuation = 1},
										{.ids = ids[2], .context = 5, .continuation = 2},
										{.ids = ids[3], .context = 4, .continuation = 1},
										{.ids = ids[4], .context = 5, .continuation = 3}};
	fp_plan plan;
	assert_ok(ctx, fp_plan_make(&plan, ctx, requests, 5, 100, 64));
	assert_int_equal(plan.sequence_count, 4);
	assert_int_equal(plan.group_count, 2);
	/* 123456, then 9 and 97 after the common prefix 12345; and 1999 */
	assert_int_equal(plan.groups[0].rows, 6 + 1 + 2);
	assert_int_equal(plan.batch_count, 1);
	assert_int_equal(plan.batches[0].rows, 9 + 4);
	fp_plan_free(&plan);
	/* After cutting to four tokens from the left, only the equal inputs are shared. */
	assert_ok(ctx, fp_plan_make(&plan, ctx, requests, 5, 4, 64));
	assert_int_equal(plan.sequence_count, 4);
	assert_int_equal(plan.group_count, 4);
	fp_plan_free(&plan);
	fp_context_free(ctx);
}

static void expect_failure(subject *s, const char *task, const char *content, const char *message)
{
	char *folder = temporary_folder();
	char path[512];
	write_file(folder, "task.jsonl", content, strlen(content));
	snprintf(path, sizeof path, "%s/task.jsonl", folder);
	const fp_task_options options = {.length = 512};
	fp_task_result result;
	assert_fails(s->ctx, FP_ERROR_INPUT, message,
				 fp_task_evaluate(&result, s->model, s->tokenizer, task, path, &options));
	remove_folder(folder);
	free(folder);
}

#define GOOD "{\"context\": \"One\", \"choices\": [\"a\", \"b\"], \"label\": 1}\n"

static void test_wrong_files(void **state)
{
	(void)state;
	subject s = {0};
	open_subject(&s, "opt-demo");
	expect_failure(&s, "multiple_choice", "", "contains no example");
	expect_failure(&s, "multiple_choice", GOOD "{\"context\": ", "line 2: not valid JSON");
	expect_failure(&s, "multiple_choice", GOOD "\n[]\n", "line 3: must be a JSON object");
	expect_failure(&s, "multiple_choice", GOOD "{\"context\": \"One\", \"choices\": [\"a\", \"b\"], \"label\": 2}",
				   "line 2: the label is 2, counted from 0, but there are 2 choices");
	expect_failure(&s, "multiple_choice", "{\"context\": \"One\", \"choices\": [\"a\"], \"label\": 0}",
				   "line 1: has 1 choices");
	expect_failure(&s, "multiple_choice", "{\"context\": \"One\", \"choices\": [\"a\", 7], \"label\": 0}",
				   "\"choices\" must be a string");
	expect_failure(&s, "multiple_choice", "{\"context\": \"One\", \"choices\": [\"a\", \"b\"], \"label\": -1}",
				   "\"label\" is not a label");
	expect_failure(&s, "arc_easy", GOOD, "line 1: has no \"question_stem\"; is this a file of another task?");
	expect_failure(
		&s, "arc_easy",
		"{\"question\": {\"stem\": \"x\", \"choices\": [{\"text\": \"a\", \"label\": \"A\"}, {\"text\": \"b\", "
		"\"label\": \"B\"}]}, \"answerKey\": \"C\"}",
		"\"answerKey\" (C) is not the label of a choice");
	expect_failure(&s, "winogrande",
				   "{\"sentence\": \"no blank\", \"option1\": \"a\", \"option2\": \"b\", \"answer\": \"1\"}",
				   "has no blank");
	expect_failure(&s, "winogrande",
				   "{\"sentence\": \"a _ b\", \"option1\": \"a\", \"option2\": \"b\", \"answer\": \"\"}",
				   "is not a label");
	expect_failure(&s, "winogrande",
				   "{\"sentence\": \"a _ b\", \"option1\": \"a\", \"option2\": \"b\", \"answer\": \"3\"}",
				   "must be \"1\" or \"2\"");
	expect_failure(&s, "piqa", "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\"}", "NAME-labels.lst");
	expect_failure(&s, "rte", "sentence1\tsentence2\tlabel\na\tb\n", "line 2: has 2 columns; line 1 names 3");
	expect_failure(&s, "rte", "sentence1\tsentence2\tlabel\na\tb\tmaybe\n",
				   "line 2: \"label\" is not a label ('maybe')");
	expect_failure(&s, "rte", "sentence1\tsentence2\tlabel\na\t\xFF\t0\n", "not valid UTF-8");
	expect_failure(&s, "rte", "sentence1\tlabel\na\t0\n", "has no \"sentence2\"");
	assert_fails(s.ctx, FP_ERROR_USAGE, "the tasks are arc_easy, arc_challenge", fp_task_check(s.ctx, "arc_esay"));
	close_subject(&s);
}

/* A continuation cannot be cut, because it is scored. */
static void test_long_choice(void **state)
{
	(void)state;
	subject s = {0};
	open_subject(&s, "opt-demo");
	enum { WORDS = 2000 };
	char *text = malloc(WORDS * 4 + 100);
	strcpy(text, "{\"context\": \"One\", \"label\": 0, \"choices\": [\"b\", \"");
	for (int i = 0; i < WORDS; i++)
		strcat(text, "dog ");
	strcat(text, "\"]}\n");
	expect_failure(&s, "multiple_choice", text, "and only contexts are cut");
	free(text);
	close_subject(&s);
}

/* The public list has the tasks that are read, in the same order, and says of each where it comes from. */
static void test_list(void **unused)
{
	(void)unused;
	char names[512], listed[512] = "";
	const fp_task_info *task;
	for (size_t i = 0; (task = fp_task_at(i)); i++) {
		snprintf(listed + strlen(listed), sizeof listed - strlen(listed), "%s%s", i ? ", " : "", task->name);
		assert_true(strlen(task->file) > 0 && (strstr(task->source, "https://") || strstr(task->source, "your own")));
	}
	fp_task_names(names, sizeof names);
	assert_string_equal(listed, names);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_harness),     cmocka_unit_test(test_plan), cmocka_unit_test(test_wrong_files),
		cmocka_unit_test(test_long_choice), cmocka_unit_test(test_list),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
