/* SPDX-License-Identifier: Apache-2.0 */
#include "api/own_calibration.h"

#include "base/digest.h"
#include "base/file.h"
#include "base/memory.h"
#include "checkpoint/working_folder.h"
#include "generation/start_token.h"
#include "tokenizer/tokenizer.h"

#include <string.h>

static const char file_name[] = "own-text";

/* The file: this head, the ids of the windows and of the held-out ones, the digest of all bytes before it. */
typedef struct kept_head {
	char magic[8];
	int64_t count, held_out, length, start;
	fp_own_text_statistics statistics;
} kept_head;

static const char magic[8] = "FPTEXT01";

static bool is_named(const char *const *calibration, int count)
{
	bool named = false;
	for (int i = 0; i < count; i++)
		named |= fp_is(calibration[i], "self");
	return named;
}

fp_status fp_own_calibration_asked(bool *out, fp_context *ctx, const char *const *calibration, int count)
{
	*out = is_named(calibration, count);
	if (*out && count > 1)
		return fp_fail(
			ctx, FP_ERROR_USAGE,
			"--calibration self is the model's own text and cannot be mixed with files; a file of that name is "
			"./self");
	return FP_OK;
}

fp_status fp_own_calibration_choose(fp_own_calibration *out, fp_context *ctx, const char *const *calibration, int count,
									bool needed, const fp_settings *settings)
{
	*out = (fp_own_calibration){.by_default = count == 0 && needed};
	out->wanted = out->by_default || is_named(calibration, count);
	return out->wanted ? fp_own_text_check_count(ctx, settings->samples) : FP_OK;
}

static fp_status find_start(fp_own_calibration *own, const fp_model *model, const fp_stop_tokens *stop)
{
	fp_tokenizer *tokenizer = NULL;
	fp_status status;
	FP_TRY(fp_tokenizer_open(&tokenizer, fp_model_backend(model)->ctx,
							 fp_checkpoint_directory(fp_model_checkpoint(model))));
	FP_TRY(fp_start_token(&own->start, model, tokenizer, stop));
cleanup:
	fp_tokenizer_free(tokenizer);
	return status;
}

static void log_text(fp_context *ctx, const fp_own_calibration *own, const fp_windows *windows)
{
	const fp_own_text_statistics *s = &own->statistics;
	fp_log(
		ctx, FP_LOG_INFO,
		"calibration self: %lld windows of %lld tokens in %.1f s: %lld texts, %.1f%% of runs of four tokens distinct, "
		"perplexity %.2f; %lld window%s drawn again",
		(long long)windows->count, (long long)windows->length, s->seconds, (long long)s->texts, 100 * s->distinct,
		s->perplexity, (long long)s->drawn_again, s->drawn_again == 1 ? " was" : "s were");
	if (s->repetitive > 0)
		fp_log(ctx, FP_LOG_WARNING,
			   "%lld of the windows that the model wrote still repeat themselves after hotter attempts; text from "
			   "--calibration FILE may be better",
			   (long long)s->repetitive);
}

static int64_t ids_bytes(const fp_windows *windows)
{
	return windows->count * windows->length * (int64_t)sizeof(int32_t);
}

/* Moves the ids of `all` to the two. */
static fp_status split(const int32_t *all, fp_context *ctx, fp_windows *windows, fp_windows *held_out)
{
	fp_status status;
	FP_TRY(FP_NEW(ctx, &windows->ids, windows->count * windows->length));
	memcpy(windows->ids, all, (size_t)ids_bytes(windows));
	FP_TRY(FP_NEW(ctx, &held_out->ids, held_out->count * held_out->length));
	memcpy(held_out->ids, all + windows->count * windows->length, (size_t)ids_bytes(held_out));
cleanup:
	return status;
}

/* *found: an unfinished run has kept windows of these numbers. A damaged file counts as none. */
static fp_status read_kept(fp_own_calibration *own, fp_windows *windows, fp_windows *held_out, fp_context *ctx,
						   const char *output, bool *found)
{
	fp_working_folder folder;
	char *path = NULL, *bytes = NULL;
	int64_t size, wanted = (int64_t)(sizeof(kept_head) + sizeof(uint64_t)) + ids_bytes(windows) + ids_bytes(held_out);
	kept_head head;
	uint64_t digest;
	fp_status status;
	*found = false;
	FP_TRY(fp_working_folder_resolve(&folder, ctx, output));
	FP_TRY(fp_join_path(&path, ctx, folder.path, file_name));
	if (!fp_is_file(path))
		goto cleanup;
	FP_TRY(fp_read_file(&bytes, &size, ctx, path, INT64_MAX));
	if (size != wanted)
		goto cleanup;
	memcpy(&head, bytes, sizeof head);
	memcpy(&digest, bytes + size - sizeof digest, sizeof digest);
	if (memcmp(head.magic, magic, sizeof magic) != 0 || head.count != windows->count ||
		head.held_out != held_out->count || head.length != windows->length || head.start != own->start ||
		digest != fp_digest_bytes(FP_DIGEST_START, bytes, size - (int64_t)sizeof digest))
		goto cleanup;
	own->statistics = head.statistics;
	FP_TRY(split((const int32_t *)(bytes + sizeof head), ctx, windows, held_out));
	*found = true;
cleanup:
	fp_free(bytes);
	fp_free(path);
	fp_working_folder_close(&folder, true);
	return status;
}

