/* SPDX-License-Identifier: Apache-2.0 */
#include "basis/rotation.h"

#include "base/memory.h"
#include "sharing/row_slices.h"

#include <math.h>

enum { LEAST_FINISHING = 3, MOST_FINISHING = 20, NORM_ROUNDS = 8 };
static const double LONGEST = 1.25; /* ‖X‖₂; the estimate may be somewhat too small */
static const float BETA1 = 0.9F, BETA2 = 0.99F, EPSILON = 1e-12F;

fp_status fp_rotation_new(fp_rotation *out, fp_backend *be, fp_rotation_kind kind, fp_matrix R)
{
	fp_matrix *square[] = {&out->gradient, &out->omega, &out->mean, &out->square, &out->X, &out->product};
	fp_status status = FP_OK;
	*out = (fp_rotation){.be = be, .kind = kind, .R = R};
	for (size_t i = 0; i < sizeof square / sizeof square[0]; i++)
		FP_TRY(fp_matrix_new(be, square[i], R.rows, R.cols, FP_F32));
	FP_TRY(fp_matrix_new(be, &out->vector, R.rows, 1, FP_F32));
	FP_TRY(fp_matrix_new(be, &out->image, R.rows, 1, FP_F32));
	FP_TRY(fp_matrix_new(be, &out->factors, 1, R.rows, FP_F32));
	FP_TRY(fp_matrix_new(be, &out->zeros, 1, R.rows, FP_F32));
	FP_TRY(FP_NEW(be->ctx, &out->host, R.rows));
	FP_TRY(be->memory->fill(be, out->zeros, 0));
	FP_TRY(be->memory->fill(be, out->mean, 0));
	FP_TRY(be->memory->fill(be, out->square, 0));
	if (kind == FP_TURN_KEEP_ONES) {
		FP_TRY(fp_matrix_new(be, &out->ones, R.cols, 1, FP_F32));
		FP_TRY(fp_matrix_new(be, &out->means, R.cols, 1, FP_F32));
		FP_TRY(be->memory->fill(be, out->ones, 1));
	}
cleanup:
	if (status != FP_OK)
		fp_rotation_free(out);
	return status;
}

void fp_rotation_free(fp_rotation *r)
{
	if (!r->be)
		return;
	fp_matrix *all[] = {&r->gradient, &r->omega, &r->mean,    &r->square, &r->X,    &r->product,
						&r->vector,   &r->image, &r->factors, &r->zeros,  &r->ones, &r->means};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		fp_matrix_free(r->be, all[i]);
	fp_free(r->host);
	*r = (fp_rotation){0};
}

int64_t fp_rotation_bytes(fp_rotation_kind kind, int64_t rows, int64_t n)
{
	int64_t bytes = (6 * rows * n + 4 * rows) * (int64_t)sizeof(float);
	if (kind == FP_TURN_KEEP_ONES)
		bytes += 2 * n * (int64_t)sizeof(float);
	return bytes;
}

void fp_rotation_divide(fp_rotation *rotation, const fp_share *share)
{
	fp_matrix R = rotation->R;
	bool divides = R.rows == R.cols && fp_rows_may_be_multiplied(share, rotation->be, R.rows, R.cols);
	rotation->ranks = fp_share_ranks(share) > 1 ? share : NULL;
	rotation->share = divides ? share : NULL;
}

/* Adam magnifies what ranks round differently, until each learns for another R. */
static fp_status agree(const fp_rotation *r)
{
	if (!r->ranks || r->share || !r->ranks->comm->mixed)
		return FP_OK;
	return fp_share_matrix(r->ranks, r->be, FP_BROADCASTS, 0, r->R);
}

/* *out ← Σσ² of R, on all ranks that of rank 0, so that they take the same decisions */
static fp_status sum_of_squares(const fp_rotation *r, double *out)
{
	fp_status status = r->be->linear->dot(r->be, r->R, r->R, out);
	return status == FP_OK && r->ranks ? fp_share_bytes(r->ranks, FP_BROADCASTS, 0, out, sizeof *out) : status;
}

