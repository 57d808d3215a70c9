/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/companion_files.h"

#include "base/file.h"
#include "base/memory.h"
#include "checkpoint/weight_formats.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The one subfolder with files of the tokenizer. Others (original/, onnx/, …) hold weights. */
static const char templates_folder[] = "additional_chat_templates";

/* Weights in formats that are not read (those that are: weight_formats.h). They no longer match the pruned ones. */
static const char *const other_weights[] = {
	".h5",   ".msgpack", ".onnx",   ".onnx_data", ".ot",  ".pt",  ".pth", ".ckpt",
	".gguf", ".ggml",    ".tflite", ".mlmodel",   ".npz", ".pkl", ".zip",
};

static bool ends_with(const char *name, size_t length, const char *ending)
{
	size_t size = strlen(ending);
	return length >= size && memcmp(name + length - size, ending, size) == 0;
}

/* A file of weights, or the index of one. */
static bool is_weights(const char *name)
{
	static const char index_ending[] = ".index.json";
	size_t length = strlen(name);
	if (ends_with(name, length, index_ending))
		length -= sizeof index_ending - 1;
	const fp_weight_format *format;
	for (int i = 0; (format = fp_weight_format_at(i)); i++)
		if (ends_with(name, length, format->ending))
			return true;
	for (size_t i = 0; i < sizeof other_weights / sizeof other_weights[0]; i++)
		if (ends_with(name, length, other_weights[i]))
			return true;
	return false;
}

static fp_status add_file(fp_companion_files *files, fp_context *ctx, const char *directory, const char *name)
{
	fp_status status;
	char *path = NULL;
	struct stat about;
	FP_TRY(fp_join_path(&path, ctx, directory, name));
	if (stat(path, &about) != 0) {
		status = fp_fail(ctx, FP_ERROR_INPUT, "%s: cannot be read: %s", path, strerror(errno));
		goto cleanup;
	}
	if (!S_ISREG(about.st_mode))
		goto cleanup;
	FP_TRY(FP_GROW(ctx, &files->names, &files->capacity, files->count + 1));
	FP_TRY(fp_copy_text(ctx, &files->names[files->count], name));
	files->count++;
	files->bytes += (int64_t)about.st_size;
cleanup:
	fp_free(path);
	return status;
}

/* Adds the files of directory/below (below may be empty). */
static fp_status add_folder(fp_companion_files *files, fp_context *ctx, const char *directory, const char *below,
							const char *index_name)
{
	fp_status status;
	char *path = NULL, *name = NULL;
	DIR *folder = NULL;
	FP_TRY(fp_join_path(&path, ctx, directory, below));
	folder = opendir(path);
	if (!folder) {
		status = fp_fail(ctx, FP_ERROR_INPUT, "%s: cannot be listed: %s", path, strerror(errno));
		goto cleanup;
	}
	for (;;) {
		const struct dirent *entry = readdir(folder);
		if (!entry)
			break;
		bool is_index = index_name && strcmp(entry->d_name, index_name) == 0;
		if (entry->d_name[0] == '.' || (is_weights(entry->d_name) && !is_index))
			continue;
		fp_free(name);
		FP_TRY(fp_join_path(&name, ctx, below, entry->d_name));
		FP_TRY(add_file(files, ctx, directory, name));
	}
cleanup:
	if (folder)
		closedir(folder);
	fp_free(path);
	fp_free(name);
	return status;
}

static int compare_texts(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

fp_status fp_companion_files_list(fp_companion_files *out, fp_context *ctx, const char *directory,
								  const char *index_name)
{
	fp_status status;
	char *templates = NULL;
	*out = (fp_companion_files){0};
	FP_TRY(add_folder(out, ctx, directory, "", index_name));
	FP_TRY(fp_join_path(&templates, ctx, directory, templates_folder));
	if (fp_is_directory(templates))
		FP_TRY(add_folder(out, ctx, directory, templates_folder, NULL));
	if (out->count > 0)
		qsort(out->names, (size_t)out->count, sizeof *out->names, compare_texts);
cleanup:
	fp_free(templates);
	if (status != FP_OK)
		fp_companion_files_free(out);
	return status;
}

void fp_companion_files_free(fp_companion_files *files)
{
	for (int64_t i = 0; i < files->count; i++)
		fp_free(files->names[i]);
	fp_free(files->names);
	*files = (fp_companion_files){0};
}

fp_status fp_companion_files_copy(const fp_companion_files *files, fp_context *ctx, const char *from, const char *to)
{
	fp_status status = FP_OK;
	char *source = NULL, *target = NULL;
	for (int64_t i = 0; i < files->count; i++) {
		fp_free(source);
		fp_free(target);
		source = target = NULL;
		FP_TRY(fp_join_path(&source, ctx, from, files->names[i]));
		FP_TRY(fp_join_path(&target, ctx, to, files->names[i]));
		char *slash = strchr(files->names[i], '/') ? strrchr(target, '/') : NULL;
		if (slash) {
			*slash = '\0';
			if (mkdir(target, 0777) != 0 && errno != EEXIST) {
				status = fp_fail(ctx, FP_ERROR_IO, "%s: cannot be created: %s", target, strerror(errno));
				goto cleanup;
			}
			*slash = '/';
		}
		unlink(target); /* left by the run that is being resumed */
		FP_TRY(fp_copy_file(ctx, source, target));
	}
cleanup:
	fp_free(source);
	fp_free(target);
	return status;
}
