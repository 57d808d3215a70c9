/* SPDX-License-Identifier: Apache-2.0 */
/*
 * statistics.h: sums over the inputs of a group of operators, accumulated batch by batch, from which the
 * solver's matrices follow.
 *
 * X are the inputs in the dense model, X* those in the pruned model (features × tokens, as in the paper),
 * h and h* the residual streams of the two models, and
 *
 *     Δ = X − X*
 *     E = h − h*
 *
 * The sums for an operator W [m × n] are
 *
 *     A    = X*X*ᵀ   [n × n]
 *     WΔX*ᵀ          [m × n]     the drift
 *     ‖WΔ‖²
 *
 * and the solver needs
 *
 *     C     = WXX*ᵀ = WA + WΔX*ᵀ
 *     ‖WX‖² = ⟨WA, W⟩ + 2⟨WΔX*ᵀ, W⟩ + ‖WΔ‖²
 *
 * Differences are summed instead of XX*ᵀ and ‖WX‖², because the error of a good fit is smaller than the
 * rounding error of ‖WX‖². An operator that writes into the residual stream may correct the error E
 * there; its target then also needs
 *
 *     EX*ᵀ   [m × n]
 *     ‖E‖²
 *     ⟨E, WΔ⟩
 *
 * fp_statistics_new() selects the cheaper of two ways to the drift of p tokens:
 *
 *     by inputs    ΔX*ᵀ (2n²p), ΔΔᵀ (n²p) and EΔᵀ (2mnp), for all operators of a group; the drift is then
 *                  W(ΔX*ᵀ), ‖WΔ‖² = ⟨W(ΔΔᵀ), W⟩ and ⟨E, WΔ⟩ = ⟨W, EΔᵀ⟩
 *     by outputs   WΔ (2mnp) and WΔX*ᵀ (2mnp), for the only operator of a group. W is rounded if products
 *                  of activations are, as in the forward pass
 *
 * Centred statistics are for operators with a bias that absorbs the means: X*, Δ and E are then taken
 * relative to their means over all tokens, and the means are stored.
 *
 * Of a text that ranks share, each part is summed on its own (sharing/part_sum.h): fp_statistics_clear(), batches, and
 * fp_statistics_end_part(). Parts are centred by themselves, and part_means.h adds what separates their means.
 */
#ifndef FP_STATISTICS_STATISTICS_H
#define FP_STATISTICS_STATISTICS_H

#include "backend/backend.h"
#include "sharing/part_sum.h"

/* How X ≠ X* changes an operator's target. */
typedef struct fp_drift {
	fp_matrix product; /* WΔX*ᵀ; absent if X = X* */
	bool borrowed;     /* `product` belongs to the statistics */
	double energy;     /* ‖WΔ‖² */
	double residual;   /* ⟨E, WΔ⟩; 0 without E */
} fp_drift;

typedef struct fp_statistics {
	fp_backend *be;           /* borrowed */
	fp_matrix A;              /* X*X*ᵀ; upper triangle until fp_statistics_finish() */
	fp_matrix cross;          /* ΔX*ᵀ; by inputs only */
	fp_matrix difference;     /* ΔΔᵀ; by inputs only */
	fp_matrix residual_delta; /* EΔᵀ; by inputs only, absent without E */
	fp_matrix W;              /* by outputs only; borrowed */
	fp_drift drift;           /* by outputs only */
	fp_matrix residual;       /* EX*ᵀ; absent without E */
	double residual_energy;   /* ‖E‖² */
	fp_matrix delta;          /* workspace: Δ of a batch; BF16 if products round it */
	fp_matrix rounded;        /* workspace: X* of a batch in BF16, in that case */
	fp_matrix W_delta;        /* workspace: WΔ of a batch */
	fp_matrix residual_error; /* workspace: E of a batch */
	bool borrows;             /* these four, `shifted` and `ones` belong to others */
	bool centred;
	bool divided; /* the sums are those of parts, which are centred already */
	/* Absent unless centred. The means are sums until fp_statistics_finish(). */
	fp_matrix mean;          /* 1 × n: of X* */
	fp_matrix mean_delta;    /* 1 × n: of Δ; absent if X = X* */
	fp_matrix mean_W_delta;  /* 1 × m: of WΔ with its rounding; by outputs only */
	fp_matrix mean_residual; /* 1 × m: of E; absent without E */
	fp_matrix shift;         /* 1 × n: minus the mean of the first batch's X* */
	fp_matrix shifted;       /* workspace: X* of a batch plus `shift` */
	fp_matrix ones;          /* 1 × batch */
	int64_t tokens;
	double added_tokens; /* of the parts that were added */
} fp_statistics;

