/* SPDX-License-Identifier: Apache-2.0 */
/* operator_backward.c: gradients of one linear operator. */
#include "model/layer_tape.h"

fp_status fp_operator_gradients(const fp_layer *layer, int number, fp_matrix gradient, fp_matrix input,
								const fp_wanted *want)
{
	fp_status status = FP_OK;
	fp_backend *be = fp_model_backend(layer->model);
	float beta = want->add ? 1.0F : 0.0F;
	fp_layer_matrices *out = want->gradients;
	if (want->energies)
		FP_TRY(be->gradients->column_squares(be, gradient, beta, want->energies[number]));
	if (!out)
		goto cleanup;
	FP_TRY(be->linear->gemm(be, 1, gradient, FP_TRANSPOSED, input, FP_PLAIN, beta, out->weight[number]));
	if (!fp_matrix_is_absent(layer->bias[number]))
		FP_TRY(be->gradients->column_sums(be, gradient, beta, out->bias[number]));
cleanup:
	return status;
}

fp_status fp_operator_backward(const fp_layer *layer, int number, fp_matrix gradient, fp_matrix input,
							   const fp_wanted *want, float beta, fp_matrix dinput)
{
	fp_status status;
	fp_backend *be = fp_model_backend(layer->model);
	FP_TRY(fp_operator_gradients(layer, number, gradient, input, want));
	FP_TRY(be->linear->gemm(be, 1, gradient, FP_PLAIN, layer->weight[number], FP_PLAIN, beta, dinput));
cleanup:
	return status;
}
