/* SPDX-License-Identifier: Apache-2.0 */
#include "fitting/fit_metric.h"

#include "fitting/matrix_parts.h"

/* δ: for directions in which there are few gradients. Values from 0.01 to 0.1 give the same quality. */
static const float DAMPING = 0.1F;

enum { PART_COUNT = 2 };

static void list_parts(fp_fit_metric *metric, int64_t hidden, int64_t rows, fp_matrix_part parts[PART_COUNT])
{
	parts[0] = (fp_matrix_part){&metric->F, hidden, hidden, FP_F32};
	parts[1] = (fp_matrix_part){&metric->product, rows, hidden, FP_F32};
}

int64_t fp_fit_metric_bytes(int64_t hidden, int64_t rows)
{
	fp_fit_metric metric = {0};
	fp_matrix_part parts[PART_COUNT];
	list_parts(&metric, hidden, rows, parts);
	return fp_matrix_parts_bytes(parts, PART_COUNT);
}

void fp_fit_metric_free(fp_backend *be, fp_fit_metric *metric)
{
	fp_matrix_free(be, &metric->F);
	fp_matrix_free(be, &metric->product);
	*metric = (fp_fit_metric){0};
}

fp_status fp_fit_metric_new(fp_fit_metric *out, fp_backend *be, int64_t hidden, int64_t rows)
{
	fp_matrix_part parts[PART_COUNT];
	*out = (fp_fit_metric){0};
	list_parts(out, hidden, rows, parts);
	fp_status status = fp_matrix_parts_new(be, parts, PART_COUNT);
	if (status != FP_OK)
		fp_fit_metric_free(be, out);
	return status;
}

fp_status fp_fit_metric_finish(fp_fit_metric *metric, fp_backend *be, int64_t tokens, double descent)
{
	fp_matrix diagonal = {0}, ones = {0};
	double squares; /* Σ g² */
	fp_status status;
	FP_TRY(fp_matrix_new(be, &diagonal, 1, metric->F.cols, FP_F32));
	FP_TRY(fp_matrix_new(be, &ones, 1, metric->F.cols, FP_F32));
	FP_TRY(be->linear->diagonal(be, metric->F, diagonal));
	FP_TRY(be->memory->fill(be, ones, 1));
	FP_TRY(be->linear->dot(be, diagonal, ones, &squares));
	if (!(squares > 0)) { /* the token loss does not depend on the output: the plain metric */
		fp_fit_metric_free(be, metric);
		goto cleanup;
	}
	FP_TRY(be->linear->mirror(be, metric->F));
	/* the sum over tokens, scaled so that the mean of its diagonal is 1 */
	FP_TRY(be->linear->axpby(be, 0, metric->F, (float)((double)metric->F.cols / squares), metric->F));
	FP_TRY(be->memory->fill(be, ones, DAMPING));
	FP_TRY(be->linear->add_diagonal(be, metric->F, ones));
	metric->slope = descent * (double)(tokens * metric->F.cols) / squares;
cleanup:
	fp_matrix_free(be, &diagonal);
	fp_matrix_free(be, &ones);
	return status;
}

/* *out ← scale·eF, a view into the metric's work space. As a gradient it is rounded for the next products anyway, and in a
 * measured sum over all entries rounding errors cancel. */
static fp_status weigh(const fp_fit_metric *metric, fp_backend *be, float scale, fp_matrix e, fp_matrix *out)
{
	FP_PRODUCTS_FOR(be, FP_USE_ACTIVATION);
	*out = fp_matrix_rows(metric->product, 0, e.rows);
	return be->linear->gemm(be, scale, e, FP_PLAIN, metric->F, FP_PLAIN, 0, *out);
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
	if (!fp_matrix_is_absent(g))
		FP_TRY(be->linear->axpby(be, scale * (float)metric->slope, g, 1, weighted));
	FP_TRY(be->memory->copy(be, e, weighted));
cleanup:
	return status;
}
