/* SPDX-License-Identifier: Apache-2.0 */
#include "run/layer_journal.h"

#include "base/digest.h"
#include "base/file.h"
#include "base/memory.h"
#include "checkpoint/working_folder.h"
#include "run/run_identity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES ((int64_t)64 << 20) /* limit for files that are read; records have a few thousand bytes */

struct fp_layer_journal {
	fp_context *ctx;
	fp_writer *writer;
	const fp_model *model;
	const fp_checkpoint *checkpoint;
	int64_t layers;
	bool *finished;
};

/*
 * A record consists of this head, then
 *
 *     operators × fp_operator_result
 *     fits × fp_fit_result
 *     the index of each replaced tensor, as int64_t
 *     the digest of all bytes before it, as uint64_t
 *
 * Structures are stored as they are in memory: run.json rules out other versions of the program, and the sizes in the
 * head are checked.
 */
typedef struct record_head {
	char magic[8];
	int64_t layer, operator_size, operators, fit_size, fits, tensors;
} record_head;

static const char magic[8] = "FPLAYER2";

typedef struct layer_record {
	fp_layer_journal *journal;
	int64_t layer, size;
	char *bytes;
} layer_record;

static fp_status record_path(char **out, const fp_layer_journal *journal, fp_context *ctx, int64_t layer)
{
	char name[64];
	snprintf(name, sizeof name, FP_FINISHED_PREFIX "%05lld", (long long)layer);
	return fp_join_path(out, ctx, fp_writer_folder(journal->writer), name);
}

static int64_t record_size(const record_head *head)
{
	return (int64_t)(sizeof *head + sizeof(uint64_t)) + head->operators * head->operator_size +
		   head->fits * head->fit_size + head->tensors * (int64_t)sizeof(int64_t);
}

/* True if the bytes are a complete record of this layer, written by this program. */
static bool is_complete(const fp_layer_journal *journal, const char *bytes, int64_t size, int64_t layer)
{
	record_head head;
	uint64_t digest;
	int64_t count = fp_checkpoint_tensor_count(journal->checkpoint);
	if (size < (int64_t)(sizeof head + sizeof digest))
		return false;
	memcpy(&head, bytes, sizeof head);
	memcpy(&digest, bytes + size - sizeof digest, sizeof digest);
	if (digest != fp_digest_bytes(FP_DIGEST_START, bytes, size - (int64_t)sizeof digest) ||
		memcmp(head.magic, magic, sizeof magic) != 0 || head.layer != layer ||
		head.operator_size != (int64_t)sizeof(fp_operator_result) || head.fit_size != (int64_t)sizeof(fp_fit_result) ||
		head.operators < 0 || head.operators > fp_model_operators(journal->model) || head.fits < 0 || head.fits > 1 ||
		head.tensors < 0 || head.tensors > count)
		return false;
	return size == record_size(&head);
}

/* *out ← the record, or NULL if there is none or it is damaged. */
static fp_status read_record(char **out, const fp_layer_journal *journal, int64_t layer)
{
	char *path = NULL, *bytes = NULL;
	int64_t size;
	fp_status status;
	*out = NULL;
	FP_TRY(record_path(&path, journal, journal->ctx, layer));
	if (!fp_is_file(path))
		goto cleanup;
	FP_TRY(fp_read_file(&bytes, &size, journal->ctx, path, MOST_BYTES));
	if (is_complete(journal, bytes, size, layer)) {
		*out = bytes;
		bytes = NULL;
	} else {
		fp_log(journal->ctx, FP_LOG_WARNING, "%s: is damaged; the layer will be pruned again", path);
	}
cleanup:
	fp_free(bytes);
	fp_free(path);
	return status;
}

fp_status fp_layer_journal_refresh(fp_layer_journal *journal)
{
	fp_status status = FP_OK;
	for (int64_t layer = 0; layer < journal->layers; layer++) {
		char *bytes;
		if (journal->finished[layer])
			continue;
		FP_TRY(read_record(&bytes, journal, layer));
		journal->finished[layer] = bytes != NULL;
		fp_free(bytes);
	}
cleanup:
	return status;
}

