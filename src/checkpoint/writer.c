/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/writer.h"

#include "base/memory.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/companion_files.h"
#include "checkpoint/working_folder.h"
#include "checkpoint/writer_config.h"
#include "checkpoint/writer_layout.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct fp_writer {
	fp_context *ctx; /* of the thread that opened it; calls from other threads bring their own */
	const fp_checkpoint *source;
	fp_working_folder folder;
	bool keep;      /* finished parts are recorded: the folder stays when the writer is closed */
	bool exact;     /* files are as they were before they were packed, to the byte */
	bool joined;    /* the folder is another process's, which also commits */
	bool committed; /* the target is there */
	fp_output_layout layout;
	const json_t *quantisation; /* quantization_config of the output; NULL: none */
	int *files;                 /* open, or −1; one for each file of the layout */
	bool *changed;              /* for each of them: written since the last sync */
	bool *written;              /* for each tensor: has new bytes */
};

enum { COPY_BLOCK = 64 << 20 };

static fp_status check_space(const fp_writer *writer, int64_t companion_bytes)
{
	int64_t wanted = companion_bytes;
	bool fits = true;
	for (int i = 0; i < writer->layout.file_count; i++)
		fits = fits && fp_add_checked(wanted, writer->layout.files[i].size, &wanted);
	return fp_working_folder_check_space(&writer->folder, fits ? wanted : INT64_MAX);
}

/* Opens the shards, or creates them. Headers are always written: of an earlier run only the recorded tensors are known
 * to be on the disk. */
static fp_status open_shards(fp_writer *writer, bool existing)
{
	fp_status status = FP_OK;
	char *path = NULL;
	for (int i = 0; i < writer->layout.file_count; i++) {
		const fp_output_file *file = &writer->layout.files[i];
		fp_free(path);
		path = NULL;
		FP_TRY(fp_join_path(&path, writer->ctx, writer->folder.output, file->name));
		if (existing)
			FP_TRY(fp_open_for_update(&writer->files[i], writer->ctx, path, file->size));
		else
			FP_TRY(fp_create_file(&writer->files[i], writer->ctx, path, file->size));
		if (!writer->joined)
			FP_TRY(fp_write_at(writer->ctx, writer->files[i], path, file->header, file->header_size, 0));
		writer->changed[i] = !writer->joined;
	}
cleanup:
	fp_free(path);
	return status;
}

/* A file system without fallocate() leaves a new file empty, but a resumed run expects its full size. */
static fp_status set_sizes(fp_writer *writer)
{
	for (int i = 0; i < writer->layout.file_count; i++)
		if (ftruncate(writer->files[i], (off_t)writer->layout.files[i].size) != 0)
			return fp_fail(writer->ctx, FP_ERROR_IO, "%s: writing failed: %s", writer->layout.files[i].name,
						   strerror(errno));
	return FP_OK;
}

char *fp_writer_config(const fp_writer *writer, const json_t *entries)
{
	return fp_output_config(writer->source, writer->quantisation, entries);
}

/* The config of an output whose tensors have another form than the source's. */
static fp_status write_new_config(fp_writer *writer)
{
	char *text = NULL;
	fp_status status;
	FP_TRY(fp_output_config_new(&text, writer->ctx, writer->source, writer->quantisation, writer->exact));
	FP_TRY(fp_writer_add_file(writer, "config.json", text, (int64_t)strlen(text)));
cleanup:
	fp_free(text);
	return status;
}

/* Writes everything but the tensors. */
static fp_status prepare(fp_writer *writer, const fp_companion_files *companions, bool existing)
{
	fp_context *ctx = writer->ctx;
	fp_status status;
	FP_TRY(fp_companion_files_copy(companions, ctx, writer->source->directory, writer->folder.output));
	if (writer->source->codings || writer->source->packed || writer->quantisation)
		FP_TRY(write_new_config(writer));
	FP_TRY(open_shards(writer, existing));
	FP_TRY(set_sizes(writer));
	if (writer->layout.index)
		FP_TRY(fp_writer_add_file(writer, "model.safetensors.index.json", writer->layout.index,
								  (int64_t)strlen(writer->layout.index)));
	FP_TRY(fp_sync_directory(ctx, writer->folder.output));
	FP_TRY(fp_sync_directory(ctx, writer->folder.path));
	FP_TRY(fp_sync_directory(ctx, writer->folder.parent));
cleanup:
	return status;
}

