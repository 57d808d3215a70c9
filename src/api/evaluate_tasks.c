/* SPDX-License-Identifier: Apache-2.0 */
/* evaluate_tasks.c: fp_evaluate_tasks(): a model and task files → accuracies. */
#include "api/result_text.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/settings.h"
#include "checkpoint/checkpoint.h"
#include "evaluation/tasks.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

#include <errno.h>
#include <fistapruner/fistapruner.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

static const fp_task_info task_infos[] = {
#define TASK_INFO(name, file, source) {#name, file, source},
	FP_TASK_LIST(TASK_INFO)
#undef TASK_INFO
};

const fp_task_info *fp_task_at(size_t index)
{
	return index < sizeof task_infos / sizeof task_infos[0] ? &task_infos[index] : NULL;
}

/* NULL: there is no such task. `name` may end with '='. */
static const fp_task_info *find_info(const char *name)
{
	const fp_task_info *info;
	for (size_t i = 0; (info = fp_task_at(i)); i++)
		if (strlen(info->name) == strcspn(name, "=") && strncmp(info->name, name, strlen(info->name)) == 0)
			return info;
	return NULL;
}

typedef struct sample_sink {
	fp_context *ctx;
	fp_metrics_function sampled;
	void *data;
} sample_sink;

/* Splits "arc_easy=file": *name is a copy for fp_free(), *path is borrowed. */
static fp_status split(fp_context *ctx, const char *task, char **name, const char **path)
{
	const char *equals = strchr(task, '=');
	const fp_task_info *info = find_info(task);
	if (info && (!equals || !equals[1]))
		return fp_fail(ctx, FP_ERROR_USAGE, "task '%s' needs its file, as --task %s=%s (%s)", info->name, info->name,
					   info->file, info->source);
	if (!equals || equals == task || !equals[1])
		return fp_fail(ctx, FP_ERROR_USAGE, "task '%s': must be NAME=FILE, such as arc_easy=ARC-Easy-Test.jsonl", task);
	fp_status status = fp_copy_text(ctx, name, task);
	if (status == FP_OK) {
		(*name)[equals - task] = '\0';
		*path = equals + 1;
	}
	return status;
}

static fp_status write_sample(void *data, const fp_task_sample *sample)
{
	sample_sink *sink = data;
	char *line = NULL;
	json_t *likelihoods = json_array();
	for (int64_t i = 0; i < sample->choices; i++)
		json_array_append_new(likelihoods, json_real(sample->likelihood[i]));
	json_t *document =
		json_pack("{s:s, s:I, s:I, s:I, s:o}", "task", sample->task, "index", (json_int_t)sample->index, "line",
				  (json_int_t)sample->line, "chosen", (json_int_t)sample->chosen, "loglikelihoods", likelihoods);
	if (sample->gold >= 0) {
		json_object_set_new(document, "chosen_norm", json_integer(sample->chosen_norm));
		json_object_set_new(document, "label", json_integer(sample->gold));
	}
	fp_status status = fp_result_line(&line, sink->ctx, document);
	if (status == FP_OK)
		sink->sampled(sink->data, line);
	fp_text_free(line);
	return status;
}

/* The standard error of one sample is NaN, which JSON cannot express: null. */
static void set_figure(json_t *document, const char *key, double figure)
{
	json_object_set_new(document, key, isfinite(figure) ? json_real(figure) : json_null());
}

static json_t *result_document(const fp_task_result *result, const char *path)
{
	json_t *document = json_pack("{s:s, s:s, s:I, s:I}", "name", result->name, "file", path, "samples",
								 (json_int_t)result->samples, "truncated", (json_int_t)result->truncated);
	set_figure(document, "acc", result->acc);
	set_figure(document, "acc_stderr", result->acc_stderr);
	if (result->has_acc_norm) {
		set_figure(document, "acc_norm", result->acc_norm);
		set_figure(document, "acc_norm_stderr", result->acc_norm_stderr);
	}
	if (result->has_perplexity)
		set_figure(document, "perplexity", result->perplexity);
	set_figure(document, "loglikelihood_sum", result->loglikelihood_sum);
	return document;
}

