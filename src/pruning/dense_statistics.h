/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dense_statistics.h: the statistics of the dense model's own inputs, kept from one prune of a model for the next one
 * on the same windows, as long as there is room. They do not depend on the method or the pattern: a method that reads
 * the dense model only then needs no pass over the text, and one that starts from it none for the first layer.
 */
#ifndef FP_PRUNING_DENSE_STATISTICS_H
#define FP_PRUNING_DENSE_STATISTICS_H

#include "model/layer.h"
#include "statistics/statistics.h"

typedef struct fp_dense_statistics fp_dense_statistics;

/* room: bytes that may be kept. Freed with fp_dense_statistics_free(), before the backend is closed. */
fp_status fp_dense_statistics_new(fp_dense_statistics **out, fp_context *ctx, int64_t layers, int64_t room);
void fp_dense_statistics_free(fp_dense_statistics *kept); /* NULL is allowed */
/* For other windows: keeps nothing any more. */
void fp_dense_statistics_forget(fp_dense_statistics *kept);

/* NULL: not kept. `kept` itself may be NULL. */
const fp_statistics *fp_dense_statistics_find(const fp_dense_statistics *kept, int64_t layer, int group);
/* True when all groups of the layers `first` to `end` − 1 are kept. */
bool fp_dense_statistics_cover(const fp_dense_statistics *kept, int64_t first, int64_t end);
/* Finished statistics of one stream. Where there is room they are moved over and *statistics is empty afterwards; where
 * there is none, or `kept` is NULL, they stay the caller's. */
void fp_dense_statistics_keep(fp_dense_statistics *kept, int64_t layer, int group, fp_statistics *statistics);

#endif
