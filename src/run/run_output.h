/* SPDX-License-Identifier: Apache-2.0 */
/* run_output.h: what becomes of a finished operator: its bytes go to the output and to the overlay, its result to the
 * run's. Operators that are parts of stored tensors are joined at the end of their layer. */
#ifndef FP_RUN_RUN_OUTPUT_H
#define FP_RUN_RUN_OUTPUT_H

#include "run/prune_model.h"
#include "run/tensor_joiner.h"
#include "run/write_behind.h"

typedef struct fp_run_output { /* freed with fp_run_output_free() */
	const fp_prune_task *task; /* borrowed */
	fp_prune_result *result;   /* borrowed; added to */
	fp_write_behind *behind;
	fp_tensor_joiner *joiner;
	const fp_tensor_info **replaced; /* tensors of the current layer that have new bytes */
	int64_t replaced_count, replaced_capacity;
} fp_run_output;

fp_status fp_run_output_new(fp_run_output *out, const fp_prune_task *task, fp_prune_result *result);
void fp_run_output_free(fp_run_output *output); /* all zero is allowed */
/* The callbacks of a layer, whose data is `output`. */
fp_layer_output fp_run_output_callbacks(fp_run_output *output);
/* Call before a layer, and after it: then its tensors are complete. */
void fp_run_output_begin_layer(fp_run_output *output);
fp_status fp_run_output_end_layer(fp_run_output *output);

#endif
