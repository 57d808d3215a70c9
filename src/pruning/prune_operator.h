/* SPDX-License-Identifier: Apache-2.0 */
/* prune_operator.h: from a group's statistics to one operator's pruned weights, rounded to the checkpoint's type. */
#ifndef FP_PRUNING_PRUNE_OPERATOR_H
#define FP_PRUNING_PRUNE_OPERATOR_H

#include "pruning/prune_layer.h"
#include "statistics/statistics.h"

/* An operator's matrices on the device. */
typedef struct fp_operator {
	fp_matrix W, V;                           /* dense, and pruned; as the layers hold them */
	fp_matrix bias;                           /* the pruned layer's */
	fp_matrix importance, inverse_importance; /* of its rows (row_importance.h); absent: all alike */
} fp_operator;

/* V ← the pruned W, exactly as the checkpoint would hold it; result gets the rest, and so does
 * task->output unless a fit of the layer is still to come. gram belongs to the statistics' A and is shared by the group.
 * bias (as yet the dense one): with centred statistics ← the best for V, rounded likewise. last:
 * the same statistics where no other operator needs its target from them, so that what targets are made of can go; else
 * NULL.
 */
fp_status fp_prune_operator(const fp_layer_task *task, const fp_statistics *statistics, fp_statistics *last,
							fp_gram *gram, const fp_operator *own, fp_operator_result *result);

/* For an operator that a fit has changed since: V through the checkpoint's type, and its bytes to task->output. */
fp_status fp_finish_operator(const fp_layer_task *task, fp_matrix V, fp_operator_result *result);

#endif
