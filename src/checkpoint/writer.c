/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/writer.h"

#include "base/memory.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/companion_files.h"
#include "checkpoint/writer_layout.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct fp_writer {
	fp_context *ctx;
	const fp_checkpoint *source;
	char *parent;  /* the real directory that holds the target */
	char *target;  /* the final name */
	char *partial; /* what is written into meanwhile; exists iff made */
	bool made;
	fp_output_layout layout;
	int *files;    /* open, or −1; one for each shard */
	bool *written; /* for each tensor: has new bytes */
};

/* Room for the report and for what the file system itself needs. */
enum { SPARE_ROOM = 16 << 20, MAX_PARTIAL_TRIES = 100, COPY_BLOCK = 64 << 20 };

static bool is_empty_directory(const char *path)
{
	DIR *folder = opendir(path);
	if (!folder)
		return false;
	bool empty = true;
	for (const struct dirent *entry = readdir(folder); entry && empty; entry = readdir(folder))
		empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
	closedir(folder);
	return empty;
}

static bool is_inside(const char *path, const char *directory)
{
	size_t length = strlen(directory);
	return strncmp(path, directory, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

/* Splits the wish into a real parent and a last name, without trailing slashes. */
static fp_status resolve_target(fp_writer *writer, const char *directory)
{
	fp_context *ctx = writer->ctx;
	fp_status status;
	char *wish = NULL, *real = realpath(directory, NULL);
	FP_TRY(fp_copy_text(ctx, &wish, real ? real : directory));
	size_t length = strlen(wish);
	while (length > 1 && wish[length - 1] == '/')
		wish[--length] = '\0';
	char *slash = strrchr(wish, '/');
	const char *name = slash ? slash + 1 : wish;
	if (name[0] == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
		status = fp_fail(ctx, FP_ERROR_USAGE, "'%s' cannot be the output: give the name of a new directory", directory);
		goto cleanup;
	}
	free(real);
	if (slash)
		*slash = '\0';
	const char *parent = !slash ? "." : slash == wish ? "/" : wish;
	real = realpath(parent, NULL);
	if (!real || !fp_is_directory(real)) {
		status = fp_fail(ctx, FP_ERROR_USAGE, "%s: no such directory for the output '%s': create it first", parent,
						 directory);
		goto cleanup;
	}
	FP_TRY(fp_copy_text(ctx, &writer->parent, real));
	FP_TRY(fp_join_path(&writer->target, ctx, real, name));
cleanup:
	free(real);
	fp_free(wish);
	return status;
}

static fp_status check_target(const fp_writer *writer)
{
	struct stat about;
	const char *source = writer->source->directory;
	if (strcmp(writer->target, source) == 0)
		return fp_fail(writer->ctx, FP_ERROR_USAGE, "%s: is the input; give another directory for the output",
					   writer->target);
	if (is_inside(writer->target, source))
		return fp_fail(writer->ctx, FP_ERROR_USAGE, "%s: lies in the input %s; give a directory outside it",
					   writer->target, source);
	if (lstat(writer->target, &about) == 0 && !is_empty_directory(writer->target))
		return fp_fail(writer->ctx, FP_ERROR_USAGE, "%s: exists already; remove it or give the name of a new directory",
					   writer->target);
	return FP_OK;
}

static fp_status check_room(const fp_writer *writer, int64_t companion_bytes)
{
	int64_t wanted = SPARE_ROOM, room = 0;
	bool fits = fp_add_checked(wanted, companion_bytes, &wanted);
	for (int i = 0; i < writer->layout.file_count; i++)
		fits = fits && fp_add_checked(wanted, writer->layout.files[i].size, &wanted);
	fp_status status = fp_free_space(&room, writer->ctx, writer->parent);
	if (status != FP_OK)
		return status;
	if (!fits || wanted > room)
		return fp_fail(
			writer->ctx, FP_ERROR_IO,
			"%s: the output needs %.1f MiB and its disk has %.1f MiB free; free some space or choose another "
			"disk",
			writer->target, (double)wanted / 1048576.0, (double)room / 1048576.0);
	return FP_OK;
}

/* A hidden folder beside the target: on the same disk, so that the rename at the end is one step. */
static fp_status make_partial(fp_writer *writer)
{
	int64_t size = (int64_t)strlen(writer->target) + 64;
	const char *name = strrchr(writer->target, '/') + 1;
	fp_status status = FP_NEW(writer->ctx, &writer->partial, size);
	if (status != FP_OK)
		return status;
	for (int i = 0; i < MAX_PARTIAL_TRIES; i++) {
		snprintf(writer->partial, (size_t)size, "%s/.%s.partial-%ld-%d",
				 strcmp(writer->parent, "/") ? writer->parent : "", name, (long)getpid(), i);
		if (mkdir(writer->partial, 0777) == 0) {
			writer->made = true;
			return FP_OK;
		}
		if (errno != EEXIST)
			break;
	}
	return fp_fail(writer->ctx, FP_ERROR_IO, "%s: cannot be created: %s", writer->partial, strerror(errno));
}

static fp_status create_shards(fp_writer *writer)
{
	fp_status status = FP_OK;
	char *path = NULL;
	for (int i = 0; i < writer->layout.file_count; i++) {
		const fp_output_file *file = &writer->layout.files[i];
		fp_free(path);
		path = NULL;
		FP_TRY(fp_join_path(&path, writer->ctx, writer->partial, file->name));
		FP_TRY(fp_create_file(&writer->files[i], writer->ctx, path, file->size));
		FP_TRY(fp_write_at(writer->ctx, writer->files[i], path, file->header, file->header_size, 0));
	}
	if (writer->layout.index)
		FP_TRY(fp_writer_add_file(writer, "model.safetensors.index.json", writer->layout.index,
								  (int64_t)strlen(writer->layout.index)));
cleanup:
	fp_free(path);
	return status;
}

fp_status fp_writer_open(fp_writer **out, fp_context *ctx, const fp_checkpoint *source, const char *directory)
{
	fp_status status;
	fp_writer *writer = NULL;
	fp_companion_files companions = {0};
	*out = NULL;
	FP_TRY(FP_NEW(ctx, &writer, 1));
	writer->ctx = ctx;
	writer->source = source;
	FP_TRY(resolve_target(writer, directory));
	FP_TRY(check_target(writer));
	FP_TRY(fp_output_layout_make(&writer->layout, ctx, source));
	FP_TRY(
		fp_companion_files_list(&companions, ctx, source->directory, source->safetensors ? source->index_name : NULL));
	FP_TRY(check_room(writer, companions.bytes));
	FP_TRY(FP_NEW(ctx, &writer->written, source->tensors.count));
	FP_TRY(FP_NEW(ctx, &writer->files, writer->layout.file_count));
	for (int i = 0; i < writer->layout.file_count; i++)
		writer->files[i] = -1;
	FP_TRY(make_partial(writer));
	FP_TRY(fp_companion_files_copy(&companions, ctx, source->directory, writer->partial));
	FP_TRY(create_shards(writer));
	*out = writer;
	writer = NULL;
cleanup:
	fp_companion_files_free(&companions);
	fp_writer_close(writer);
	return status;
}

static fp_status write_tensor(fp_writer *writer, int64_t index, const void *bytes)
{
	const fp_tensor_info *tensor = &writer->source->tensors.items[index];
	return fp_write_at(writer->ctx, writer->files[tensor->shard], writer->layout.files[tensor->shard].name, bytes,
					   tensor->bytes, writer->layout.offsets[index]);
}

fp_status fp_writer_replace(fp_writer *writer, const fp_tensor_info *tensor, const void *bytes)
{
	const fp_tensor_list *tensors = &writer->source->tensors;
	const fp_tensor_info *known = fp_tensor_list_find(tensors, tensor->name);
	if (!known || known->bytes != tensor->bytes || known->dtype != tensor->dtype)
		return fp_fail(writer->ctx, FP_ERROR_INTERNAL, "tensor '%s' is not one of %s", tensor->name,
					   writer->source->directory);
	int64_t index = known - tensors->items;
	if (writer->layout.offsets[index] < 0)
		return fp_fail(writer->ctx, FP_ERROR_USAGE, "tensor '%s' is tied to the embedding and has no bytes of its own",
					   tensor->name);
	fp_status status = write_tensor(writer, index, bytes);
	if (status == FP_OK)
		writer->written[index] = true;
	return status;
}

void fp_writer_report_to(fp_writer *writer, fp_context *ctx)
{
	writer->ctx = ctx;
}

fp_status fp_writer_add_file(fp_writer *writer, const char *name, const void *bytes, int64_t size)
{
	fp_context *ctx = writer->ctx;
	fp_status status = FP_OK;
	char *path = NULL;
	if (name[0] == '\0' || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return fp_fail(ctx, FP_ERROR_USAGE, "'%s' is not the name of a file", name);
	for (int i = 0; i < writer->layout.file_count; i++)
		if (strcmp(writer->layout.files[i].name, name) == 0)
			return fp_fail(ctx, FP_ERROR_USAGE, "'%s' is the name of a file of weights; give another", name);
	FP_TRY(fp_join_path(&path, ctx, writer->partial, name));
	unlink(path); /* the source's file of this name, copied before */
	FP_TRY(fp_write_file(ctx, path, bytes, size));
cleanup:
	fp_free(path);
	return status;
}

/* Everything that was not replaced keeps its bytes. In blocks, so that a long copy can be interrupted. */
static fp_status copy_kept_tensors(fp_writer *writer)
{
	const fp_checkpoint *source = writer->source;
	for (int64_t i = 0; i < source->tensors.count; i++) {
		const fp_tensor_info *tensor = &source->tensors.items[i];
		const char *bytes = fp_checkpoint_data(source, tensor);
		if (writer->written[i] || writer->layout.offsets[i] < 0)
			continue;
		for (int64_t done = 0; done < tensor->bytes; done += COPY_BLOCK) {
			int64_t count = tensor->bytes - done < COPY_BLOCK ? tensor->bytes - done : COPY_BLOCK;
			fp_status status = fp_check_interrupt(writer->ctx);
			if (status == FP_OK)
				status =
					fp_write_at(writer->ctx, writer->files[tensor->shard], writer->layout.files[tensor->shard].name,
								bytes + done, count, writer->layout.offsets[i] + done);
			if (status != FP_OK)
				return status;
			fp_forget_pages(bytes + done, count);
		}
		writer->written[i] = true;
	}
	return FP_OK;
}

fp_status fp_writer_commit(fp_writer *writer)
{
	fp_status status;
	FP_TRY(copy_kept_tensors(writer));
	for (int i = 0; i < writer->layout.file_count; i++) {
		int file = writer->files[i];
		writer->files[i] = -1;
		FP_TRY(fp_close_synced(writer->ctx, file, writer->layout.files[i].name));
	}
	FP_TRY(fp_sync_directory(writer->ctx, writer->partial));
	if (rename(writer->partial, writer->target) != 0) {
		status = fp_fail(writer->ctx, FP_ERROR_IO, "%s: cannot be put in place: %s", writer->target, strerror(errno));
		goto cleanup;
	}
	writer->made = false;
	FP_TRY(fp_sync_directory(writer->ctx, writer->parent));
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
	if (writer->made)
		fp_remove_tree(writer->partial);
	fp_output_layout_free(&writer->layout);
	fp_free(writer->files);
	fp_free(writer->written);
	fp_free(writer->parent);
	fp_free(writer->target);
	fp_free(writer->partial);
	fp_free(writer);
}
