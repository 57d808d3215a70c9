/* SPDX-License-Identifier: Apache-2.0 */
/* symmetric.c: a symmetric product of two symmetric matrices, of which little more than half is computed. */
#include "backend/work_space.h"
#include "base/numbers.h"
#include "solver/steps.h"

fp_status fp_multiply_symmetric(fp_backend *be, float alpha, fp_matrix S, fp_matrix T, float beta, fp_matrix C)
{
	int64_t n = C.rows, strip = fp_symmetric_strip(n);
	fp_status status = FP_OK;
	for (int64_t i = 0; i < n && status == FP_OK; i += strip) {
		int64_t rows = fp_smaller(strip, n - i);
		fp_matrix part = fp_matrix_cols(fp_matrix_rows(C, i, rows), i, n - i);
		status = be->linear->gemm(be, alpha, fp_matrix_rows(S, i, rows), FP_PLAIN, fp_matrix_rows(T, i, n - i),
								  FP_TRANSPOSED, beta, part);
	}
	return status;
}
