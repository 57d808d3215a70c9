/* SPDX-License-Identifier: Apache-2.0 */
/* prune_operator.h: prunes one operator, given its group's statistics, and rounds it to the checkpoint's type. */
#ifndef FP_PRUNING_PRUNE_OPERATOR_H
#define FP_PRUNING_PRUNE_OPERATOR_H

#include "pruning/quantise_operator.h"
#include "statistics/statistics.h"

/* An operator's matrices on the device. */
typedef struct fp_operator {
	fp_matrix W, V;                           /* dense and pruned weights, in the type that the layers hold */
	fp_matrix bias;                           /* of the pruned layer */
	fp_matrix importance, inverse_importance; /* of its rows (row_importance.h); absent: all equal */
	fp_grid *grid; /* all zero; ← that of V with --quantize, unless a fit follows. The caller frees it. */
} fp_operator;

/* own->V ← the pruned W, rounded to the checkpoint's type. With centred statistics own->bias, the dense one on entry, ←
 * the best for V, rounded likewise. *result ← everything else. Unless it is deferred, the operator is passed to
 * task->output. gram: of statistics->A, shared by the group. last: the same statistics if no other operator needs a
 * target from them, so that the matrices for targets can be freed; else NULL. */
fp_status fp_prune_operator(const fp_layer_task *task, const fp_statistics *statistics, fp_statistics *last,
							fp_gram *gram, const fp_operator *own, fp_operator_result *result);

/* fp_solve(), with the other ranks if the problem's Gram matrix has a team (solve_rows.c). */
fp_status fp_solve_together(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_solution *solution);

/* For an operator whose output was deferred: rounds V to the checkpoint's type and passes its bytes to task->output. grid:
 * that of V, or all zero. */
fp_status fp_finish_operator(const fp_layer_task *task, fp_matrix V, const fp_grid *grid, fp_operator_result *result);

/* Estimate: floats that fp_prune_operator() holds at its peak for the largest operator of a group, including the
 * statistics' matrices for targets, which it may free. plan: of the statistics; size->has_R need not be set; narrow: the
 * layers hold weights in 16 bits. */
double fp_operator_floats(const fp_backend *be, const fp_settings *settings, const fp_statistics_plan *plan,
						  fp_solve_size size, bool narrow);

#endif
