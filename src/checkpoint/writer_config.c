/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/writer_config.h"

#include "base/memory.h"
#include "checkpoint/checkpoint_files.h"
#include <stdlib.h>

char *fp_output_config(const fp_checkpoint *source, const json_t *quantisation, const json_t *entries)
{
	json_t *config = json_deep_copy(source->config);
	char *text = NULL;
	bool good = config && (!quantisation ||
						   json_object_set_new(config, "quantization_config", json_deep_copy(quantisation)) == 0);
	if (good && (!entries || json_object_update(config, (json_t *)(uintptr_t)entries) == 0))
		text = json_dumps(config, JSON_INDENT(2));
	json_decref(config);
	return text;
}

/* The config of a packed source, as it was before. */
static fp_status restore_config(char **out, fp_context *ctx, const fp_checkpoint *source)
{
	char *path = NULL, *text = NULL;
	int64_t size;
	fp_status status;
	FP_TRY(fp_join_path(&path, ctx, source->directory, "config.json"));
	FP_TRY(fp_read_file(&text, &size, ctx, path, FP_MAX_JSON_FILE));
	FP_TRY(fp_packed_config_restore(out, ctx, text, path));
cleanup:
	fp_free(path);
	fp_free(text);
	return status;
}

fp_status fp_output_config_new(char **out, fp_context *ctx, const fp_checkpoint *source, const json_t *quantisation,
							   bool exact)
{
	*out = NULL;
	if (source->packed && !source->codings && !quantisation) {
		fp_status restored = restore_config(out, ctx, source);
		if (restored != FP_ERROR_INPUT || exact)
			return restored;
		fp_clear_message(ctx); /* someone has edited it: then only its text is another one */
	}
	char *text = fp_output_config(source, quantisation, NULL);
	fp_status status =
		text ? fp_copy_text(ctx, out, text) : fp_fail(ctx, FP_ERROR_MEMORY, "out of memory for config.json");
	free(text);
	return status;
}
