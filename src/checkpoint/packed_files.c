/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/packed_files.h"

#include "base/digest.h"
#include "base/memory.h"
#include "checkpoint/safetensors.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fp_packed_file_free(fp_packed_file *file)
{
	fp_free(file->header);
	*file = (fp_packed_file){0};
}

const char *fp_packed_form(fp_coding_kind kind)
{
	return kind == FP_CODED_MASK ? "mask" : "2:4";
}

char *fp_packed_metadata(fp_mapping original, int64_t header_size, json_t *forms)
{
	char digest[FP_DIGEST_TEXT_SIZE];
	fp_digest_spell(digest, fp_digest_bytes(FP_DIGEST_START, original.bytes, original.size));
	json_t *about =
		json_pack("{s:i, s:s, s:O, s:s%}", "version", FP_PACKED_VERSION, "digest", digest, "tensors", forms, "header",
				  (const char *)original.bytes + FP_SAFETENSORS_PREFIX, (size_t)(header_size - FP_SAFETENSORS_PREFIX));
	char *text = about ? json_dumps(about, JSON_COMPACT) : NULL;
	json_decref(about);
	return text;
}

/* The part of a packed matrix, which must have this type and shape. */
static fp_status find_part(const fp_tensor_info **out, const fp_packed_lists *lists, fp_context *ctx,
						   const fp_tensor_info *original, const char *ending, fp_dtype dtype, int rank,
						   const int64_t *shape, const char *path)
{
	char name[FP_PACKED_MAX_NAME];
	if (snprintf(name, sizeof name, "%s%s", original->name, ending) >= FP_PACKED_MAX_NAME)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%.100s…': its name is too long to be packed", path,
					   original->name);
	const fp_tensor_info *part = fp_tensor_list_find(lists->parts, name);
	*out = part;
	if (!part || part->shard != original->shard)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' is packed, but '%s' is missing", path, original->name,
					   name);
	bool same = part->dtype == dtype && part->rank == rank;
	for (int i = 0; same && i < rank; i++)
		same = shape[i] < 0 || part->shape[i] == shape[i];
	if (!same)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' does not have the type and shape of a part of '%s'", path,
					   name, original->name);
	return FP_OK;
}

static fp_status add_packed(fp_packed_lists *lists, fp_context *ctx, const fp_tensor_info *original, const char *form,
							const char *path)
{
	fp_tensor_info seen = *original;
	const int64_t rows = original->shape[0], cols = original->shape[1];
	const int64_t any[1] = {-1}, mask[2] = {rows, cols / 8 + (cols % 8 != 0)};
	const int64_t pairs[2] = {rows, cols / 2}, positions[2] = {rows, cols / 8};
	fp_tensor_coding coding = {.kind = FP_CODED_MASK};
	fp_status status = FP_OK;
	if (!fp_packed_fits(original))
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' cannot be packed: it is not a matrix of weights", path,
					   original->name);
	if (strcmp(form, fp_packed_form(FP_CODED_MASK)) == 0) {
		FP_TRY(find_part(&coding.values, lists, ctx, original, FP_PACKED_VALUES, original->dtype, 1, any, path));
		FP_TRY(find_part(&coding.guide, lists, ctx, original, FP_PACKED_MASK, FP_U8, 2, mask, path));
	} else if (strcmp(form, fp_packed_form(FP_CODED_TWO_OF_FOUR)) == 0 && cols % 8 == 0) {
		coding.kind = FP_CODED_TWO_OF_FOUR;
		FP_TRY(find_part(&coding.values, lists, ctx, original, FP_PACKED_VALUES, original->dtype, 2, pairs, path));
		FP_TRY(find_part(&coding.guide, lists, ctx, original, FP_PACKED_POSITIONS, FP_U8, 2, positions, path));
	} else {
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' cannot be packed in the form '%.100s'", path,
					   original->name, form);
	}
	fp_tensor_coding *kept = &lists->codings[lists->coding_count++];
	*kept = coding;
	seen.coding = kept;
	FP_TRY(fp_tensor_list_add(lists->seen, ctx, &seen, original->name, (int64_t)strlen(original->name)));
cleanup:
	return status;
}

static fp_status add_plain(fp_packed_lists *lists, fp_context *ctx, const fp_tensor_info *original, const char *path)
{
	const fp_tensor_info *part = fp_tensor_list_find(lists->parts, original->name);
	bool same = part && part->shard == original->shard && strcmp(part->dtype_name, original->dtype_name) == 0 &&
				part->rank == original->rank && memcmp(part->shape, original->shape, sizeof part->shape) == 0;
	if (!same)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s' of the original file is missing or another one", path,
					   original->name);
	return fp_tensor_list_add(lists->seen, ctx, part, part->name, (int64_t)strlen(part->name));
}

