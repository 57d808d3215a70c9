/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/checkpoint.h"

#include "base/memory.h"
#include "base/name_list.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/hub_cache.h"
#include <stdlib.h>
#include <string.h>

fp_status fp_read_json_object(json_t **out, fp_context *ctx, const char *path)
{
	*out = NULL;
	char *text;
	int64_t size;
	fp_status status = fp_read_file(&text, &size, ctx, path, FP_MAX_JSON_FILE);
	if (status != FP_OK)
		return status;
	json_error_t error;
	json_t *root = json_loadb(text, (size_t)size, 0, &error);
	fp_free(text);
	if (!root)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: line %d: %s", path, error.line, error.text);
	if (!json_is_object(root)) {
		json_decref(root);
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: is not a JSON object", path);
	}
	*out = root;
	return FP_OK;
}

static fp_status load_config(fp_checkpoint *checkpoint, fp_context *ctx)
{
	char *path;
	fp_status status = fp_join_path(&path, ctx, checkpoint->directory, "config.json");
	if (status != FP_OK)
		return status;
	if (!fp_is_file(path))
		status = fp_fail(ctx, FP_ERROR_INPUT, "%s: has no config.json, so it is not a Hugging Face model directory",
						 checkpoint->directory);
	else
		status = fp_read_json_object(&checkpoint->config, ctx, path);
	fp_free(path);
	return status;
}

static fp_status no_weights(const fp_checkpoint *checkpoint, fp_context *ctx)
{
	fp_name_list names = {0};
	const fp_weight_format *format;
	for (int i = 0; (format = fp_weight_format_at(i)); i++) {
		fp_name_list_add(&names, format->file);
		fp_name_list_add(&names, format->index);
	}
	return fp_fail(ctx, FP_ERROR_INPUT, "%s: has no weights: none of %s", checkpoint->directory, names.text);
}

static fp_status read_index(fp_checkpoint *checkpoint, fp_context *ctx, const char *path)
{
	fp_status status;
	char *text = NULL;
	int64_t size;
	FP_TRY(fp_read_file(&text, &size, ctx, path, FP_MAX_JSON_FILE));
	FP_TRY(fp_shard_index_parse(&checkpoint->index, ctx, text, size, checkpoint->format->ending, path));
	checkpoint->index_name = checkpoint->format->index;
	FP_TRY(FP_NEW(ctx, &checkpoint->shards, checkpoint->index.shard_count));
	for (int i = 0; i < checkpoint->index.shard_count; i++) {
		FP_TRY(fp_copy_text(ctx, &checkpoint->shards[i], checkpoint->index.shards[i]));
		checkpoint->shard_count++;
	}
cleanup:
	fp_free(text);
	return status;
}

/* Finds the format of the weights and lists the files that hold them. */
static fp_status list_shards(fp_checkpoint *checkpoint, fp_context *ctx)
{
	fp_status status = FP_OK;
	char *file = NULL, *index = NULL;
	for (int i = 0; (checkpoint->format = fp_weight_format_at(i)); i++) {
		fp_free(file);
		fp_free(index);
		file = index = NULL;
		FP_TRY(fp_join_path(&file, ctx, checkpoint->directory, checkpoint->format->file));
		FP_TRY(fp_join_path(&index, ctx, checkpoint->directory, checkpoint->format->index));
		if (fp_is_file(file)) {
			FP_TRY(FP_NEW(ctx, &checkpoint->shards, 1));
			FP_TRY(fp_copy_text(ctx, &checkpoint->shards[0], checkpoint->format->file));
			checkpoint->shard_count = 1;
			goto cleanup;
		}
		if (fp_is_file(index)) {
			status = read_index(checkpoint, ctx, index);
			goto cleanup;
		}
	}
	status = no_weights(checkpoint, ctx);
cleanup:
	fp_free(file);
	fp_free(index);
	return status;
}

/* In a repository cloned without Git LFS, small text files take the place of the weights. */
static fp_status check_is_not_pointer(fp_context *ctx, fp_mapping file, const char *path)
{
	static const char pointer[] = "version https://git-lfs";
	if (file.size >= (int64_t)sizeof pointer - 1 && memcmp(file.bytes, pointer, sizeof pointer - 1) == 0)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: is a Git LFS pointer, not the weights: run 'git lfs pull' there",
					   path);
	return FP_OK;
}

static fp_status read_shards(fp_checkpoint *checkpoint, fp_context *ctx)
{
	fp_status status;
	char *path = NULL;
	FP_TRY(FP_NEW(ctx, &checkpoint->files, checkpoint->shard_count));
	for (int i = 0; i < checkpoint->shard_count; i++) {
		fp_free(path);
		FP_TRY(fp_join_path(&path, ctx, checkpoint->directory, checkpoint->shards[i]));
		FP_TRY(fp_map_file(&checkpoint->files[i], ctx, path));
		FP_TRY(check_is_not_pointer(ctx, checkpoint->files[i], path));
		FP_TRY(checkpoint->format->read(&checkpoint->tensors, ctx, checkpoint->files[i], i, path));
	}
	status = fp_tensor_list_sort(&checkpoint->tensors, ctx, checkpoint->shards);
	if (status != FP_OK)
		fp_fail_in(ctx, status, "%s", checkpoint->directory);
cleanup:
	fp_free(path);
	return status;
}

