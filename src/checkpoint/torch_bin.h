/* SPDX-License-Identifier: Apache-2.0 */
/* torch_bin.h: a state dict written by torch.save() of PyTorch 1.6 or later: a zip archive with a pickle and storages.
 */
#ifndef FP_CHECKPOINT_TORCH_BIN_H
#define FP_CHECKPOINT_TORCH_BIN_H

#include "base/file.h"
#include "checkpoint/tensor_list.h"

/* Appends the tensors of a file to the list, in the order of the state dict. They may share bytes. `path` is for
 * messages. */
fp_status fp_torch_bin_read(fp_tensor_list *list, fp_context *ctx, fp_mapping file, int shard, const char *path);

#endif