/* Compares this run with the one that started the output, or records this run's identity in a new output. */
static fp_status check_identity(const fp_layer_journal *journal, const fp_prune_task *task, bool begun)
{
	fp_context *ctx = journal->ctx;
	const char *folder = fp_writer_folder(journal->writer);
	json_t *now = fp_run_identity(task), *then = NULL;
	char *path = NULL, *text = NULL, *written = now ? json_dumps(now, JSON_INDENT(1)) : NULL;
	int64_t size;
	fp_status status;
	if (!written)
		FP_TRY(fp_fail(ctx, FP_ERROR_MEMORY, "out of memory for the journal"));
	FP_TRY(fp_join_path(&path, ctx, folder, "run.json"));
	if (!begun) {
		FP_TRY(fp_write_file_atomic(ctx, path, written, (int64_t)strlen(written)));
		goto cleanup;
	}
	FP_TRY(fp_read_file(&text, &size, ctx, path, MOST_BYTES));
	then = json_loadb(text, (size_t)size, 0, NULL);
	if (!then)
		FP_TRY(fp_fail(ctx, FP_ERROR_INPUT, "%s: is damaged; delete %s to start over", path, folder));
	FP_TRY(fp_run_identity_compare(ctx, then, now, folder));
cleanup:
	fp_free(text);
	fp_free(path);
	free(written);
	json_decref(then);
	json_decref(now);
	return status;
}

fp_status fp_layer_journal_open(fp_layer_journal **out, const fp_prune_task *task, bool begun)
{
	fp_context *ctx = task->ctx;
	fp_layer_journal *journal = NULL;
	fp_status status;
	*out = NULL;
	FP_TRY(FP_NEW(ctx, &journal, 1));
	journal->ctx = ctx;
	journal->writer = task->writer;
	journal->model = task->model;
	journal->checkpoint = fp_model_checkpoint(task->model);
	journal->layers = fp_model_get_config(task->model)->layers;
	FP_TRY(FP_NEW(ctx, &journal->finished, journal->layers));
	FP_TRY(check_identity(journal, task, begun));
	if (begun)
		FP_TRY(fp_layer_journal_refresh(journal));
	*out = journal;
	journal = NULL;
cleanup:
	fp_layer_journal_close(journal);
	return status;
}

void fp_layer_journal_close(fp_layer_journal *journal)
{
	if (!journal)
		return;
	fp_free(journal->finished);
	fp_free(journal);
}

bool fp_layer_journal_has(const fp_layer_journal *journal, int64_t layer)
{
	return journal && journal->finished[layer];
}

int64_t fp_layer_journal_count(const fp_layer_journal *journal)
{
	int64_t count = 0;
	for (int64_t layer = 0; layer < journal->layers; layer++)
		count += journal->finished[layer];
	return count;
}

/* The i-th tensor of a record; NULL if its index is out of range. */
static const fp_tensor_info *tensor_at(const fp_layer_journal *journal, const char *indices, int64_t i)
{
	int64_t index;
	memcpy(&index, indices + i * (int64_t)sizeof index, sizeof index);
	return index >= 0 && index < fp_checkpoint_tensor_count(journal->checkpoint)
			   ? fp_checkpoint_tensor(journal->checkpoint, index)
			   : NULL;
}

static fp_status damaged(const fp_layer_journal *journal, int64_t layer)
{
	return fp_fail(journal->ctx, FP_ERROR_INPUT,
				   "%s/" FP_FINISHED_PREFIX "%05lld: is damaged; delete it and run again with --resume",
				   fp_writer_folder(journal->writer), (long long)layer);
}

fp_status fp_layer_journal_restore(fp_layer_journal *journal, int64_t layer, fp_prune_result *result)
{
	char *bytes = NULL;
	record_head head;
	fp_status status;
	FP_TRY(read_record(&bytes, journal, layer));
	if (!bytes)
		FP_TRY(damaged(journal, layer));
	memcpy(&head, bytes, sizeof head);
	const char *operators = bytes + sizeof head, *fits = operators + head.operators * head.operator_size;
	const char *indices = fits + head.fits * head.fit_size;
	FP_TRY(FP_GROW(journal->ctx, &result->operators, &result->capacity, result->count + head.operators));
	FP_TRY(FP_GROW(journal->ctx, &result->fits, &result->fit_capacity, result->fit_count + head.fits));
	for (int64_t i = 0; i < head.operators; i++) {
		fp_operator_result *restored = &result->operators[result->count];
		memcpy(restored, operators + i * head.operator_size, sizeof *restored);
		restored->tensor = fp_model_operator(journal->model, restored->layer, restored->number);
		if (!restored->tensor)
			FP_TRY(damaged(journal, layer));
		fp_prune_result_count(result, restored);
		result->count++;
	}
	for (int64_t i = 0; i < head.fits; i++)
		memcpy(&result->fits[result->fit_count++], fits, sizeof *result->fits);
	for (int64_t i = 0; i < head.tensors; i++) {
		const fp_tensor_info *tensor = tensor_at(journal, indices, i);
		if (!tensor)
			FP_TRY(damaged(journal, layer));
		FP_TRY(fp_writer_mark(journal->writer, journal->ctx, tensor));
	}
cleanup:
	fp_free(bytes);
	return status;
}