/* Resolves the tensors of the original header, from `first` on. Each part must belong to one of them. */
static fp_status resolve(fp_packed_lists *lists, fp_context *ctx, int64_t first, const json_t *forms, int shard,
						 const char *path)
{
	int64_t parts = 0, used = 0, packed = 0;
	fp_status status;
	for (int64_t i = 0; i < lists->parts->count; i++)
		parts += lists->parts->items[i].shard == shard;
	for (int64_t i = first; i < lists->originals->count; i++) {
		const fp_tensor_info *original = &lists->originals->items[i];
		const json_t *form = json_object_get(forms, original->name);
		status = form ? add_packed(lists, ctx, original, json_is_string(form) ? json_string_value(form) : "", path)
					  : add_plain(lists, ctx, original, path);
		if (status != FP_OK)
			return status;
		used += form ? 2 : 1;
		packed += form != NULL;
	}
	if (packed != (int64_t)json_object_size(forms) || used != parts)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: its tensors are not those that its metadata describes", path);
	return FP_OK;
}

static fp_status read_about(fp_packed_file *out, fp_packed_lists *lists, fp_context *ctx, const json_t *about,
							int shard, const char *path)
{
	const json_t *header = json_object_get(about, "header"), *forms = json_object_get(about, "tensors");
	const char *digest = json_string_value(json_object_get(about, "digest"));
	const int64_t first = lists->originals->count, length = (int64_t)json_string_length(header);
	json_int_t version = json_integer_value(json_object_get(about, "version"));
	fp_status status = FP_OK;
	if (version != FP_PACKED_VERSION)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: was packed by format %lld; this program reads format %d", path,
					   (long long)version, FP_PACKED_VERSION);
	if (!json_is_string(header) || !json_is_object(forms) || !digest || strlen(digest) != 16 ||
		strspn(digest, "0123456789abcdef") != 16)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: __metadata__ '%s' needs header, tensors and digest", path,
					   FP_PACKED_KEY);
	out->digest = strtoull(digest, NULL, 16);
	out->header_size = FP_SAFETENSORS_PREFIX + length;
	FP_TRY(FP_NEW(ctx, &out->header, out->header_size + 1));
	for (int i = 0; i < FP_SAFETENSORS_PREFIX; i++)
		out->header[i] = (char)((uint64_t)length >> (8 * i) & 0xFF);
	memcpy(out->header + FP_SAFETENSORS_PREFIX, json_string_value(header), (size_t)length);
	FP_TRY(fp_safetensors_read_header(lists->originals, &out->data_size, ctx, json_string_value(header), length, shard,
									  path));
	FP_TRY(resolve(lists, ctx, first, forms, shard, path));
cleanup:
	return status;
}

fp_status fp_packed_file_read(fp_packed_file *out, fp_packed_lists *lists, fp_context *ctx, fp_mapping file, int shard,
							  const char *path)
{
	char *text = NULL;
	json_t *about = NULL;
	fp_status status;
	*out = (fp_packed_file){0};
	FP_TRY(fp_safetensors_metadata(&text, ctx, file, FP_PACKED_KEY));
	about = text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
	if (!json_is_object(about))
		FP_TRY(fp_fail(ctx, FP_ERROR_INPUT, "%s: its __metadata__ has no JSON object '%s', so that it is not packed",
					   path, FP_PACKED_KEY));
	FP_TRY(read_about(out, lists, ctx, about, shard, path));
cleanup:
	json_decref(about);
	fp_free(text);
	return status;
}

static const char mark[] = "\"" FP_PACKED_KEY "\":{\"version\":1}";
_Static_assert(FP_PACKED_VERSION == 1, "the mark of config.json has the version");

/* Where the key belongs: behind the first brace. */
static size_t place_of_mark(const char *text)
{
	const char *brace = strchr(text, '{');
	return brace ? (size_t)(brace - text) + 1 : 0;
}

fp_status fp_packed_config_mark(char **out, fp_context *ctx, const char *text, const char *path)
{
	json_t *config = json_loads(text, 0, NULL);
	const size_t at = place_of_mark(text), length = strlen(text) + sizeof mark + 1;
	fp_status status = FP_OK;
	*out = NULL;
	if (!json_is_object(config) || at == 0)
		FP_TRY(fp_fail(ctx, FP_ERROR_INPUT, "%s: is not a JSON object", path));
	if (json_object_get(config, FP_PACKED_KEY))
		FP_TRY(fp_fail(ctx, FP_ERROR_INPUT, "%s: has the key '%s' already", path, FP_PACKED_KEY));
	FP_TRY(FP_NEW(ctx, out, (int64_t)length + 1));
	snprintf(*out, length + 1, "%.*s%s%s%s", (int)at, text, mark, json_object_size(config) > 0 ? "," : "", text + at);
cleanup:
	json_decref(config);
	return status;
}

fp_status fp_packed_config_restore(char **out, fp_context *ctx, const char *text, const char *path)
{
	const size_t at = place_of_mark(text), length = strlen(text);
	size_t end = at + sizeof mark - 1;
	fp_status status;
	*out = NULL;
	if (at == 0 || strncmp(text + at, mark, sizeof mark - 1) != 0)
		return fp_fail(ctx, FP_ERROR_INPUT,
					   "%s: %s is not after its first brace, where pack put it, so that its text cannot be restored",
					   path, mark);
	end += text[end] == ',';
	status = FP_NEW(ctx, out, (int64_t)length + 1);
	if (status == FP_OK)
		snprintf(*out, length + 1, "%.*s%s", (int)at, text, text + end);
	return status;
}
