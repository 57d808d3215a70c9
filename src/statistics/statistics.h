/* SPDX-License-Identifier: Apache-2.0 */
/*
 * statistics.h: what the solver needs to know of the inputs of a group of operators, folded batch by batch.
 *
 * With X the dense inputs and X* those through the pruned operators before (features × tokens, as in the paper) and
 * Δ = X − X*:
 *     A = X*X*ᵀ (n × n)       for an operator W: its drift WΔX*ᵀ (m × n) and ‖WΔ‖²
 * Everything else follows: the target's C = WXX*ᵀ = WA + WΔX*ᵀ, and ‖WX‖² = ⟨WA, W⟩ + 2⟨WΔX*ᵀ, W⟩ + ‖WΔ‖². Differences
 * are folded instead of XX*ᵀ and ‖WX‖², because the error of a good fit is small beside ‖WX‖² and would drown in its
 * rounding. For an operator that writes into the residual stream, with ρ = h − h* the error already in it: residual =
 * ρX*ᵀ (m × n), ‖ρ‖² and ⟨ρ, WΔ⟩, so that the error of a target with ρ in it is known too and not only up to a
 * constant.
 *
 * There are two ways to the drift of p tokens, and fp_statistics_new() takes the one with fewer operations:
 *     by inputs    cross = ΔX*ᵀ (2n²p), difference = ΔΔᵀ (n²p) and repair = ρΔᵀ (2mnp), for all operators of a group;
 *                  then W·cross, ⟨W·difference, W⟩ and ⟨W, repair⟩
 *     by outputs   WΔ (2mnp) and WΔX*ᵀ (2mnp), for the only operator of a group; the two numbers come by the way.
 *                  W is rounded where products for activations round, as it is in the forward pass
 *
 * Centred statistics are for operators with a bias, which takes the means upon itself: everything is then that of
 * X*, Δ and ρ less their means over all tokens, and the means are kept.
 */
#ifndef FP_STATISTICS_STATISTICS_H
#define FP_STATISTICS_STATISTICS_H

#include "backend/backend.h"

/* What the second stream changes of an operator's target. */
typedef struct fp_drift {
	fp_matrix product; /* WΔX*ᵀ; absent where the two streams are one */
	bool folded;       /* it belongs to the statistics */
	double energy;     /* ‖WΔ‖² */
	double gap;        /* ⟨ρ, WΔ⟩; 0 where ρ is not wanted */
} fp_drift;

typedef struct fp_statistics {
	fp_backend *be;       /* borrowed */
	fp_matrix A;          /* X*X*ᵀ; upper triangle until fp_statistics_finish() */
	fp_matrix cross;      /* ΔX*ᵀ; absent unless the drift goes by inputs */
	fp_matrix difference; /* ΔΔᵀ; likewise */
	fp_matrix repair;     /* ρΔᵀ; likewise, and where ρ is not wanted */
	fp_matrix W;          /* borrowed; absent unless the drift goes by outputs */
	fp_drift drift;       /* likewise */
	fp_matrix residual;   /* ρX*ᵀ; absent where it is not wanted */
	double gap_energy;    /* ‖ρ‖² */
	fp_matrix delta;      /* work space: Δ of a batch; BF16 where products round it */
	fp_matrix rounded;    /* work space: X* of a batch in BF16, there */
	fp_matrix moved;      /* work space: WΔ of a batch */
	fp_matrix gap;        /* work space: ρ of a batch */
	bool centred;
	fp_matrix mean; /* 1 × n: of X*; absent unless centred, like those below; sums until fp_statistics_finish() */
	fp_matrix mean_delta; /* 1 × n: of Δ; absent where the two streams are one */
	fp_matrix mean_moved; /* 1 × m: of WΔ, rounded as it was; absent unless the drift goes by outputs */
	fp_matrix mean_gap;   /* 1 × m: of ρ; absent where it is not wanted */
	fp_matrix shift;      /* 1 × n: less the mean of the first batch's X* */
	fp_matrix shifted;    /* work space: X* of a batch, shifted */
	fp_matrix ones;       /* 1 × batch */
	int64_t tokens;
} fp_statistics;

/* What is to be folded. */
typedef struct fp_statistics_plan {
	int64_t inputs;   /* n */
	int64_t batch;    /* most tokens in one fold; 0 where one stream is not centred */
	bool two_streams; /* X and X* differ */
	bool centred;
	int64_t residual_outputs; /* m where ρX*ᵀ is wanted, else 0 */
	fp_matrix only;           /* the group's operator where it has one only, kept by the caller; else absent */
} fp_statistics_plan;

/* Whether the drift of a group's only operator, m × n, goes by outputs. residual: ρ is folded too. */
static inline bool fp_drift_by_outputs(int64_t outputs, int64_t inputs, bool residual)
{
	return 4 * outputs < 3 * inputs + (residual ? 2 * outputs : 0);
}

/* Freed with fp_statistics_free(). */
fp_status fp_statistics_new(fp_statistics *out, fp_backend *be, const fp_statistics_plan *plan);
void fp_statistics_free(fp_statistics *statistics);
/* Frees what only targets are made of, when all that are wanted are made: all but A, the means, and a drift that was
 * folded. */
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
/* From finished statistics, for an operator of the group; products are for the use that is set. Freed with
 * fp_drift_free(), also when it fails, and before the statistics. */
fp_status fp_statistics_drift(const fp_statistics *statistics, fp_matrix W, fp_drift *out);
void fp_drift_free(fp_backend *be, fp_drift *drift);

#endif
