/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/shard_index.h"

#include "base/memory.h"
#include <stdlib.h>
#include <string.h>

static int compare_texts(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A shard must be in the directory of its index. The ending makes sure that no shard overwrites another file of the
 * output. */
static bool is_plain_name(const char *name, const char *ending)
{
	size_t length = strlen(name), tail = strlen(ending);
	for (size_t i = 0; i < length; i++)
		if ((unsigned char)name[i] < ' ' || name[i] == 0x7F || name[i] == '/' || name[i] == '\\')
			return false;
	return name[0] != '.' && length > tail && length < 256 && strcmp(name + length - tail, ending) == 0;
}

json_t *fp_shard_index_map(const fp_shard_index *index)
{
	return json_object_get(index->root, "weight_map");
}

fp_status fp_shard_index_parse(fp_shard_index *out, fp_context *ctx, const char *text, int64_t size, const char *ending,
							   const char *path)
{
	fp_status status = FP_OK;
	const char *tensor;
	json_t *file;
	int64_t count = 0;
	json_error_t error;
	*out = (fp_shard_index){0};
	const char **names = NULL;
	out->root = json_loadb(text, (size_t)size, JSON_REJECT_DUPLICATES, &error);
	if (!out->root) {
		status = fp_fail(ctx, FP_ERROR_INPUT, "%s: line %d: %s", path, error.line, error.text);
		goto cleanup;
	}
	json_t *map = fp_shard_index_map(out);
	if (!json_is_object(map) || json_object_size(map) == 0) {
		status = fp_fail(ctx, FP_ERROR_INPUT, "%s: needs weight_map, an object from tensor to file name", path);
		goto cleanup;
	}
	FP_TRY(FP_NEW(ctx, &names, (int64_t)json_object_size(map)));
	json_object_foreach(map, tensor, file)
	{
		if (!json_is_string(file) || !is_plain_name(json_string_value(file), ending)) {
			status = fp_fail(
				ctx, FP_ERROR_INPUT,
				"%s: tensor '%.200s': '%.100s' must be the name of a file in the same directory that ends in %s", path,
				tensor, json_is_string(file) ? json_string_value(file) : "", ending);
			goto cleanup;
		}
		names[count++] = json_string_value(file);
	}
	qsort(names, (size_t)count, sizeof *names, compare_texts);
	FP_TRY(FP_NEW(ctx, &out->shards, count));
	for (int64_t i = 0; i < count; i++) {
		if (i > 0 && strcmp(names[i], names[i - 1]) == 0)
			continue;
		FP_TRY(fp_copy_text(ctx, &out->shards[out->shard_count], names[i]));
		out->shard_count++;
	}
cleanup:
	fp_free(names);
	if (status != FP_OK)
		fp_shard_index_free(out);
	return status;
}

void fp_shard_index_free(fp_shard_index *index)
{
	for (int i = 0; i < index->shard_count; i++)
		fp_free(index->shards[i]);
	fp_free(index->shards);
	json_decref(index->root);
	*index = (fp_shard_index){0};
}
