/* SPDX-License-Identifier: Apache-2.0 */
/* pack.c: fp_pack() and fp_unpack(): a checkpoint with its sparse matrices packed, and back. */
#include "api/result_text.h"
#include "base/clock.h"
#include "checkpoint/pack_checkpoint.h"

#include <fistapruner/fistapruner.h>

typedef fp_status pack_function(fp_pack_result *out, fp_context *ctx, const char *model, const char *directory);

static fp_status run(char **json, fp_context *ctx, const char *model, const char *output, pack_function *function)
{
	fp_pack_result result;
	double start = fp_clock();
	fp_status status;
	*json = NULL;
	fp_clear_message(ctx);
	if (!output)
		FP_TRY(fp_fail(ctx, FP_ERROR_USAGE, "an output directory is needed: -o DIR"));
	FP_TRY(function(&result, ctx, model, output));
	if (function == fp_pack_checkpoint && result.by_mask + result.as_pairs == 0)
		fp_log(
			ctx, FP_LOG_WARNING,
			"%s: no matrix was packed: none has enough zeros to take fewer bytes without them, and 4-bit integers are "
			"never packed",
			model);
	FP_TRY(
		fp_result_text(json, ctx,
					   json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I}", "model", model, "output",
								 output, "tensors", (json_int_t)result.tensors, "by_mask", (json_int_t)result.by_mask,
								 "as_2_4", (json_int_t)result.as_pairs, "matrix_bytes", (json_int_t)result.matrix_bytes,
								 "packed_bytes", (json_int_t)result.packed_bytes, "unpacked_total",
								 (json_int_t)result.unpacked_total, "packed_total", (json_int_t)result.packed_total,
								 "seconds", fp_clock() - start, "peak_memory_bytes", (json_int_t)fp_peak_memory())));
cleanup:
	fp_require_message(ctx, status);
	return status;
}

fp_status fp_pack(char **json, fp_context *ctx, const char *model, const char *output)
{
	return run(json, ctx, model, output, fp_pack_checkpoint);
}

fp_status fp_unpack(char **json, fp_context *ctx, const char *model, const char *output)
{
	return run(json, ctx, model, output, fp_unpack_checkpoint);
}
