/* SPDX-License-Identifier: Apache-2.0 */
/* prune.c: fp_prune(): opens model, text and device, runs the pipeline, writes the checkpoint and the report. */
#include <fistapruner/fistapruner.h>

#include "api/own_calibration.h"
#include "api/prune_check.h"
#include "api/prune_plan.h"
#include "api/rank_device.h"
#include "api/result_text.h"
#include "base/file.h"
#include "base/memory.h"
#include "checkpoint/working_folder.h"
#include "checkpoint/writer.h"
#include "evaluation/hidden_error.h"
#include "run/layer_journal.h"
#include "run/quantised_plan.h"
#include "run/report.h"
#include "solver/method.h"
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct prune_session {
	fp_context *ctx;
	const fp_prune_request *request;
	fp_settings settings; /* resolved copy */
	fp_comm *comm;
	fp_backend *be;
	fp_checkpoint *checkpoint;
	fp_model *model;
	fp_tokenizer *tokenizer;
	fp_windows windows;
	fp_windows held_out; /* for --check */
	fp_own_calibration own;
	fp_writer *writer;
	fp_layer_journal *journal;
	fp_quantised_plan quantised;
	fp_basis_choice choice;
	fp_basis *basis;
	fp_prune_result result;
} prune_session;

static void session_close(prune_session *session, bool failed)
{
	fp_prune_result_free(&session->result);
	fp_layer_journal_close(session->journal);
	fp_writer_close(session->writer);
	fp_windows_free(&session->held_out);
	fp_windows_free(&session->windows);
	fp_tokenizer_free(session->tokenizer);
	fp_model_close(session->model);
	fp_basis_free(session->basis);
	fp_quantised_plan_free(&session->quantised);
	fp_checkpoint_close(session->checkpoint);
	fp_backend_close(session->be);
	fp_comm_close(session->comm, failed);
}

/* The model's family, on which presets may depend: config.json's model_type. */
static const char *family_of(const fp_checkpoint *checkpoint)
{
	const char *type = json_string_value(json_object_get(fp_checkpoint_config(checkpoint), "model_type"));
	return type ? type : "";
}

static fp_status check_request(prune_session *session)
{
	const fp_prune_request *request = session->request;
	if (!request->output && !request->dry_run)
		return fp_fail(session->ctx, FP_ERROR_USAGE, "an output directory is needed: -o DIR");
	bool own;
	fp_status status;
	FP_TRY(fp_own_calibration_asked(&own, session->ctx, request->calibration, request->calibration_count));
	FP_TRY(fp_own_calibration_choose(&session->own, session->ctx, request->calibration, request->calibration_count,
									 fp_method_of(&session->settings)->needs_text, &session->settings));
	if (request->calibration_count == 0 && !session->own.wanted && request->check)
		FP_TRY(fp_fail(session->ctx, FP_ERROR_USAGE,
					   "--check measures on calibration text: --calibration FILE or self is needed"));
cleanup:
	return status;
}

static fp_status read_windows(prune_session *session)
{
	const fp_prune_request *request = session->request;
	const fp_settings *settings = &session->settings;
	int64_t length = settings->sequence_length;
	fp_status status;
	if (length == 0)
		length = fp_model_default_length(session->model);
	session->windows.length = length;
	if (request->calibration_count == 0 && !session->own.wanted)
		return FP_OK;
	FP_TRY(fp_model_check_length(session->model, length));
	if (session->own.wanted) { /* drawn later; their number is enough for a plan */
		session->windows.count = settings->samples;
		session->held_out = (fp_windows){.count = request->check ? fp_prune_check_count(length) : 0, .length = length};
		return FP_OK;
	}
	FP_TRY(fp_tokenizer_open(&session->tokenizer, session->ctx, fp_checkpoint_directory(session->checkpoint)));
	FP_TRY(fp_windows_calibration(&session->windows, session->ctx, session->tokenizer, request->calibration,
								  request->calibration_count, settings->sampler, settings->samples, length,
								  (uint64_t)settings->seed));
	if (request->check)
		FP_TRY(fp_prune_check_windows(&session->held_out, session->ctx, session->tokenizer, request, settings, length));
cleanup:
	return status;
}