static fp_status writer_new(fp_writer **out, fp_context *ctx, const fp_checkpoint *source, const char *directory,
							const fp_output_change *change, bool exact)
{
	fp_status status;
	fp_writer *writer = NULL;
	*out = NULL;
	FP_TRY(FP_NEW(ctx, &writer, 1));
	*out = writer;
	writer->ctx = ctx;
	writer->source = source;
	writer->exact = exact;
	writer->quantisation = change && change->format ? change->quantisation : NULL;
	FP_TRY(fp_working_folder_resolve(&writer->folder, ctx, directory));
	FP_TRY(fp_working_folder_check(&writer->folder, source->directory));
	FP_TRY(fp_output_layout_make(&writer->layout, ctx, source, change, exact));
	FP_TRY(FP_NEW(ctx, &writer->written, source->tensors.count + 1));
	FP_TRY(FP_NEW(ctx, &writer->changed, writer->layout.file_count));
	FP_TRY(FP_NEW(ctx, &writer->files, writer->layout.file_count));
	for (int i = 0; i < writer->layout.file_count; i++)
		writer->files[i] = -1;
cleanup:
	return status;
}

static fp_status writer_open(fp_writer **out, fp_context *ctx, const fp_checkpoint *source, const char *directory,
							 const fp_output_change *change, bool exact, bool resume, bool *begun)
{
	fp_status status;
	fp_writer *writer = NULL;
	fp_companion_files companions = {0};
	*out = NULL;
	*begun = false;
	FP_TRY(writer_new(&writer, ctx, source, directory, change, exact));
	bool same_index = source->format->is_output && !source->codings && !source->packed;
	FP_TRY(fp_companion_files_list(&companions, ctx, source->directory, same_index ? source->index_name : NULL));
	FP_TRY(fp_working_folder_take(&writer->folder, resume, begun));
	writer->keep = *begun;
	if (!*begun)
		FP_TRY(check_space(writer, companions.bytes));
	status = prepare(writer, &companions, *begun);
	if (status == FP_ERROR_INPUT && *begun) /* not after a full disk: the finished layers are good */
		fp_fail_in(ctx, status, "%s cannot be resumed; remove it to start over", writer->folder.path);
	if (status != FP_OK)
		goto cleanup;
	*out = writer;
	writer = NULL;
cleanup:
	fp_companion_files_free(&companions);
	fp_writer_close(writer);
	return status;
}

fp_status fp_writer_check(fp_context *ctx, const fp_checkpoint *source, const char *directory)
{
	fp_writer *writer = NULL;
	fp_status status = writer_new(&writer, ctx, source, directory, NULL, false);
	if (status == FP_OK)
		status = fp_working_folder_check_unfinished(&writer->folder);
	fp_writer_close(writer);
	return status;
}

fp_status fp_writer_open(fp_writer **out, fp_context *ctx, const fp_checkpoint *source, const char *directory,
						 const fp_output_change *change)
{
	bool begun;
	return writer_open(out, ctx, source, directory, change, false, false, &begun);
}

fp_status fp_writer_open_exact(fp_writer **out, fp_context *ctx, const fp_checkpoint *source, const char *directory)
{
	bool begun;
	return writer_open(out, ctx, source, directory, NULL, true, false, &begun);
}

fp_status fp_writer_resume(fp_writer **out, fp_context *ctx, const fp_checkpoint *source, const char *directory,
						   const fp_output_change *change, bool *begun)
{
	return writer_open(out, ctx, source, directory, change, false, true, begun);
}

fp_status fp_writer_join(fp_writer **out, fp_context *ctx, const fp_checkpoint *source, const char *directory,
						 const fp_output_change *change)
{
	fp_status status;
	fp_writer *writer = NULL;
	*out = NULL;
	FP_TRY(writer_new(&writer, ctx, source, directory, change, false));
	writer->joined = true;
	FP_TRY(open_shards(writer, true));
	*out = writer;
	writer = NULL;
cleanup:
	fp_writer_close(writer);
	return status;
}

/* Writes a tensor's bytes, or those of a part of it. */
static fp_status write_bytes(fp_writer *writer, fp_context *ctx, int64_t index, int64_t offset, const void *bytes,
							 int64_t size)
{
	int file = writer->layout.file_of[index];
	writer->changed[file] = true;
	fp_status status = fp_write_at(ctx, writer->files[file], writer->layout.files[file].name, bytes, size, offset);
	if (status == FP_OK) /* fp_writer_sync() then has less to wait for */
		fp_start_writing(writer->files[file], offset, size);
	return status;
}

