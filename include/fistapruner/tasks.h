/* SPDX-License-Identifier: Apache-2.0 */
/* tasks.h: the zero-shot tasks of fp_evaluate_tasks(), and where the file of each comes from. */
#ifndef FISTAPRUNER_TASKS_H
#define FISTAPRUNER_TASKS_H

#include <fistapruner/status.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, file as its authors call it, its layout and where it comes from) */
#define FP_TASK_LIST(X)                                                                                                \
	X(arc_easy, "ARC-Easy-Test.jsonl", "JSON lines, in ARC-V1-Feb2018.zip of https://allenai.org/data/arc")            \
	X(arc_challenge, "ARC-Challenge-Test.jsonl", "JSON lines, in ARC-V1-Feb2018.zip of https://allenai.org/data/arc")  \
	X(winogrande, "dev.jsonl",                                                                                         \
	  "JSON lines, in https://storage.googleapis.com/ai2-mosaic/public/winogrande/winogrande_1.1.zip")                 \
	X(boolq, "val.jsonl",                                                                                              \
	  "JSON lines, in BoolQ.zip of https://super.gluebenchmark.com/tasks, or dev.jsonl of "                            \
	  "https://github.com/google-research-datasets/boolean-questions")                                                 \
	X(rte, "dev.tsv", "table with tabs, in RTE.zip of https://gluebenchmark.com/tasks")                                \
	X(qnli, "dev.tsv", "table with tabs, in QNLIv2.zip of https://gluebenchmark.com/tasks")                            \
	X(wnli, "dev.tsv", "table with tabs, in WNLI.zip of https://gluebenchmark.com/tasks")                              \
	X(hellaswag, "hellaswag_val.jsonl", "JSON lines, in the folder data of https://github.com/rowanz/hellaswag")       \
	X(piqa, "valid.jsonl", "JSON lines, with valid-labels.lst beside it, from https://yonatanbisk.com/piqa")           \
	X(openbookqa, "test.jsonl",                                                                                        \
	  "JSON lines, in Data/Main of OpenBookQA-V1-Sep2018.zip of https://allenai.org/data/open-book-qa")                \
	X(lambada_openai, "lambada_test.jsonl",                                                                            \
	  "JSON lines, https://openaipublic.blob.core.windows.net/gpt-2/data/lambada_test.jsonl")                          \
	X(multiple_choice, "FILE", "your own JSON lines: {\"context\": \"...\", \"choices\": [\"...\"], \"label\": 0}")

typedef struct fp_task_info {
	const char *name, *file, *source;
} fp_task_info;

/* The list's rows in order; NULL past the end. Borrowed. */
FP_API const fp_task_info *fp_task_at(size_t index);

#ifdef __cplusplus
}
#endif
#endif
