/* SPDX-License-Identifier: Apache-2.0 */
#include "api/divergence_document.h"

#include <math.h>

fp_status fp_divergence_document(json_t *document, fp_context *ctx, const fp_divergence_result *result)
{
	const struct {
		const char *key;
		double value;
	} figures[] = {
		{"perplexity", result->perplexity},
		{"reference_perplexity", result->dense_perplexity},
		{"perplexity_ratio", result->perplexity_ratio},
		{"kl", result->kl},
		{"kl_stderr", result->kl_stderr},
		{"kl_median", result->kl_median},
		{"kl_p99", result->kl_p99},
		{"top1", result->top1},
	};
	for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
		double value = figures[i].value;
		if (json_object_set_new(document, figures[i].key, isfinite(value) ? json_real(value) : json_null()) != 0)
			return fp_fail(ctx, FP_ERROR_MEMORY, "out of memory for the result");
	}
	return FP_OK;
}
