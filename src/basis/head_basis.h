/* SPDX-License-Identifier: Apache-2.0 */
/*
 * head_basis.h: learns the bases M of a layer's heads: those in which a pattern removes little (pruned_mass.h) of the
 * operators that they turn.
 *
 *     values            T = MᵀW_v,  T = W_oM with 1/h = diag(MᵀKM), K = the head's block of (H + δI)⁻¹
 *     queries and keys  T = MᵀW_q,  T = MᵀW_k
 *
 * With UᵀU = K, 1/h are the squares of UM's columns. The gradients by M are WG_Tᵀ for T = MᵀW, and
 * WᵀG_T − 2Uᵀ(UM diag(g_h h²)) for T = WM.
 */
#ifndef FP_BASIS_HEAD_BASIS_H
#define FP_BASIS_HEAD_BASIS_H

#include "basis/layer_inputs.h"
#include "basis/learn_basis.h"
#include "basis/pruned_mass.h"

/* The layer is in the basis that is known so far. inputs->H of the groups 0 and 1 are overwritten. own->value and
 * own->query, where they are there, ← what they are times what is learned. sensitivities: by role. The masses of the
 * operators concerned are added to *before and *after. */
fp_status fp_learn_heads(const fp_basis_task *task, const fp_layer *layer, const double *sensitivities,
						 fp_layer_inputs *inputs, fp_layer_basis *own, fp_mass *before, fp_mass *after);
/* Operations of its matrix products for one layer. */
double fp_learn_heads_flops(const fp_basis_task *task);
int64_t fp_learn_heads_bytes(const fp_basis_task *task);

#endif
