/* SPDX-License-Identifier: Apache-2.0 */
/* tasks.h: zero-shot accuracy on task files, computed as in lm-evaluation-harness. */
#ifndef FP_EVALUATION_TASKS_H
#define FP_EVALUATION_TASKS_H

#include "model/model.h"
#include "tokenizer/tokenizer.h"

typedef struct fp_task_result {
	const char *name; /* borrowed from the table of tasks */
	int64_t samples;
	int64_t truncated; /* requests whose context was cut on the left */
	bool has_acc_norm, has_perplexity;
	/* acc_norm divides log-likelihoods by the choices' lengths in characters. The standard error of one
	 * sample is NaN. */
	double acc, acc_stderr, acc_norm, acc_norm_stderr;
	double perplexity;        /* exp(−mean log-likelihood of a sample) */
	double loglikelihood_sum; /* over all requests */
} fp_task_result;

typedef struct fp_task_sample {
	const char *task;
	int64_t index, line;      /* index counts samples from 0, line counts lines of the file from 1 */
	int64_t gold;             /* −1: the task has a single continuation */
	int64_t chosen;           /* the likeliest choice; for a single continuation 1 if it is greedy, else 0 */
	int64_t chosen_norm;      /* by log-likelihood divided by length */
	const double *likelihood; /* of each choice */
	int64_t choices;
} fp_task_sample;
typedef fp_status (*fp_sample_function)(void *data, const fp_task_sample *sample);

typedef struct fp_task_options {
	int64_t limit;              /* maximum number of examples; 0: all */
	int64_t length;             /* maximum input length in tokens */
	int64_t memory;             /* as in fp_loglikelihoods() */
	fp_sample_function sampled; /* may be NULL; called for each sample in file order */
	void *data;
} fp_task_options;

/* FP_ERROR_USAGE, with a list of the tasks, if there is no such task. */
fp_status fp_task_check(fp_context *ctx, const char *name);

fp_status fp_task_evaluate(fp_task_result *out, fp_model *model, fp_tokenizer *tokenizer, const char *name,
						   const char *path, const fp_task_options *options);

#endif
