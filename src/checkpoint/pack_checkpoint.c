/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/pack_checkpoint.h"

#include "base/memory.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/companion_files.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/working_folder.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A tensor of the output: all of one of the source, or a part of a packed one. */
typedef struct piece {
	fp_tensor_info info;
	char *name;     /* of a part, else NULL */
	int64_t offset; /* behind the header */
} piece;

typedef struct tensor_plan {
	fp_packed_plan packing;
	piece pieces[2]; /* the tensor; or its values, and its mask or positions */
} tensor_plan;

typedef struct packer {
	fp_context *ctx;
	fp_checkpoint *source;
	fp_working_folder folder;
	fp_companion_files companions;
	tensor_plan *plans; /* one for each tensor */
	struct {
		char *header;
		int64_t header_size, size;
		int file; /* open, or −1 */
	} * files;    /* one for each shard */
	fp_pack_result *result;
} packer;

static fp_status no_memory(fp_context *ctx)
{
	return fp_fail(ctx, FP_ERROR_MEMORY, "out of memory for the header of a packed file");
}

static int piece_count(const tensor_plan *plan)
{
	return plan->packing.packed ? 2 : 1;
}

static fp_status open_source(packer *p, const char *model, const char *directory)
{
	fp_status status;
	FP_TRY(fp_checkpoint_open_as_stored(&p->source, p->ctx, model));
	if (p->source->packed)
		FP_TRY(fp_fail(p->ctx, FP_ERROR_USAGE, "%s: is packed already", model));
	if (!p->source->format->is_output)
		FP_TRY(fp_fail(p->ctx, FP_ERROR_USAGE,
					   "%s: its weights are a %s; only safetensors, which prune writes, are packed", model,
					   p->source->format->name));
	FP_TRY(fp_working_folder_resolve(&p->folder, p->ctx, directory));
	FP_TRY(fp_working_folder_check(&p->folder, p->source->directory));
	FP_TRY(fp_companion_files_list(&p->companions, p->ctx, p->source->directory, NULL));
	FP_TRY(FP_NEW(p->ctx, &p->plans, p->source->tensors.count));
	FP_TRY(FP_NEW(p->ctx, &p->files, p->source->shard_count));
	for (int i = 0; i < p->source->shard_count; i++)
		p->files[i].file = -1;
cleanup:
	return status;
}

/* A part of a packed matrix; *taken: the source has a tensor of that name. */
static fp_status make_piece(piece *out, const packer *p, const fp_tensor_info *tensor, const char *ending,
							fp_dtype dtype, int64_t rows, int64_t cols, bool *taken)
{
	int64_t size = (int64_t)strlen(tensor->name) + 16;
	fp_status status = FP_NEW(p->ctx, &out->name, size);
	if (status != FP_OK)
		return status;
	snprintf(out->name, (size_t)size, "%s%s", tensor->name, ending);
	out->info = (fp_tensor_info){.name = out->name,
								 .dtype = dtype,
								 .dtype_name = fp_dtype_name(dtype),
								 .rank = rows > 0 ? 2 : 1,
								 .shape = {rows > 0 ? rows : cols, rows > 0 ? cols : 0},
								 .shard = tensor->shard};
	fp_tensor_measure(&out->info, 8 * fp_dtype_size(dtype));
	*taken = *taken || fp_checkpoint_find(p->source, out->name) || strlen(out->name) >= FP_PACKED_MAX_NAME;
	return FP_OK;
}

/* Decides how a tensor is written. */
static fp_status plan_tensor(packer *p, int64_t index)
{
	const fp_tensor_info *tensor = &p->source->tensors.items[index];
	tensor_plan *plan = &p->plans[index];
	fp_packed_plan *packing = &plan->packing;
	bool taken = false;
	fp_status status = FP_OK;
	if (fp_packed_fits(tensor)) {
		*packing = fp_packed_choose(tensor, fp_checkpoint_data(p->source, tensor));
		fp_checkpoint_forget(p->source, tensor);
	}
	if (packing->packed) {
		int64_t rows = tensor->shape[0], guide = packing->guide_bytes / rows;
		bool pairs = packing->kind == FP_CODED_TWO_OF_FOUR;
		FP_TRY(make_piece(&plan->pieces[0], p, tensor, FP_PACKED_VALUES, tensor->dtype, pairs ? rows : 0,
						  pairs ? tensor->shape[1] / 2 : packing->stored, &taken));
		FP_TRY(make_piece(&plan->pieces[1], p, tensor, pairs ? FP_PACKED_POSITIONS : FP_PACKED_MASK, FP_U8, rows, guide,
						  &taken));
		packing->packed = !taken;
	}
	if (!packing->packed)
		plan->pieces[0].info = *tensor;
	p->result->by_mask += packing->packed && packing->kind == FP_CODED_MASK;
	p->result->as_pairs += packing->packed && packing->kind == FP_CODED_TWO_OF_FOUR;
	if (packing->packed) {
		p->result->matrix_bytes += tensor->bytes;
		p->result->packed_bytes += plan->pieces[0].info.bytes + plan->pieces[1].info.bytes;
	}
cleanup:
	return status;
}

