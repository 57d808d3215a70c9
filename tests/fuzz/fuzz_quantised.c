/* SPDX-License-Identifier: Apache-2.0 */
/* The input as a safetensors file with whole numbers and scales, and as the bytes of fixed tensors: what is accepted is
 * decoded, and codes that decode to weights on their grid are found again. */
#include "base/memory.h"
#include "checkpoint/integer_tensors.h"
#include "checkpoint/quantised_output.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_header.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decode(fp_context *ctx, const fp_tensor_list *seen, fp_mapping file)
{
	for (int64_t i = 0; i < seen->count; i++) {
		const fp_tensor_info *tensor = &seen->items[i];
		const fp_tensor_coding *coding = tensor->coding;
		char *bytes = NULL;
		if (!coding) {
			if (tensor->offset < 0 || tensor->offset + tensor->bytes > file.size)
				abort();
			continue;
		}
		if (FP_NEW(ctx, &bytes, tensor->bytes) == FP_OK)
			fp_tensor_decode(bytes, ctx, tensor, file.bytes + coding->values->offset,
							 file.bytes + coding->guide->offset,
							 coding->zeros ? file.bytes + coding->zeros->offset : NULL);
		fp_free(bytes);
	}
}

static void read_file(fp_context *ctx, fp_mapping file, unsigned bits)
{
	fp_tensor_list stored = {0}, seen = {0};
	fp_tensor_coding *codings = NULL;
	const fp_quantisation quantisation = {.widths = bits};
	char name[] = "fuzz";
	char *const names[] = {name};
	if (fp_safetensors_read(&stored, ctx, file, 0, "fuzz") == FP_OK &&
		fp_tensor_list_sort(&stored, ctx, names) == FP_OK && FP_NEW(ctx, &codings, stored.count + 1) == FP_OK &&
		fp_integer_present(&seen, codings, ctx, &stored, &file, &quantisation, "fuzz") == FP_OK)
		decode(ctx, &seen, file);
	fp_free(codings);
	fp_tensor_list_free(&stored);
	fp_tensor_list_free(&seen);
}

/* A matrix of each format whose parts are the input's bytes. */
static void read_parts(fp_context *ctx, const fp_grid_format *format, const uint8_t *data, size_t size)
{
	enum { ROWS = 9, COLS = 64 };
	const fp_tensor_info info = {.name = "m.weight",
								 .dtype = FP_F16,
								 .dtype_name = "F16",
								 .rank = 2,
								 .shape = {ROWS, COLS},
								 .elements = ROWS * COLS,
								 .bytes = 2 * ROWS * COLS};
	static char bytes[2 * ROWS * COLS], space[FP_QUANTISED_PARTS][ROWS * COLS], again[FP_QUANTISED_PARTS][ROWS * COLS];
	static float scales[ROWS * COLS], zeros[ROWS * COLS];
	char *parts[FP_QUANTISED_PARTS], *others[FP_QUANTISED_PARTS];
	fp_quantised_tensor tensor;
	if (fp_quantised_tensor_new(&tensor, ctx, &info, format) != FP_OK)
		return;
	size_t at = 0;
	for (int i = 0; i < FP_QUANTISED_PARTS; i++) {
		parts[i] = space[i];
		others[i] = again[i];
		for (int64_t j = 0; i < tensor.count && j < tensor.parts[i].bytes; j++)
			space[i][j] = (char)(size > 0 ? data[at++ % size] : 0);
	}
	if (fp_quantised_decode(bytes, ctx, &tensor, parts) == FP_OK) {
		const int64_t count = tensor.parts[1].elements, groups = count / ROWS;
		bool usable = true;
		fp_to_float(scales, space[1], FP_F16, count);
		for (int64_t i = 0; i < count; i++) {
			zeros[i] =
				tensor.coding.zeros ? (float)fp_load_code(space[3] + 4 * (i % groups), i / groups, 4, groups) : 0;
			usable = usable && scales[i] > 0 && scales[i] < 100;
		}
		fp_grid_numbers numbers = {scales, format->symmetric ? NULL : zeros};
		/* other codes may have the same meaning in FP8 only, whose NaN has none */
		if (usable && !format->is_float &&
			(fp_quantised_encode(others, ctx, &tensor, bytes, numbers) != FP_OK ||
			 memcmp(others[0], parts[0], (size_t)tensor.parts[0].bytes) != 0))
			abort();
	}
	fp_quantised_tensor_free(&tensor);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	fp_context *ctx = fp_context_new();
	const fp_grid_format *format;
	const fp_mapping file = {data, (int64_t)size};
	read_file(ctx, file, 1U << 4);
	read_file(ctx, file, 1U << 4 | 1U << 8);
	for (int i = 0; (format = fp_grid_format_at(i)); i++)
		read_parts(ctx, format, data, size);
	fp_context_free(ctx);
	return 0;
}
