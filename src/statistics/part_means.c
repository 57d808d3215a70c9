/* SPDX-License-Identifier: Apache-2.0 */
#include "statistics/part_means.h"

#include "base/memory.h"

#include <math.h>

enum { MEAN, DELTA, W_DELTA, RESIDUAL, KINDS };

static void list_means(const fp_statistics *statistics, fp_matrix out[KINDS])
{
	out[MEAN] = statistics->mean;
	out[DELTA] = statistics->mean_delta;
	out[W_DELTA] = statistics->mean_W_delta;
	out[RESIDUAL] = statistics->mean_residual;
}

fp_status fp_part_means_new(fp_part_means *out, const fp_statistics *statistics, int parts)
{
	fp_matrix vectors[KINDS];
	*out = (fp_part_means){.be = statistics->be, .parts = parts, .width = 1};
	list_means(statistics, vectors);
	for (int kind = 0; kind < KINDS; kind++)
		out->width += fp_matrix_is_absent(vectors[kind]) ? 0 : vectors[kind].cols;
	return FP_NEW(out->be->ctx, &out->values, parts * out->width);
}

void fp_part_means_free(fp_part_means *means)
{
	fp_free(means->values);
	*means = (fp_part_means){0};
}

fp_status fp_part_means_take(fp_part_means *means, const fp_statistics *statistics, int part)
{
	fp_backend *be = means->be;
	double *values = means->values + part * means->width;
	fp_matrix vectors[KINDS];
	float *host = NULL;
	fp_status status;
	list_means(statistics, vectors);
	FP_TRY(FP_NEW(be->ctx, &host, means->width));
	*values++ = (double)statistics->tokens;
	for (int kind = 0; kind < KINDS; kind++) {
		if (fp_matrix_is_absent(vectors[kind]))
			continue;
		FP_TRY(be->memory->download(be, host, FP_F32, vectors[kind].cols, vectors[kind]));
		FP_TRY(be->memory->synchronize(be));
		for (int64_t i = 0; i < vectors[kind].cols; i++)
			*values++ = host[i];
	}
cleanup:
	fp_free(host);
	return status;
}

fp_status fp_part_means_gather(fp_part_means *means, const fp_share *share)
{
	return fp_share_gather(share, means->values, means->width * (int64_t)sizeof *means->values);
}

/* mean (1 × n) ← that of all tokens, D (parts × n) ← √pₖ·(aₖ − a), of the vector at column `at` of the values */
static fp_status spread(const fp_part_means *means, int64_t at, fp_matrix mean, fp_matrix D)
{
	fp_backend *be = means->be;
	int64_t n = mean.cols;
	double tokens = 0;
	float *all = NULL, *rows = NULL;
	fp_status status;
	FP_TRY(FP_NEW(be->ctx, &all, n));
	FP_TRY(FP_NEW(be->ctx, &rows, means->parts * n));
	for (int part = 0; part < means->parts; part++)
		tokens += means->values[part * means->width];
	for (int64_t i = 0; i < n; i++) {
		double sum = 0;
		for (int part = 0; part < means->parts; part++)
			sum += means->values[part * means->width] * means->values[part * means->width + at + i];
		sum = tokens > 0 ? sum / tokens : 0;
		all[i] = (float)sum;
		for (int part = 0; part < means->parts; part++)
			rows[part * n + i] =
				(float)(sqrt(means->values[part * means->width]) * (means->values[part * means->width + at + i] - sum));
	}
	FP_TRY(be->memory->upload(be, mean, all, FP_F32, n));
	FP_TRY(be->memory->upload(be, D, rows, FP_F32, n));
	FP_TRY(be->memory->synchronize(be)); /* before they are freed */
cleanup:
	fp_free(all);
	fp_free(rows);
	return status;
}

/* *sum += ⟨a, b⟩, unless one is absent */
static fp_status add_product(fp_backend *be, fp_matrix a, fp_matrix b, double *sum)
{
	double product = 0;
	fp_status status = FP_OK;
	if (!fp_matrix_is_absent(a) && !fp_matrix_is_absent(b))
		status = be->linear->dot(be, a, b, &product);
	*sum += product;
	return status;
}

fp_status fp_part_means_join(const fp_part_means *means, fp_statistics *statistics)
{
	fp_backend *be = means->be;
	fp_matrix vectors[KINDS], D[KINDS] = {{0}};
	const struct {
		fp_matrix out;
		int left, right;
	} products[] = {{statistics->A, MEAN, MEAN},
					{statistics->cross, DELTA, MEAN},
					{statistics->difference, DELTA, DELTA},
					{statistics->residual_delta, RESIDUAL, DELTA},
					{statistics->drift.product, W_DELTA, MEAN},
					{statistics->residual, RESIDUAL, MEAN}};
	int64_t at = 1;
	FP_PRODUCTS_FOR(be, FP_USE_EXACT);
	fp_status status = FP_OK;
	list_means(statistics, vectors);
	for (int kind = 0; kind < KINDS; kind++) {
		if (fp_matrix_is_absent(vectors[kind]))
			continue;
		FP_TRY(fp_matrix_new(be, &D[kind], means->parts, vectors[kind].cols, FP_F32));
		FP_TRY(spread(means, at, vectors[kind], D[kind]));
		at += vectors[kind].cols;
	}
	for (size_t i = 0; i < sizeof products / sizeof products[0]; i++)
		if (!fp_matrix_is_absent(products[i].out))
			FP_TRY(be->linear->gemm(be, 1, D[products[i].left], FP_TRANSPOSED, D[products[i].right], FP_PLAIN, 1,
									products[i].out));
	FP_TRY(add_product(be, D[RESIDUAL], D[RESIDUAL], &statistics->residual_energy));
	FP_TRY(add_product(be, D[W_DELTA], D[W_DELTA], &statistics->drift.energy));
	FP_TRY(add_product(be, D[RESIDUAL], D[W_DELTA], &statistics->drift.residual));
cleanup:
	for (int kind = 0; kind < KINDS; kind++)
		fp_matrix_free(be, &D[kind]);
	return status;
}
