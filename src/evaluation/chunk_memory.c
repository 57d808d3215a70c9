/* SPDX-License-Identifier: Apache-2.0 */
#include "evaluation/chunk_memory.h"

#include "model/layer.h"

#define USUAL ((int64_t)512 << 20)

fp_status fp_evaluation_memory(fp_backend *be, int64_t memory, int64_t *out)
{
	int64_t available = 0;
	int64_t total;
	fp_status status = FP_OK;
	if (memory == 0 && be->asynchronous)
		status = be->memory->available(be, &available, &total);
	*out = memory > 0 ? memory : available / 4 > USUAL ? available / 4 : USUAL;
	return status;
}

int64_t fp_evaluation_batch(const fp_model *model, int64_t room)
{
	enum { ENOUGH = 2048, ENOUGH_FOR_DEVICE = 16384 };
	int64_t tokens = fp_model_backend(model)->asynchronous ? ENOUGH_FOR_DEVICE : ENOUGH;
	while (tokens > ENOUGH && fp_workspace_bytes(model, tokens) > room / 2)
		tokens /= 2;
	return tokens;
}
