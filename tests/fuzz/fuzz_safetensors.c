/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a safetensors file; what is accepted must lie in the file and cover it. */
#include "checkpoint/safetensors.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	fp_context *ctx = fp_context_new();
	fp_mapping file = {data, (int64_t)size};
	fp_tensor_list list = {0};
	char name[] = "fuzz";
	char *const names[] = {name};
	if (fp_safetensors_read(&list, ctx, file, 0, "fuzz") == FP_OK) {
		int64_t end = fp_safetensors_data_start(file);
		bool has_format;
		for (int64_t i = 0; i < list.count; i++) {
			if (list.items[i].offset != end)
				abort();
			end += list.items[i].bytes;
		}
		if (end != file.size || fp_safetensors_has_format(&has_format, ctx, file) != FP_OK)
			abort();
		/* the parser refuses duplicates, so that sorting cannot fail */
		if (fp_tensor_list_sort(&list, ctx, names) != FP_OK)
			abort();
	}
	fp_tensor_list_free(&list);
	fp_context_free(ctx);
	return 0;
}
