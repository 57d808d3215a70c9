/* SPDX-License-Identifier: Apache-2.0 */
/*
 * statistics.h: what the solver needs to know of the inputs of a group of operators, folded batch by batch.
 *
 * With X the dense inputs and X* those through the pruned operators before (features × tokens, as in the paper) and Δ =
 * X − X*: A = X*X*ᵀ        cross = ΔX*ᵀ        difference = ΔΔᵀ              (n × n) Everything else follows: B = XX*ᵀ
 * = A + cross, and XXᵀ = A + cross + crossᵀ + difference. Differences are folded instead of B and ‖WX‖², because the
 * error of a good fit is small beside ‖WX‖² and would drown in its rounding. For an operator that writes into the
 * residual stream, with ρ = h − h* the error already in it: residual = ρX*ᵀ and repair = ρΔᵀ (m × n), and ‖ρ‖², so that
 * the error of a target with ρ in it is known too and not only up to a constant.
 *
 * Centred statistics are for operators with a bias, which takes the means upon itself: every matrix is then that of
 * X*, Δ and ρ less their means over all tokens, and the means are kept.
 */
#ifndef FP_STATISTICS_STATISTICS_H
#define FP_STATISTICS_STATISTICS_H

#include "backend/backend.h"

typedef struct fp_statistics {
	fp_backend *be;       /* borrowed */
	fp_matrix A;          /* X*X*ᵀ; upper triangle until fp_statistics_finish() */
	fp_matrix cross;      /* ΔX*ᵀ; absent where the two streams are one */
	fp_matrix difference; /* ΔΔᵀ; likewise */
	fp_matrix residual;   /* ρX*ᵀ; absent where it is not wanted */
	fp_matrix repair;     /* ρΔᵀ; absent unless both are wanted */
	double gap_energy;    /* ‖ρ‖² */
	fp_matrix delta;      /* work space: Δ of a batch; BF16 where products round it */
	fp_matrix rounded;    /* work space: X* of a batch in BF16, there */
	fp_matrix gap;        /* work space: ρ of a batch */
	bool centred;
	fp_matrix mean; /* 1 × n: of X*; absent unless centred, like those below; sums until fp_statistics_finish() */
	fp_matrix mean_delta; /* 1 × n: of Δ; absent where the two streams are one */
	fp_matrix mean_gap;   /* 1 × m: of ρ; absent where it is not wanted */
	fp_matrix shift;      /* 1 × n: less the mean of the first batch's X* */
	fp_matrix shifted;    /* work space: X* of a batch, shifted */
	fp_matrix ones;       /* 1 × batch */
	int64_t tokens;
} fp_statistics;

/*
 * inputs: n. two_streams: X and X* differ. residual_outputs: m where ρX*ᵀ is wanted, else 0. batch: most tokens in one
 * fold. Freed with fp_statistics_free().
 */
fp_status fp_statistics_new(fp_statistics *out, fp_backend *be, int64_t inputs, bool two_streams,
							int64_t residual_outputs, int64_t batch);
/* Before the first fold: the statistics will be centred. */
fp_status fp_statistics_centre(fp_statistics *statistics, int64_t batch);
void fp_statistics_free(fp_statistics *statistics);
/* Frees what only targets are made of, when all that are wanted are made: all but A and the means. */
void fp_statistics_forget_targets(fp_statistics *statistics);

/* Folds a batch: X and X* are tokens × n; with one stream X is ignored. */
fp_status fp_statistics_fold(fp_statistics *statistics, fp_matrix X, fp_matrix Xstar);
/* Folds the residual's error for the batch that was folded last: h and h* are tokens × m. */
fp_status fp_statistics_fold_residual(fp_statistics *statistics, fp_matrix hidden, fp_matrix hidden_star,
									  fp_matrix Xstar);
/* Instead of folding anything: A = I, so that errors are those of the weights themselves. */
fp_status fp_statistics_identity(fp_statistics *statistics);
/* After the last batch: takes the means out and completes the symmetric matrices. Non-finite statistics are an error.
 */
fp_status fp_statistics_finish(fp_statistics *statistics);

#endif