/* What to accumulate. */
typedef struct fp_statistics_plan {
	int64_t inputs;   /* n */
	int64_t batch;    /* maximum tokens per batch; may be 0 for one stream that is not centred */
	bool two_streams; /* X and X* differ */
	bool centred;
	int64_t residual_outputs;           /* m to accumulate E, else 0 */
	fp_matrix only;                     /* the operator of a group with only one, the caller's; else absent */
	const struct fp_statistics *lender; /* whose workspaces are used; NULL: own ones */
	int registers;                      /* for estimates: sums of parts in memory at the same time; 0: one */
} fp_statistics_plan;

/* Whether the drift of a group's only operator is computed by outputs. residual: E is accumulated too. */
static inline bool fp_drift_by_outputs(int64_t outputs, int64_t inputs, bool residual)
{
	return 4 * outputs < 3 * inputs + (residual ? 2 * outputs : 0);
}

/* Freed with fp_statistics_free(). */
fp_status fp_statistics_new(fp_statistics *out, fp_backend *be, const fp_statistics_plan *plan);
/* Only the workspaces, to be lent to many statistics of the same plan. Not for centred ones. */
fp_status fp_statistics_space(fp_statistics *out, fp_backend *be, const fp_statistics_plan *plan);
void fp_statistics_free(fp_statistics *statistics);
/* Call when all targets have been computed. Frees everything but A, the means and a drift by outputs. */
void fp_statistics_forget_targets(fp_statistics *statistics);

/* Adds a batch: X and X* are tokens × n; with one stream X is ignored. */
fp_status fp_statistics_fold(fp_statistics *statistics, fp_matrix X, fp_matrix Xstar);
/* Adds E of the batch that was added last: h and h* are tokens × m. */
fp_status fp_statistics_fold_residual(fp_statistics *statistics, fp_matrix hidden, fp_matrix hidden_star,
									  fp_matrix Xstar);
/* The same with E itself. */
fp_status fp_statistics_fold_error(fp_statistics *statistics, fp_matrix E, fp_matrix Xstar);
/* A ← A + ridge·mean(diag A)·I, of finished statistics: an operator is drawn towards the dense one. */
fp_status fp_statistics_add_ridge(fp_statistics *statistics, double ridge);
/* A = I, in place of any batch: errors are then those of the weights themselves. */
fp_status fp_statistics_identity(fp_statistics *statistics);
/* Before the first and after the last batch of a part. */
fp_status fp_statistics_clear(fp_statistics *statistics);
fp_status fp_statistics_end_part(fp_statistics *statistics);
/* Appends what is summed over parts. fp_statistics_added() then takes the sums over. */
fp_status fp_statistics_list(fp_statistics *statistics, fp_addends *out);
void fp_statistics_added(fp_statistics *statistics);
/* Call after the last batch: subtracts the means and completes the symmetric matrices. NaN or infinity is
 * an error. */
fp_status fp_statistics_finish(fp_statistics *statistics);
/* The drift of an operator of the group, from finished statistics. Products are for be->use. Freed with
 * fp_drift_free(), also after a failure, and before the statistics. */
fp_status fp_statistics_drift(const fp_statistics *statistics, fp_matrix W, fp_drift *out);
void fp_drift_free(fp_backend *be, fp_drift *drift);

/* Estimates from a plan. `plan->only` needs a shape but no buffer. */

/* Whether the drift is computed by outputs. */
bool fp_statistics_by_outputs(const fp_statistics_plan *plan);
/* Floats that the statistics hold, without vectors. */
typedef struct fp_statistics_memory {
	double kept;      /* until fp_statistics_free() */
	double targets;   /* until fp_statistics_forget_targets() */
	double workspace; /* until fp_statistics_finish(); those that borrow them have none */
	double registers; /* for the sums of other parts, until then */
} fp_statistics_memory;
fp_statistics_memory fp_statistics_floats(const fp_statistics_plan *plan);
/* Operations per token, of products only. */
double fp_statistics_flops(const fp_statistics_plan *plan);

#endif