/* Bytes of one element, for alignment. */
static int64_t element_size(const fp_tensor_info *tensor)
{
	return tensor->elements > 0 && tensor->bytes > tensor->elements ? tensor->bytes / tensor->elements : 1;
}

/* Places the pieces of a shard, wider elements first so that all are aligned, and makes its header. */
static fp_status plan_file(packer *p, int shard)
{
	const fp_mapping from = p->source->files[shard];
	json_t *header = json_object(), *forms = json_object();
	char *about = NULL;
	int64_t end = 0;
	fp_status status = FP_OK;
	for (int64_t i = 0; i < p->source->tensors.count; i++) {
		const fp_packed_plan *packing = &p->plans[i].packing;
		const fp_tensor_info *tensor = &p->source->tensors.items[i];
		if (tensor->shard == shard && packing->packed)
			json_object_set_new(forms, tensor->name, json_string(fp_packed_form(packing->kind)));
	}
	about = fp_packed_metadata(from, fp_safetensors_data_start(from), forms);
	if (!about || json_object_set_new(header, "__metadata__", json_pack("{s:s}", FP_PACKED_KEY, about)) != 0)
		FP_TRY(no_memory(p->ctx));
	for (int64_t width = 8; width >= 1; width /= 2)
		for (int64_t i = 0; i < p->source->tensors.count; i++)
			for (int k = 0; k < piece_count(&p->plans[i]); k++) {
				piece *one = &p->plans[i].pieces[k];
				if (one->info.shard != shard || element_size(&one->info) != width)
					continue;
				one->offset = end;
				if (json_object_set_new(header, one->info.name, fp_safetensors_describe(&one->info, end)) != 0)
					FP_TRY(no_memory(p->ctx));
				end += one->info.bytes;
			}
	FP_TRY(fp_safetensors_header(&p->files[shard].header, &p->files[shard].header_size, p->ctx, header,
								 p->source->shards[shard]));
	p->files[shard].size = p->files[shard].header_size + end;
	p->result->packed_total += p->files[shard].size;
	p->result->unpacked_total += from.size;
cleanup:
	free(about);
	json_decref(header);
	json_decref(forms);
	return status;
}

static const fp_weight_format *packed_format(void)
{
	int i = 0;
	while (!fp_weight_format_at(i)->is_packed)
		i++;
	return fp_weight_format_at(i);
}

/* The name of a shard in the output. That of a single file differs, so that other programs do not take it for the model. */
static const char *packed_name(const packer *p, int shard)
{
	const char *name = p->source->shards[shard];
	return strcmp(name, p->source->format->file) == 0 ? packed_format()->file : name;
}

/* The files that are not weights: as they are, but for the config's mark and the index's name. */
static fp_status write_companions(packer *p)
{
	char *from = NULL, *to = NULL, *text = NULL, *marked = NULL;
	int64_t size;
	fp_status status;
	FP_TRY(fp_companion_files_copy(&p->companions, p->ctx, p->source->directory, p->folder.output));
	FP_TRY(fp_join_path(&from, p->ctx, p->source->directory, "config.json"));
	FP_TRY(fp_join_path(&to, p->ctx, p->folder.output, "config.json"));
	FP_TRY(fp_read_file(&text, &size, p->ctx, from, FP_MAX_JSON_FILE));
	FP_TRY(fp_packed_config_mark(&marked, p->ctx, text, from));
	unlink(to);
	FP_TRY(fp_write_file(p->ctx, to, marked, (int64_t)strlen(marked)));
	if (p->source->index_name) {
		fp_free(from);
		fp_free(to);
		from = to = NULL;
		FP_TRY(fp_join_path(&from, p->ctx, p->source->directory, p->source->index_name));
		FP_TRY(fp_join_path(&to, p->ctx, p->folder.output, packed_format()->index));
		FP_TRY(fp_copy_file(p->ctx, from, to));
	}
cleanup:
	fp_free(from);
	fp_free(to);
	fp_free(text);
	fp_free(marked);
	return status;
}

