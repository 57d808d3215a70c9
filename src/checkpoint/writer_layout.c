/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/writer_layout.h"

#include "base/memory.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/stored_pieces.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static fp_status no_memory(fp_context *ctx)
{
	return fp_fail(ctx, FP_ERROR_MEMORY, "out of memory for the header of an output file");
}

/* The source's header with __metadata__.format = "pt", because loaders refuse a file without it, and with the added
 * tensor (NULL: none) behind the `end` bytes of the others. */
static fp_status extend_header(fp_output_file *file, fp_context *ctx, const char *text, int64_t length,
							   const fp_tensor_info *added, int64_t end)
{
	const char *key;
	json_t *value;
	fp_status status = FP_OK;
	json_t *before = json_loadb(text, (size_t)length, 0, NULL), *after = json_object(), *metadata = NULL;
	if (before && after) {
		metadata = json_object_get(before, "__metadata__") ? json_copy(json_object_get(before, "__metadata__"))
														   : json_object();
		json_object_set_new(metadata, "format", json_string("pt"));
		json_object_set(after, "__metadata__", metadata);
		json_object_foreach(before, key, value)
		{
			if (strcmp(key, "__metadata__") != 0 && json_object_set(after, key, value) != 0)
				status = no_memory(ctx);
		}
		if (added && json_object_set_new(after, added->name, fp_safetensors_describe(added, end)) != 0)
			status = no_memory(ctx);
	} else {
		status = no_memory(ctx);
	}
	if (status == FP_OK)
		status = fp_safetensors_header(&file->header, &file->header_size, ctx, after, file->name);
	json_decref(before);
	json_decref(after);
	json_decref(metadata);
	return status;
}

/* The tensor that is added to a file, or NULL. */
static const fp_tensor_info *added_to(const fp_output_layout *layout, int file)
{
	return layout->added.name && file == layout->file_count - 1 ? &layout->added : NULL;
}

/* The name of a shard before it was packed. */
static const char *plain_name(const fp_checkpoint *source, int shard)
{
	bool renamed = source->packed && strcmp(source->shards[shard], source->format->file) == 0;
	return renamed ? fp_weight_format_at(0)->file : source->shards[shard];
}

/* Keeps the header of a file, or of that which was packed. */
static fp_status keep_shard(fp_output_layout *layout, fp_context *ctx, const fp_checkpoint *source, int shard,
							bool exact)
{
	fp_output_file *file = &layout->files[shard];
	const fp_packed_file *packed = source->packed ? &source->packed[shard] : NULL;
	const fp_mapping mapped = source->files[shard];
	const int64_t start = packed ? packed->header_size : fp_safetensors_data_start(mapped);
	const int64_t data = packed ? packed->data_size : mapped.size - start;
	const char *header = packed ? packed->header : (const char *)mapped.bytes;
	const fp_tensor_list *placed = packed ? &source->originals : &source->tensors;
	const fp_tensor_info *added = added_to(layout, shard);
	bool has_format = exact;
	fp_status status = fp_copy_text(ctx, &file->name, plain_name(source, shard));
	if (status == FP_OK && !exact)
		status = fp_safetensors_has_format(&has_format, ctx, (fp_mapping){(const unsigned char *)header, start});
	if (status == FP_OK && (!has_format || added)) {
		status = extend_header(file, ctx, header + FP_SAFETENSORS_PREFIX, start - FP_SAFETENSORS_PREFIX, added, data);
	} else if (status == FP_OK) {
		status = FP_NEW(ctx, &file->header, start);
		if (status == FP_OK)
			memcpy(file->header, header, (size_t)start);
		file->header_size = start;
	}
	if (status != FP_OK)
		return status;
	file->size = file->header_size + data;
	if (added) {
		layout->offsets[source->tensors.count] = file->size;
		file->size += added->bytes;
	}
	for (int64_t i = 0; i < placed->count; i++)
		if (placed->items[i].shard == shard) /* offsets of originals count from the end of the header */
			layout->offsets[i] = placed->items[i].offset - (packed ? 0 : start) + file->header_size;
	return FP_OK;
}

