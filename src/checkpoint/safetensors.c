/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/safetensors.h"

#include "base/memory.h"
#include <stdlib.h>
#include <string.h>

/* All element types of the format. For those that are only copied the size is needed. */
static const struct {
	const char *name;
	fp_dtype dtype;
	int bits;
} known_dtypes[] = {
	{"F32", FP_F32, 32},
	{"F16", FP_F16, 16},
	{"BF16", FP_BF16, 16},
	{"F64", FP_F64, 64},
	{"U8", FP_U8, 8},
	{"I32", FP_I32, 32},
	{"I64", FP_I64, 64},
	{"BOOL", FP_OTHER_DTYPE, 8},
	{"I8", FP_I8, 8},
	{"I16", FP_OTHER_DTYPE, 16},
	{"U16", FP_OTHER_DTYPE, 16},
	{"U32", FP_OTHER_DTYPE, 32},
	{"U64", FP_OTHER_DTYPE, 64},
	{"C64", FP_OTHER_DTYPE, 64},
	{"F8_E4M3", FP_F8_E4M3, 8},
	{"F8_E5M2", FP_F8_E5M2, 8},
	{"F8_E8M0", FP_OTHER_DTYPE, 8},
	{"F8_E4M3FNUZ", FP_OTHER_DTYPE, 8},
	{"F8_E5M2FNUZ", FP_OTHER_DTYPE, 8},
	{"F6_E2M3", FP_OTHER_DTYPE, 6},
	{"F6_E3M2", FP_OTHER_DTYPE, 6},
	{"F4", FP_OTHER_DTYPE, 4},
};

static uint64_t read_length(const unsigned char *bytes)
{
	uint64_t length = 0;
	for (int i = 0; i < FP_SAFETENSORS_PREFIX; i++)
		length |= (uint64_t)bytes[i] << (8 * i);
	return length;
}

int64_t fp_safetensors_data_start(fp_mapping file)
{
	return FP_SAFETENSORS_PREFIX + (int64_t)read_length(file.bytes);
}

static fp_status parse_header(json_t **out, fp_context *ctx, const char *text, int64_t length, const char *path)
{
	if (length == 0 || text[0] != '{')
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: the header does not start with '{'", path);
	json_error_t error;
	json_t *header = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &error);
	if (!header)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: the header is not valid: %s (byte %d)", path, error.text,
					   FP_SAFETENSORS_PREFIX + error.position);
	*out = header;
	return FP_OK;
}

static fp_status load_header(json_t **out, fp_context *ctx, fp_mapping file, const char *path)
{
	if (file.size < FP_SAFETENSORS_PREFIX)
		return fp_fail(ctx, FP_ERROR_INPUT,
					   "%s: has %lld bytes; a safetensors file starts with the 8-byte header length", path,
					   (long long)file.size);
	uint64_t length = read_length(file.bytes);
	if (length > FP_SAFETENSORS_MAX_HEADER)
		return fp_fail(ctx, FP_ERROR_INPUT,
					   "%s: claims a header of %llu bytes, but at most %d are allowed: not a safetensors file?", path,
					   (unsigned long long)length, FP_SAFETENSORS_MAX_HEADER);
	if ((int64_t)length > file.size - FP_SAFETENSORS_PREFIX)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: is truncated: a header of %llu bytes does not fit in a file of %lld",
					   path, (unsigned long long)length, (long long)file.size);
	return parse_header(out, ctx, (const char *)file.bytes + FP_SAFETENSORS_PREFIX, (int64_t)length, path);
}

static fp_status check_metadata(fp_context *ctx, const json_t *metadata, const char *path)
{
	if (!json_is_object(metadata))
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: __metadata__ is not an object", path);
	const char *key;
	const json_t *value;
	json_object_foreach((json_t *)(uintptr_t)metadata, key, value)
	{
		if (!json_is_string(value))
			return fp_fail(ctx, FP_ERROR_INPUT, "%s: __metadata__ '%s' is not a string", path, key);
	}
	return FP_OK;
}

static fp_status read_shape(fp_tensor_info *tensor, fp_context *ctx, const json_t *shape, const char *name,
							const char *path)
{
	if (!json_is_array(shape) || json_array_size(shape) > FP_MAX_RANK)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s': shape must be a list of at most %d sizes", path, name,
					   FP_MAX_RANK);
	tensor->rank = (int)json_array_size(shape);
	for (int i = 0; i < tensor->rank; i++) {
		const json_t *size = json_array_get(shape, (size_t)i);
		if (!json_is_integer(size) || json_integer_value(size) < 0)
			return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s': a size in its shape is not a whole number >= 0", path,
						   name);
		tensor->shape[i] = json_integer_value(size);
	}
	return FP_OK;
}

/* One entry of the header; its offset is relative to the end of the header. */
static fp_status read_entry(fp_tensor_info *tensor, fp_context *ctx, const json_t *entry, const char *name,
							const char *path)
{
	const json_t *dtype = json_object_get(entry, "dtype"), *offsets = json_object_get(entry, "data_offsets");
	if (!json_is_object(entry) || !json_is_string(dtype) || !json_is_array(offsets) || json_array_size(offsets) != 2)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s': needs dtype, shape and two data_offsets", path, name);
	size_t kind = 0, kinds = sizeof known_dtypes / sizeof known_dtypes[0];
	while (kind < kinds && strcmp(known_dtypes[kind].name, json_string_value(dtype)) != 0)
		kind++;
	if (kind == kinds)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s': unknown dtype '%.40s'; F32, F16 and BF16 are weights",
					   path, name, json_string_value(dtype));
	tensor->dtype = known_dtypes[kind].dtype;
	tensor->dtype_name = known_dtypes[kind].name;
	fp_status status = read_shape(tensor, ctx, json_object_get(entry, "shape"), name, path);
	if (status != FP_OK)
		return status;
	if (!fp_tensor_measure(tensor, known_dtypes[kind].bits))
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s': its shape does not give a valid number of bytes", path,
					   name);
	const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
	if (!json_is_integer(first) || !json_is_integer(last) || json_integer_value(first) < 0 ||
		json_integer_value(last) < json_integer_value(first))
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s': data_offsets must be two whole numbers in order", path,
					   name);
	tensor->offset = json_integer_value(first);
	if (json_integer_value(last) - tensor->offset != tensor->bytes)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s': data_offsets give %lld bytes, dtype and shape %lld", path,
					   name, (long long)(json_integer_value(last) - tensor->offset), (long long)tensor->bytes);
	return FP_OK;
}

