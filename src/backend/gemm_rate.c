/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_rate.c: measures the speed of a product. */
#include "backend/backend.h"
#include "base/clock.h"

enum { SIZE = 1024, REPEATS = 3 };

fp_status fp_backend_gemm_rate(fp_backend *be, double *out)
{
	fp_matrix M[3] = {{0}, {0}, {0}};
	double best = 0;
	fp_status status;
	for (int i = 0; i < 3; i++) {
		FP_TRY(fp_matrix_new(be, &M[i], SIZE, SIZE, FP_F32));
		FP_TRY(be->memory->fill(be, M[i], 0.5F));
	}
	for (int r = 0; r < REPEATS; r++) {
		double started = fp_clock();
		FP_TRY(be->linear->gemm(be, 1.0F, M[0], FP_PLAIN, M[1], FP_PLAIN, 0.0F, M[2]));
		FP_TRY(be->memory->synchronize(be));
		double rate = 2.0 * SIZE * SIZE * SIZE / (fp_clock() - started);
		best = rate > best ? rate : best;
	}
	*out = best;
cleanup:
	for (int i = 0; i < 3; i++)
		fp_matrix_free(be, &M[i]);
	return status;
}
