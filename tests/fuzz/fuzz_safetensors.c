/* SPDX-License-Identifier: Apache-2.0 */
/* The input as a safetensors file; accepted tensors must lie in the file and cover it, and FP8 weights among them are
 * decoded. */
#include "base/memory.h"
#include "checkpoint/fp8_tensors.h"
#include "checkpoint/safetensors.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads the tensors as those of a checkpoint with FP8 weights. */
static void decode_fp8(fp_context *ctx, const fp_tensor_list *stored, fp_mapping file, const fp_quantisation *how)
{
	fp_tensor_list seen = {0};
	fp_tensor_coding *codings = NULL;
	if (FP_NEW(ctx, &codings, stored->count + 1) != FP_OK)
		return;
	bool good = fp_fp8_present(&seen, codings, ctx, stored, how, "fuzz") == FP_OK;
	for (int64_t i = 0; good && i < seen.count; i++) {
		const fp_tensor_coding *coding = seen.items[i].coding;
		char *bytes = NULL;
		if (coding && FP_NEW(ctx, &bytes, seen.items[i].bytes) == FP_OK)
			fp_tensor_decode(bytes, ctx, &seen.items[i], file.bytes + coding->values->offset,
							 file.bytes + coding->guide->offset, NULL);
		fp_free(bytes);
	}
	fp_tensor_list_free(&seen);
	fp_free(codings);
}

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
		decode_fp8(ctx, &list, file, &(fp_quantisation){.block = {2, 3}});
		decode_fp8(ctx, &list, file, &(fp_quantisation){.scales_by_rows = true});
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
