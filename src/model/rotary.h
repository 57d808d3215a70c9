/* SPDX-License-Identifier: Apache-2.0 */
/* rotary.h: the angles of rotary positions. */
#ifndef FP_MODEL_ROTARY_H
#define FP_MODEL_ROTARY_H

#include "model/model.h"

/* frequencies[head_dim / 2]: radians per position, after scaling. */
void fp_rotary_frequencies(const fp_model_config *config, float *frequencies);
/* cosine, sine ← length × head_dim/2 on the device. The caller frees them with fp_matrix_free(). */
fp_status fp_rotary_tables(fp_backend *be, const fp_model_config *config, int64_t length, fp_matrix *cosine,
						   fp_matrix *sine);

#endif