fp_status fp_own_calibration_keep(const fp_own_calibration *own, const fp_windows *windows, const fp_windows *held_out,
								  const fp_writer *writer, fp_context *ctx)
{
	kept_head head = {.count = windows->count,
					  .held_out = held_out->count,
					  .length = windows->length,
					  .start = own->start,
					  .statistics = own->statistics};
	int64_t first = ids_bytes(windows), second = ids_bytes(held_out), used = (int64_t)sizeof head + first + second;
	char *path = NULL, *bytes = NULL;
	uint64_t digest;
	fp_status status;
	FP_TRY(FP_NEW(ctx, &bytes, used + (int64_t)sizeof digest));
	memcpy(head.magic, magic, sizeof magic);
	memcpy(bytes, &head, sizeof head);
	memcpy(bytes + sizeof head, windows->ids, (size_t)first);
	if (second > 0)
		memcpy(bytes + sizeof head + first, held_out->ids, (size_t)second);
	digest = fp_digest_bytes(FP_DIGEST_START, bytes, used);
	memcpy(bytes + used, &digest, sizeof digest);
	FP_TRY(fp_join_path(&path, ctx, fp_writer_folder(writer), file_name));
	FP_TRY(fp_write_file_atomic(ctx, path, bytes, used + (int64_t)sizeof digest));
cleanup:
	fp_free(path);
	fp_free(bytes);
	return status;
}

fp_status fp_own_calibration_make(fp_own_calibration *own, fp_windows *windows, fp_windows *held_out, fp_model *model,
								  const char *resumed, const fp_settings *settings)
{
	fp_context *ctx = fp_model_backend(model)->ctx;
	fp_own_text_task task = {.model = model,
							 .seed = (uint64_t)settings->seed,
							 .count = windows->count + held_out->count,
							 .described = windows->count,
							 .length = windows->length};
	fp_windows all = {0};
	bool found = false;
	fp_status status;
	FP_TRY(fp_parse_size(ctx, settings->memory, &task.memory));
	FP_TRY(fp_stop_tokens_read(&task.stop, ctx, fp_model_checkpoint(model)));
	FP_TRY(find_start(own, model, &task.stop));
	task.start = own->start;
	if (resumed)
		FP_TRY(read_kept(own, windows, held_out, ctx, resumed, &found));
	if (found) {
		fp_log(ctx, FP_LOG_INFO, "calibration self: the windows of the unfinished run are used");
		goto cleanup;
	}
	if (own->by_default)
		fp_log(ctx, FP_LOG_INFO, "no --calibration FILE: %s writes the calibration text (--calibration self)",
			   fp_checkpoint_directory(fp_model_checkpoint(model)));
	status = fp_own_text(&all, &own->statistics, &task);
	if (status == FP_ERROR_MEMORY)
		fp_fail_in(ctx, status, "--calibration self (give --calibration FILE, which takes less memory)");
	if (status != FP_OK)
		goto cleanup;
	FP_TRY(split(all.ids, ctx, windows, held_out));
	log_text(ctx, own, windows);
cleanup:
	fp_windows_free(&all);
	return status;
}

json_t *fp_own_calibration_document(const fp_own_calibration *own, bool with_times)
{
	const fp_own_text_statistics *s = &own->statistics;
	json_t *document =
		json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:I, s:I}", "start_token", (json_int_t)own->start, "texts",
				  (json_int_t)s->texts, "drawn_tokens", (json_int_t)s->drawn_tokens, "distinct", s->distinct,
				  "least_distinct", s->least, "perplexity", s->perplexity, "temperature", s->temperature, "drawn_again",
				  (json_int_t)s->drawn_again, "repetitive", (json_int_t)s->repetitive);
	if (document && with_times)
		json_object_set_new(document, "seconds", json_real(s->seconds));
	return document;
}
