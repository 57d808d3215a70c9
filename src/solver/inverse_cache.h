/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inverse_cache.h: the inverses (A + ρI)⁻¹ for the support search. The growing penalties ρ are the same for all
 * operators of a Gram matrix, which therefore share the inverses.
 */
#ifndef FP_SOLVER_INVERSE_CACHE_H
#define FP_SOLVER_INVERSE_CACHE_H

#include "solver/method.h"

enum { FP_PENALTY_LEVELS = 64 };
/* ρ at a level: 0.15·1.25^level. */
double fp_penalty(int64_t level);

/* *out ← the inverse at *level, in the type of operands for FP_USE_ITERATION; borrowed until the next call. If Cholesky
 * fails because A is rank-deficient, *level is raised until it succeeds. */
fp_status fp_gram_inverse(fp_gram *gram, int64_t *level, fp_matrix *out);
/* *out ← whether the inverses of all levels that a search visits may be kept: several operators share them, and memory is
 * plentiful. */
fp_status fp_gram_keeps_inverses(const fp_gram *gram, bool *out);
/* out (n × n) ← (A + ρI)⁻¹, not kept. *refused ≠ 0: Cholesky failed, and out is undefined. */
fp_status fp_gram_invert(const fp_gram *gram, double rho, fp_matrix out, int64_t *refused);
fp_solve_memory fp_inverse_cache_memory(const fp_backend *be, const fp_solve_size *size);

#endif
