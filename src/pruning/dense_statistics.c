/* SPDX-License-Identifier: Apache-2.0 */
#include "pruning/dense_statistics.h"

#include "base/memory.h"

#include <string.h>

struct fp_dense_statistics {
	int64_t layers;
	int64_t limit, used; /* bytes */
	fp_statistics *all;  /* layers × groups; be is NULL for those not kept */
};

static fp_statistics *slot(const fp_dense_statistics *kept, int64_t layer, int group)
{
	return &kept->all[layer * FP_GROUP_COUNT + group];
}

fp_status fp_dense_statistics_new(fp_dense_statistics **out, fp_context *ctx, int64_t layers, int64_t limit)
{
	fp_dense_statistics *kept = NULL;
	fp_status status;
	FP_TRY(FP_NEW(ctx, &kept, 1));
	FP_TRY(FP_NEW(ctx, &kept->all, layers * FP_GROUP_COUNT));
	kept->layers = layers;
	kept->limit = limit;
cleanup:
	if (status != FP_OK)
		fp_free(kept);
	*out = status == FP_OK ? kept : NULL;
	return status;
}

void fp_dense_statistics_forget(fp_dense_statistics *kept)
{
	for (int64_t i = 0; i < kept->layers * FP_GROUP_COUNT; i++)
		fp_statistics_free(&kept->all[i]);
	kept->used = 0;
}

void fp_dense_statistics_free(fp_dense_statistics *kept)
{
	if (!kept)
		return;
	fp_dense_statistics_forget(kept);
	fp_free(kept->all);
	fp_free(kept);
}

const fp_statistics *fp_dense_statistics_find(const fp_dense_statistics *kept, int64_t layer, int group)
{
	if (!kept || layer >= kept->layers)
		return NULL;
	const fp_statistics *found = slot(kept, layer, group);
	return found->be ? found : NULL;
}

bool fp_dense_statistics_cover(const fp_dense_statistics *kept, const fp_model *model, int64_t first, int64_t end)
{
	for (int64_t layer = first; layer < end; layer++)
		for (int group = 0; group < FP_GROUP_COUNT; group++)
			if (fp_model_has_group(model, group) && !fp_dense_statistics_find(kept, layer, group))
				return false;
	return true;
}

void fp_dense_statistics_keep(fp_dense_statistics *kept, int64_t layer, int group, fp_statistics *statistics)
{
	int64_t bytes = fp_matrix_size(statistics->A) * (int64_t)sizeof(float);
	if (!kept || layer >= kept->layers || fp_dense_statistics_find(kept, layer, group) ||
		bytes > kept->limit - kept->used)
		return;
	kept->used += bytes;
	*slot(kept, layer, group) = *statistics;
	memset(statistics, 0, sizeof *statistics);
}
