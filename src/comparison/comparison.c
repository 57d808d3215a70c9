/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comparison.c: runs the cells of a comparison. All cells share the mapped checkpoint, the tokenizer, the
 * windows of the text, the head and embedding on the device, the dense model's perplexity and, if they are
 * small, its hidden states of the text. Adjacent cells share calibration windows and the dense model's
 * statistics on them (dense_statistics.h). A cell's pruned tensors stay in memory (overlay.h) until it has
 * been evaluated.
 *
 * Cells run one after the other rather than together layer by layer, so that finished cells can be saved.
 */
#include "comparison/comparison.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "comparison/journal.h"
#include "comparison/shared_basis.h"
#include "comparison/summary.h"
#include "evaluation/divergence.h"
#include "evaluation/hidden_error.h"
#include "evaluation/perplexity.h"
#include "generation/own_text.h"
#include "generation/start_token.h"
#include "run/quantised_plan.h"
#include "run/report.h"

#include <fistapruner/fistapruner.h>
#include <math.h>
#include <string.h>

/* For the dense model's statistics, without --memory. */
#define DEFAULT_BYTES ((int64_t)1 << 30)

typedef struct comparison {
	fp_context *ctx;
	const fp_comparison_task *task;
	fp_checkpoint *checkpoint;
	fp_backend *be;
	fp_model *model;
	fp_tokenizer *tokenizer;
	fp_journal *journal;
	fp_windows text;           /* of the evaluation */
	fp_divergence *divergence; /* from the dense model on `text`; NULL before the first cell */
	fp_windows calibration;    /* of the previous cell */
	int64_t samples, seed;     /* of `calibration`; samples −1: none yet */
	fp_dense_statistics *kept; /* of `calibration` */
	fp_shared_basis basis;
	int64_t length, memory;
	fp_journal_key base; /* of everything that all cells depend on */
	fp_cell *cells;
	int64_t count;
	json_t *rows;
	int64_t done, reused;
	int64_t kept_cells; /* finished in an earlier run; not part of the progress */
} comparison;

static void close_all(comparison *c)
{
	fp_free(c->cells);
	fp_dense_statistics_free(c->kept);
	fp_divergence_free(c->divergence);
	fp_windows_free(&c->calibration);
	fp_windows_free(&c->text);
	fp_journal_close(c->journal);
	fp_tokenizer_free(c->tokenizer);
	fp_shared_basis_free(&c->basis);
	fp_model_close(c->model);
	fp_backend_close(c->be);
	fp_checkpoint_close(c->checkpoint);
}

static const char *family_of(const fp_checkpoint *checkpoint)
{
	const char *type = json_string_value(json_object_get(fp_checkpoint_config(checkpoint), "model_type"));
	return type ? type : "";
}

/* The files of the model, the text and the program's build. */
static fp_status make_base_key(comparison *c)
{
	static const char *const companions[] = {"config.json", "tokenizer.json", "tokenizer.model", "vocab.json",
											 "merges.txt"};
	const char *directory = fp_checkpoint_directory(c->checkpoint);
	fp_journal_key key = fp_journal_key_text(FP_JOURNAL_START, fp_build_id());
	int shards = fp_checkpoint_shard_count(c->checkpoint);
	int names = shards + (int)(sizeof companions / sizeof companions[0]);
	fp_status status = FP_OK;
	for (int i = 0; i < names; i++) {
		char *path = NULL;
		FP_TRY(fp_join_path(&path, c->ctx, directory,
							i < shards ? fp_checkpoint_shard_name(c->checkpoint, i) : companions[i - shards]));
		key = fp_journal_key_file(key, path);
		fp_free(path);
	}
	c->base = fp_journal_key_file(key, c->task->text);
cleanup:
	return status;
}

/* Fails if `prune` could not write the model in the format that rows are quantised to. */
static fp_status check_format(const comparison *c)
{
	fp_quantised_plan plan;
	fp_status status = fp_quantised_plan_make(&plan, c->model, c->task->settings);
	fp_quantised_plan_free(&plan);
	return status;
}

