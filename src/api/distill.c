/* SPDX-License-Identifier: Apache-2.0 */
/* distill.c: fp_distill(): opens both models and the text, fits the pruned model, and writes it. */
#include "api/own_calibration.h"
#include "api/result_text.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "checkpoint/writer.h"
#include "fitting/layer_fit.h"
#include "fitting/model_fit.h"
#include "model/basis.h"
#include "run/tensor_joiner.h"
#include "tokenizer/tokenizer.h"

#include <fistapruner/fistapruner.h>
#include <math.h>
#include <string.h>

typedef struct distillation {
	fp_context *ctx;
	const fp_distill_request *request;
	fp_settings settings; /* resolved copy */
	fp_backend *be;
	fp_checkpoint *checkpoint, *reference;
	fp_model *pruned, *dense;
	const char **files; /* the text */
	int file_count;
	fp_own_calibration own;
	fp_windows windows; /* the first ones are held out; the last ones are own text */
	int64_t held_out, own_count;
	fp_writer *writer;
	fp_tensor_joiner *joiner;
	fp_model_fit_result result;
} distillation;

static void close_all(distillation *d)
{
	fp_tensor_joiner_free(d->joiner);
	fp_writer_close(d->writer);
	fp_windows_free(&d->windows);
	fp_free(d->files);
	fp_model_close(d->dense);
	fp_model_close(d->pruned);
	fp_backend_close(d->be);
	fp_checkpoint_close(d->reference);
	fp_checkpoint_close(d->checkpoint);
}

static fp_status check_request(distillation *d)
{
	const fp_distill_request *request = d->request;
	if (!request->output)
		return fp_fail(d->ctx, FP_ERROR_USAGE, "an output directory is needed: -o DIR");
	if (!request->reference)
		return fp_fail(d->ctx, FP_ERROR_USAGE, "the dense model that was pruned is needed: --reference DENSE");
	return FP_OK;
}

/* Files, the dense model's own text (the word self, or nothing), or both. */
static fp_status choose_text(distillation *d)
{
	const fp_distill_request *request = d->request;
	int count = request->calibration_count;
	fp_status status;
	FP_TRY(fp_own_calibration_choose(&d->own, d->ctx, request->calibration, count, true, &d->settings));
	FP_TRY(FP_NEW(d->ctx, &d->files, count));
	for (int i = 0; i < count; i++)
		if (strcmp(request->calibration[i], "self") != 0)
			d->files[d->file_count++] = request->calibration[i];
cleanup:
	return status;
}

/* At most so many windows of this length judge the fit. */
static int64_t most_judges(int64_t length)
{
	enum { TOKENS = 8192, MOST = 32 };
	return fp_smaller(fp_larger(TOKENS / length, 2), MOST);
}

/* *out ← the windows that judge the fit, of the text that prune has not seen with the same flags; then those that the
 * fit learns from. Where the text has no others, the last ones of the latter judge: prune may have seen fewer. With own
 * text besides, all of the text is used. */
static fp_status read_windows(const distillation *d, const fp_checkpoint *checkpoint, int64_t length, fp_windows *out,
							  int64_t *held_out)
{
	const fp_settings *s = &d->settings;
	const char *const *files = d->files;
	int count = d->file_count;
	int64_t samples = d->own.wanted ? 0 : s->samples;
	fp_tokenizer *tokenizer = NULL;
	fp_windows learned = {0}, judged = {0};
	fp_status status;
	FP_TRY(fp_tokenizer_open(&tokenizer, d->ctx, fp_checkpoint_directory(checkpoint)));
	FP_TRY(fp_windows_calibration(&learned, d->ctx, tokenizer, files, count, s->sampler, samples, length,
								  (uint64_t)s->seed));
	FP_TRY(fp_windows_held_out(&judged, d->ctx, tokenizer, files, count, s->sampler, samples, length, (uint64_t)s->seed,
							   most_judges(length)));
	*held_out = judged.count > 0 ? judged.count : fp_fit_held_out(s, learned.count);
	const fp_windows *judges = judged.count > 0 ? &judged : &learned;
	int64_t rest = judged.count > 0 ? learned.count : learned.count - *held_out;
	if (d->own.wanted)
		rest = fp_smaller(rest, s->samples);
	*out = (fp_windows){.count = *held_out + rest, .length = length};
	FP_TRY(FP_NEW(d->ctx, &out->ids, out->count * length));
	memcpy(out->ids, judges->ids + (judges->count - *held_out) * length,
		   (size_t)(*held_out * length) * sizeof *out->ids);
	memcpy(out->ids + *held_out * length, learned.ids, (size_t)(rest * length) * sizeof *out->ids);
cleanup:
	fp_windows_free(&judged);
	fp_windows_free(&learned);
	fp_tokenizer_free(tokenizer);
	return status;
}

