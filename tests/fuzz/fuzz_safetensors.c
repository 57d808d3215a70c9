/* SPDX-License-Identifier: Apache-2.0 */
/* The input as a safetensors file; accepted tensors must lie in the file and cover it. */
#include "checkpoint/safetensors.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_file(fp_mapping file)
{
	fp_context *ctx = fp_context_new();
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
		/* sorting cannot fail, because the parser refuses duplicates */
		if (fp_tensor_list_sort(&list, ctx, names) != FP_OK)
			abort();
	}
	fp_tensor_list_free(&list);
	fp_context_free(ctx);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	read_file((fp_mapping){data, (int64_t)size});
	/* And as a bare header, with the right length before it and some data after it, to reach more of the parser. */
	for (size_t tail = 0; tail <= 16; tail += 8) {
		unsigned char *file = malloc(8 + size + tail);
		for (int i = 0; i < 8; i++)
			file[i] = (unsigned char)(size >> (8 * i));
		memcpy(file + 8, data, size);
		memset(file + 8 + size, 0, tail);
		read_file((fp_mapping){file, (int64_t)(8 + size + tail)});
		free(file);
	}
	return 0;
}
