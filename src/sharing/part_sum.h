/* SPDX-License-Identifier: Apache-2.0 */
/*
 * part_sum.h: sums over windows in an order that does not depend on the number of ranks.
 *
 * Each part (share.h) is summed on its own. Parts are then added in the order of a fixed tree:
 *
 *     group = ((p + p) + p) + p          of four parts each
 *     sum   = ((group + group) + group) + group
 *
 * A rank adds what it has of the tree as soon as it can, so that a few registers hold all partial sums: three in one
 * process, which would be five with a binary tree. What is left goes to the rank that has the other operand, and the sum
 * ends on rank 0.
 */
#ifndef FP_SHARING_PART_SUM_H
#define FP_SHARING_PART_SUM_H

#include "sharing/share.h"

/* What is summed: the matrices (F32) and numbers of one register. Lists with room for all that are appended; freed with
 * fp_addends_free(). */
typedef struct fp_addends {
	fp_matrix *matrices;
	double **numbers;
	int64_t matrix_count, matrix_capacity, number_count, number_capacity;
} fp_addends;
fp_status fp_addends_matrix(fp_addends *list, fp_context *ctx, fp_matrix m); /* an absent one is left out */
fp_status fp_addends_number(fp_addends *list, fp_context *ctx, double *number);
void fp_addends_free(fp_addends *list);
fp_status fp_addends_send(const fp_addends *list, const fp_share *share, fp_backend *be, int to);
fp_status fp_addends_receive(const fp_addends *list, const fp_share *share, fp_backend *be, int from);

/* Makes register number `which` and lists what it sums. Called once for each register that is needed, in order. */
typedef fp_status (*fp_register_make)(void *data, int which, fp_addends *out);

/* Parts [begin, end) of the tree, summed; which: −1 if there is nothing in them. */
typedef struct fp_part_fragment {
	int begin, end, which;
} fp_part_fragment;

typedef struct fp_part_sum { /* freed with fp_part_sum_close(); all zero: closed */
	const fp_share *share;   /* borrowed */
	fp_backend *be;          /* borrowed */
	fp_register_make make;
	void *data;
	bool used[FP_PARTS]; /* parts of any rank that are summed */
	int next;            /* own part that is not on the stack yet */
	fp_addends registers[FP_PARTS + 1];
	int made;
	fp_part_fragment stack[FP_PARTS];
	int depth;
} fp_part_sum;

/* Sums over the parts that have windows. The caller may clear more of sum->used, on all ranks alike. */
void fp_part_sum_open(fp_part_sum *sum, const fp_share *share, fp_backend *be, fp_register_make make, void *data);
void fp_part_sum_close(fp_part_sum *sum);
/* *which ← the register for the sums of an own part, whose content is undefined. Parts come in order. */
fp_status fp_part_sum_begin(fp_part_sum *sum, int part, int *which);
/* The register of the part that was begun last is complete. */
fp_status fp_part_sum_end(fp_part_sum *sum);
/* Register 0 ← the sum over all parts, on rank 0 or everywhere. It is made if it was not. */
fp_status fp_part_sum_finish(fp_part_sum *sum, bool everywhere);

/* For row_slices.c: what finishing a sum consists of. *which ← the first register that holds nothing, made if need be. */
fp_status fp_part_sum_take_register(fp_part_sum *sum, int *which);
/* Puts a fragment on the stack, and adds what the tree adds then. */
fp_status fp_part_sum_push(fp_part_sum *sum, fp_part_fragment fragment);
/* The unused parts after the last own one that was summed. */
fp_status fp_part_sum_skip(fp_part_sum *sum);

/* For estimates: the registers that this rank needs for sums over `used` parts at most. */
int fp_part_sum_registers(const fp_share *share, int64_t used);

#endif
