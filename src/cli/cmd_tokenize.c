/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_tokenize.c: fistapruner tokenize MODEL [--text FILE] */
#include "cli/commands.h"
#include "cli/result.h"
#include "cli/standard_input.h"

#include <stdlib.h>

static void print_ids(const json_t *ids)
{
	for (size_t i = 0; i < json_array_size(ids); i++)
		printf("%s%lld", i ? " " : "", (long long)json_integer_value(json_array_get(ids, i)));
	putchar('\n');
}

/* Ids only, one line per document, for comparison with other tools. */
static void render(const json_t *result, const fp_cli_options *options)
{
	(void)options;
	const json_t *documents = json_object_get(result, "documents");
	if (!documents)
		print_ids(json_object_get(result, "ids"));
	for (size_t i = 0; i < json_array_size(documents); i++)
		print_ids(json_object_get(json_array_get(documents, i), "ids"));
}

fp_status fp_cli_tokenize(fp_context *ctx, const fp_cli_options *options)
{
	char *bytes = NULL;
	char *json = NULL;
	size_t size = 0;
	fp_status status = FP_OK;
	if (!options->text)
		status = fp_cli_read_input(&bytes, &size);
	if (status == FP_OK) {
		status = fp_tokenize(&json, ctx, options->operands[0], options->text, bytes, (int64_t)size);
		if (status == FP_OK)
			status = fp_cli_print_result(options, json, render);
		else
			fp_cli_failed(ctx, status);
	}
	fp_text_free(json);
	free(bytes);
	return status;
}