static fp_status check_file(fp_context *ctx, const char *name, const char *path)
{
	const fp_task_info *info = find_info(name);
	struct stat found;
	if (stat(path, &found) == 0)
		return FP_OK;
	return fp_fail(ctx, FP_ERROR_INPUT, "%s: cannot be opened: %s; task '%s' reads %s (%s)", path, strerror(errno),
				   name, info->file, info->source);
}

/* Checks names and files before the model is read, so that a typing error is reported at once. */
static fp_status check_tasks(fp_context *ctx, const fp_tasks_request *request)
{
	fp_status status = FP_OK;
	char *name = NULL;
	const char *path = NULL;
	if (request->task_count < 1)
		return fp_fail(ctx, FP_ERROR_USAGE, "no task to evaluate; give one as NAME=FILE");
	for (int i = 0; i < request->task_count; i++) {
		FP_TRY(split(ctx, request->tasks[i], &name, &path));
		FP_TRY(fp_task_check(ctx, name));
		FP_TRY(check_file(ctx, name, path));
		fp_free(name);
		name = NULL;
	}
cleanup:
	fp_free(name);
	return status;
}

static fp_status evaluate_each(json_t *results, fp_model *model, fp_tokenizer *tokenizer,
							   const fp_tasks_request *request, const fp_task_options *options)
{
	fp_status status = FP_OK;
	fp_context *ctx = fp_model_backend(model)->ctx;
	char *name = NULL;
	const char *path = NULL;
	for (int i = 0; i < request->task_count; i++) {
		fp_task_result result;
		FP_TRY(split(ctx, request->tasks[i], &name, &path));
		FP_TRY(fp_task_evaluate(&result, model, tokenizer, name, path, options));
		if (result.truncated > 0)
			fp_log(ctx, FP_LOG_WARNING,
				   "%s: %lld request%s longer than %lld tokens; the beginning of the context was cut off", name,
				   (long long)result.truncated, result.truncated == 1 ? " is" : "s are", (long long)options->length);
		json_array_append_new(results, result_document(&result, path));
		fp_free(name);
		name = NULL;
	}
cleanup:
	fp_free(name);
	return status;
}

fp_status fp_evaluate_tasks(char **json, fp_context *ctx, const fp_tasks_request *request, const fp_settings *settings)
{
	fp_status status;
	fp_checkpoint *checkpoint = NULL;
	fp_backend *backend = NULL;
	fp_model *model = NULL;
	fp_tokenizer *tokenizer = NULL;
	json_t *results = json_array();
	sample_sink sink = {ctx, request->sampled, request->sampled_data};
	fp_task_options options = {
		.limit = settings->limit, .sampled = request->sampled ? write_sample : NULL, .data = &sink};
	double start = fp_clock();

	*json = NULL;
	FP_TRY(check_tasks(ctx, request));
	FP_TRY(fp_parse_size(ctx, settings->memory, &options.memory));
	FP_TRY(fp_checkpoint_open(&checkpoint, ctx, request->model));
	FP_TRY(fp_backend_open(&backend, ctx, settings->device, (int)settings->threads));
	FP_TRY(fp_model_open(&model, backend, checkpoint));
	FP_TRY(fp_backend_set_figure_precision(backend, settings->precision, fp_model_get_config(model)->hidden));
	options.length = settings->sequence_length ? settings->sequence_length : fp_model_get_config(model)->positions;
	FP_TRY(fp_model_check_length(model, options.length));
	FP_TRY(fp_tokenizer_open(&tokenizer, ctx, fp_checkpoint_directory(checkpoint)));
	FP_TRY(evaluate_each(results, model, tokenizer, request, &options));
	FP_TRY(fp_result_text(json, ctx,
						  json_pack("{s:s, s:s*, s:s, s:I, s:O, s:s, s:f, s:I}", "model", request->model, "stored_as",
									fp_checkpoint_coding(checkpoint), "architecture", fp_model_architecture(model),
									"sequence_length", (json_int_t)options.length, "tasks", results, "device",
									backend->description, "seconds", fp_clock() - start, "peak_memory_bytes",
									(json_int_t)fp_peak_memory())));
cleanup:
	json_decref(results);
	fp_tokenizer_free(tokenizer);
	fp_model_close(model);
	fp_backend_close(backend);
	fp_checkpoint_close(checkpoint);
	return status;
}
