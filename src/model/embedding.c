/* SPDX-License-Identifier: Apache-2.0 */
/* embedding.c: tokens to the hidden states before the first layer. */
#include "base/memory.h"
#include "base/numbers.h"
#include "model/model.h"
#include "model/model_parts.h"

#include <string.h>

enum { GATHER_ROWS = 1024 }; /* embedding rows uploaded at a time */

static fp_status check_ids(const fp_model *model, const int32_t *ids, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		if (ids[i] < 0 || ids[i] >= model->config.vocabulary)
			return fp_fail(model->be->ctx, FP_ERROR_INPUT,
						   "%s: token id %d is outside the model's vocabulary of %lld; the tokenizer does not belong "
						   "to this model",
						   fp_checkpoint_directory(model->checkpoint), (int)ids[i],
						   (long long)model->config.vocabulary);
	return FP_OK;
}

/* *out ← the bytes of the embedding. Those of a coded one are kept: generate reads a row of them at a time. */
static fp_status read_table(fp_model *model, const void **out)
{
	*out = model->decoded_table;
	if (*out)
		return FP_OK;
	return fp_checkpoint_read(out, &model->decoded_table, model->be->ctx, model->checkpoint, model->embedding);
}

/* Copies embedding rows from `data`, the bytes of the table, so that the whole table is never converted to floats. `rows`
 * has space for GATHER_ROWS. */
static fp_status gather(fp_model *model, const char *data, const int32_t *ids, int64_t count, char *rows, fp_matrix out)
{
	fp_backend *be = model->be;
	const fp_tensor_info *table = model->embedding;
	int64_t width = model->config.embedding;
	int64_t row_bytes = width * fp_dtype_size(table->dtype);
#pragma omp parallel for num_threads(be->threads) schedule(static)
	for (int64_t i = 0; i < count; i++)
		memcpy(rows + i * row_bytes, data + ids[i] * row_bytes, (size_t)row_bytes);
	int finite = 1;
	fp_status status;
	FP_TRY(be->memory->upload(be, out, rows, table->dtype, width));
	FP_TRY(be->linear->finite(be, out, &finite)); /* waits for the upload, so that `rows` can be reused */
	if (!finite)
		status = fp_fail(be->ctx, FP_ERROR_INPUT, "%s: tensor '%s' contains NaN or infinity",
						 fp_checkpoint_directory(model->checkpoint), table->name);
cleanup:
	return status;
}

/* Scales and normalises embedded tokens, if the model does. */
static fp_status finish_embedding(fp_model *model, fp_matrix X)
{
	fp_backend *be = model->be;
	const fp_model_config *c = &model->config;
	fp_matrix *norm = model->embedding_norm;
	fp_status status = FP_OK;
	if (c->embedding_scale > 0)
		FP_TRY(be->linear->axpby(be, c->embedding_scale, X, 0, X));
	if (!c->embedding_norm)
		goto cleanup;
	if (fp_matrix_is_absent(norm[0])) {
		FP_TRY(fp_model_upload(model, model->embedding_norm_weight, &norm[0]));
		FP_TRY(fp_model_finish_norm(model, norm[0]));
	}
	if (model->embedding_norm_bias && fp_matrix_is_absent(norm[1]))
		FP_TRY(fp_model_upload(model, model->embedding_norm_bias, &norm[1]));
	FP_TRY(be->transformer->norm(be, c->norm, X, norm[0], norm[1], c->norm_epsilon, X));
cleanup:
	return status;
}

fp_status fp_model_embed(fp_model *model, const int32_t *ids, int64_t sequences, int64_t length, fp_matrix out)
{
	return fp_model_embed_at(model, ids, sequences, length, NULL, out);
}

/* Adds the learned positions of sequence s, from first[s] on. */
static fp_status add_positions(fp_model *model, int64_t sequences, int64_t length, const int64_t *first, fp_matrix out)
{
	fp_backend *be = model->be;
	fp_status status = FP_OK;
	if (fp_matrix_is_absent(model->position_rows))
		FP_TRY(fp_model_upload(model, model->positions, &model->position_rows));
	for (int64_t s = 0; s < sequences; s++) {
		int64_t begin = model->config.position_offset + (first ? first[s] : 0);
		FP_TRY(be->linear->axpby(be, 1, fp_matrix_rows(model->position_rows, begin, length), 1,
								 fp_matrix_rows(out, s * length, length)));
	}
cleanup:
	return status;
}