/* `auto` means the best device that can run the request: a layer fit needs gradients, which not every device has. */
static fp_status open_backend(prune_session *session)
{
	const fp_settings *settings = &session->settings;
	fp_status status = fp_rank_device_open(&session->be, session->ctx, session->comm, settings);
	bool fits = settings->fit_steps > 0 && (session->request->calibration_count > 0 || session->own.wanted);
	if (status == FP_OK && fits && fp_is(settings->device, "auto") &&
		!fp_backend_can(session->be, FP_CAN_DIFFERENTIATE)) {
		fp_log(session->ctx, FP_LOG_INFO,
			   "device auto: %s has no gradients for the layer fit, so the CPU is used; --preset fast can use %s",
			   session->be->name, session->be->name);
		fp_backend_close(session->be);
		session->be = NULL;
		fp_settings on_cpu = *settings;
		snprintf(on_cpu.device, sizeof on_cpu.device, "cpu");
		status = fp_rank_device_open(&session->be, session->ctx, session->comm, &on_cpu);
	}
	return status;
}

static fp_status session_open(prune_session *session)
{
	fp_context *ctx = session->ctx;
	fp_status status;
	FP_TRY(check_request(session));
	FP_TRY(fp_checkpoint_open(&session->checkpoint, ctx, session->request->model));
	FP_TRY(fp_settings_resolve(&session->settings, ctx, family_of(session->checkpoint)));
	FP_TRY(open_backend(session));
	FP_TRY(fp_model_open(&session->model, session->be, session->checkpoint));
	FP_TRY(fp_backend_set_precision(session->be, session->settings.precision,
									fp_model_get_config(session->model)->hidden));
	FP_TRY(read_windows(session));
	FP_TRY(fp_quantised_plan_make(&session->quantised, session->model, &session->settings));
	FP_TRY(fp_basis_choose(&session->choice, session->model, &session->settings, session->windows.count > 0));
cleanup:
	return status;
}

static void send_metrics(void *data, const fp_operator_result *result)
{
	prune_session *session = data;
	json_t *line = fp_report_operator(result, true);
	char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
	if (text)
		session->request->metrics(session->request->metrics_data, text);
	free(text);
	json_decref(line);
}

static json_t *report_of(const prune_session *session, const fp_prune_task *task, bool with_times)
{
	json_t *report = fp_report_result(task, &session->result, session->request->model, with_times);
	if (report && session->own.wanted)
		json_object_set_new(report, "own_text", fp_own_calibration_document(&session->own, with_times));
	return report;
}

/* pruning_report.json leaves out times, so that two runs write the same bytes. */
static fp_status write_report(prune_session *session, const fp_prune_task *task)
{
	char *text = NULL;
	fp_status status;
	FP_TRY(fp_result_text(&text, session->ctx, report_of(session, task, false)));
	FP_TRY(fp_writer_add_file(session->writer, "pruning_report.json", text, (int64_t)strlen(text)));
cleanup:
	fp_text_free(text);
	return status;
}

/* *out ← the report of an output that exists already and is the result of the same request: the process was killed
 * after its last step. NULL: there is none. */
static fp_status find_finished(prune_session *session, const fp_prune_task *task, json_t **out)
{
	enum { MOST_BYTES = 1 << 28 };
	static const char *const same[] = {"program", "model", "calibration_digest", "settings"};
	char *path = NULL, *text = NULL;
	int64_t size;
	json_t *wanted = NULL, *found = NULL;
	fp_status status;
	*out = NULL;
	FP_TRY(fp_join_path(&path, session->ctx, session->request->output, "pruning_report.json"));
	if (!fp_is_file(path))
		goto cleanup;
	FP_TRY(fp_read_file(&text, &size, session->ctx, path, MOST_BYTES));
	found = json_loadb(text, (size_t)size, 0, NULL);
	wanted = report_of(session, task, false);
	bool equal = found && wanted;
	for (size_t i = 0; equal && i < sizeof same / sizeof same[0]; i++)
		equal = json_equal(json_object_get(found, same[i]), json_object_get(wanted, same[i]));
	if (equal) {
		fp_log(session->ctx, FP_LOG_INFO, "%s: exists already and is complete", session->request->output);
		fp_working_folder_forget(session->ctx, session->request->output);
		*out = json_incref(found);
	}
cleanup:
	json_decref(found);
	json_decref(wanted);
	fp_free(text);
	fp_free(path);
	return status;
}

