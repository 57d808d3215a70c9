/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/safetensors_header.h"

#include "base/memory.h"
#include "checkpoint/safetensors.h"
#include <stdlib.h>
#include <string.h>

fp_status fp_safetensors_header(char **out, int64_t *size, fp_context *ctx, const json_t *header, const char *name)
{
	fp_status status = FP_OK;
	char *text = json_dumps(header, JSON_COMPACT);
	*out = NULL;
	if (!text)
		return fp_fail(ctx, FP_ERROR_MEMORY, "out of memory for the header of an output file");
	int64_t length = (int64_t)strlen(text), padded = (length + 7) / 8 * 8;
	if (padded > FP_SAFETENSORS_MAX_HEADER)
		FP_TRY(fp_fail(ctx, FP_ERROR_RUN, "%s: its header would have %lld bytes; the format allows %d", name,
					   (long long)padded, FP_SAFETENSORS_MAX_HEADER));
	FP_TRY(FP_NEW(ctx, out, FP_SAFETENSORS_PREFIX + padded + 1));
	for (int i = 0; i < FP_SAFETENSORS_PREFIX; i++)
		(*out)[i] = (char)((uint64_t)padded >> (8 * i) & 0xFF);
	memcpy(*out + FP_SAFETENSORS_PREFIX, text, (size_t)length);
	memset(*out + FP_SAFETENSORS_PREFIX + length, ' ', (size_t)(padded - length));
	*size = FP_SAFETENSORS_PREFIX + padded;
cleanup:
	free(text);
	return status;
}

json_t *fp_safetensors_describe(const fp_tensor_info *tensor, int64_t offset)
{
	json_t *shape = json_array();
	for (int i = 0; i < tensor->rank; i++)
		json_array_append_new(shape, json_integer(tensor->shape[i]));
	return json_pack("{s:s, s:o, s:[I, I]}", "dtype", tensor->dtype_name, "shape", shape, "data_offsets",
					 (json_int_t)offset, (json_int_t)(offset + tensor->bytes));
}
