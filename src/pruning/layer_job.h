/* SPDX-License-Identifier: Apache-2.0 */
/* layer_job.h: the state of a layer that is being pruned, shared by the files that prune it. */
#ifndef FP_PRUNING_LAYER_JOB_H
#define FP_PRUNING_LAYER_JOB_H

#include "pruning/group_statistics.h"
#include "pruning/quantise_operator.h"
#include "pruning/row_importance.h"

typedef struct fp_layer_job {
	const fp_layer_task *task;
	fp_feed feed;
	bool corrected; /* fp_feed_is_corrected(feed): both streams pass through the layer */
	fp_layer *dense, *pruned;
	int dense_past; /* number of groups that the dense stream has passed */
	fp_row_importance importance;
	fp_operator_result *results; /* by the operators' numbers */
	fp_grid *grids;             /* likewise, with --quantize: from the solve, or the end of the fit, until the output */
	fp_kept_inputs kept_inputs; /* for the grids of a fitted layer */
	int *solver;                /* likewise: the rank that solves the operator; NULL: this process solves all */
} fp_layer_job;

/* --- layer_passes.c: passes over all batches of the streams ------------------------------------------------------- */

/* With correction: moves both streams past the group before `group` (if there is one) and accumulates the inputs of
 * `group` in the statistics; of several passes over a group the first moves the pruned stream, the last the dense one. */
fp_status fp_pass_group(fp_layer_job *job, int group, fp_group_statistics *statistics);
/* With correction: moves both streams past the last group. */
fp_status fp_pass_end(fp_layer_job *job);
/* Without correction no input depends on what is pruned in the layer: one pass accumulates the inputs of all groups
 * (statistics: one for each) and moves the dense stream past the layer. Further passes, for the rest of the experts,
 * begin at the feed-forward part. */
fp_status fp_pass_uncorrected(fp_layer_job *job, fp_group_statistics *statistics);

/* --- fit_pruned_layer.c ------------------------------------------------------------------------------------------- */

/* Fits the pruned layer's output, finishes its operators, and moves the pruned stream past it. */
fp_status fp_fit_pruned_layer(fp_layer_job *job);

/* --- solve_groups.c ----------------------------------------------------------------------------------------------- */

/* Whether an operator that is pruned belongs to the group and the expert (−1: to none). */
bool fp_is_pruned_in(const fp_layer_job *job, int number, int group, int64_t expert);
/* Solves the operators of a group that fall to this rank. own: the set's statistics of operators that read every token if
 * nothing needs them afterwards, else NULL. */
fp_status fp_solve_set(fp_layer_job *job, int group, fp_group_statistics *set, fp_statistics *own);
/* The same with statistics of earlier runs, by one process. */
fp_status fp_solve_kept(fp_layer_job *job, int group, const fp_statistics *statistics);
/* Prunes one operator. last: as in fp_prune_operator(). */
fp_status fp_solve_operator(fp_layer_job *job, int number, const fp_statistics *statistics, fp_statistics *last,
							fp_gram *gram);
/* Whether this rank solves an operator. */
bool fp_is_solved_here(const fp_layer_job *job, int number);
/* Passes a changed bias, already rounded to the checkpoint's type, to the task's output. */
fp_status fp_finish_bias(const fp_layer_job *job, int number);

/* --- solve_rows.c: ranks solve rows of the same operator ---------------------------------------------------------- */

/* Whether all ranks solve some rows of the operator. */
bool fp_is_solved_by_rows(const fp_layer_job *job, int number);
/* Solves those of a group. statistics, own: as in fp_solve_set(), on rank 0. */
fp_status fp_solve_rows(fp_layer_job *job, int group, const fp_statistics *statistics, fp_statistics *own);

/* --- share_solves.c: ranks that share the windows also share the operators' solves -------------------------------- */

/* job->solver ← the rank of each operator, by cost: over the operators of a group if the next group depends on them, else
 * over those of the layer. */
fp_status fp_solves_divide(fp_layer_job *job);
/* Gives the statistics of a group, which rank 0 has, to the ranks that need them. */
fp_status fp_solves_share(fp_layer_job *job, int group, fp_group_statistics *set);
/* Every rank ← the grid of an operator, from the rank that has solved it; nothing without --quantize. */
fp_status fp_grid_exchange(fp_layer_job *job, int number);
/* Every rank ← the operators of a group that others have solved, and their results. Rank 0 outputs them unless a fit
 * follows. */
fp_status fp_solves_exchange(fp_layer_job *job, int group, const fp_group_statistics *set);

#endif
