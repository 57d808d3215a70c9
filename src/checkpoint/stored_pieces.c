/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/stored_pieces.h"

#include "base/memory.h"
#include "checkpoint/checkpoint_files.h"

int fp_piece_count(const fp_output_layout *layout, int64_t index)
{
	return layout->quantised && layout->quantised[index].count > 0 ? layout->quantised[index].count : 1;
}

const fp_tensor_info *fp_piece(const fp_output_layout *layout, const fp_checkpoint *source, int64_t index, int part)
{
	bool whole = !layout->quantised || layout->quantised[index].count == 0;
	return whole ? &source->tensors.items[index] : &layout->quantised[index].parts[part];
}

int64_t fp_stored_bytes(const fp_output_layout *layout, const fp_checkpoint *source, int64_t index)
{
	int64_t bytes = 0;
	for (int part = 0; part < fp_piece_count(layout, index); part++)
		bytes += fp_piece(layout, source, index, part)->bytes;
	return bytes;
}

void fp_place_piece(fp_output_layout *layout, int64_t index, int part, int64_t offset)
{
	if (part == 0)
		layout->offsets[index] = offset;
	if (layout->quantised)
		layout->quantised[index].offsets[part] = offset;
}

void fp_shift_places(fp_output_layout *layout, const fp_checkpoint *source, int file)
{
	const int64_t size = layout->files[file].header_size;
	for (int64_t i = 0; i <= source->tensors.count; i++) {
		if (layout->file_of[i] != file || layout->offsets[i] < 0)
			continue;
		layout->offsets[i] += size;
		for (int part = 0; layout->quantised && i < source->tensors.count && part < FP_QUANTISED_PARTS; part++)
			layout->quantised[i].offsets[part] += size;
	}
}

fp_status fp_layout_quantise(fp_output_layout *layout, fp_context *ctx, const fp_checkpoint *source,
							 const fp_output_change *change)
{
	fp_status status = FP_OK;
	if (!change->format)
		return FP_OK;
	FP_TRY(FP_NEW(ctx, &layout->quantised, source->tensors.count));
	layout->quantised_count = source->tensors.count;
	for (int64_t i = 0; i < source->tensors.count; i++)
		if (change->quantised[i])
			FP_TRY(fp_quantised_tensor_new(&layout->quantised[i], ctx, &source->tensors.items[i], change->format));
cleanup:
	return status;
}

void fp_layout_free_quantised(fp_output_layout *layout)
{
	for (int64_t i = 0; i < layout->quantised_count; i++)
		fp_quantised_tensor_free(&layout->quantised[i]);
	fp_free(layout->quantised);
}
