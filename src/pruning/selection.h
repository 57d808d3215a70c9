/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selection.h: which operators a run prunes, and the pattern of each, by the names of their tensors (settings only, skip
 * and pattern_rules). Expressions are PCRE2's and may match anywhere in a name.
 */
#ifndef FP_PRUNING_SELECTION_H
#define FP_PRUNING_SELECTION_H

#include "base/settings.h"
#include "model/model.h"

typedef struct fp_selection fp_selection;

/* Matches all operators of the settings' layers. An expression that is not valid or matches none of them is
 * FP_ERROR_USAGE. Freed with fp_selection_free(). */
fp_status fp_selection_new(fp_selection **out, const fp_model *model, const fp_settings *settings);
void fp_selection_free(fp_selection *selection); /* NULL is allowed */

/* Whether the operator is pruned; false if the model has no such operator. */
bool fp_selection_has(const fp_selection *selection, int64_t layer, int number);
bool fp_selection_has_layer(const fp_selection *selection, int64_t layer);
/* Whether every operator of the model is pruned with the same pattern. */
bool fp_selection_is_plain(const fp_selection *selection);
/* Whether a rule gives the operator its pattern. */
bool fp_selection_has_rule(const fp_selection *selection, int64_t layer, int number);
/* The operator's pattern as text. Borrowed. */
const char *fp_selection_text(const fp_selection *selection, int64_t layer, int number);
/* The operator's pattern: `pattern`, or that of its rule. */
fp_pattern fp_selection_pattern(const fp_selection *selection, fp_pattern pattern, int64_t layer, int number);
/* Whether some operator that is pruned has an unstructured pattern. */
bool fp_selection_has_unstructured(const fp_selection *selection);

#endif
