/* SPDX-License-Identifier: Apache-2.0 */
/* rotary.h: the angles of rotary position embeddings. */
#ifndef FP_MODEL_ROTARY_H
#define FP_MODEL_ROTARY_H

#include "model/model.h"

/* Rows of the tables for a batch of `tokens` tokens: no sequence in it is longer. */
int64_t fp_rotary_rows(const fp_model_config *config, int64_t tokens);
/* cosine, sine ← length × head_dim/2 on the device. The caller frees them with fp_matrix_free(). */
fp_status fp_rotary_tables(fp_backend *be, const fp_model_config *config, int64_t length, fp_matrix *cosine,
						   fp_matrix *sine);

#endif