/* Rank 0 creates the output or opens an unfinished one; the others join. */
static fp_status open_output(prune_session *session, fp_prune_task *task)
{
	const fp_prune_request *request = session->request;
	const fp_quantised_plan *plan = &session->quantised;
	const fp_output_change change = {.added = session->choice.unties ? &session->choice.head : NULL,
									 .format = plan->format,
									 .quantised = plan->tensors,
									 .quantisation = plan->config};
	bool leads = session->comm->rank == 0, begun = !leads;
	fp_status status = FP_OK;
	if (leads)
		status = request->resume
					 ? fp_writer_resume(&session->writer, session->ctx, session->checkpoint, request->output, &change,
										&begun)
					 : fp_writer_open(&session->writer, session->ctx, session->checkpoint, request->output, &change);
	task->writer = session->writer;
	if (leads && status == FP_OK)
		status = fp_layer_journal_open(&session->journal, task, begun);
	if (leads && status == FP_OK && !begun && session->own.wanted)
		status = fp_own_calibration_keep(&session->own, &session->windows, &session->held_out, session->writer,
										 session->ctx);
	FP_TRY(fp_comm_agree(session->comm, status));
	if (!leads) {
		status = fp_writer_join(&session->writer, session->ctx, session->checkpoint, request->output, &change);
		task->writer = session->writer;
		if (status == FP_OK)
			status = fp_layer_journal_open(&session->journal, task, true);
	}
	FP_TRY(fp_comm_agree(session->comm, status));
	task->journal = session->journal;
	if (leads && begun)
		fp_log(session->ctx, FP_LOG_INFO, "resuming: %lld finished layer%s",
			   (long long)fp_layer_journal_count(session->journal),
			   fp_layer_journal_count(session->journal) == 1 ? "" : "s");
cleanup:
	return status;
}

static fp_status layer_overlay(void *data, int64_t layer, fp_overlay **out)
{
	fp_layer_journal *journal = data;
	*out = NULL;
	return fp_layer_journal_has(journal, layer) ? fp_layer_journal_overlay(journal, layer, out) : FP_OK;
}

/* The entry of `layers` for a layer; added if there is none. */
static json_t *layer_entry(json_t *layers, int64_t layer)
{
	for (size_t i = 0; i < json_array_size(layers); i++)
		if (json_integer_value(json_object_get(json_array_get(layers, i), "layer")) == layer)
			return json_array_get(layers, i);
	json_t *entry = json_pack("{s:I}", "layer", (json_int_t)layer);
	return json_array_append_new(layers, entry) == 0 ? entry : NULL;
}

/* Adds layers[].hidden_error, from the output as it is on the disk. */
static fp_status add_hidden_errors(prune_session *session, json_t *document)
{
	int64_t count = fp_model_get_config(session->model)->layers;
	double *errors = NULL;
	json_t *layers = json_object_get(document, "layers");
	fp_status status;
	FP_TRY(FP_NEW(session->ctx, &errors, count));
	FP_TRY(fp_hidden_errors(errors, &(fp_hidden_error_task){.model = session->model,
															.layer_overlay = layer_overlay,
															.data = session->journal,
															.windows = &session->windows}));
	if (!layers) {
		layers = json_array();
		json_object_set_new(document, "layers", layers);
	}
	for (int64_t layer = 0; layer < count; layer++)
		json_object_set_new(layer_entry(layers, layer), "hidden_error", json_real(errors[layer]));
cleanup:
	fp_free(errors);
	return status;
}

/* *document: the report, which the caller releases also after a failure; it stays NULL on all ranks but rank 0. */
static fp_status run(prune_session *session, fp_prune_task *task, json_t **document)
{
	fp_comm *comm = session->comm;
	int64_t finished = 0;
	fp_status status = FP_OK;
	if (session->request->resume && comm->rank == 0)
		status = find_finished(session, task, document);
	FP_TRY(fp_comm_agree(comm, status));
	finished = *document != NULL;
	FP_TRY(comm->ops->broadcast(comm, 0, &finished, sizeof finished));
	if (finished)
		return FP_OK;
	FP_TRY(open_output(session, task));
	FP_TRY(fp_prune_model(&session->result, task));
	if (comm->rank > 0)
		return FP_OK;
	FP_TRY(write_report(session, task));
	*document = report_of(session, task, true);
	if (*document && comm->size > 1)
		json_object_set_new(*document, "ranks", json_integer(comm->size));
	if (*document && session->request->hidden_errors && session->windows.count > 0)
		FP_TRY(add_hidden_errors(session, *document));
cleanup:
	return status;
}

/* Makes the text of the document and renames the output to its final name; on rank 0. A check measures what was written,
 * so that it follows the renaming, and its figures are part of the text. */
