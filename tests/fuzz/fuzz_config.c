/* SPDX-License-Identifier: Apache-2.0 */
/* The input as config.json of every architecture, with what it says about quantised weights, and as the index of a
 * sharded checkpoint. */
#include "checkpoint/quantisation.h"
#include "checkpoint/shard_index.h"
#include "model/architecture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	fp_context *ctx = fp_context_new();
	fp_shard_index index;
	if (fp_shard_index_parse(&index, ctx, (const char *)data, (int64_t)size, ".safetensors", "fuzz") == FP_OK)
		fp_shard_index_free(&index);
	json_t *root = json_loadb((const char *)data, size, 0, NULL);
	if (json_is_object(root)) {
		const fp_config_reader reader = {.ctx = ctx, .directory = "fuzz", .section = "", .object = root};
		const fp_architecture *architecture;
		fp_model_config config = {0};
		if (fp_architecture_find(&architecture, &reader) == FP_OK)
			architecture->read_config(&reader, &config);
		fp_quantisation quantisation;
		if (fp_quantisation_read(&quantisation, ctx, root, "fuzz") == FP_OK && quantisation.kind == FP_QUANTISED_OTHER)
			fp_quantisation_refuse(&quantisation, ctx, "fuzz");
	}
	json_decref(root);
	fp_context_free(ctx);
	return 0;
}