/* Two shards such as "pytorch_a.bin" and "a.bin" would get the same name. */
static fp_status check_names(const fp_output_layout *layout, fp_context *ctx, const fp_checkpoint *source)
{
	for (int i = 0; i < layout->file_count; i++)
		for (int j = 0; j < i; j++)
			if (strcmp(layout->files[i].name, layout->files[j].name) == 0)
				return fp_fail(ctx, FP_ERROR_INPUT, "%s: %s and %s would both be written as %s; rename one",
							   source->directory, source->shards[j], source->shards[i], layout->files[i].name);
	return FP_OK;
}

/* pytorch_model-00001-of-00002.bin becomes model-00001-of-00002.safetensors. */
static fp_status rename_shard(char **out, fp_context *ctx, const char *name, const fp_weight_format *format)
{
	const size_t prefix = strlen(format->prefix), ending = strlen(format->ending);
	if (strncmp(name, format->prefix, prefix) == 0)
		name += prefix;
	size_t length = strlen(name);
	if (length > ending && strcmp(name + length - ending, format->ending) == 0)
		length -= ending;
	int64_t size = (int64_t)length + 16;
	fp_status status = FP_NEW(ctx, out, size);
	if (status == FP_OK)
		snprintf(*out, (size_t)size, "%.*s.safetensors", (int)length, name);
	return status;
}

static bool ties_embeddings(const json_t *config)
{
	static const char *const tied[] = {"opt",    "gpt2",   "bloom",       "falcon", "gemma",
									   "gemma2", "gemma3", "gemma3_text", "cohere", "cohere2"};
	const json_t *tie = json_object_get(config, "tie_word_embeddings");
	const char *type = json_string_value(json_object_get(config, "model_type"));
	if (tie)
		return json_is_true(tie);
	for (size_t i = 0; type && i < sizeof tied / sizeof tied[0]; i++) /* unless the config says otherwise */
		if (strcmp(type, tied[i]) == 0)
			return true;
	return false;
}

static bool ends_with_one_of(const char *text, const char *const *endings, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		size_t length = strlen(text), end = strlen(endings[i]);
		if (length >= end && strcmp(text + length - end, endings[i]) == 0)
			return true;
	}
	return false;
}

/*
 * In an archive a tied head is a second name for the embedding. If the config says that it is tied, the head is left
 * out, as transformers does when it saves. Any other shared tensor is written under each of its names, which always
 * loads.
 */
static bool is_tied_head(const fp_output_layout *layout, const fp_checkpoint *source, const fp_tensor_info *tensor)
{
	static const char *const embeddings[] = {"embed_tokens.weight", "wte.weight", "word_embeddings.weight",
											 "embed_in.weight"};
	static const char *const heads[] = {"lm_head.weight", "embed_out.weight"};
	if (layout->unties || !ends_with_one_of(tensor->name, heads, 2) || !ties_embeddings(source->config))
		return false;
	for (int64_t i = 0; i < source->tensors.count; i++) {
		const fp_tensor_info *other = &source->tensors.items[i];
		if (ends_with_one_of(other->name, embeddings, sizeof embeddings / sizeof embeddings[0]) &&
			other->shard == tensor->shard && other->offset == tensor->offset && other->bytes == tensor->bytes &&
			other->dtype == tensor->dtype && other->rank == tensor->rank &&
			memcmp(other->shape, tensor->shape, sizeof tensor->shape) == 0)
			return true;
	}
	return false;
}

/* Bytes of one element, for alignment. */
static int64_t element_size(const fp_tensor_info *tensor)
{
	return tensor->elements > 0 && tensor->bytes > tensor->elements ? tensor->bytes / tensor->elements : 1;
}

/* Adds a tensor at the end of a file. */
static fp_status append(const fp_output_file *file, fp_context *ctx, const fp_tensor_info *tensor, json_t *header,
						json_t *map, int64_t *end)
{
	if (json_object_set_new(header, tensor->name, fp_safetensors_describe(tensor, *end)) != 0 ||
		json_object_set_new(map, tensor->name, json_string(file->name)) != 0)
		return no_memory(ctx);
	if (!fp_add_checked(*end, tensor->bytes, end))
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: its tensors are too large in total", file->name);
	return FP_OK;
}