static fp_status open_all(comparison *c)
{
	const fp_comparison_task *task = c->task;
	const fp_settings *settings = task->settings;
	fp_context *ctx = c->ctx;
	fp_status status;
	c->samples = -1;
	FP_TRY(fp_parse_size(ctx, settings->memory, &c->memory));
	FP_TRY(fp_checkpoint_open(&c->checkpoint, ctx, task->model));
	FP_TRY(fp_cells_plan(&c->cells, &c->count, ctx, &task->lists, settings, family_of(c->checkpoint)));
	FP_TRY(fp_backend_open(&c->be, ctx, settings->device, (int)settings->threads));
	FP_TRY(fp_model_open(&c->model, c->be, c->checkpoint));
	FP_TRY(check_format(c));
	c->length = settings->sequence_length ? settings->sequence_length : fp_model_default_length(c->model);
	if (c->length < 2)
		FP_TRY(fp_fail(ctx, FP_ERROR_USAGE, "sequence_length %lld: must be at least 2, such as %lld",
					   (long long)c->length, (long long)fp_model_default_length(c->model)));
	FP_TRY(fp_model_check_length(c->model, c->length));
	FP_TRY(fp_tokenizer_open(&c->tokenizer, ctx, fp_checkpoint_directory(c->checkpoint)));
	FP_TRY(fp_windows_evaluation(&c->text, ctx, c->tokenizer, task->text, settings->protocol, c->length));
	FP_TRY(fp_dense_statistics_new(&c->kept, ctx, fp_model_get_config(c->model)->layers,
								   c->memory > 0 ? c->memory : DEFAULT_BYTES));
	FP_TRY(fp_journal_open(&c->journal, ctx, task->journal));
	FP_TRY(make_base_key(c));
cleanup:
	return status;
}

/* The perplexity of `model` with the overlay and its divergence from the dense model; NULL: of the dense model. */
static fp_status measure(comparison *c, fp_model *model, const fp_overlay *overlay, fp_divergence_result *out)
{
	fp_status status;
	FP_TRY(fp_backend_set_figure_precision(c->be, c->task->settings->precision, fp_model_get_config(c->model)->hidden));
	if (!overlay) {
		fp_perplexity_result dense;
		FP_TRY(fp_perplexity(&dense, c->model, &c->text, c->memory));
		*out = (fp_divergence_result){.perplexity = dense.perplexity, .top1 = 1};
	} else {
		if (!c->divergence)
			FP_TRY(fp_divergence_new(&c->divergence, c->model, &c->text, c->memory));
		FP_TRY(fp_divergence_measure(out, c->divergence, model, overlay));
	}
cleanup:
	return status;
}

/* Sets the row's perplexity and divergence. A perplexity that is not finite becomes null, so that a ruined model shows
 * in the table. */
static fp_status evaluate(comparison *c, fp_model *model, const fp_overlay *overlay, json_t *row)
{
	fp_divergence_result result;
	double started = fp_clock();
	fp_status status = measure(c, model, overlay, &result);
	if (status != FP_OK)
		return status;
	json_object_set_new(row, "perplexity", isfinite(result.perplexity) ? json_real(result.perplexity) : json_null());
	json_object_set_new(row, "kl", json_real(result.kl));
	json_object_set_new(row, "kl_stderr", json_real(result.kl_stderr));
	json_object_set_new(row, "top1", json_real(result.top1));
	json_object_set_new(row, "evaluation_seconds", json_real(fp_clock() - started));
	return FP_OK;
}

/* Adds hidden_errors, one number for each layer, measured on the evaluation text. */
static fp_status add_hidden_errors(comparison *c, fp_model *model, const fp_overlay *overlay, json_t *row)
{
	int64_t count = fp_model_get_config(c->model)->layers;
	double *errors = NULL;
	json_t *list = json_array();
	fp_status status;
	FP_TRY(FP_NEW(c->ctx, &errors, count));
	FP_TRY(fp_hidden_errors(errors, &(fp_hidden_error_task){.model = model, .overlay = overlay, .windows = &c->text}));
	for (int64_t layer = 0; layer < count; layer++)
		json_array_append_new(list, json_real(errors[layer]));
	json_object_set(row, "hidden_errors", list);
cleanup:
	json_decref(list);
	fp_free(errors);
	return status;
}

static fp_status dense_row(comparison *c, json_t **out)
{
	*out = json_pack("{s:s, s:n, s:n, s:f, s:f, s:f}", "method", "dense", "preset", "pattern", "sparsity", 0.0,
					 "relative_error", 0.0, "seconds", 0.0);
	if (!*out)
		return fp_fail(c->ctx, FP_ERROR_MEMORY, "out of memory for a row");
	return evaluate(c, c->model, NULL, *out);
}

/* The model's own text. */
static fp_status write_windows(comparison *c, const fp_settings *settings)
{
	fp_own_text_statistics statistics;
	fp_own_text_task task = {.model = c->model,
							 .seed = (uint64_t)settings->seed,
							 .count = settings->samples,
							 .length = c->length,
							 .memory = c->memory};
	fp_status status;
	FP_TRY(fp_own_text_check_count(c->ctx, settings->samples));
	FP_TRY(fp_stop_tokens_read(&task.stop, c->ctx, c->checkpoint));
	FP_TRY(fp_start_token(&task.start, c->model, c->tokenizer, &task.stop));
	FP_TRY(fp_own_text(&c->calibration, &statistics, &task));
cleanup:
	return status == FP_OK ? status : fp_fail_in(c->ctx, status, "--calibration self");
}

