/* SPDX-License-Identifier: Apache-2.0 */
#include "generation/start_token.h"

#include "base/memory.h"

fp_status fp_start_token(int32_t *out, const fp_model *model, fp_tokenizer *tokenizer, const fp_stop_tokens *stop)
{
	fp_context *ctx = fp_model_backend(model)->ctx;
	const fp_checkpoint *checkpoint = fp_model_checkpoint(model);
	const json_t *bos = json_object_get(fp_checkpoint_config(checkpoint), "bos_token_id");
	fp_tokens tokens = {0};
	int64_t start = -1; /* as in the file, where it may be any number */
	fp_status status;
	*out = -1;
	FP_TRY(fp_tokenizer_encode(tokenizer, "", 0, true, &tokens));
	if (tokens.count > 0)
		start = tokens.ids[0];
	else if (json_is_integer(bos))
		start = json_integer_value(bos);
	else if (fp_tokenizer_bos(tokenizer) >= 0)
		start = fp_tokenizer_bos(tokenizer);
	else if (stop->count > 0)
		start = stop->ids[0];
	if (start >= 0 && start < fp_model_get_config(model)->vocabulary)
		*out = (int32_t)start;
	else
		status = fp_fail(ctx, FP_ERROR_INPUT,
						 "%s: has no token that begins a text (bos_token_id), so that it cannot write its own; give "
						 "--calibration FILE",
						 fp_checkpoint_directory(checkpoint));
cleanup:
	fp_free(tokens.ids);
	return status;
}