static int compare_offsets(const void *a, const void *b)
{
	const fp_tensor_info *first = a, *second = b;
	if (first->offset != second->offset)
		return first->offset < second->offset ? -1 : 1;
	/* an empty tensor goes before the one that starts at the same byte */
	if (first->bytes != second->bytes)
		return first->bytes < second->bytes ? -1 : 1;
	return strcmp(first->name, second->name);
}

/* The sorted tensors must cover the rest of the file without gaps or overlaps. */
static fp_status check_cover(fp_context *ctx, const fp_tensor_info *tensors, int64_t count, int64_t size,
							 const char *path)
{
	int64_t end = 0;
	for (int64_t i = 0; i < count; i++) {
		if (tensors[i].offset < end)
			return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' overlaps '%s' (it starts at byte %lld, before %lld)",
						   path, tensors[i].name, tensors[i - 1].name, (long long)tensors[i].offset, (long long)end);
		if (tensors[i].offset > end)
			return fp_fail(ctx, FP_ERROR_INPUT, "%s: %lld bytes before tensor '%s' belong to no tensor", path,
						   (long long)(tensors[i].offset - end), tensors[i].name);
		if (tensors[i].bytes > size - end)
			return fp_fail(ctx, FP_ERROR_INPUT, "%s: is truncated: tensor '%s' ends at byte %lld of %lld", path,
						   tensors[i].name, (long long)(end + tensors[i].bytes), (long long)size);
		end += tensors[i].bytes;
	}
	if (end != size)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: %lld bytes at its end belong to no tensor", path,
					   (long long)(size - end));
	return FP_OK;
}

/* Appends the tensors of a header, sorted, with offsets behind it. */
static fp_status read_entries(fp_tensor_list *list, fp_context *ctx, json_t *header, int shard, const char *path)
{
	fp_status status = FP_OK;
	const char *name;
	const json_t *entry;
	const int64_t first = list->count;
	json_object_foreach(header, name, entry)
	{
		if (strcmp(name, "__metadata__") == 0) {
			FP_TRY(check_metadata(ctx, entry, path));
			continue;
		}
		fp_tensor_info tensor = {.shard = shard};
		FP_TRY(read_entry(&tensor, ctx, entry, name, path));
		FP_TRY(fp_tensor_list_add(list, ctx, &tensor, name, (int64_t)strlen(name)));
	}
	if (list->count > first)
		qsort(list->items + first, (size_t)(list->count - first), sizeof *list->items, compare_offsets);
cleanup:
	return status;
}

fp_status fp_safetensors_read(fp_tensor_list *list, fp_context *ctx, fp_mapping file, int shard, const char *path)
{
	fp_status status;
	json_t *header = NULL;
	const int64_t first = list->count;
	FP_TRY(load_header(&header, ctx, file, path));
	FP_TRY(read_entries(list, ctx, header, shard, path));
	const int64_t count = list->count - first, start = fp_safetensors_data_start(file);
	fp_tensor_info *own = count > 0 ? list->items + first : NULL;
	FP_TRY(check_cover(ctx, own, count, file.size - start, path));
	for (int64_t i = 0; own && i < count; i++)
		own[i].offset += start;
cleanup:
	json_decref(header);
	return status;
}

fp_status fp_safetensors_read_header(fp_tensor_list *list, int64_t *size, fp_context *ctx, const char *text,
									 int64_t length, int shard, const char *path)
{
	fp_status status;
	json_t *header = NULL;
	const int64_t first = list->count;
	int64_t end = 0;
	FP_TRY(parse_header(&header, ctx, text, length, path));
	FP_TRY(read_entries(list, ctx, header, shard, path));
	const int64_t count = list->count - first;
	const fp_tensor_info *own = count > 0 ? list->items + first : NULL;
	for (int64_t i = 0; own && i < count; i++)
		if (!fp_add_checked(end, own[i].bytes, &end))
			FP_TRY(fp_fail(ctx, FP_ERROR_INPUT, "%s: its tensors are too large in total", path));
	FP_TRY(check_cover(ctx, own, count, end, path));
	*size = end;
cleanup:
	json_decref(header);
	return status;
}

fp_status fp_safetensors_metadata(char **out, fp_context *ctx, fp_mapping file, const char *key)
{
	json_t *header = NULL;
	fp_status status;
	*out = NULL;
	FP_TRY(load_header(&header, ctx, file, "safetensors"));
	const char *text = json_string_value(json_object_get(json_object_get(header, "__metadata__"), key));
	if (text)
		FP_TRY(fp_copy_text(ctx, out, text));
cleanup:
	json_decref(header);
	return status;
}

fp_status fp_safetensors_has_format(bool *out, fp_context *ctx, fp_mapping file)
{
	json_t *header = NULL;
	fp_status status = load_header(&header, ctx, file, "safetensors");
	if (status == FP_OK)
		*out = json_is_string(json_object_get(json_object_get(header, "__metadata__"), "format"));
	json_decref(header);
	return status;
}