static fp_status tokenizers_differ(const distillation *d)
{
	return fp_fail(d->ctx, FP_ERROR_INPUT,
				   "%s and the reference %s have different tokenizers: the reference must be the dense model that was "
				   "pruned",
				   d->request->model, d->request->reference);
}

/* The windows, which both tokenizers must cut into the same ids; of the dense model's own text only their numbers. */
static fp_status read_text(distillation *d)
{
	int64_t length = d->settings.sequence_length ? d->settings.sequence_length : fp_model_default_length(d->pruned);
	int64_t held_out;
	fp_windows other = {0};
	fp_status status;
	FP_TRY(fp_model_check_length(d->pruned, length));
	FP_TRY(fp_model_check_length(d->dense, length));
	if (fp_model_get_config(d->pruned)->vocabulary != fp_model_get_config(d->dense)->vocabulary)
		FP_TRY(tokenizers_differ(d));
	if (d->file_count == 0) {
		d->held_out = most_judges(length);
		d->own_count = d->settings.samples + d->held_out;
		d->windows = (fp_windows){.count = d->own_count, .length = length};
		goto cleanup;
	}
	FP_TRY(read_windows(d, d->checkpoint, length, &d->windows, &d->held_out));
	FP_TRY(read_windows(d, d->reference, length, &other, &held_out));
	size_t bytes = (size_t)(d->windows.count * length) * sizeof *d->windows.ids;
	if (other.count != d->windows.count || memcmp(other.ids, d->windows.ids, bytes) != 0)
		FP_TRY(tokenizers_differ(d));
	if (d->held_out == 0)
		FP_TRY(fp_fail(d->ctx, FP_ERROR_USAGE,
					   "--samples %lld: a window to learn from and one to judge by are needed: 2 at least, such as 128",
					   (long long)d->settings.samples));
	if (d->own.wanted) {
		d->own_count = d->settings.samples - (d->windows.count - d->held_out);
		d->windows.count += d->own_count;
	}
cleanup:
	fp_windows_free(&other);
	return status;
}

/* The windows that prune drew with the same flags are learned from, and, if there is no other text, further ones judge. */
static fp_status draw_own_text(distillation *d)
{
	int64_t length = d->windows.length, others = d->windows.count - d->own_count;
	int64_t judging = d->file_count == 0 ? d->held_out : 0;
	fp_windows learned = {.count = d->own_count - judging, .length = length};
	fp_windows judges = {.count = judging, .length = length};
	int32_t *ids = NULL;
	fp_status status = FP_OK;
	if (d->own_count == 0)
		return FP_OK;
	FP_TRY(fp_own_calibration_make(&d->own, &learned, &judges, d->dense, NULL, &d->settings));
	FP_TRY(FP_NEW(d->ctx, &ids, d->windows.count * length));
	const fp_windows parts[] = {{.ids = d->windows.ids, .count = others}, judges, learned};
	int32_t *end = ids;
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		if (parts[i].count > 0)
			memcpy(end, parts[i].ids, (size_t)(parts[i].count * length) * sizeof *ids);
		end += parts[i].count * length;
	}
	fp_free(d->windows.ids);
	d->windows.ids = ids;
cleanup:
	fp_windows_free(&judges);
	fp_windows_free(&learned);
	return status;
}

/* Offloads as little as fits into memory. */
static fp_status plan_memory(const distillation *d, fp_model_fit_task *task)
{
	static const char *const what[FP_OFFLOAD_COUNT] = {"nothing", "layers",
													   "layers and the dense model's hidden states"};
	/* where the device's memory is the host's, hidden states take the same in either place */
	fp_offload most = d->be->memory->address ? FP_OFFLOAD_LAYERS : FP_OFFLOAD_STATES;
	int64_t needed, limit, available, total;
	fp_status status;
	FP_TRY(fp_parse_size(d->ctx, d->settings.memory, &limit));
	FP_TRY(d->be->memory->available(d->be, &available, &total));
	if (limit == 0)
		limit = available / 10 * 9;
	for (task->offload = FP_OFFLOAD_NOTHING;; task->offload++) {
		FP_TRY(fp_model_fit_bytes(task, &needed));
		if (needed <= limit)
			break;
		if (task->offload == most)
			FP_TRY(fp_fail(d->ctx, FP_ERROR_MEMORY,
						   "%s: distilling takes %.0f MiB at least, and %.0f MiB may be used; fewer or shorter windows "
						   "(--samples, --sequence-length, --set fit_tokens=N) take less",
						   d->request->model, ceil((double)needed / 1048576.0), floor((double)limit / 1048576.0)));
	}
	fp_log(d->ctx, task->offload == FP_OFFLOAD_NOTHING ? FP_LOG_DEBUG : FP_LOG_INFO,
		   "memory: %.0f MiB expected; offloaded: %s", (double)needed / 1048576.0, what[task->offload]);
cleanup:
	return status;
}

