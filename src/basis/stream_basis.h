/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream_basis.h: learns the basis R of the residual stream: the one in which a pattern removes the smallest shares
 * (pruned_mass.h) of the operators that read from the stream or write into it. An entry w of input j counts
 *
 *     w²h,   1/h = [K]ⱼⱼ,   K = (H + δI)⁻¹,   H = E[xxᵀ]
 *
 * the loss after the other weights have made up for it. With UᵀU = K,
 *
 *     readers   T = WR    1/h = diag(RᵀKR) = the squares of UR's columns   gradient by R:  WᵀG_T − 2KR diag(g_h h²)
 *     writers   T = RᵀW   h does not change                                                WG_Tᵀ
 */
#ifndef FP_BASIS_STREAM_BASIS_H
#define FP_BASIS_STREAM_BASIS_H

#include "basis/learn_basis.h"

/* basis->R starts as the identity. sensitivities: by layer and role, 0 for operators that do not count. */
fp_status fp_learn_stream(const fp_basis_task *task, fp_basis *basis, const double *sensitivities, fp_basis_gain *gain);
/* Operations of its matrix products, with so many weights in a layer. */
double fp_learn_stream_flops(const fp_basis_task *task, int64_t weights);
/* Bytes with that many layers to learn from. */
int64_t fp_learn_stream_bytes(const fp_basis_task *task, int64_t layers);

#endif