/* Places the tensors of a file anew: wider elements first, so that all are aligned; otherwise in the source's order. */
static fp_status fill_file(fp_output_layout *layout, fp_context *ctx, const fp_checkpoint *source, int index,
						   json_t *map)
{
	fp_output_file *file = &layout->files[index];
	fp_status status = FP_OK;
	json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
	int64_t end = 0;
	if (!header)
		FP_TRY(no_memory(ctx));
	for (int64_t width = 8; width >= 1; width /= 2)
		for (int64_t i = 0; i < source->tensors.count; i++)
			for (int part = 0; layout->file_of[i] == index && part < fp_piece_count(layout, i); part++) {
				const fp_tensor_info *tensor = fp_piece(layout, source, i, part);
				if (element_size(tensor) != width || is_tied_head(layout, source, tensor))
					continue;
				fp_place_piece(layout, i, part, end); /* the header's size is added below */
				FP_TRY(append(file, ctx, tensor, header, map, &end));
			}
	const fp_tensor_info *added = added_to(layout, index);
	if (added) {
		layout->offsets[source->tensors.count] = end;
		FP_TRY(append(file, ctx, added, header, map, &end));
	}
	FP_TRY(fp_safetensors_header(&file->header, &file->header_size, ctx, header, file->name));
	fp_shift_places(layout, source, index);
	file->size = file->header_size + end;
cleanup:
	json_decref(header);
	return status;
}

/* Sets file_of: the source's shards, split where they would be larger than the largest of them. Returns their number. */
static int split_shards(fp_output_layout *layout, const fp_checkpoint *source)
{
	int files = 0, shard = -1;
	int64_t limit = 0, filled = 0;
	for (int i = 0; i < source->shard_count; i++)
		limit = source->files[i].size > limit ? source->files[i].size : limit;
	for (int64_t i = 0; i < source->tensors.count; i++) {
		const int64_t bytes = fp_stored_bytes(layout, source, i);
		const int own = source->tensors.items[i].shard;
		bool full = source->shard_count > 1 && filled > 0 && bytes > limit - filled;
		if (own != shard || full) {
			files++;
			filled = 0;
			shard = own;
		}
		filled += bytes;
		layout->file_of[i] = files - 1;
	}
	return files;
}

/* The files of a source with coded tensors, or of an output with quantised ones; they keep their names if their number is
 * the same. */
static fp_status recode_shards(fp_output_layout *layout, fp_context *ctx, const fp_checkpoint *source, json_t *map)
{
	fp_status status = FP_OK;
	int count = split_shards(layout, source);
	bool same = count == source->shard_count;
	FP_TRY(FP_NEW(ctx, &layout->files, count));
	layout->file_count = count;
	layout->file_of[source->tensors.count] = count - 1;
	for (int i = 0; i < count; i++) {
		char name[64];
		snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", i + 1, count);
		if (same && !source->format->is_output)
			FP_TRY(rename_shard(&layout->files[i].name, ctx, source->shards[i], source->format));
		else
			FP_TRY(fp_copy_text(ctx, &layout->files[i].name, same ? plain_name(source, i) : name));
		FP_TRY(fill_file(layout, ctx, source, i, map));
	}
cleanup:
	return status;
}

static fp_status make_index(fp_output_layout *layout, fp_context *ctx, const fp_checkpoint *source, json_t *map)
{
	int64_t total = layout->added.bytes;
	for (int64_t i = 0; i < source->tensors.count; i++)
		if (layout->offsets[i] >= 0)
			total += fp_stored_bytes(layout, source, i);
	json_t *index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
	char *text = index ? json_dumps(index, JSON_INDENT(2)) : NULL;
	fp_status status = text ? fp_copy_text(ctx, &layout->index, text) : no_memory(ctx);
	free(text);
	json_decref(index);
	return status;
}

/* Says in which file of the output every tensor is, where the source's own index does not know the added one. */
static fp_status map_tensors(const fp_output_layout *layout, fp_context *ctx, const fp_checkpoint *source, json_t *map)
{
	for (int64_t i = 0; i <= source->tensors.count; i++) {
		const fp_tensor_info *tensor = i < source->tensors.count ? &source->tensors.items[i] : &layout->added;
		if (json_object_set_new(map, tensor->name, json_string(layout->files[layout->file_of[i]].name)) != 0)
			return no_memory(ctx);
	}
	return FP_OK;
}

