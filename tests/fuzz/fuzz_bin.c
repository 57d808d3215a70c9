/* SPDX-License-Identifier: Apache-2.0 */
/* The input as an archive of torch.save(), and as its bare pickle, which a checksum would protect otherwise. */
#include "base/memory.h"
#include "checkpoint/pickle_reader.h"
#include "checkpoint/torch_bin.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	fp_context *ctx = fp_context_new();
	fp_mapping file = {data, (int64_t)size};
	fp_tensor_list list = {0};
	fp_pickled_tensor *tensors;
	int64_t count;
	if (fp_torch_bin_read(&list, ctx, file, 0, "fuzz") == FP_OK) {
		for (int64_t i = 0; i < list.count; i++)
			if (list.items[i].offset < 0 || list.items[i].bytes < 0 ||
				list.items[i].bytes > file.size - list.items[i].offset)
				abort();
	}
	fp_tensor_list_free(&list);
	if (fp_pickle_read(&tensors, &count, ctx, data, (int64_t)size, "fuzz") == FP_OK) {
		for (int64_t i = 0; i < count; i++)
			if (tensors[i].rank > FP_MAX_RANK || tensors[i].first_element < 0 || tensors[i].storage_elements < 0)
				abort();
	}
	fp_free(tensors);
	fp_context_free(ctx);
	return 0;
}
