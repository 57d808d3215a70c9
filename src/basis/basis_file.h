/* SPDX-License-Identifier: Apache-2.0 */
/* basis_file.h: a basis as a file, for runs that are resumed and for the other ranks of a run. */
#ifndef FP_BASIS_BASIS_FILE_H
#define FP_BASIS_BASIS_FILE_H

#include "basis/learn_basis.h"

fp_status fp_basis_save(const char *path, const fp_basis *basis, const fp_model *model, const fp_basis_gain *gain);
/* *out ← the basis, or NULL if there is no such file or it is damaged; then there is a warning.
 * Freed with fp_basis_free(). */
fp_status fp_basis_restore(fp_basis **out, const char *path, fp_model *model, const fp_basis_freedom *freedom,
						   bool stream, fp_basis_gain *gain);

#endif
