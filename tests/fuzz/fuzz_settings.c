/* SPDX-License-Identifier: Apache-2.0 */
/* The lines of the input as assignments of settings, and as each kind of value of the command line. */
#include "base/settings.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_values(fp_context *ctx, const char *line)
{
	double sparsity;
	int64_t kept, group, bytes, first, end;
	if (fp_parse_sparsity(ctx, line, &sparsity, &kept, &group) == FP_OK &&
		(!(sparsity >= 0 && sparsity <= 1) || (group > 0 && (kept < 0 || kept > group))))
		abort();
	if (fp_parse_size(ctx, line, &bytes) == FP_OK && bytes < 0)
		abort();
	if (fp_parse_range(ctx, line, 12, &first, &end) == FP_OK && (first < 0 || first >= end || end > 12))
		abort();
}

/* An accepted value must be returned, and be accepted again. */
static void check_all(fp_context *ctx, fp_settings *settings)
{
	const fp_setting_info *info;
	for (size_t i = 0; (info = fp_setting_at(i)); i++) {
		char value[FP_SETTING_TEXT_SIZE];
		if (fp_settings_get(settings, ctx, info->name, value, sizeof value) != FP_OK ||
			fp_settings_set(settings, ctx, info->name, value) != FP_OK)
			abort();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	fp_context *ctx = fp_context_new();
	fp_settings *settings = NULL;
	char *text = malloc(size + 1), *rest = text;
	memcpy(text, data, size);
	text[size] = '\0';
	if (fp_settings_new(&settings, ctx) != FP_OK)
		abort();
	for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) {
		fp_settings_assign(settings, ctx, line);
		read_values(ctx, line);
	}
	if (fp_settings_resolve(settings, ctx, size % 2 ? "llama" : "opt") == FP_OK)
		check_all(ctx, settings);
	fp_settings_free(settings);
	fp_context_free(ctx);
	free(text);
	return 0;
}
