/* SPDX-License-Identifier: Apache-2.0 */
/* basis_check.h: compares a model in a new basis with the model as it is in the checkpoint. */
#ifndef FP_BASIS_BASIS_CHECK_H
#define FP_BASIS_BASIS_CHECK_H

#include "model/basis.h"
#include "text/windows.h"

/* Fails if the next-token distributions of one window differ by more than rounding. *kl ← their mean divergence. */
fp_status fp_basis_check(fp_model *model, const fp_basis *basis, const fp_windows *windows, double *kl);

#endif
