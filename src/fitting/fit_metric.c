/* SPDX-License-Identifier: Apache-2.0 */
#include "fitting/fit_metric.h"

/* δ: against directions that few gradients show; from 0.01 to 0.1 nothing changes. */
static const float DAMPING = 0.1F;

int64_t fp_fit_metric_bytes(int64_t hidden, int64_t rows)
{
	return (hidden * hidden + hidden + rows * hidden) * (int64_t)sizeof(float);
}

void fp_fit_metric_free(fp_backend *be, fp_fit_metric *metric)
{
	fp_matrix_free(be, &metric->F);
	fp_matrix_free(be, &metric->product);
	*metric = (fp_fit_metric){0};
}

fp_status fp_fit_metric_new(fp_fit_metric *out, fp_backend *be, int64_t hidden, int64_t rows)
{
	fp_status status;
	*out = (fp_fit_metric){0};
	FP_TRY(fp_matrix_new(be, &out->F, hidden, hidden, FP_F32));
	FP_TRY(fp_matrix_new(be, &out->product, rows, hidden, FP_F32));
cleanup:
	if (status != FP_OK)
		fp_fit_metric_free(be, out);
	return status;
}

fp_status fp_fit_metric_add(fp_fit_metric *metric, fp_backend *be, fp_matrix gradients)
{
	FP_PRODUCTS_FOR(be, FP_USE_REFINEMENT);
	double squares;
	fp_status status;
	FP_TRY(be->linear->gram(be, gradients, metric->entries > 0 ? 1 : 0, metric->F));
	FP_TRY(be->linear->dot(be, gradients, gradients, &squares));
	metric->squares += squares;
	metric->entries += (double)fp_matrix_size(gradients);
cleanup:
	return status;
}

fp_status fp_fit_metric_finish(fp_fit_metric *metric, fp_backend *be, double descent)
{
	fp_matrix damping = {0};
	fp_status status;
	if (!(metric->squares > 0)) { /* no loss changes with the output: all errors are alike */
		fp_fit_metric_free(be, metric);
		return FP_OK;
	}
	FP_TRY(fp_matrix_new(be, &damping, 1, metric->F.cols, FP_F32));
	FP_TRY(be->linear->mirror(be, metric->F));
	/* a sum over tokens, whose mean diagonal becomes 1 */
	FP_TRY(be->linear->axpby(be, 0, metric->F, (float)((double)metric->F.cols / metric->squares), metric->F));
	FP_TRY(be->memory->fill(be, damping, DAMPING));
	FP_TRY(be->linear->add_diagonal(be, metric->F, damping));
	metric->slope = descent * metric->entries / metric->squares;
cleanup:
	fp_matrix_free(be, &damping);
	return status;
}

/* *out ← eF, a view into the metric's room */
static fp_status weigh(const fp_fit_metric *metric, fp_backend *be, float scale, fp_matrix e, fp_matrix *out)
{
	FP_PRODUCTS_FOR(be, FP_USE_REFINEMENT);
	*out = fp_matrix_rows(metric->product, 0, e.rows);
	fp_status status = be->linear->gemm(be, scale, e, FP_PLAIN, metric->F, FP_PLAIN, 0, *out);
	return status;
}

fp_status fp_fit_metric_measure(const fp_fit_metric *metric, fp_backend *be, fp_matrix e, fp_matrix g,
								double *quadratic, double *linear)
{
	fp_matrix weighted = e;
	fp_status status = FP_OK;
	*linear = 0;
	if (!fp_matrix_is_absent(metric->F))
		FP_TRY(weigh(metric, be, 1, e, &weighted));
	FP_TRY(be->linear->dot(be, e, weighted, quadratic));
	if (!fp_matrix_is_absent(g)) {
		FP_TRY(be->linear->dot(be, e, g, linear));
		*linear *= 2 * metric->slope;
	}
cleanup:
	return status;
}

fp_status fp_fit_metric_gradient(const fp_fit_metric *metric, fp_backend *be, float scale, fp_matrix e, fp_matrix g)
{
	fp_matrix weighted;
	fp_status status;
	FP_TRY(weigh(metric, be, scale, e, &weighted));
	if (fp_matrix_is_absent(g))
		FP_TRY(be->memory->copy(be, e, weighted));
	else {
		FP_TRY(be->linear->axpby(be, scale * (float)metric->slope, g, 1, weighted));
		FP_TRY(be->memory->copy(be, e, weighted));
	}
cleanup:
	return status;
}
