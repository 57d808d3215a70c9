/* SPDX-License-Identifier: Apache-2.0 */
/* stored_pieces.h: what the output stores of each tensor of the source: the tensor, or the parts of a quantised one; for
 * writer_layout.c. */
#ifndef FP_CHECKPOINT_STORED_PIECES_H
#define FP_CHECKPOINT_STORED_PIECES_H

#include "checkpoint/writer_layout.h"

/* Sets layout->quantised, if some tensors are; freed with fp_layout_free_quantised(). */
fp_status fp_layout_quantise(fp_output_layout *layout, fp_context *ctx, const fp_checkpoint *source,
							 const fp_output_change *change);
void fp_layout_free_quantised(fp_output_layout *layout);

/* The pieces of tensor `index`, and their bytes in all. */
int fp_piece_count(const fp_output_layout *layout, int64_t index);
const fp_tensor_info *fp_piece(const fp_output_layout *layout, const fp_checkpoint *source, int64_t index, int part);
int64_t fp_stored_bytes(const fp_output_layout *layout, const fp_checkpoint *source, int64_t index);
/* Notes where a piece starts; the first one stands for the tensor. */
void fp_place_piece(fp_output_layout *layout, int64_t index, int part, int64_t offset);
/* Adds the header's size to the places in a file. */
void fp_shift_places(fp_output_layout *layout, const fp_checkpoint *source, int file);

#endif