/* The rows that this rank computes. */
static fp_matrix own_rows(const fp_rotation *r, fp_matrix m)
{
	return r->share ? fp_row_slice(r->share, r->be, fp_share_rank(r->share), m) : m;
}

/* The columns with the same numbers. */
static fp_matrix own_columns(const fp_rotation *r, fp_matrix m)
{
	fp_matrix rows = own_rows(r, m);
	return fp_matrix_cols(m, (rows.offset - m.offset) / m.cols, rows.rows);
}

/* All rows of m ← those that the ranks have computed */
static fp_status collect(const fp_rotation *r, fp_matrix m)
{
	fp_addends list = {0};
	fp_status status;
	if (!r->share)
		return FP_OK;
	FP_TRY(fp_addends_matrix(&list, r->be->ctx, m));
	FP_TRY(fp_row_slices_collect(&list, NULL, r->share, r->be));
cleanup:
	fp_addends_free(&list);
	return status;
}

/* C ← α op(A)B + βC for every block of n rows, or this rank's rows of the only one. */
static fp_status multiply(const fp_rotation *r, float alpha, fp_matrix A, fp_transpose ta, fp_matrix B, float beta,
						  fp_matrix C)
{
	int64_t n = r->R.cols, count = r->R.rows / n;
	if (r->share) {
		A = ta == FP_PLAIN ? own_rows(r, A) : own_columns(r, A);
		C = own_rows(r, C);
	}
	if (C.rows == 0)
		return FP_OK;
	if (count == 1)
		return r->be->linear->gemm(r->be, alpha, A, ta, B, FP_PLAIN, beta, C);
	return r->be->linear->gemm_blocks(r->be, alpha, fp_matrix_rows(A, 0, n), ta, fp_matrix_rows(B, 0, n), FP_PLAIN,
									  beta, fp_matrix_rows(C, 0, n),
									  (fp_blocks){count, n * A.stride, n * B.stride, n * C.stride});
}

/* X ← X − u1ᵀ + 1uᵀ with u = X1/n: the skew-symmetric matrix nearest to X with X1 = 0. */
static fp_status keep_ones(fp_rotation *r)
{
	fp_backend *be = r->be;
	float share = 1.0F / (float)r->R.cols;
	fp_status status;
	FP_TRY(be->linear->gemm(be, share, r->X, FP_PLAIN, r->ones, FP_PLAIN, 0, r->means));
	FP_TRY(be->linear->gemm(be, -1, r->means, FP_PLAIN, r->ones, FP_TRANSPOSED, 1, r->X));
	FP_TRY(be->linear->gemm(be, 1, r->ones, FP_PLAIN, r->means, FP_TRANSPOSED, 1, r->X));
cleanup:
	return status;
}

/* numbers ← divided by their length; zeros stay. */
static void normalise(float *numbers, int64_t n, double *length)
{
	double sum = 0;
	for (int64_t i = 0; i < n; i++)
		sum += (double)numbers[i] * (double)numbers[i];
	*length = sqrt(sum);
	for (int64_t i = 0; i < n && sum > 0; i++)
		numbers[i] = (float)((double)numbers[i] / *length);
}

/* Multiplies each block of X by the factor that brings its norm down to LONGEST. The norms are estimated by the power
 * method: X is skew-symmetric, so that its singular vectors are those of its powers. */
