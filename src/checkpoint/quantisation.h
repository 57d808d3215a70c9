/* SPDX-License-Identifier: Apache-2.0 */
/* quantisation.h: quantization_config of config.json: which forms are read, and how their scales lie. */
#ifndef FP_CHECKPOINT_QUANTISATION_H
#define FP_CHECKPOINT_QUANTISATION_H

#include "base/context.h"
#include <jansson.h>

typedef enum fp_quantisation_kind {
	FP_NOT_QUANTISED,
	FP_QUANTISED_FP8,      /* weight = FP8 entry · scale */
	FP_QUANTISED_INTEGERS, /* weight = (integer − zero point) · scale, of compressed-tensors */
	FP_QUANTISED_OTHER,    /* a form that is not read: such a checkpoint can be listed, not run */
} fp_quantisation_kind;

typedef struct fp_quantisation {
	fp_quantisation_kind kind;
	const char *method;  /* quant_method; borrowed from the config */
	const char *format;  /* of compressed-tensors, else ""; borrowed */
	int64_t block[2];    /* rows and columns that share a scale; 0, 0: not by blocks */
	bool scales_by_rows; /* a scale for each row is allowed */
	bool wide;           /* the model computes in F32 */
	unsigned widths;     /* integers: bit b is set if some have b bits */
} fp_quantisation;

/* Reads the config, an object. What is not a form of FP8 or of integers that is read is FP_QUANTISED_OTHER; a form of
 * FP8 whose numbers make no sense is an error. `path` is for messages. */
fp_status fp_quantisation_read(fp_quantisation *out, fp_context *ctx, const json_t *config, const char *path);
/* FP_ERROR_INPUT with a message that names the method and those that are read. */
fp_status fp_quantisation_refuse(const fp_quantisation *quantisation, fp_context *ctx, const char *path);

#endif