/* The index of a tensor that has bytes of its own in the output. */
static fp_status find_tensor(int64_t *out, const fp_writer *writer, fp_context *ctx, const fp_tensor_info *tensor)
{
	const fp_tensor_list *tensors = &writer->source->tensors;
	const fp_tensor_info *known = fp_tensor_list_find(tensors, tensor->name), *added = &writer->layout.added;
	if (!known && added->name && strcmp(added->name, tensor->name) == 0)
		known = added;
	if (!known || known->bytes != tensor->bytes || known->dtype != tensor->dtype)
		return fp_fail(ctx, FP_ERROR_INTERNAL, "tensor '%s' is not one of %s", tensor->name, writer->source->directory);
	*out = known == added ? tensors->count : known - tensors->items;
	if (writer->layout.offsets[*out] < 0)
		return fp_fail(ctx, FP_ERROR_USAGE, "tensor '%s' is tied to the embedding and has no bytes of its own",
					   tensor->name);
	return FP_OK;
}

/* The parts of a tensor that is quantised, else NULL. */
static const fp_quantised_tensor *parts_of(const fp_writer *writer, int64_t index)
{
	const fp_quantised_tensor *all = writer->layout.quantised;
	return all && index < writer->source->tensors.count && all[index].count > 0 ? &all[index] : NULL;
}

fp_status fp_writer_replace(fp_writer *writer, fp_context *ctx, const fp_tensor_info *tensor, const void *bytes)
{
	int64_t index = -1;
	fp_status status = find_tensor(&index, writer, ctx, tensor);
	if (status == FP_OK && parts_of(writer, index))
		status = fp_fail(ctx, FP_ERROR_INTERNAL, "tensor '%s' is to be quantised and has no scales", tensor->name);
	if (status == FP_OK)
		status = write_bytes(writer, ctx, index, writer->layout.offsets[index], bytes, tensor->bytes);
	if (status == FP_OK)
		writer->written[index] = true;
	return status;
}

fp_status fp_writer_quantise(fp_writer *writer, fp_context *ctx, const fp_tensor_info *tensor, const void *bytes,
							 fp_grid_numbers numbers)
{
	char *parts[FP_QUANTISED_PARTS] = {NULL};
	int64_t index = -1;
	fp_status status;
	FP_TRY(find_tensor(&index, writer, ctx, tensor));
	const fp_quantised_tensor *quantised = parts_of(writer, index);
	if (!quantised)
		FP_TRY(fp_fail(ctx, FP_ERROR_INTERNAL, "tensor '%s' is not one of those that are quantised", tensor->name));
	FP_TRY(fp_quantised_parts_new(parts, ctx, quantised));
	FP_TRY(fp_quantised_encode(parts, ctx, quantised, bytes, numbers));
	for (int i = 0; i < quantised->count; i++)
		FP_TRY(write_bytes(writer, ctx, index, quantised->offsets[i], parts[i], quantised->parts[i].bytes));
	writer->written[index] = true;
cleanup:
	fp_quantised_parts_free(parts);
	return status;
}

fp_status fp_writer_mark(fp_writer *writer, fp_context *ctx, const fp_tensor_info *tensor)
{
	int64_t index = -1;
	fp_status status = find_tensor(&index, writer, ctx, tensor);
	if (status == FP_OK)
		writer->written[index] = true;
	return status;
}

fp_status fp_writer_read(fp_writer *writer, fp_context *ctx, const fp_tensor_info *tensor, void *bytes)
{
	char *parts[FP_QUANTISED_PARTS] = {NULL};
	int64_t index = -1;
	fp_status status;
	FP_TRY(find_tensor(&index, writer, ctx, tensor));
	const int file = writer->layout.file_of[index];
	const char *name = writer->layout.files[file].name;
	const fp_quantised_tensor *quantised = parts_of(writer, index);
	if (!quantised) {
		status = fp_read_at(ctx, writer->files[file], name, bytes, tensor->bytes, writer->layout.offsets[index]);
		goto cleanup;
	}
	FP_TRY(fp_quantised_parts_new(parts, ctx, quantised));
	for (int i = 0; i < quantised->count; i++)
		FP_TRY(fp_read_at(ctx, writer->files[file], name, parts[i], quantised->parts[i].bytes, quantised->offsets[i]));
	FP_TRY(fp_quantised_decode(bytes, ctx, quantised, parts));
cleanup:
	fp_quantised_parts_free(parts);
	return status;
}