static fp_status finish(prune_session *session, json_t *document, char **json)
{
	fp_status status = FP_OK;
	const fp_prune_request *request = session->request;
	if (document)
		json_object_set_new(document, "output", json_string(request->output));
	if (!request->check)
		FP_TRY(fp_result_text(json, session->ctx, json_incref(document)));
	if (session->writer)
		FP_TRY(fp_writer_commit(session->writer));
	if (!request->check)
		goto cleanup;
	fp_model_set_basis(session->model, NULL); /* the dense model as it is in its checkpoint */
	FP_TRY(fp_prune_check(document, session->model, request->output, &session->held_out, &session->settings));
	FP_TRY(fp_result_text(json, session->ctx, json_incref(document)));
cleanup:
	return status;
}

/* While opening, only rank 0 logs more than warnings, so that messages are not repeated. */
static fp_status open_quietly(prune_session *session)
{
	fp_context *ctx = session->ctx;
	fp_log_level level = ctx->log_level;
	fp_status status;
	FP_TRY(fp_comm_open(&session->comm, ctx, session->request->ranks != 0));
	if (session->comm->rank > 0) {
		ctx->progress = NULL;
		ctx->log_level = level < FP_LOG_WARNING ? level : FP_LOG_WARNING;
	}
	status = fp_comm_agree(session->comm, session_open(session));
	if (status == FP_OK)
		status = fp_rank_devices_agree(session->be, session->comm);
	ctx->log_level = level;
cleanup:
	return status;
}

/* Rank 0 draws the model's own text and gives it to the others: on another device it could be another text. */
static fp_status draw_own_text(prune_session *session)
{
	fp_comm *comm = session->comm;
	fp_windows *windows = &session->windows;
	int64_t tokens = windows->count * windows->length;
	fp_status status = FP_OK;
	if (!session->own.wanted)
		return FP_OK;
	if (comm->rank > 0)
		status = FP_NEW(session->ctx, &windows->ids, tokens);
	else if (!session->request->resume) /* before the text is drawn */
		status = fp_writer_check(session->ctx, session->checkpoint, session->request->output);
	if (comm->rank == 0 && status == FP_OK)
		status =
			fp_own_calibration_make(&session->own, windows, &session->held_out, session->model,
									session->request->resume ? session->request->output : NULL, &session->settings);
	FP_TRY(fp_comm_agree(comm, status));
	FP_TRY(comm->ops->broadcast(comm, 0, windows->ids, tokens * (int64_t)sizeof *windows->ids));
cleanup:
	return status;
}

/* Completes the message of a failure. The rank that failed has the message and says which rank it is; an interrupt
 * reaches all ranks, and only rank 0 reports it. */
static void complete_message(const prune_session *session, fp_status status)
{
	fp_context *ctx = session->ctx;
	const fp_comm *comm = session->comm;
	const fp_prune_request *request = session->request;
	if (comm && (comm->failed_elsewhere || (comm->rank > 0 && status == FP_ERROR_INTERRUPTED))) {
		fp_clear_message(ctx);
		return;
	}
	fp_require_message(ctx, status);
	if (comm && comm->size > 1 && session->journal)
		fp_fail_in(ctx, status, "rank %d of %d", comm->rank, comm->size);
	if (request->kept && session->journal)
		*request->kept = fp_layer_journal_count(session->journal);
}

fp_status fp_prune(char **json, fp_context *ctx, const fp_prune_request *request, const fp_settings *settings)
{
	prune_session session = {.ctx = ctx, .request = request, .settings = *settings};
	fp_progress_function progress = ctx->progress;
	json_t *document = NULL;
	fp_status status;
	*json = NULL;
	fp_clear_message(ctx);
	if (request->kept)
		*request->kept = 0;
	FP_TRY(open_quietly(&session));
	bool leads = session.comm->rank == 0;
	fp_prune_task task = {.be = session.be,
						  .ctx = ctx,
						  .model = session.model,
						  .settings = &session.settings,
						  .windows = &session.windows,
						  .comm = session.comm,
						  .choice = &session.choice,
						  .basis = &session.basis,
						  .listener = request->metrics && leads ? send_metrics : NULL,
						  .listener_data = &session};
	FP_TRY(fp_comm_agree(session.comm, fp_prune_check_settings(&task)));
	if (request->dry_run) {
		if (leads)
			FP_TRY(fp_prune_plan_text(json, &task, request->model));
		goto cleanup;
	}
	FP_TRY(draw_own_text(&session));
	FP_TRY(run(&session, &task, &document));
	if (leads)
		status = finish(&session, document, json);
	FP_TRY(fp_comm_agree(session.comm, status));
cleanup:
	if (status != FP_OK) {
		fp_text_free(*json);
		*json = NULL;
		complete_message(&session, status);
	}
	json_decref(document);
	ctx->progress = progress;
	session_close(&session, status != FP_OK);
	return status;
}
