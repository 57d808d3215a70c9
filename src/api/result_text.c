/* SPDX-License-Identifier: Apache-2.0 */
#include "api/result_text.h"

#include "base/memory.h"

#include <fistapruner/fistapruner.h>

const char *fp_version(void)
{
	return FP_VERSION;
}

void fp_text_free(char *text)
{
	fp_free(text);
}

/* Ten digits are enough for a perplexity; seventeen would print 0.1 as 0.10000000000000001. */
static fp_status dump(char **out, fp_context *ctx, json_t *document, size_t style)
{
	*out = document ? json_dumps(document, style | JSON_REAL_PRECISION(10)) : NULL;
	json_decref(document);
	return *out ? FP_OK : fp_fail(ctx, FP_ERROR_MEMORY, "out of memory for the result");
}

fp_status fp_result_text(char **out, fp_context *ctx, json_t *document)
{
	return dump(out, ctx, document, JSON_INDENT(2));
}

fp_status fp_result_line(char **out, fp_context *ctx, json_t *document)
{
	return dump(out, ctx, document, JSON_COMPACT);
}
