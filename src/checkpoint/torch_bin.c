/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/torch_bin.h"

#include "base/memory.h"
#include "checkpoint/pickle_reader.h"
#include "checkpoint/zip_reader.h"
#include <stdio.h>
#include <string.h>
#include <zlib.h>

enum { MAX_PICKLE = 100000000, MAX_STORAGE_KEY = 64 };

/* All entries are in one folder of any name: "<folder>/data.pkl". */
static const fp_zip_entry *find_pickle(const fp_zip *zip)
{
	static const char wanted[] = "/data.pkl";
	const int64_t length = (int64_t)sizeof wanted - 1;
	for (int64_t i = 0; i < zip->count; i++) {
		const fp_zip_entry *entry = &zip->entries[i];
		int64_t folder = entry->name_length - length;
		if (folder > 0 && memcmp(entry->name + folder, wanted, (size_t)length) == 0 &&
			!memchr(entry->name, '/', (size_t)folder))
			return entry;
	}
	return NULL;
}

/* The entry of this name in the pickle's folder. */
static const fp_zip_entry *find_beside(const fp_zip *zip, const fp_zip_entry *pickle, const char *name,
									   int64_t name_length, char *buffer)
{
	int64_t folder = pickle->name_length - (int64_t)strlen("data.pkl");
	memcpy(buffer, pickle->name, (size_t)folder);
	memcpy(buffer + folder, name, (size_t)name_length);
	return fp_zip_find(zip, buffer, folder + name_length);
}

static fp_status check_archive(fp_context *ctx, fp_mapping file, const fp_zip *zip, const fp_zip_entry *pickle,
							   char *buffer, const char *path)
{
	if (pickle->size > MAX_PICKLE)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: its pickle has %lld bytes; at most %d are read", path,
					   (long long)pickle->size, MAX_PICKLE);
	if (crc32_z(0, file.bytes + pickle->offset, (size_t)pickle->size) != pickle->checksum)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: is damaged: the checksum of data.pkl is wrong", path);
	const fp_zip_entry *order = find_beside(zip, pickle, "byteorder", 9, buffer);
	if (order && (order->size != 6 || memcmp(file.bytes + order->offset, "little", 6) != 0))
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: must be little-endian", path);
	return FP_OK;
}

static bool is_contiguous(const fp_pickled_tensor *tensor)
{
	int64_t expected = 1;
	for (int i = tensor->rank - 1; i >= 0; i--) {
		if (tensor->shape[i] != 1 && tensor->stride[i] != expected)
			return false;
		expected *= tensor->shape[i]; /* fp_tensor_measure() has checked the product */
	}
	return true;
}

static fp_status add_tensor(fp_tensor_list *list, fp_context *ctx, const fp_zip *zip, const fp_zip_entry *pickle,
							const fp_pickled_tensor *from, int shard, char *buffer, const char *path)
{
	const char *name = from->name;
	const int shown = from->name_length < 200 ? (int)from->name_length : 200;
	char key[MAX_STORAGE_KEY + 6];
	if (from->storage_key_length > MAX_STORAGE_KEY)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%.*s': the name of its storage is too long", path, shown,
					   name);
	memcpy(key, "data/", 5);
	memcpy(key + 5, from->storage_key, (size_t)from->storage_key_length);
	const fp_zip_entry *storage = find_beside(zip, pickle, key, 5 + from->storage_key_length, buffer);
	int64_t storage_bytes;
	if (!storage || !fp_multiply_checked(from->storage_elements, from->element_size, &storage_bytes) ||
		storage->size != storage_bytes)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%.*s': its storage '%.*s' is missing or of the wrong size",
					   path, shown, name, (int)from->storage_key_length, from->storage_key);
	fp_tensor_info tensor = {.dtype = from->dtype, .dtype_name = from->dtype_name, .rank = from->rank, .shard = shard};
	memcpy(tensor.shape, from->shape, sizeof tensor.shape);
	int64_t end;
	if (!fp_tensor_measure(&tensor, 8 * from->element_size) ||
		!fp_add_checked(from->first_element, tensor.elements, &end) || end > from->storage_elements)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%.*s' does not lie in its storage", path, shown, name);
	if (tensor.elements > 0 && !is_contiguous(from))
		return fp_fail(ctx, FP_ERROR_INPUT,
					   "%s: tensor '%.*s' is not contiguous; save it again after .contiguous(), or as safetensors",
					   path, shown, name);
	tensor.offset = storage->offset + from->first_element * from->element_size;
	return fp_tensor_list_add(list, ctx, &tensor, name, from->name_length);
}

fp_status fp_torch_bin_read(fp_tensor_list *list, fp_context *ctx, fp_mapping file, int shard, const char *path)
{
	fp_status status;
	fp_zip zip = {0};
	fp_pickled_tensor *tensors = NULL;
	int64_t count = 0;
	char *buffer = NULL;
	if (file.size >= 2 && file.bytes[0] == 0x80)
		return fp_fail(
			ctx, FP_ERROR_INPUT,
			"%s: is a pickle from before PyTorch 1.6; load it with torch and save it again, or as safetensors", path);
	FP_TRY(fp_zip_open(&zip, ctx, file, path));
	const fp_zip_entry *pickle = find_pickle(&zip);
	if (!pickle) {
		status =
			fp_fail(ctx, FP_ERROR_INPUT, "%s: is a zip archive without data.pkl; not written by torch.save()", path);
		goto cleanup;
	}
	FP_TRY(FP_NEW(ctx, &buffer, pickle->name_length + MAX_STORAGE_KEY + 16));
	FP_TRY(check_archive(ctx, file, &zip, pickle, buffer, path));
	FP_TRY(fp_pickle_read(&tensors, &count, ctx, file.bytes + pickle->offset, pickle->size, path));
	for (int64_t i = 0; i < count; i++)
		FP_TRY(add_tensor(list, ctx, &zip, pickle, &tensors[i], shard, buffer, path));
cleanup:
	fp_free(buffer);
	fp_free(tensors);
	fp_zip_close(&zip);
	return status;
}
