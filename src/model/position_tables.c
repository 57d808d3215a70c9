/* SPDX-License-Identifier: Apache-2.0 */
/*
 * position_tables.c: cosines and sines of rotary positions, and the biases of ALiBi (Press et al., 2021): a key at
 * position j adds slope·j to its scores. With c the largest power of two that is at most the number of heads:
 *
 *     slopeₕ = 2^(−8(h + 1)/c)              for h < c
 *              2^(−4(2(h − c) + 1)/c)       for the others
 */
#include "model/position_tables.h"

#include "base/memory.h"

#include <math.h>

/* No sequence in a batch is longer. */
static int64_t table_rows(const fp_model_config *config, int64_t tokens)
{
	return tokens < config->positions ? tokens : config->positions;
}

/* Whether a batch needs the tables of one kind of layer and of short or long sequences. */
static bool is_needed(const fp_model_config *config, int64_t rows, int rope, int longer)
{
	if (!config->rotary || (rope == 1 && !config->local_rope))
		return false;
	return !longer || (config->rope[rope].original > 0 && rows > config->rope[rope].original);
}

int64_t fp_position_tables_bytes(const fp_model_config *config, int64_t tokens, bool backward)
{
	int64_t rows = table_rows(config, tokens), floats = config->alibi ? config->heads * rows : 0;
	for (int rope = 0; rope < 2; rope++)
		for (int longer = 0; longer < 2; longer++)
			if (is_needed(config, rows, rope, longer))
				floats += rows * config->rope[rope].pairs * (backward ? 3 : 2);
	return floats * (int64_t)sizeof(float);
}

static fp_status upload_table(fp_backend *be, const float *table, int64_t rows, int64_t cols, fp_matrix *out)
{
	fp_status status;
	FP_TRY(fp_matrix_new(be, out, rows, cols, FP_F32));
	FP_TRY(be->memory->upload(be, *out, table, FP_F32, cols));
	FP_TRY(be->memory->synchronize(be)); /* before the table is freed */
cleanup:
	return status;
}

static fp_status new_angles(fp_backend *be, const fp_rope *rope, const float *frequencies, int64_t length,
							fp_matrix *cosine, fp_matrix *sine)
{
	fp_status status;
	int64_t half = rope->pairs;
	float *table = NULL; /* cosines, then sines */
	FP_TRY(FP_NEW(be->ctx, &table, 2 * length * half));
	for (int64_t t = 0; t < length; t++)
		for (int64_t i = 0; i < half; i++) {
			/* Models are trained with the product rounded to single precision, which changes the
			 * angle by up to 5e-4 at position 8191. */
			float angle = (float)t * frequencies[i];
			table[t * half + i] = (float)cos((double)angle) * rope->magnitude;
			table[(length + t) * half + i] = (float)sin((double)angle) * rope->magnitude;
		}
	FP_TRY(upload_table(be, table, length, half, cosine));
	FP_TRY(upload_table(be, table + length * half, length, half, sine));
cleanup:
	fp_free(table);
	return status;
}

/* Rounds to BF16. */
static float rounded(float x)
{
	uint16_t narrow;
	fp_from_float(&narrow, FP_BF16, &x, 1);
	fp_to_float(&x, &narrow, FP_BF16, 1);
	return x;
}

static fp_status new_key_bias(fp_backend *be, const fp_model_config *config, int64_t rows, fp_matrix *out)
{
	fp_status status;
	float *table = NULL;
	int64_t power = 1;
	while (2 * power <= config->heads)
		power *= 2;
	FP_TRY(FP_NEW(be->ctx, &table, config->heads * rows));
	for (int64_t h = 0; h < config->heads; h++) {
		double exponent =
			h < power ? -8.0 * (double)(h + 1) / (double)power : -4.0 * (double)(2 * (h - power) + 1) / (double)power;
		float slope = (float)exp2(exponent);
		for (int64_t t = 0; t < rows; t++)
			table[h * rows + t] = config->alibi_rounded
									  ? rounded(rounded(slope) * (float)t) / sqrtf((float)config->head_dim)
									  : slope * (float)t;
	}
	FP_TRY(upload_table(be, table, config->heads, rows, out));
cleanup:
	fp_free(table);
	return status;
}

fp_status fp_position_tables_new(fp_position_tables *out, fp_backend *be, const fp_model_config *config, int64_t tokens,
								 bool backward)
{
	fp_status status = FP_OK;
	int64_t rows = table_rows(config, tokens);
	*out = (fp_position_tables){0};
	for (int rope = 0; rope < 2; rope++)
		for (int longer = 0; longer < 2; longer++) {
			const fp_rope *own = &config->rope[rope];
			fp_matrix *sine = &out->sine[rope][longer], *negative = &out->negative_sine[rope][longer];
			if (!is_needed(config, rows, rope, longer))
				continue;
			FP_TRY(new_angles(be, own, longer ? own->long_frequencies : own->frequencies, rows,
							  &out->cosine[rope][longer], sine));
			if (!backward)
				continue;
			FP_TRY(fp_matrix_new(be, negative, rows, own->pairs, FP_F32));
			FP_TRY(be->linear->axpby(be, -1, *sine, 0, *negative));
		}
	if (config->alibi)
		FP_TRY(new_key_bias(be, config, rows, &out->key_bias));
cleanup:
	if (status != FP_OK)
		fp_position_tables_free(be, out);
	return status;
}

void fp_position_tables_free(fp_backend *be, fp_position_tables *tables)
{
	for (int rope = 0; rope < 2; rope++)
		for (int longer = 0; longer < 2; longer++) {
			fp_matrix_free(be, &tables->cosine[rope][longer]);
			fp_matrix_free(be, &tables->sine[rope][longer]);
			fp_matrix_free(be, &tables->negative_sine[rope][longer]);
		}
	fp_matrix_free(be, &tables->key_bias);
}

fp_status fp_rotate_heads(fp_backend *be, const fp_model_config *config, const fp_position_tables *tables,
						  int64_t layer, fp_token_range tokens, bool back, int64_t heads, fp_matrix X)
{
	if (!fp_config_rotates(config, layer))
		return FP_OK;
	int rope = config->local_rope && fp_config_window(config, layer) > 0;
	int longer = config->rope[rope].original > 0 && tokens.whole > config->rope[rope].original;
	fp_matrix sine = (back ? tables->negative_sine : tables->sine)[rope][longer];
	return be->transformer->rotate(be, config->rope_pairing,
								   fp_matrix_rows(tables->cosine[rope][longer], tokens.first, tokens.length),
								   fp_matrix_rows(sine, tokens.first, tokens.length), heads, X);
}
