/* SPDX-License-Identifier: Apache-2.0 */
/* position_tables.h: what attention needs to know about positions, on the device: rotary angles, ALiBi's biases. For the
 * files of this folder only. */
#ifndef FP_MODEL_POSITION_TABLES_H
#define FP_MODEL_POSITION_TABLES_H

#include "model/model.h"

/* Matrices that the model does not need are absent. */
typedef struct fp_position_tables {
	/* rows × pairs, by config->rope and by whether the sequence is longer than its `original` */
	fp_matrix cosine[2][2], sine[2][2], negative_sine[2][2];
	fp_matrix key_bias; /* heads × rows */
} fp_position_tables;

/* For positions up to `tokens`, which no sequence of a batch of so many tokens exceeds. backward: negative sines
 * too. Freed with fp_position_tables_free(). */
fp_status fp_position_tables_new(fp_position_tables *out, fp_backend *be, const fp_model_config *config, int64_t tokens,
								 bool backward);
void fp_position_tables_free(fp_backend *be, fp_position_tables *tables);
/* Bytes that it allocates, for planning. */
int64_t fp_position_tables_bytes(const fp_model_config *config, int64_t tokens, bool backward);

/* Tokens [first, first + length) of a sequence that has `whole` of them, on which its angles may depend. */
typedef struct fp_token_range {
	int64_t first, length, whole;
} fp_token_range;
/* X ← the heads of X, sequences of such tokens, turned by their positions, or turned back; nothing if those of the layer
 * do not turn. */
fp_status fp_rotate_heads(fp_backend *be, const fp_model_config *config, const fp_position_tables *tables,
						  int64_t layer, fp_token_range tokens, bool back, int64_t heads, fp_matrix X);

#endif
