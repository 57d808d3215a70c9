/* SPDX-License-Identifier: Apache-2.0 */
/* pack_checkpoint.h: writes a checkpoint with its sparse matrices packed (docs/packed.md), and back to the same bytes. */
#ifndef FP_CHECKPOINT_PACK_CHECKPOINT_H
#define FP_CHECKPOINT_PACK_CHECKPOINT_H

#include "base/context.h"

typedef struct fp_pack_result {
	int64_t tensors;                      /* of the checkpoint */
	int64_t by_mask, as_pairs;            /* packed in each form */
	int64_t matrix_bytes, packed_bytes;   /* of the packed matrices, before and after */
	int64_t unpacked_total, packed_total; /* of the files with weights */
} fp_pack_result;

/* Packs `model`, a safetensors checkpoint that is not packed, into the new directory. The directory appears when it is
 * complete. */
fp_status fp_pack_checkpoint(fp_pack_result *out, fp_context *ctx, const char *model, const char *directory);
/* The other way round. Fails if a file does not come out as it was before. */
fp_status fp_unpack_checkpoint(fp_pack_result *out, fp_context *ctx, const char *model, const char *directory);

#endif
