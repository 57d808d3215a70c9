/* SPDX-License-Identifier: Apache-2.0 */
/* quantised_plan.h: which tensors of the output are quantised (setting `quantize`), and what config.json says of them. */
#ifndef FP_RUN_QUANTISED_PLAN_H
#define FP_RUN_QUANTISED_PLAN_H

#include "base/settings.h"
#include "model/model.h"
#include "tensor/grid_format.h"

typedef struct fp_quantised_plan { /* freed with fp_quantised_plan_free() */
	const fp_grid_format *format;  /* NULL: nothing is quantised, and the rest is empty */
	bool *tensors;                 /* by tensor of the checkpoint */
	json_t *config;                /* quantization_config */
} fp_quantised_plan;

/* The operators that are pruned. Fails if the model stores them transposed, if only some of those in one tensor are pruned,
 * or if loaders do not read its experts in this format. */
fp_status fp_quantised_plan_make(fp_quantised_plan *out, const fp_model *model, const fp_settings *settings);
void fp_quantised_plan_free(fp_quantised_plan *plan); /* all zero is allowed */

#endif