/* Every tensor of the index must be in its shard. Shards may have tensors that the index does not list. */
static fp_status check_index(const fp_checkpoint *checkpoint, fp_context *ctx)
{
	const char *name;
	const json_t *file;
	if (!checkpoint->index_name)
		return FP_OK;
	json_object_foreach(fp_shard_index_map(&checkpoint->index), name, file)
	{
		const fp_tensor_info *tensor = fp_tensor_list_find(&checkpoint->tensors, name);
		if (!tensor)
			return fp_fail(ctx, FP_ERROR_INPUT, "%s/%s: tensor '%s' should be in %s, but is in no shard",
						   checkpoint->directory, checkpoint->index_name, name, json_string_value(file));
		if (strcmp(checkpoint->shards[tensor->shard], json_string_value(file)) != 0)
			return fp_fail(ctx, FP_ERROR_INPUT, "%s/%s: tensor '%s' should be in %s, but is in %s",
						   checkpoint->directory, checkpoint->index_name, name, json_string_value(file),
						   checkpoint->shards[tensor->shard]);
	}
	return FP_OK;
}

static fp_status open_files(fp_checkpoint **out, fp_context *ctx, const char *model, bool as_stored)
{
	fp_status status;
	char *found = NULL;
	fp_checkpoint *checkpoint = NULL;
	*out = NULL;
	FP_TRY(fp_find_model(&found, ctx, model));
	FP_TRY(FP_NEW(ctx, &checkpoint, 1));
	char *real = realpath(found, NULL);
	status = fp_copy_text(ctx, &checkpoint->directory, real ? real : found);
	free(real);
	if (status != FP_OK)
		goto cleanup;
	FP_TRY(load_config(checkpoint, ctx));
	FP_TRY(list_shards(checkpoint, ctx));
	FP_TRY(read_shards(checkpoint, ctx));
	if (checkpoint->format->is_packed)
		FP_TRY(fp_checkpoint_present_packed(checkpoint, ctx));
	FP_TRY(check_index(checkpoint, ctx));
	if (!as_stored)
		FP_TRY(fp_checkpoint_present_quantised(checkpoint, ctx));
	*out = checkpoint;
	checkpoint = NULL;
cleanup:
	fp_free(found);
	fp_checkpoint_close(checkpoint);
	return status;
}

fp_status fp_checkpoint_open(fp_checkpoint **out, fp_context *ctx, const char *model)
{
	return open_files(out, ctx, model, false);
}

fp_status fp_checkpoint_open_as_stored(fp_checkpoint **out, fp_context *ctx, const char *model)
{
	return open_files(out, ctx, model, true);
}

void fp_checkpoint_close(fp_checkpoint *checkpoint)
{
	if (!checkpoint)
		return;
	for (int i = 0; i < checkpoint->shard_count; i++) {
		if (checkpoint->files)
			fp_unmap_file(&checkpoint->files[i]);
		fp_free(checkpoint->shards[i]);
	}
	fp_free(checkpoint->files);
	fp_free(checkpoint->shards);
	fp_tensor_list_free(&checkpoint->tensors);
	fp_checkpoint_free_codings(checkpoint);
	fp_shard_index_free(&checkpoint->index);
	json_decref(checkpoint->config);
	fp_free(checkpoint->directory);
	fp_free(checkpoint);
}

const char *fp_checkpoint_directory(const fp_checkpoint *checkpoint)
{
	return checkpoint->directory;
}

const json_t *fp_checkpoint_config(const fp_checkpoint *checkpoint)
{
	return checkpoint->config;
}

int fp_checkpoint_shard_count(const fp_checkpoint *checkpoint)
{
	return checkpoint->shard_count;
}

const char *fp_checkpoint_shard_name(const fp_checkpoint *checkpoint, int shard)
{
	return checkpoint->shards[shard];
}

int64_t fp_checkpoint_tensor_count(const fp_checkpoint *checkpoint)
{
	return checkpoint->tensors.count;
}

const fp_tensor_info *fp_checkpoint_tensor(const fp_checkpoint *checkpoint, int64_t index)
{
	return &checkpoint->tensors.items[index];
}

const fp_tensor_info *fp_checkpoint_find(const fp_checkpoint *checkpoint, const char *name)
{
	return fp_tensor_list_find(&checkpoint->tensors, name);
}

const void *fp_checkpoint_data(const fp_checkpoint *checkpoint, const fp_tensor_info *tensor)
{
	if (tensor->coding)
		return NULL;
	return checkpoint->files[tensor->shard].bytes + tensor->offset;
}

void fp_checkpoint_forget(const fp_checkpoint *checkpoint, const fp_tensor_info *tensor)
{
	if (tensor->coding) {
		fp_checkpoint_forget(checkpoint, tensor->coding->values);
		fp_checkpoint_forget(checkpoint, tensor->coding->guide);
		if (tensor->coding->zeros)
			fp_checkpoint_forget(checkpoint, tensor->coding->zeros);
		return;
	}
	fp_forget_pages(fp_checkpoint_data(checkpoint, tensor), tensor->bytes);
}
