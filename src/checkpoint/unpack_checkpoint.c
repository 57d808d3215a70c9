/* SPDX-License-Identifier: Apache-2.0 */
#include "base/digest.h"
#include "base/memory.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/pack_checkpoint.h"
#include "checkpoint/writer.h"

static void count_forms(fp_pack_result *out, const fp_checkpoint *source)
{
	out->tensors = source->tensors.count;
	for (int64_t i = 0; i < source->tensors.count; i++) {
		const fp_tensor_info *tensor = &source->tensors.items[i];
		const fp_tensor_coding *coding = tensor->coding;
		if (!coding)
			continue;
		out->by_mask += coding->kind == FP_CODED_MASK;
		out->as_pairs += coding->kind == FP_CODED_TWO_OF_FOUR;
		out->matrix_bytes += tensor->bytes;
		out->packed_bytes += coding->values->bytes + coding->guide->bytes;
	}
	for (int i = 0; i < source->shard_count; i++) {
		out->packed_total += source->files[i].size;
		out->unpacked_total += source->packed[i].header_size + source->packed[i].data_size;
	}
}

/* Writes a tensor and continues the digest of its file. */
static fp_status unpack_tensor(fp_writer *writer, fp_context *ctx, const fp_checkpoint *source,
							   const fp_tensor_info *tensor, uint64_t *digest)
{
	const void *bytes;
	void *own;
	fp_status status;
	FP_TRY(fp_check_interrupt(ctx));
	FP_TRY(fp_checkpoint_read(&bytes, &own, ctx, source, tensor));
	*digest = fp_digest_bytes(*digest, bytes, tensor->bytes);
	status = fp_writer_replace(writer, ctx, tensor, bytes);
	fp_free(own);
	fp_checkpoint_forget(source, tensor);
cleanup:
	return status;
}

/* The tensors of a file come in the order of its bytes. */
static fp_status unpack_files(fp_writer *writer, fp_context *ctx, const fp_checkpoint *source)
{
	const int64_t count = source->tensors.count;
	int64_t next = 0;
	for (int shard = 0; shard < source->shard_count; shard++) {
		const fp_packed_file *file = &source->packed[shard];
		uint64_t digest = fp_digest_bytes(FP_DIGEST_START, file->header, file->header_size);
		for (; next < count && source->tensors.items[next].shard == shard; next++) {
			fp_status status = unpack_tensor(writer, ctx, source, &source->tensors.items[next], &digest);
			if (status != FP_OK)
				return status;
			fp_report_progress(ctx, "unpacking", next + 1, count);
		}
		if (digest != file->digest)
			return fp_fail(ctx, FP_ERROR_INPUT,
						   "%s/%s: does not give the file that was packed (its digest is another one): it is damaged",
						   source->directory, source->shards[shard]);
	}
	return FP_OK;
}

fp_status fp_unpack_checkpoint(fp_pack_result *out, fp_context *ctx, const char *model, const char *directory)
{
	fp_checkpoint *source = NULL;
	fp_writer *writer = NULL;
	fp_status status;
	*out = (fp_pack_result){0};
	FP_TRY(fp_checkpoint_open_as_stored(&source, ctx, model));
	if (!source->packed)
		FP_TRY(fp_fail(ctx, FP_ERROR_USAGE, "%s: is not packed", model));
	count_forms(out, source);
	FP_TRY(fp_writer_open_exact(&writer, ctx, source, directory));
	FP_TRY(unpack_files(writer, ctx, source));
	FP_TRY(fp_writer_commit(writer));
cleanup:
	fp_writer_close(writer);
	fp_checkpoint_close(source);
	return status;
}