fp_status fp_layer_journal_overlay(fp_layer_journal *journal, int64_t layer, fp_overlay **out)
{
	char *record = NULL, *bytes = NULL;
	int64_t capacity = 0;
	record_head head;
	fp_overlay *overlay = NULL;
	fp_status status;
	*out = NULL;
	FP_TRY(read_record(&record, journal, layer));
	if (!record)
		FP_TRY(damaged(journal, layer));
	memcpy(&head, record, sizeof head);
	const char *indices = record + sizeof head + head.operators * head.operator_size + head.fits * head.fit_size;
	FP_TRY(fp_overlay_new(&overlay, journal->ctx));
	for (int64_t i = 0; i < head.tensors; i++) {
		const fp_tensor_info *tensor = tensor_at(journal, indices, i);
		if (!tensor)
			FP_TRY(damaged(journal, layer));
		FP_TRY(FP_GROW(journal->ctx, &bytes, &capacity, tensor->bytes));
		FP_TRY(fp_writer_read(journal->writer, journal->ctx, tensor, bytes));
		FP_TRY(fp_overlay_replace(overlay, tensor, bytes));
	}
	*out = overlay;
	overlay = NULL;
cleanup:
	fp_overlay_free(overlay);
	fp_free(bytes);
	fp_free(record);
	return status;
}

static void free_record(void *data)
{
	layer_record *record = data;
	if (record)
		fp_free(record->bytes);
	fp_free(record);
}

/* Runs on the writing thread after the layer's tensors, which therefore reach the disk before the record. */
static fp_status write_record(void *data, fp_context *ctx)
{
	const layer_record *record = data;
	char *path = NULL;
	fp_status status;
	FP_TRY(fp_writer_sync(record->journal->writer, ctx));
	FP_TRY(record_path(&path, record->journal, ctx, record->layer));
	FP_TRY(fp_write_file_atomic(ctx, path, record->bytes, record->size));
	fp_writer_keep(record->journal->writer);
	record->journal->finished[record->layer] = true; /* the other thread reads it only after this thread has ended */
cleanup:
	fp_free(path);
	return status;
}

static char *put(char *at, const void *bytes, int64_t size)
{
	memcpy(at, bytes, (size_t)size);
	return at + size;
}

static char *put_index(char *at, const fp_layer_journal *journal, const fp_tensor_info *tensor)
{
	int64_t index = tensor - fp_checkpoint_tensor(journal->checkpoint, 0);
	return put(at, &index, sizeof index);
}

fp_status fp_layer_journal_add(fp_layer_journal *journal, fp_write_behind *behind, int64_t layer,
							   const fp_prune_result *result, int64_t operators, int64_t fits,
							   const fp_tensor_info *const *replaced, int64_t replaced_count)
{
	layer_record *record = NULL;
	record_head head = {.layer = layer,
						.operator_size = sizeof(fp_operator_result),
						.operators = result->count - operators,
						.fit_size = sizeof(fp_fit_result),
						.fits = result->fit_count - fits,
						.tensors = replaced_count};
	uint64_t digest;
	fp_status status;
	memcpy(head.magic, magic, sizeof magic);
	FP_TRY(FP_NEW(journal->ctx, &record, 1));
	*record = (layer_record){.journal = journal, .layer = layer};
	record->size = record_size(&head);
	FP_TRY(FP_NEW(journal->ctx, &record->bytes, record->size));
	char *at = put(record->bytes, &head, sizeof head);
	at = put(at, result->operators + operators, head.operators * head.operator_size);
	at = head.fits > 0 ? put(at, result->fits + fits, head.fits * head.fit_size) : at;
	for (int64_t i = 0; i < replaced_count; i++)
		at = put_index(at, journal, replaced[i]);
	digest = fp_digest_bytes(FP_DIGEST_START, record->bytes, at - record->bytes);
	put(at, &digest, sizeof digest);
	status = fp_write_behind_call(behind, write_record, free_record, record);
	record = NULL; /* it is freed in any case */
cleanup:
	free_record(record);
	return status;
}
