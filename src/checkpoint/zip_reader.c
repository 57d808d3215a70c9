/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/zip_reader.h"

#include "base/memory.h"
#include <stdlib.h>
#include <string.h>

/* Sizes of the fixed parts of the records, and their signatures ("PK.." little-endian). */
enum {
	END_SIZE = 22,
	END64_LOCATOR_SIZE = 20,
	END64_SIZE = 56,
	CENTRAL_SIZE = 46,
	LOCAL_SIZE = 30,
	MAX_COMMENT = 65535,
	ZIP64_EXTRA = 1,
};
static const uint32_t end_mark = 0x06054B50, end64_mark = 0x06064B50, end64_locator_mark = 0x07064B50,
					  central_mark = 0x02014B50, local_mark = 0x04034B50;
static const uint32_t in_zip64 = 0xFFFFFFFF; /* "the value is in the zip64 record" */

static uint64_t little_endian(const unsigned char *bytes, int count)
{
	uint64_t value = 0;
	for (int i = 0; i < count; i++)
		value |= (uint64_t)bytes[i] << (8 * i);
	return value;
}

static uint32_t get16(const unsigned char *bytes)
{
	return (uint32_t)little_endian(bytes, 2);
}

static uint32_t get32(const unsigned char *bytes)
{
	return (uint32_t)little_endian(bytes, 4);
}

static bool fits(fp_mapping file, uint64_t offset, uint64_t size)
{
	return offset <= (uint64_t)file.size && size <= (uint64_t)file.size - offset;
}

/* The length of the part of a name that a message shows. */
static int shown_length(const fp_zip_entry *entry)
{
	return entry->name_length < 200 ? (int)entry->name_length : 200;
}

struct directory {
	uint64_t offset, size, count;
};

/* The record at the end of the archive; only a comment may follow it. */
static fp_status find_end(int64_t *out, fp_context *ctx, fp_mapping file, const char *path)
{
	int64_t lowest = file.size - END_SIZE - MAX_COMMENT;
	for (int64_t at = file.size - END_SIZE; at >= 0 && at >= lowest; at--) {
		if (get32(file.bytes + at) == end_mark && at + END_SIZE + (int64_t)get16(file.bytes + at + 20) == file.size) {
			*out = at;
			return FP_OK;
		}
	}
	return fp_fail(ctx, FP_ERROR_INPUT, "%s: is truncated or not a zip archive: its end record is missing", path);
}

static fp_status read_end(struct directory *out, fp_context *ctx, fp_mapping file, const char *path)
{
	int64_t at = 0;
	fp_status status = find_end(&at, ctx, file, path);
	if (status != FP_OK)
		return status;
	const unsigned char *end = file.bytes + at;
	if (get16(end + 4) != get16(end + 6))
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: is part of a zip archive in several files", path);
	*out = (struct directory){.offset = get32(end + 16), .size = get32(end + 12), .count = get16(end + 10)};
	const unsigned char *locator = at >= END64_LOCATOR_SIZE ? end - END64_LOCATOR_SIZE : NULL;
	if (locator && get32(locator) == end64_locator_mark) {
		uint64_t end64_at = little_endian(locator + 8, 8);
		if (!fits(file, end64_at, END64_SIZE) || get32(file.bytes + end64_at) != end64_mark)
			return fp_fail(ctx, FP_ERROR_INPUT, "%s: the zip64 end record is damaged", path);
		const unsigned char *end64 = file.bytes + end64_at;
		*out = (struct directory){.offset = little_endian(end64 + 48, 8),
								  .size = little_endian(end64 + 40, 8),
								  .count = little_endian(end64 + 32, 8)};
	}
	if (!fits(file, out->offset, out->size) || out->count > out->size / CENTRAL_SIZE)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: the zip directory is not inside the file", path);
	return FP_OK;
}

/* Sizes and offsets that need more than 32 bits are in an extra field, in this order. */
static bool read_zip64(const unsigned char *extra, uint64_t length, uint64_t *full, uint64_t *packed, uint64_t *offset)
{
	if (*full != in_zip64 && *packed != in_zip64 && *offset != in_zip64)
		return true;
	while (length >= 4) {
		uint64_t size = get16(extra + 2);
		if (size > length - 4)
			return false;
		if (get16(extra) == ZIP64_EXTRA) {
			uint64_t *const values[] = {full, packed, offset};
			const unsigned char *field = extra + 4;
			for (int i = 0; i < 3; i++) {
				if (*values[i] != in_zip64)
					continue;
				if (size < 8)
					return false;
				*values[i] = little_endian(field, 8);
				field += 8;
				size -= 8;
			}
			return true;
		}
		extra += 4 + size;
		length -= 4 + size;
	}
	return false;
}