/* Adjacent cells usually have the same windows. */
static fp_status draw_windows(comparison *c, const fp_settings *settings)
{
	if (c->samples == settings->samples && c->seed == settings->seed)
		return FP_OK;
	fp_windows_free(&c->calibration);
	fp_dense_statistics_forget(c->kept);
	c->calibration = (fp_windows){0};
	c->samples = -1;
	fp_status status = c->task->calibration_count == 0
						   ? write_windows(c, settings)
						   : fp_windows_calibration(&c->calibration, c->ctx, c->tokenizer, c->task->calibration,
													c->task->calibration_count, settings->sampler, settings->samples,
													c->length, (uint64_t)settings->seed);
	if (status == FP_OK) {
		c->samples = settings->samples;
		c->seed = settings->seed;
	}
	return status;
}

/* A row with the relevant parts of a pruning report. */
static json_t *row_of_report(const fp_cell *cell, const json_t *report)
{
	static const char *const taken[] = {"sparsity",  "relative_error", "calibration_windows", "seconds", "stages",
										"operators", "basis"};
	const fp_settings *settings = &cell->settings;
	json_t *row = json_pack("{s:s, s:s?, s:s, s:s?, s:I, s:I}", "method", settings->method, "preset",
							cell->has_presets ? settings->preset : NULL, "pattern", settings->pattern, "correction",
							cell->has_presets ? settings->correction : NULL, "samples", (json_int_t)settings->samples,
							"seed", (json_int_t)settings->seed);
	for (size_t i = 0; row && i < sizeof taken / sizeof taken[0]; i++)
		json_object_set(row, taken[i], json_object_get(report, taken[i]));
	return row;
}

static fp_status cell_row(comparison *c, const fp_cell *cell, json_t **out)
{
	fp_overlay *overlay = NULL;
	fp_prune_result result = {0};
	json_t *report = NULL;
	fp_status status;
	FP_TRY(fp_backend_set_precision(c->be, cell->settings.precision, fp_model_get_config(c->model)->hidden));
	FP_TRY(draw_windows(c, &cell->settings));
	FP_TRY(fp_overlay_new(&overlay, c->ctx));
	fp_prune_task task = {.be = c->be,
						  .ctx = c->ctx,
						  .model = c->model,
						  .settings = &cell->settings,
						  .windows = &c->calibration,
						  .overlay = overlay,
						  .kept = c->kept};
	FP_TRY(fp_shared_basis_take(&c->basis, &task));
	FP_TRY(fp_prune_model(&result, &task));
	fp_shared_basis_report(&c->basis, &result.basis);
	report = fp_report_result(&task, &result, c->task->model, true);
	*out = report ? row_of_report(cell, report) : NULL;
	if (!*out)
		FP_TRY(fp_fail(c->ctx, FP_ERROR_MEMORY, "out of memory for a row"));
	FP_TRY(evaluate(c, task.model, overlay, *out));
	FP_TRY(add_hidden_errors(c, task.model, overlay, *out));
cleanup:
	json_decref(report);
	fp_prune_result_free(&result);
	fp_overlay_free(overlay);
	return status;
}

/* "Wanda at 2:4", "FISTAPruner (paper), correction intra, at 50%" */
static void spell_cell(char *out, size_t size, const fp_cell *cell)
{
	if (!cell)
		snprintf(out, size, "dense");
	else if (!cell->has_presets)
		snprintf(out, size, "%s at %.16s", fp_method_title(cell->settings.method, NULL), cell->settings.pattern);
	else
		snprintf(out, size, "%s, correction %.16s, at %.16s",
				 fp_method_title(cell->settings.method, cell->settings.preset), cell->settings.correction,
				 cell->settings.pattern);
}

/* NULL: the dense model. */
static fp_journal_key key_of(const comparison *c, const fp_cell *cell)
{
	fp_journal_key key = c->base;
	char length[32];
	snprintf(length, sizeof length, "%lld", (long long)c->length);
	key = fp_journal_key_text(fp_journal_key_text(key, length), c->task->settings->protocol);
	/* The part before the colon: "cpu", without the number of threads. */
	char device[16];
	snprintf(device, sizeof device, "%.*s", (int)strcspn(c->be->description, ":"), c->be->description);
	key = fp_journal_key_text(key, device);
	if (!cell)
		return fp_journal_key_text(key, "dense");
	if (c->task->calibration_count == 0)
		key = fp_journal_key_text(key, "self");
	for (int i = 0; i < c->task->calibration_count; i++)
		key = fp_journal_key_file(key, c->task->calibration[i]);
	return fp_journal_key_settings(key, &cell->settings, c->ctx);
}

