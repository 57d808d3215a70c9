/* SPDX-License-Identifier: Apache-2.0 */
#include "basis/pruned_mass.h"

#include "base/memory.h"

#include <math.h>

fp_status fp_mass_space_new(fp_mass_space *out, fp_backend *be, int64_t entries, int64_t columns)
{
	fp_status status;
	*out = (fp_mass_space){0};
	FP_TRY(fp_matrix_new(be, &out->S, 1, entries, FP_F32));
	FP_TRY(fp_matrix_new(be, &out->P, 1, entries, FP_F32));
	FP_TRY(fp_matrix_new(be, &out->mask, 1, entries, FP_U8));
	FP_TRY(fp_matrix_new(be, &out->root, 1, columns, FP_F32));
	FP_TRY(FP_NEW(be->ctx, &out->host, 2 * columns));
cleanup:
	if (status != FP_OK)
		fp_mass_space_free(be, out);
	return status;
}

void fp_mass_space_free(fp_backend *be, fp_mass_space *space)
{
	fp_matrix *all[] = {&space->S, &space->P, &space->mask, &space->root};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		fp_matrix_free(be, all[i]);
	fp_free(space->host);
	*space = (fp_mass_space){0};
}

int64_t fp_mass_space_bytes(int64_t entries, int64_t columns)
{
	return entries * (2 * (int64_t)sizeof(float) + 1) + columns * (int64_t)sizeof(float);
}

/* root ← √h; the host keeps h in its first n numbers. */
static fp_status take_roots(fp_mass_space *space, fp_backend *be, fp_matrix h, fp_matrix root)
{
	int64_t n = h.cols;
	float *roots = space->host + n;
	fp_status status;
	FP_TRY(be->memory->download(be, space->host, FP_F32, n, h));
	FP_TRY(be->memory->synchronize(be));
	for (int64_t j = 0; j < n; j++)
		roots[j] = space->host[j] > 0 ? sqrtf(space->host[j]) : 0;
	FP_TRY(be->memory->upload(be, root, roots, FP_F32, n));
	FP_TRY(be->memory->synchronize(be));
cleanup:
	return status;
}

/* gradient_h ← weight · the columns' sums of P² / h */
static fp_status column_gradient(fp_mass_space *space, fp_backend *be, fp_matrix P, double weight, fp_matrix gradient_h)
{
	int64_t n = P.cols;
	const float *h = space->host;
	float *sums = space->host + n;
	fp_status status;
	FP_TRY(be->gradients->column_squares(be, P, 0, gradient_h));
	FP_TRY(be->memory->download(be, sums, FP_F32, n, gradient_h));
	FP_TRY(be->memory->synchronize(be));
	for (int64_t j = 0; j < n; j++)
		sums[j] = h[j] > 0 ? (float)(weight * (double)sums[j] / (double)h[j]) : 0;
	FP_TRY(be->memory->upload(be, gradient_h, sums, FP_F32, n));
	FP_TRY(be->memory->synchronize(be));
cleanup:
	return status;
}

fp_status fp_pruned_mass(fp_mass_space *space, fp_backend *be, const fp_pattern *pattern, double weight, fp_matrix W,
						 fp_matrix h, fp_matrix gradient_h, fp_mass *out)
{
	fp_matrix S = fp_matrix_reshape(space->S, W.rows, W.cols), P = fp_matrix_reshape(space->P, W.rows, W.cols);
	fp_matrix mask = fp_matrix_reshape(space->mask, W.rows, W.cols), root = fp_matrix_cols(space->root, 0, W.cols);
	double removed, all;
	fp_status status;
	FP_TRY(take_roots(space, be, h, root));
	FP_TRY(be->linear->scale_columns(be, root, W, S));
	FP_TRY(be->pruning->mask_smallest(be, S, pattern, mask));
	FP_TRY(be->memory->copy(be, P, S));
	FP_TRY(be->pruning->apply_mask(be, mask, P)); /* what the pattern keeps */
	FP_TRY(be->linear->axpby(be, 1, S, -1, P));
	if (out) {
		FP_TRY(be->linear->dot(be, P, P, &removed));
		FP_TRY(be->linear->dot(be, S, S, &all));
		out->removed += weight * removed;
		out->all += weight * all;
	}
	if (!fp_matrix_is_absent(gradient_h))
		FP_TRY(column_gradient(space, be, P, weight, gradient_h));
	FP_TRY(be->linear->axpby(be, 0, P, (float)(2 * weight), P));
	FP_TRY(be->linear->scale_columns(be, root, P, W));
cleanup:
	return status;
}