fp_status fp_writer_sync(fp_writer *writer, fp_context *ctx)
{
	for (int i = 0; i < writer->layout.file_count; i++) {
		if (!writer->changed[i])
			continue;
		if (fsync(writer->files[i]) != 0)
			return fp_fail(ctx, FP_ERROR_IO, "%s: writing failed: %s", writer->layout.files[i].name, strerror(errno));
		writer->changed[i] = false;
	}
	return FP_OK;
}

const char *fp_writer_folder(const fp_writer *writer)
{
	return writer->folder.path;
}

void fp_writer_keep(fp_writer *writer)
{
	writer->keep = true;
}

fp_status fp_writer_add_file(fp_writer *writer, const char *name, const void *bytes, int64_t size)
{
	fp_context *ctx = writer->ctx;
	fp_status status = FP_OK;
	char *path = NULL;
	if (name[0] == '\0' || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return fp_fail(ctx, FP_ERROR_USAGE, "'%s' is not a plain file name", name);
	for (int i = 0; i < writer->layout.file_count; i++)
		if (strcmp(writer->layout.files[i].name, name) == 0)
			return fp_fail(ctx, FP_ERROR_USAGE, "'%s' is the name of a weight file; use another", name);
	FP_TRY(fp_join_path(&path, ctx, writer->folder.output, name));
	unlink(path); /* the source's file of this name, copied before */
	FP_TRY(fp_write_file(ctx, path, bytes, size));
cleanup:
	fp_free(path);
	return status;
}

/* Copies a tensor of the source. In blocks, so that a long copy can be interrupted. */
static fp_status copy_tensor(fp_writer *writer, int64_t index)
{
	const fp_tensor_info *tensor = &writer->source->tensors.items[index];
	int file = writer->layout.file_of[index];
	const void *bytes;
	void *own;
	fp_status status;
	FP_TRY(fp_checkpoint_read(&bytes, &own, writer->ctx, writer->source, tensor));
	for (int64_t done = 0; done < tensor->bytes; done += COPY_BLOCK) {
		int64_t count = tensor->bytes - done < COPY_BLOCK ? tensor->bytes - done : COPY_BLOCK;
		const char *block = (const char *)bytes + done;
		FP_TRY(fp_check_interrupt(writer->ctx));
		FP_TRY(fp_write_at(writer->ctx, writer->files[file], writer->layout.files[file].name, block, count,
						   writer->layout.offsets[index] + done));
		if (!own)
			fp_forget_pages(block, count);
	}
	if (own)
		fp_checkpoint_forget(writer->source, tensor);
cleanup:
	fp_free(own);
	return status;
}

static fp_status copy_kept_tensors(fp_writer *writer)
{
	for (int64_t i = 0; i < writer->source->tensors.count; i++) {
		if (writer->written[i] || writer->layout.offsets[i] < 0)
			continue;
		if (parts_of(writer, i))
			return fp_fail(writer->ctx, FP_ERROR_INTERNAL, "tensor '%s' was to be quantised and has no bytes",
						   writer->source->tensors.items[i].name);
		fp_status status = copy_tensor(writer, i);
		if (status != FP_OK)
			return status;
		writer->written[i] = true;
	}
	return FP_OK;
}

fp_status fp_writer_commit(fp_writer *writer)
{
	fp_status status = FP_OK;
	if (writer->layout.added.name && !writer->written[writer->source->tensors.count])
		FP_TRY(fp_fail(writer->ctx, FP_ERROR_INTERNAL, "tensor '%s' was added and has no bytes",
					   writer->layout.added.name));
	FP_TRY(copy_kept_tensors(writer));
	for (int i = 0; i < writer->layout.file_count; i++) {
		int file = writer->files[i];
		writer->files[i] = -1;
		FP_TRY(fp_close_synced(writer->ctx, file, writer->layout.files[i].name));
	}
	FP_TRY(fp_sync_directory(writer->ctx, writer->folder.output));
	FP_TRY(fp_working_folder_commit(&writer->folder));
	writer->committed = true;
cleanup:
	return status;
}

void fp_writer_close(fp_writer *writer)
{
	if (!writer)
		return;
	for (int i = 0; writer->files && i < writer->layout.file_count; i++)
		if (writer->files[i] >= 0)
			close(writer->files[i]);
	fp_working_folder_close(&writer->folder, writer->keep && !writer->committed);
	fp_output_layout_free(&writer->layout);
	fp_free(writer->files);
	fp_free(writer->changed);
	fp_free(writer->written);
	fp_free(writer);
}