static fp_status create_files(packer *p)
{
	char *path = NULL;
	fp_status status = FP_OK;
	for (int i = 0; i < p->source->shard_count; i++) {
		fp_free(path);
		path = NULL;
		FP_TRY(fp_join_path(&path, p->ctx, p->folder.output, packed_name(p, i)));
		FP_TRY(fp_create_file(&p->files[i].file, p->ctx, path, p->files[i].size));
		FP_TRY(fp_write_at(p->ctx, p->files[i].file, path, p->files[i].header, p->files[i].header_size, 0));
	}
cleanup:
	fp_free(path);
	return status;
}

static fp_status write_piece(const packer *p, const piece *one, const void *bytes)
{
	int shard = one->info.shard;
	return fp_write_at(p->ctx, p->files[shard].file, packed_name(p, shard), bytes, one->info.bytes,
					   p->files[shard].header_size + one->offset);
}

static fp_status write_tensor(packer *p, int64_t index)
{
	const fp_tensor_info *tensor = &p->source->tensors.items[index];
	const tensor_plan *plan = &p->plans[index];
	const void *bytes = fp_checkpoint_data(p->source, tensor);
	char *values = NULL, *guide = NULL;
	fp_status status;
	if (plan->packing.packed) {
		FP_TRY(FP_NEW(p->ctx, &values, plan->pieces[0].info.bytes));
		FP_TRY(FP_NEW(p->ctx, &guide, plan->pieces[1].info.bytes));
		FP_TRY(fp_packed_encode(values, guide, p->ctx, tensor, &plan->packing, bytes));
		FP_TRY(write_piece(p, &plan->pieces[0], values));
		FP_TRY(write_piece(p, &plan->pieces[1], guide));
	} else {
		FP_TRY(write_piece(p, &plan->pieces[0], bytes));
	}
	fp_checkpoint_forget(p->source, tensor);
cleanup:
	fp_free(values);
	fp_free(guide);
	return status;
}

static fp_status write_all(packer *p)
{
	const int64_t count = p->source->tensors.count;
	int64_t bytes = p->companions.bytes;
	bool begun, fits = true;
	fp_status status;
	for (int i = 0; i < p->source->shard_count; i++)
		fits = fits && fp_add_checked(bytes, p->files[i].size, &bytes);
	FP_TRY(fp_working_folder_take(&p->folder, false, &begun));
	FP_TRY(fp_working_folder_check_space(&p->folder, fits ? bytes : INT64_MAX));
	FP_TRY(write_companions(p));
	FP_TRY(create_files(p));
	for (int64_t i = 0; i < count; i++) {
		FP_TRY(fp_check_interrupt(p->ctx));
		FP_TRY(write_tensor(p, i));
		fp_report_progress(p->ctx, "packing", i + 1, count);
	}
	for (int i = 0; i < p->source->shard_count; i++) {
		int file = p->files[i].file;
		p->files[i].file = -1;
		FP_TRY(fp_close_synced(p->ctx, file, packed_name(p, i)));
	}
	FP_TRY(fp_sync_directory(p->ctx, p->folder.output));
	FP_TRY(fp_working_folder_commit(&p->folder));
cleanup:
	return status;
}

static void close_packer(packer *p)
{
	for (int i = 0; p->files && i < p->source->shard_count; i++) {
		if (p->files[i].file >= 0)
			close(p->files[i].file);
		fp_free(p->files[i].header);
	}
	for (int64_t i = 0; p->plans && i < p->source->tensors.count; i++)
		for (int k = 0; k < 2; k++)
			fp_free(p->plans[i].pieces[k].name);
	fp_free(p->files);
	fp_free(p->plans);
	fp_companion_files_free(&p->companions);
	fp_working_folder_close(&p->folder, false);
	fp_checkpoint_close(p->source);
}

fp_status fp_pack_checkpoint(fp_pack_result *out, fp_context *ctx, const char *model, const char *directory)
{
	packer p = {.ctx = ctx, .folder = {.lock = -1}, .result = out};
	fp_status status;
	*out = (fp_pack_result){0};
	FP_TRY(open_source(&p, model, directory));
	out->tensors = p.source->tensors.count;
	for (int64_t i = 0; i < out->tensors; i++) {
		FP_TRY(fp_check_interrupt(ctx));
		FP_TRY(plan_tensor(&p, i));
		fp_report_progress(ctx, "reading tensors", i + 1, out->tensors);
	}
	for (int i = 0; i < p.source->shard_count; i++)
		FP_TRY(plan_file(&p, i));
	FP_TRY(write_all(&p));
cleanup:
	close_packer(&p);
	return status;
}
