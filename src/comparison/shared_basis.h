/* SPDX-License-Identifier: Apache-2.0 */
/* shared_basis.h: the model in a learned basis, for cells of a comparison. Adjacent cells with the same pattern and
 * windows share the basis, whatever their methods are. */
#ifndef FP_COMPARISON_SHARED_BASIS_H
#define FP_COMPARISON_SHARED_BASIS_H

#include "run/prune_model.h"

typedef struct fp_shared_basis { /* all zero at first; freed with fp_shared_basis_free() */
	fp_model *model;             /* the checkpoint's, opened a second time; NULL: no cell needed it yet */
	fp_basis *basis;
	fp_basis_choice choice;
	fp_basis_gain gain; /* of `basis` */
	uint64_t key;       /* a digest of what `basis` depends on */
	bool known;         /* an earlier cell has learned the present cell's basis */
} fp_shared_basis;

/* Chooses a cell's basis, and sets the task's model, choice and basis: with no basis it is left as it is, with the model
 * of all other cells. */
fp_status fp_shared_basis_take(fp_shared_basis *shared, fp_prune_task *task);
/* After the cell was pruned: its gain. That of a basis which an earlier cell has learned is the same and took no time.
 */
void fp_shared_basis_report(fp_shared_basis *shared, fp_basis_gain *gain);
void fp_shared_basis_free(fp_shared_basis *shared);

#endif
