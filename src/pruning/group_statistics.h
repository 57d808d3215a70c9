/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group_statistics.h: the statistics of the operators that a pass over one group of a layer serves: those that read every
 * token, and those of experts, which read the rows that the router sends to them.
 *
 * The rows of an expert are multiplied by the router's weights of their tokens, because an error of the expert's output
 * reaches the layer's output multiplied by them. Both streams follow the dense stream's router. With routers of their own,
 * the rows of X and X* could belong to different tokens, and X − X* would not be an error of the operators before; and an
 * expert would be pruned for a routing that the fit and the next layers change again.
 *
 * Of a text that ranks share, each part is summed on its own. The sums of all parts end on rank 0, which gives them to the
 * ranks that solve the operators.
 */
#ifndef FP_PRUNING_GROUP_STATISTICS_H
#define FP_PRUNING_GROUP_STATISTICS_H

#include "pruning/prune_layer.h"
#include "statistics/part_means.h"
#include "statistics/statistics.h"

/* The sums of some parts of the text. */
typedef struct fp_group_register {
	fp_statistics own;
	fp_statistics *experts;
} fp_group_register;

typedef struct fp_group_statistics { /* freed with fp_group_statistics_free() */
	fp_statistics own;               /* of the operators that read every token; be is NULL if there are none */
	int64_t first, end;              /* experts */
	fp_statistics *experts;          /* end − first */
	fp_statistics space;             /* whose workspaces they share */
	bool starts, ends;               /* the first and the last pass over the group: experts may take several */
	/* of a text in parts; register 0 is the set itself */
	bool divided;
	int group, current;        /* current: the register of the present part */
	const fp_layer_task *task; /* borrowed */
	const fp_layer *dense;     /* borrowed */
	fp_part_sum sum;
	fp_group_register *registers[FP_PARTS + 1];
	fp_part_means means; /* if the statistics are centred */
} fp_group_statistics;

/* For the operators that the layer has and experts [first, end). Operators that read every token take part in the first
 * pass. `out` must not be moved. */
fp_status fp_group_statistics_new(fp_group_statistics *out, const fp_layer_task *task, const fp_layer *dense, int group,
								  int64_t first, int64_t end);
void fp_group_statistics_free(fp_group_statistics *set); /* may be all zero */

/* One batch as a stream has it: its state, its group's input, and the layer and workspace that these come from. */
typedef struct fp_group_rows {
	const fp_layer *layer;
	fp_workspace *workspace;
	const fp_layer_state *state;
	fp_matrix X;
} fp_group_rows;
/* Adds a batch. `pruned` may be `dense`. */
fp_status fp_group_statistics_fold(fp_group_statistics *set, const fp_group_rows *dense, const fp_group_rows *pruned);
/* Before the first and after the last batch of a part; nothing if the text is not divided. */
fp_status fp_group_statistics_begin_part(fp_group_statistics *set, int part);
fp_status fp_group_statistics_end_part(fp_group_statistics *set);
/* After the last batch: rank 0 has the sums over all parts; nothing if the text is not divided. */
fp_status fp_group_statistics_add(fp_group_statistics *set);
/* Rank 0 gives them to others: those of operators that read every token to the ranks with own[rank], those of expert e to
 * rank experts[e − first]. Each rank keeps only what is for it. */
fp_status fp_group_statistics_give(fp_group_statistics *set, const bool *own, const int *experts);
/* Call at last, for the statistics that are there. */
fp_status fp_group_statistics_finish(fp_group_statistics *set);
/* A = I for all, in place of any batch. */
fp_status fp_group_statistics_identity(fp_group_statistics *set);

#endif
