/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fista_batch.h: FISTA on floats with all steps of a round but the last in one product, where λ is so small that only the
 * last shrinkage could matter. fista_delta.h has the same for devices that multiply BF16.
 *
 *     Y ← Y − (Y − W)S + E
 *     E = RQ                     (fista_batched_steps.c)
 *
 * The first round of a search takes its steps one by one, which shows whether they converge early.
 */
#ifndef FP_SOLVER_FISTA_BATCH_H
#define FP_SOLVER_FISTA_BATCH_H

#include "solver/method.h"

/* Work space of fp_fista(), each m × n. */
typedef struct fp_fista_space {
	fp_matrix Y, G;
	fp_matrix oldY, oldP; /* with restarts */
	fp_matrix D;          /* Y − W; where products round, and for `least` */
} fp_fista_space;

/* Of the rounds of one search; starts as {0}. Freed with fp_batch_free(). */
typedef struct fp_batch {
	fp_backend *be;    /* NULL: nothing is known yet */
	double negligible; /* a total shrinkage up to this is lost in the weights' rounding */
	bool converges;    /* a round reached the tolerance, or came near it: every step counts */
	fp_matrix S;       /* borrowed from the Gram matrix */
	fp_matrix E;       /* absent if R is */
	fp_fista_space space;
	/* A lower bound of the squared error of the last result, by the tangent at the point before the last step; −∞: not
	 * known. Otherwise space.D is the result less W. */
	double least;
} fp_batch;

/* Whether the products of FISTA's steps round their operands to BF16. */
bool fp_fista_rounds(const fp_backend *be);

/* Whether steps are ever batched, for estimates of memory and products too. */
bool fp_batch_serves(const fp_backend *be, const fp_settings *settings, const fp_solve_size *size);
void fp_batch_free(fp_batch *batch);
/* *out ← whether all steps but the last may be batched for λ */
fp_status fp_batch_allows(fp_batch *batch, const fp_problem *problem, const fp_settings *settings, double lambda,
						  double L, bool *out);
bool fp_batch_is_ready(const fp_batch *batch);
/* Y ← the result of all steps but the last from Y. work: m × n. */
fp_status fp_batch_take(const fp_batch *batch, const fp_problem *problem, fp_matrix work, fp_matrix Y);
/* After a round that was taken one by one, whose last step changed so much (squared): prepares later rounds. */
fp_status fp_batch_finish(fp_batch *batch, const fp_problem *problem, const fp_settings *settings, double change);

/* True if a step changed so much (squared) that later rounds are assumed not to reach the tolerance either. */
bool fp_stays_far(double change, const fp_settings *settings);
/* A shrinkage that moves no weight by more than 1e-6 of the weights' root mean square, while the checkpoint's type rounds
 * by 1e-3 or more. */
double fp_negligible_shrinkage(double squares, int64_t entries);

#endif