/* Reads one record of the directory, which has `left` bytes left. *length ← the size of the record. */
static fp_status read_entry(fp_zip_entry *out, uint64_t *length, fp_context *ctx, fp_mapping file,
							const unsigned char *record, uint64_t left, const char *path)
{
	if (left < CENTRAL_SIZE || get32(record) != central_mark)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: the zip directory is damaged", path);
	uint64_t name = get16(record + 28), extra = get16(record + 30), comment = get16(record + 32);
	*length = CENTRAL_SIZE + name + extra + comment;
	if (*length > left)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: the zip directory is damaged", path);
	*out = (fp_zip_entry){
		.name = (const char *)record + CENTRAL_SIZE, .name_length = (int64_t)name, .checksum = get32(record + 16)};
	const int shown = shown_length(out);
	if (memchr(out->name, '\0', (size_t)name))
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: the name of an entry contains a NUL", path);
	if (get16(record + 8) & 1)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: entry '%.*s' is encrypted", path, shown, out->name);
	if (get16(record + 10) != 0)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: entry '%.*s' is compressed; torch.save() stores entries as they are",
					   path, shown, out->name);
	uint64_t full = get32(record + 24), packed = get32(record + 20), offset = get32(record + 42);
	if (!read_zip64(record + CENTRAL_SIZE + name, extra, &full, &packed, &offset) || full != packed)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: entry '%.*s': its sizes are damaged", path, shown, out->name);
	/* The local header has a name and an extra field of its own, which torch uses for padding. */
	if (!fits(file, offset, LOCAL_SIZE) || get32(file.bytes + offset) != local_mark)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: entry '%.*s': its header is not inside the file", path, shown,
					   out->name);
	const unsigned char *local = file.bytes + offset;
	uint64_t start = offset + LOCAL_SIZE + get16(local + 26) + get16(local + 28);
	if (!fits(file, start, full))
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: entry '%.*s' is not inside the file", path, shown, out->name);
	if (get16(local + 26) != name || memcmp(local + LOCAL_SIZE, out->name, (size_t)name) != 0)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: entry '%.*s' has another name in its own header", path, shown,
					   out->name);
	out->start = (int64_t)offset;
	out->offset = (int64_t)start;
	out->size = (int64_t)full;
	return FP_OK;
}

static int compare_text(const char *a, int64_t a_length, const char *b, int64_t b_length)
{
	int order = memcmp(a, b, (size_t)(a_length < b_length ? a_length : b_length));
	if (order != 0 || a_length == b_length)
		return order;
	return a_length < b_length ? -1 : 1;
}

static int compare_entries(const void *a, const void *b)
{
	const fp_zip_entry *first = a, *second = b;
	return compare_text(first->name, first->name_length, second->name, second->name_length);
}

static int compare_places(const void *a, const void *b)
{
	const fp_zip_entry *first = *(const fp_zip_entry *const *)a, *second = *(const fp_zip_entry *const *)b;
	if (first->start != second->start)
		return first->start < second->start ? -1 : 1;
	return first->offset < second->offset ? -1 : first->offset > second->offset;
}

/* No byte may belong to two entries, or a small archive could claim to hold a lot of data. */
static fp_status check_places(fp_context *ctx, const fp_zip *zip, const char *path)
{
	fp_status status;
	const fp_zip_entry **order = NULL;
	FP_TRY(FP_NEW(ctx, &order, zip->count));
	for (int64_t i = 0; i < zip->count; i++)
		order[i] = &zip->entries[i];
	qsort(order, (size_t)zip->count, sizeof *order, compare_places);
	for (int64_t i = 1; i < zip->count; i++) {
		const fp_zip_entry *before = order[i - 1], *entry = order[i];
		if (entry->start < before->offset + before->size) {
			status = fp_fail(ctx, FP_ERROR_INPUT, "%s: entries '%.*s' and '%.*s' overlap", path, shown_length(before),
							 before->name, shown_length(entry), entry->name);
			goto cleanup;
		}
	}
cleanup:
	fp_free(order);
	return status;
}

fp_status fp_zip_open(fp_zip *out, fp_context *ctx, fp_mapping file, const char *path)
{
	fp_status status;
	struct directory directory = {0};
	*out = (fp_zip){0};
	FP_TRY(read_end(&directory, ctx, file, path));
	FP_TRY(FP_NEW(ctx, &out->entries, (int64_t)directory.count));
	const unsigned char *record = file.bytes + directory.offset;
	uint64_t left = directory.size;
	for (uint64_t i = 0; i < directory.count; i++) {
		uint64_t length = 0;
		FP_TRY(read_entry(&out->entries[i], &length, ctx, file, record, left, path));
		record += length;
		left -= length;
		out->count++;
	}
	qsort(out->entries, (size_t)out->count, sizeof *out->entries, compare_entries);
	for (int64_t i = 1; i < out->count; i++) {
		if (compare_entries(&out->entries[i - 1], &out->entries[i]) == 0) {
			status = fp_fail(ctx, FP_ERROR_INPUT, "%s: entry '%.*s' occurs twice", path, shown_length(&out->entries[i]),
							 out->entries[i].name);
			goto cleanup;
		}
	}
	FP_TRY(check_places(ctx, out, path));
cleanup:
	if (status != FP_OK)
		fp_zip_close(out);
	return status;
}

void fp_zip_close(fp_zip *zip)
{
	fp_free(zip->entries);
	*zip = (fp_zip){0};
}

const fp_zip_entry *fp_zip_find(const fp_zip *zip, const char *name, int64_t name_length)
{
	int64_t low = 0, high = zip->count;
	while (low < high) {
		int64_t middle = low + (high - low) / 2;
		const fp_zip_entry *entry = &zip->entries[middle];
		int order = compare_text(entry->name, entry->name_length, name, name_length);
		if (order == 0)
			return entry;
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}
