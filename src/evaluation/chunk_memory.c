/* SPDX-License-Identifier: Apache-2.0 */
#include "evaluation/chunk_memory.h"

#include "model/layer.h"

#define DEFAULT_BYTES ((int64_t)512 << 20)

fp_status fp_evaluation_memory(fp_backend *be, int64_t memory, int64_t *out)
{
	int64_t available = 0;
	int64_t total;
	fp_status status = FP_OK;
	if (memory == 0 && be->asynchronous)
		status = be->memory->available(be, &available, &total);
	*out = memory > 0 ? memory : available / 4 > DEFAULT_BYTES ? available / 4 : DEFAULT_BYTES;
	return status;
}

int64_t fp_evaluation_batch(const fp_model *model, int64_t bytes)
{
	enum { CPU_TOKENS = 2048, DEVICE_TOKENS = 16384 };
	int64_t tokens = fp_model_backend(model)->asynchronous ? DEVICE_TOKENS : CPU_TOKENS;
	while (tokens > CPU_TOKENS && fp_workspace_bytes(model, tokens) > bytes / 2)
		tokens /= 2;
	return tokens;
}
