/* SPDX-License-Identifier: Apache-2.0 */
#include "basis/input_cost.h"

#include "base/memory.h"

static const double DAMPING = 0.01; /* δ over the mean of the diagonal */

/* H ← H + δI */
static fp_status damp(fp_backend *be, fp_matrix H)
{
	int64_t n = H.rows;
	fp_matrix diagonal = {0};
	float *host = NULL;
	double mean = 0;
	fp_status status;
	FP_TRY(fp_matrix_new(be, &diagonal, 1, n, FP_F32));
	FP_TRY(FP_NEW(be->ctx, &host, n));
	FP_TRY(be->linear->diagonal(be, H, diagonal));
	FP_TRY(be->memory->download(be, host, FP_F32, n, diagonal));
	FP_TRY(be->memory->synchronize(be));
	for (int64_t j = 0; j < n; j++)
		mean += (double)host[j] / (double)n;
	FP_TRY(be->memory->fill(be, diagonal, mean > 0 ? (float)(DAMPING * mean) : 1));
	FP_TRY(be->linear->add_diagonal(be, H, diagonal));
cleanup:
	fp_matrix_free(be, &diagonal);
	fp_free(host);
	return status;
}

fp_status fp_input_cost_check(fp_context *ctx, const fp_layer *layer, int64_t refused)
{
	if (refused == 0)
		return FP_OK;
	return fp_fail(
		ctx, FP_ERROR_NUMERIC,
		"layer %lld: the Gram matrix of its inputs is not positive definite at input %lld, so no basis can be "
		"learned; --basis none needs none",
		(long long)layer->index, (long long)refused);
}

/* H ← invert(H + δI) */
static fp_status invert_damped(fp_backend *be, const fp_layer *layer, fp_matrix H,
							   fp_status (*invert)(fp_backend *be, fp_matrix A, int64_t *refused))
{
	int64_t refused;
	FP_PRODUCTS_FOR(be, FP_USE_EXACT);
	fp_status status;
	FP_TRY(damp(be, H));
	FP_TRY(invert(be, H, &refused));
	FP_TRY(fp_input_cost_check(be->ctx, layer, refused));
cleanup:
	return status;
}

fp_status fp_input_cost_inverse(fp_backend *be, const fp_layer *layer, fp_matrix H)
{
	return invert_damped(be, layer, H, be->linear->inverse);
}

fp_status fp_input_cost_factor(fp_backend *be, const fp_layer *layer, fp_matrix H)
{
	return invert_damped(be, layer, H, be->linear->inverse_factor);
}

fp_status fp_input_cost_reciprocal(fp_backend *be, fp_matrix x)
{
	float *host = NULL;
	fp_status status;
	FP_TRY(FP_NEW(be->ctx, &host, x.cols));
	FP_TRY(be->memory->download(be, host, FP_F32, x.cols, x));
	FP_TRY(be->memory->synchronize(be));
	for (int64_t j = 0; j < x.cols; j++)
		host[j] = 1 / host[j];
	FP_TRY(be->memory->upload(be, x, host, FP_F32, x.cols));
	FP_TRY(be->memory->synchronize(be));
cleanup:
	fp_free(host);
	return status;
}

fp_status fp_input_cost_gradient(fp_backend *be, fp_matrix h, fp_matrix g)
{
	int64_t n = h.cols;
	float *costs = NULL, *gradient = NULL;
	fp_status status;
	FP_TRY(FP_NEW(be->ctx, &costs, n));
	FP_TRY(FP_NEW(be->ctx, &gradient, n));
	FP_TRY(be->memory->download(be, costs, FP_F32, n, h));
	FP_TRY(be->memory->download(be, gradient, FP_F32, n, g));
	FP_TRY(be->memory->synchronize(be));
	for (int64_t j = 0; j < n; j++)
		gradient[j] *= -2 * costs[j] * costs[j];
	FP_TRY(be->memory->upload(be, g, gradient, FP_F32, n));
	FP_TRY(be->memory->synchronize(be)); /* before `gradient` is freed */
cleanup:
	fp_free(costs);
	fp_free(gradient);
	return status;
}