/* out ← the rows of `count` tokens, before positions are added */
static fp_status embed_rows(fp_model *model, const int32_t *ids, int64_t count, fp_matrix out)
{
	fp_backend *be = model->be;
	const fp_model_config *c = &model->config;
	int64_t block = fp_smaller(count, GATHER_ROWS);
	char *rows = NULL;
	const void *table;
	fp_matrix unprojected = {0};
	fp_status status;
	FP_TRY(FP_NEW(be->ctx, &rows, block * c->embedding * fp_dtype_size(model->embedding->dtype)));
	if (model->project_in) {
		if (fp_matrix_is_absent(model->input_projection))
			FP_TRY(fp_model_upload(model, model->project_in, &model->input_projection));
		FP_TRY(fp_matrix_new(be, &unprojected, block, c->embedding, FP_F32));
	}
	FP_TRY(read_table(model, &table));
	for (int64_t row = 0; row < count; row += block) {
		int64_t now = fp_smaller(block, count - row);
		fp_matrix part = fp_matrix_rows(out, row, now);
		fp_matrix gathered = model->project_in ? fp_matrix_rows(unprojected, 0, now) : part;
		FP_TRY(gather(model, table, ids + row, now, rows, gathered));
		if (model->project_in)
			FP_TRY(fp_linear(be, gathered, model->input_projection, (fp_matrix){0}, false, part));
		FP_TRY(finish_embedding(model, part));
	}
cleanup:
	fp_matrix_free(be, &unprojected);
	fp_free(rows);
	return status;
}

/* The distinct tokens of a text: token i is ids[number[i]]. */
typedef struct distinct_tokens {
	int32_t *ids, *number;
	int64_t count;
} distinct_tokens;

static void distinct_free(distinct_tokens *distinct)
{
	fp_free(distinct->ids);
	fp_free(distinct->number);
}

static fp_status find_distinct(const fp_model *model, const int32_t *ids, int64_t count, distinct_tokens *out)
{
	fp_context *ctx = model->be->ctx;
	int64_t vocabulary = model->config.vocabulary;
	int32_t *place = NULL; /* of each id in out->ids, plus 1; 0: not seen yet */
	fp_status status;
	FP_TRY(FP_NEW(ctx, &out->ids, fp_smaller(count, vocabulary)));
	FP_TRY(FP_NEW(ctx, &out->number, count));
	FP_TRY(FP_NEW(ctx, &place, vocabulary));
	for (int64_t i = 0; i < count; i++) {
		if (place[ids[i]] == 0) {
			out->ids[out->count] = ids[i];
			place[ids[i]] = (int32_t)++out->count;
		}
		out->number[i] = place[ids[i]] - 1;
	}
cleanup:
	fp_free(place);
	return status;
}

/* embed_rows() for a device. A long text repeats most of its tokens: each row is sent once and copied there. */
static fp_status embed_distinct(fp_model *model, const int32_t *ids, int64_t count, fp_matrix out)
{
	enum { FEWEST_REPEATS = 4 };
	fp_backend *be = model->be;
	distinct_tokens distinct = {0};
	fp_matrix rows = {0};
	fp_status status;
	FP_TRY(find_distinct(model, ids, count, &distinct));
	if (FEWEST_REPEATS * distinct.count > count) {
		FP_TRY(embed_rows(model, ids, count, out));
	} else {
		FP_TRY(fp_matrix_new(be, &rows, distinct.count, out.cols, FP_F32));
		FP_TRY(embed_rows(model, distinct.ids, distinct.count, rows));
		FP_TRY(be->transformer->gather_rows(be, distinct.number, (fp_matrix){0}, rows, out));
	}
cleanup:
	fp_matrix_free(be, &rows);
	distinct_free(&distinct);
	return status;
}

/* Products are made of each sequence by itself, here and in embed_rows(): a backend may round a row by how many others it
 * has, and ranks have different sequences. */
static fp_status turn_sequences(const fp_model *model, int64_t sequences, int64_t length, fp_matrix out)
{
	fp_status status = FP_OK;
	for (int64_t s = 0; s < sequences && model->basis && status == FP_OK; s++)
		status = fp_turn_rows(model->basis, fp_matrix_rows(out, s * length, length));
	return status;
}

fp_status fp_model_embed_at(fp_model *model, const int32_t *ids, int64_t sequences, int64_t length,
							const int64_t *first, fp_matrix out)
{
	fp_backend *be = model->be;
	int64_t total = sequences * length, at_once = model->project_in ? length : total;
	fp_status status;
	FP_REQUIRE(be, out.rows == total && out.cols == model->config.hidden);
	FP_TRY(fp_model_check_length(model, length));
	for (int64_t s = 0; first && s < sequences; s++)
		FP_TRY(fp_model_check_length(model, first[s] + length));
	FP_TRY(check_ids(model, ids, total));
	if (be->asynchronous && total > GATHER_ROWS)
		FP_TRY(embed_distinct(model, ids, total, out));
	else
		for (int64_t row = 0; row < total; row += at_once)
			FP_TRY(embed_rows(model, ids + row, at_once, fp_matrix_rows(out, row, at_once)));
	fp_checkpoint_forget(model->checkpoint, model->embedding);
	if (model->positions)
		FP_TRY(add_positions(model, sequences, length, first, out));
	FP_TRY(turn_sequences(model, sequences, length, out));
cleanup:
	return status;
}

int64_t fp_model_embedding_bytes(const fp_model *model)
{
	int64_t positions = model->positions ? model->positions->elements : 0;
	int64_t projection = model->project_in ? model->project_in->elements : 0;
	return (positions + projection) * (int64_t)sizeof(float);
}
