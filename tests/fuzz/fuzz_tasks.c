/* SPDX-License-Identifier: Apache-2.0 */
/* The input as a file of questions, with a file of labels beside it. The first byte chooses the task. */
#include "evaluation/tasks_examples.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(const fp_task_examples *examples, fp_task_text text)
{
	if (text.first < 0 || text.length < 0 || text.first + text.length > examples->text.length)
		abort();
}

static void put(const char *path, const void *bytes, size_t size)
{
	FILE *file = fopen(path, "wb");
	if (!file || fwrite(bytes, 1, size, file) != size || fclose(file) != 0)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const tasks[] = {"arc_easy",       "winogrande", "boolq",          "rte",
										"qnli",           "hellaswag",  "piqa",           "wnli",
										"lambada_openai", "openbookqa", "multiple_choice"};
	if (size < 1)
		return 0;
	char folder[] = "/tmp/fuzz-tasks-XXXXXX", path[64], labels[64];
	if (!mkdtemp(folder))
		abort();
	snprintf(path, sizeof path, "%s/a.jsonl", folder);
	snprintf(labels, sizeof labels, "%s/a-labels.lst", folder);
	put(path, data + 1, size - 1);
	put(labels, "0\n1\n", 4);

	fp_context *ctx = fp_context_new();
	fp_task_examples examples = {.ctx = ctx};
	const fp_task_row *task = fp_task_find(tasks[data[0] % (sizeof tasks / sizeof tasks[0])]);
	if (!task)
		abort();
	if (fp_task_read(&examples, task, path, 0) == FP_OK) {
		for (int64_t i = 0; i < examples.count; i++) {
			const fp_task_example *example = &examples.examples[i];
			if (example->gold >= example->pair_count || example->first_pair + example->pair_count > examples.pair_count)
				abort();
		}
		for (int64_t i = 0; i < examples.pair_count; i++) {
			check_text(&examples, examples.pairs[i].context);
			check_text(&examples, examples.pairs[i].continuation);
		}
	}
	fp_task_examples_free(&examples);
	fp_context_free(ctx);
	unlink(path);
	unlink(labels);
	rmdir(folder);
	return 0;
}