static fp_status open_all(distillation *d)
{
	fp_context *ctx = d->ctx;
	fp_status status;
	FP_TRY(check_request(d));
	FP_TRY(choose_text(d));
	FP_TRY(fp_checkpoint_open(&d->checkpoint, ctx, d->request->model));
	FP_TRY(fp_checkpoint_open(&d->reference, ctx, d->request->reference));
	FP_TRY(fp_writer_check(ctx, d->checkpoint, d->request->output));
	FP_TRY(fp_settings_resolve(&d->settings, ctx, ""));
	FP_TRY(fp_backend_open(&d->be, ctx, d->settings.device, (int)d->settings.threads));
	FP_TRY(fp_fit_check(d->be));
	FP_TRY(fp_model_open(&d->pruned, d->be, d->checkpoint));
	FP_TRY(fp_model_open(&d->dense, d->be, d->reference));
	FP_TRY(fp_backend_set_precision(d->be, d->settings.precision, fp_model_get_config(d->pruned)->hidden));
	FP_TRY(read_text(d));
cleanup:
	return status;
}

static fp_status put(void *data, const fp_tensor_info *tensor, const void *bytes)
{
	distillation *d = data;
	return tensor->whole ? fp_tensor_joiner_put(d->joiner, tensor, bytes)
						 : fp_writer_replace(d->writer, d->ctx, tensor, bytes);
}

static fp_status put_joined(void *data, const fp_tensor_info *tensor, const void *bytes, fp_grid_numbers numbers,
							int64_t groups)
{
	distillation *d = data;
	(void)numbers;
	(void)groups;
	return fp_writer_replace(d->writer, d->ctx, tensor, bytes);
}

static fp_status take_layer(void *data, const fp_layer *layer)
{
	distillation *d = data;
	fp_status status = FP_OK;
	for (int i = 0; i < fp_model_operators(d->pruned); i++)
		FP_TRY(fp_layer_give_operator(layer, i, put, d));
	FP_TRY(fp_layer_give_vectors(layer, put, d));
	FP_TRY(fp_tensor_joiner_flush(d->joiner, put_joined, d));
cleanup:
	return status;
}

/* Without what differs from run to run unless with_times, for the file; the caller adds more of that for the result. */
static json_t *document_of(const distillation *d, bool with_times)
{
	const fp_settings *s = &d->settings;
	json_t *document = json_pack(
		"{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "program", fp_version(), "model",
		d->request->model, "reference", d->request->reference, "windows", (json_int_t)(d->windows.count - d->held_out),
		"held_out_windows", (json_int_t)d->held_out, "sequence_length", (json_int_t)d->windows.length, "seed",
		(json_int_t)s->seed, "steps", (json_int_t)d->result.most_steps, "kept_steps", (json_int_t)d->result.steps,
		"fit_rate", s->fit_rate, "kl_before", d->result.kl_before, "kl_after", d->result.kl_after);
	if (document && d->own_count > 0)
		json_object_set_new(document, "own_text", fp_own_calibration_document(&d->own, with_times));
	return document;
}

static fp_status write_report(const distillation *d)
{
	char *text = NULL;
	fp_status status;
	FP_TRY(fp_result_text(&text, d->ctx, document_of(d, false)));
	FP_TRY(fp_writer_add_file(d->writer, "distillation_report.json", text, (int64_t)strlen(text)));
cleanup:
	fp_text_free(text);
	return status;
}

fp_status fp_distill(char **json, fp_context *ctx, const fp_distill_request *request, const fp_settings *settings)
{
	distillation d = {.ctx = ctx, .request = request, .settings = *settings};
	double start = fp_clock();
	json_t *document = NULL;
	fp_status status;
	*json = NULL;
	fp_clear_message(ctx);
	FP_TRY(open_all(&d));
	fp_model_fit_task task = {
		.pruned = d.pruned, .dense = d.dense, .settings = &d.settings, .windows = &d.windows, .held_out = d.held_out};
	FP_TRY(plan_memory(&d, &task));
	FP_TRY(draw_own_text(&d));
	FP_TRY(fp_writer_open(&d.writer, ctx, d.checkpoint, request->output, NULL));
	FP_TRY(fp_tensor_joiner_new(&d.joiner, ctx, d.checkpoint));
	FP_TRY(fp_fit_model(&task, take_layer, &d, &d.result));
	FP_TRY(write_report(&d));
	FP_TRY(fp_writer_commit(d.writer));
	document = document_of(&d, true);
	if (document) {
		json_object_set_new(document, "output", json_string(request->output));
		json_object_set_new(document, "device", json_string(d.be->description));
		json_object_set_new(document, "seconds", json_real(fp_clock() - start));
		json_object_set_new(document, "peak_memory_bytes", json_integer((json_int_t)fp_peak_memory()));
		if (d.be->peak_bytes > 0)
			json_object_set_new(document, "peak_device_memory_bytes", json_integer(d.be->peak_bytes));
	}
	status = fp_result_text(json, ctx, document);
cleanup:
	fp_require_message(ctx, status);
	close_all(&d);
	return status;
}
