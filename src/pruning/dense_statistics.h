/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dense_statistics.h: statistics of the dense model's inputs, kept up to a memory limit for later runs on the same model
 * and windows. They do not depend on the method or the pattern. With them a method that reads only the dense model needs
 * no pass over the text, and other methods need none for the first group or layer.
 */
#ifndef FP_PRUNING_DENSE_STATISTICS_H
#define FP_PRUNING_DENSE_STATISTICS_H

#include "model/layer.h"
#include "statistics/statistics.h"

typedef struct fp_dense_statistics fp_dense_statistics;

/* limit: bytes that may be kept. Freed with fp_dense_statistics_free(), before the backend is closed. */
fp_status fp_dense_statistics_new(fp_dense_statistics **out, fp_context *ctx, int64_t layers, int64_t limit);
void fp_dense_statistics_free(fp_dense_statistics *kept); /* NULL is allowed */
/* Drops everything; call before using other windows. */
void fp_dense_statistics_forget(fp_dense_statistics *kept);

/* NULL: not kept. `kept` itself may be NULL. */
const fp_statistics *fp_dense_statistics_find(const fp_dense_statistics *kept, int64_t layer, int group);
/* True if all groups of the model's layers [first, end) are kept. */
bool fp_dense_statistics_cover(const fp_dense_statistics *kept, const fp_model *model, int64_t first, int64_t end);
/* Keeps finished statistics of one stream: moves them, so that *statistics is empty afterwards. Over the limit, or if
 * `kept` is NULL, they remain the caller's. */
void fp_dense_statistics_keep(fp_dense_statistics *kept, int64_t layer, int group, fp_statistics *statistics);

#endif
