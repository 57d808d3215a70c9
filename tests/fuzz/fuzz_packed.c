/* SPDX-License-Identifier: Apache-2.0 */
/* The input as a packed file, and as the metadata of one with fixed parts: what is accepted is decoded, and a matrix that
 * decodes packs and decodes to the same bytes again. */
#include "base/memory.h"
#include "checkpoint/packed_files.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_header.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void pack_again(fp_context *ctx, const fp_tensor_info *tensor, const void *bytes)
{
	fp_packed_plan plan = fp_packed_choose(tensor, bytes);
	fp_tensor_info values = {.elements = plan.stored}, guide = {.name = "", .elements = plan.guide_bytes};
	fp_tensor_coding coding = {.kind = plan.kind, .values = &values, .guide = &guide};
	fp_tensor_info again = *tensor;
	char *parts[3] = {NULL};
	again.coding = &coding;
	int64_t sizes[3] = {plan.stored * fp_dtype_size(tensor->dtype), plan.guide_bytes, tensor->bytes};
	for (int i = 0; i < 3; i++)
		if (FP_NEW(ctx, &parts[i], sizes[i]) != FP_OK)
			abort();
	if (fp_packed_encode(parts[0], parts[1], ctx, tensor, &plan, bytes) != FP_OK ||
		fp_packed_decode(parts[2], ctx, &again, parts[0], parts[1]) != FP_OK ||
		memcmp(parts[2], bytes, (size_t)tensor->bytes) != 0)
		abort();
	for (int i = 0; i < 3; i++)
		fp_free(parts[i]);
}

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
		const unsigned char *guide = file.bytes + coding->guide->offset;
		if (FP_NEW(ctx, &bytes, tensor->bytes) != FP_OK)
			continue;
		bool good = fp_tensor_decode(bytes, ctx, tensor, file.bytes + coding->values->offset, guide, NULL) == FP_OK;
		if (good != (fp_packed_check(ctx, tensor, guide) == FP_OK))
			abort();
		if (good)
			pack_again(ctx, tensor, bytes);
		fp_free(bytes);
	}
}

static void read_packed(fp_context *ctx, fp_mapping file)
{
	fp_tensor_list parts = {0}, originals = {0}, seen = {0};
	fp_packed_file packed = {0};
	fp_packed_lists lists = {.parts = &parts, .originals = &originals, .seen = &seen};
	char name[] = "fuzz";
	char *const names[] = {name};
	if (fp_safetensors_read(&parts, ctx, file, 0, "fuzz") == FP_OK &&
		fp_tensor_list_sort(&parts, ctx, names) == FP_OK && FP_NEW(ctx, &lists.codings, parts.count + 1) == FP_OK &&
		fp_packed_file_read(&packed, &lists, ctx, file, 0, "fuzz") == FP_OK)
		decode(ctx, &seen, file);
	fp_packed_file_free(&packed);
	fp_free(lists.codings);
	fp_tensor_list_free(&parts);
	fp_tensor_list_free(&originals);
	fp_tensor_list_free(&seen);
}

/* A file with the parts of a matrix in each form and a vector, whose metadata is the input. */
static void read_metadata(fp_context *ctx, const char *text, size_t size)
{
	static const struct {
		const char *name, *dtype;
		int64_t rows, cols, bytes;
	} fixed[] = {
		{"b.weight.values", "F32", 2, 4, 32}, {"a.weight.values", "BF16", 5, 0, 10}, {"c", "F16", 2, 0, 4},
		{"a.weight.mask", "U8", 3, 2, 6},     {"b.weight.positions", "U8", 2, 1, 2},
	};
	static const unsigned char data[] = {
		1,  2,  3,  4,  5,  6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20,   21, 22, 23, 24,   25, 26,   27,
		28, 29, 30, 31, 32, 1, 2, 3, 4, 5,  6,  7,  8,  9,  10, 0,  0,  0,  0,  0x03, 0,  0,  1,  0x80, 1,  0x4E, 0xE9};
	json_t *about = json_stringn(text, size), *header = json_object();
	int64_t end = 0, length;
	char *bytes = NULL;
	if (!about || !header)
		goto cleanup; /* not UTF-8 */
	json_object_set_new(header, "__metadata__", json_pack("{s:O}", FP_PACKED_KEY, about));
	for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
		fp_tensor_info info = {.dtype_name = fixed[i].dtype,
							   .rank = fixed[i].cols > 0 ? 2 : 1,
							   .shape = {fixed[i].rows, fixed[i].cols},
							   .bytes = fixed[i].bytes};
		json_object_set_new(header, fixed[i].name, fp_safetensors_describe(&info, end));
		end += info.bytes;
	}
	if (end != (int64_t)sizeof data)
		abort();
	if (fp_safetensors_header(&bytes, &length, ctx, header, "fuzz") == FP_OK) {
		unsigned char *file = malloc((size_t)length + sizeof data);
		memcpy(file, bytes, (size_t)length);
		memcpy(file + length, data, sizeof data);
		read_packed(ctx, (fp_mapping){file, length + (int64_t)sizeof data});
		free(file);
	}
cleanup:
	fp_free(bytes);
	json_decref(about);
	json_decref(header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	fp_context *ctx = fp_context_new();
	read_packed(ctx, (fp_mapping){data, (int64_t)size});
	read_metadata(ctx, (const char *)data, size);
	char *text = NULL, *changed = NULL, *back = NULL;
	if (FP_NEW(ctx, &text, (int64_t)size + 1) == FP_OK && size > 0) {
		memcpy(text, data, size);
		/* a config that was marked is restored to the byte */
		if (fp_packed_config_mark(&changed, ctx, text, "fuzz") == FP_OK &&
			(fp_packed_config_restore(&back, ctx, changed, "fuzz") != FP_OK || strcmp(back, text) != 0))
			abort();
	}
	fp_free(text);
	fp_free(changed);
	fp_free(back);
	fp_context_free(ctx);
	return 0;
}