static fp_status shorten(fp_rotation *r)
{
	fp_backend *be = r->be;
	int64_t n = r->R.cols, rows = r->R.rows;
	double length;
	bool longer = false;
	fp_status status = FP_OK;
	for (int64_t i = 0; i < rows; i++)
		r->host[i] = (float)(1 + (i % n * 7919) % 31); /* anything that is not special */
	for (int round = 0; round <= NORM_ROUNDS; round++) {
		for (int64_t i = 0; i < rows; i += n) {
			normalise(r->host + i, n, &length);
			if (round < NORM_ROUNDS)
				continue;
			longer = longer || length > LONGEST;
			for (int64_t k = i; k < i + n; k++)
				r->host[k] = length > LONGEST ? (float)(LONGEST / length) : 1;
		}
		if (round == NORM_ROUNDS)
			break;
		FP_TRY(be->memory->upload(be, r->vector, r->host, FP_F32, 1));
		FP_TRY(be->linear->gemm_blocks(be, 1, fp_matrix_rows(r->X, 0, n), FP_PLAIN, fp_matrix_rows(r->vector, 0, n),
									   FP_PLAIN, 0, fp_matrix_rows(r->image, 0, n),
									   (fp_blocks){rows / n, n * n, n, n}));
		FP_TRY(be->memory->download(be, r->host, FP_F32, 1, r->image));
		FP_TRY(be->memory->synchronize(be));
	}
	if (!longer)
		goto cleanup;
	FP_TRY(be->memory->upload(be, r->factors, r->host, FP_F32, rows));
	FP_TRY(be->linear->row_axpby(be, r->factors, r->X, r->zeros, r->X));
	FP_TRY(be->memory->synchronize(be)); /* before the next step writes to r->host */
cleanup:
	return status;
}

/* R ← R(3I − RᵀR)/2 */
static fp_status orthogonalise(fp_rotation *r)
{
	fp_backend *be = r->be;
	fp_status status;
	FP_TRY(multiply(r, 1, r->R, FP_TRANSPOSED, r->R, 0, r->omega));
	FP_TRY(collect(r, r->omega));
	FP_TRY(multiply(r, -0.5F, r->R, FP_PLAIN, r->omega, 0, r->product));
	FP_TRY(be->linear->axpby(be, 1, own_rows(r, r->product), 1.5F, own_rows(r, r->R)));
	FP_TRY(collect(r, r->R));
cleanup:
	return status;
}

fp_status fp_rotation_step(fp_rotation *r, double rate)
{
	fp_backend *be = r->be;
	fp_adam rule = {.rate = (float)(rate / sqrt((double)r->R.cols)),
					.beta1 = BETA1,
					.beta2 = BETA2,
					.epsilon = EPSILON,
					.step = ++r->steps};
	FP_PRODUCTS_FOR(be, FP_USE_REFINEMENT);
	fp_status status;
	FP_TRY(multiply(r, 1, r->R, FP_TRANSPOSED, r->gradient, 0, r->omega));
	FP_TRY(multiply(r, -1, r->gradient, FP_TRANSPOSED, r->R, 1, r->omega));
	FP_TRY(collect(r, r->omega));
	FP_TRY(be->memory->fill(be, r->X, 0));
	FP_TRY(be->gradients->adam_step(be, &rule, r->omega, r->mean, r->square, r->X));
	if (r->kind == FP_TURN_KEEP_ONES)
		FP_TRY(keep_ones(r));
	FP_TRY(shorten(r));
	FP_TRY(multiply(r, 1, r->R, FP_PLAIN, r->X, 0, r->product));
	FP_TRY(be->linear->axpby(be, 1, own_rows(r, r->product), 1, own_rows(r, r->R)));
	FP_TRY(multiply(r, 0.5F, r->product, FP_PLAIN, r->X, 1, r->R));
	FP_TRY(collect(r, r->R));
	FP_TRY(orthogonalise(r));
	FP_TRY(agree(r));
cleanup:
	return status;
}

fp_status fp_rotation_finish(fp_rotation *r)
{
	FP_PRODUCTS_FOR(r->be, FP_USE_EXACT);
	double before, after, least = 1e-7 * (double)r->R.rows; /* of a gain that is not only rounding */
	fp_status status;
	FP_TRY(sum_of_squares(r, &after));
	for (int i = 0; i < MOST_FINISHING; i++) {
		before = after;
		FP_TRY(orthogonalise(r));
		FP_TRY(sum_of_squares(r, &after)); /* which grows to the number of rows */
		if (i + 1 >= LEAST_FINISHING && after - before <= least)
			break;
	}
	FP_TRY(agree(r));
cleanup:
	return status;
}