/* One file for each shard: as it is, or converted from another format. */
static fp_status lay_out_shards(fp_output_layout *layout, fp_context *ctx, const fp_checkpoint *source, json_t *map,
								bool exact)
{
	fp_status status;
	FP_TRY(FP_NEW(ctx, &layout->files, source->shard_count));
	layout->file_count = source->shard_count;
	for (int i = 0; i < source->shard_count; i++) {
		if (source->format->is_output) {
			FP_TRY(keep_shard(layout, ctx, source, i, exact));
			continue;
		}
		FP_TRY(rename_shard(&layout->files[i].name, ctx, source->shards[i], source->format));
		FP_TRY(fill_file(layout, ctx, source, i, map));
	}
cleanup:
	return status;
}

/* The index of a packed checkpoint is that of the files before. */
static fp_status keep_index(fp_output_layout *layout, fp_context *ctx, const fp_checkpoint *source)
{
	char *path = NULL;
	int64_t size;
	fp_status status;
	FP_TRY(fp_join_path(&path, ctx, source->directory, source->index_name));
	FP_TRY(fp_read_file(&layout->index, &size, ctx, path, FP_MAX_JSON_FILE));
cleanup:
	fp_free(path);
	return status;
}

/* Whether a change of the source makes sense, and what is added. */
static fp_status take_added(fp_output_layout *layout, fp_context *ctx, const fp_checkpoint *source,
							const fp_tensor_info *added)
{
	const fp_tensor_info *known = added ? fp_checkpoint_find(source, added->name) : NULL;
	layout->unties = known;
	if (known && (known->dtype != added->dtype || known->rank != added->rank ||
				  memcmp(known->shape, added->shape, sizeof known->shape) != 0))
		return fp_fail(
			ctx, FP_ERROR_INPUT,
			"%s: tensor '%s' does not have the type and shape of the embedding that config.json ties it to, so it "
			"cannot get bytes of its own (--basis local leaves it alone)",
			source->directory, added->name);
	if (added && !layout->unties)
		layout->added = *added;
	return FP_OK;
}

fp_status fp_output_layout_make(fp_output_layout *out, fp_context *ctx, const fp_checkpoint *source,
								const fp_output_change *change, bool exact)
{
	const fp_output_change none = {0};
	fp_status status;
	json_t *map = json_object();
	*out = (fp_output_layout){0};
	FP_TRY(take_added(out, ctx, source, change ? change->added : NULL));
	FP_TRY(fp_layout_quantise(out, ctx, source, change ? change : &none));
	FP_TRY(FP_NEW(ctx, &out->offsets, source->tensors.count + 1));
	FP_TRY(FP_NEW(ctx, &out->file_of, source->tensors.count + 1));
	for (int64_t i = 0; i <= source->tensors.count; i++) {
		out->offsets[i] = -1;
		out->file_of[i] = i < source->tensors.count ? source->tensors.items[i].shard : source->shard_count - 1;
	}
	bool recodes = source->codings || out->quantised, kept = source->format->is_output && !recodes;
	if (recodes)
		FP_TRY(recode_shards(out, ctx, source, map));
	else
		FP_TRY(lay_out_shards(out, ctx, source, map, exact));
	if (!source->format->is_output)
		FP_TRY(check_names(out, ctx, source));
	if (kept && out->added.name)
		FP_TRY(map_tensors(out, ctx, source, map));
	if (source->index_name && (out->added.name || !kept))
		FP_TRY(make_index(out, ctx, source, map));
	else if (source->index_name && source->packed)
		FP_TRY(keep_index(out, ctx, source));
cleanup:
	json_decref(map);
	if (status != FP_OK)
		fp_output_layout_free(out);
	return status;
}

void fp_output_layout_free(fp_output_layout *layout)
{
	for (int i = 0; i < layout->file_count; i++) {
		fp_free(layout->files[i].name);
		fp_free(layout->files[i].header);
	}
	fp_layout_free_quantised(layout);
	fp_free(layout->files);
	fp_free(layout->offsets);
	fp_free(layout->file_of);
	fp_free(layout->index);
	*layout = (fp_output_layout){0};
}