/* Hides a cell's own progress, and its log unless -v is given. */
static fp_status run_quietly(comparison *c, const fp_cell *cell, json_t **row)
{
	fp_context *ctx = c->ctx;
	fp_log_level level = ctx->log_level;
	fp_progress_function progress = ctx->progress;
	ctx->progress = NULL;
	if (level == FP_LOG_INFO)
		ctx->log_level = FP_LOG_WARNING;
	fp_status status = cell ? cell_row(c, cell, row) : dense_row(c, row);
	ctx->log_level = level;
	ctx->progress = progress;
	return status;
}

static fp_status run_cell(comparison *c, const fp_cell *cell)
{
	fp_journal_key key = key_of(c, cell);
	json_t *row = json_incref(fp_journal_find(c->journal, key));
	bool found = row != NULL;
	char name[128];
	fp_status status;
	spell_cell(name, sizeof name, cell);
	if (!found) {
		fp_report_progress(c->ctx, "comparing", c->done - c->reused, c->count + 1 - c->kept_cells);
		status = run_quietly(c, cell, &row);
		if (status != FP_OK)
			fp_fail_in(c->ctx, status, "%s", name);
		else
			status = fp_journal_add(c->journal, key, row);
		if (status != FP_OK)
			goto cleanup;
	}
	c->reused += found;
	c->done++;
	fp_log(c->ctx, FP_LOG_INFO, "%lld of %lld: %s: perplexity %.4f, KL %.4f%s", (long long)c->done,
		   (long long)c->count + 1, name, json_number_value(json_object_get(row, "perplexity")),
		   json_number_value(json_object_get(row, "kl")), found ? " (from an earlier run)" : "");
	json_array_append(c->rows, row);
	status = fp_check_interrupt(c->ctx);
cleanup:
	json_decref(row);
	return status;
}

static json_t *make_document(const comparison *c, double seconds)
{
	const fp_comparison_task *task = c->task;
	json_t *files = json_array();
	for (int i = 0; files && i < task->calibration_count; i++)
		json_array_append_new(files, json_string(task->calibration[i]));
	if (files && task->calibration_count == 0)
		json_array_append_new(files, json_string("self"));
	json_t *document = json_pack(
		"{s:s, s:s, s:s*, s:s, s:s, s:s, s:s, s:I, s:I, s:o, s:s, s:f, s:I, s:I}", "program", "fistapruner " FP_VERSION,
		"model", task->model, "stored_as", fp_checkpoint_coding(fp_model_checkpoint(c->model)), "architecture",
		fp_model_architecture(c->model), "recipe", task->lists.recipe ? task->lists.recipe : "main", "text", task->text,
		"protocol", task->settings->protocol, "sequence_length", (json_int_t)c->length, "windows",
		(json_int_t)c->text.count, "calibration", files, "device", c->be->description, "seconds", seconds, "reused",
		(json_int_t)c->reused, "peak_memory_bytes", (json_int_t)fp_peak_memory());
	if (!document)
		return NULL;
	json_object_set(document, "rows", c->rows);
	json_object_set_new(document, "summary", fp_comparison_summary(c->rows));
	json_object_set_new(document, "settings", fp_report_settings(task->settings, c->ctx));
	if (!fp_is(task->settings->quantize, "none"))
		json_object_set_new(document, "quantized", fp_report_quantised(task->settings));
	return document;
}

fp_status fp_comparison_run(json_t **out, fp_context *ctx, const fp_comparison_task *task)
{
	comparison c = {.ctx = ctx, .task = task, .rows = json_array()};
	double started = fp_clock();
	fp_status status;
	*out = NULL;
	FP_TRY(open_all(&c));
	if (task->calibration_count == 0)
		fp_log(ctx, FP_LOG_INFO, "calibration self: the model writes the calibration text");
	for (int64_t i = -1; i < c.count; i++)
		c.kept_cells += fp_journal_find(c.journal, key_of(&c, i < 0 ? NULL : &c.cells[i])) != NULL;
	FP_TRY(run_cell(&c, NULL));
	for (int64_t i = 0; i < c.count; i++)
		FP_TRY(run_cell(&c, &c.cells[i]));
	if (c.reused < c.done)
		fp_report_progress(ctx, "comparing", c.done - c.reused, c.count + 1 - c.kept_cells);
	*out = make_document(&c, fp_clock() - started);
	if (!*out)
		status = fp_fail(ctx, FP_ERROR_MEMORY, "out of memory for the result");
cleanup:
	json_decref(c.rows);
	close_all(&c);
	return status;
}
