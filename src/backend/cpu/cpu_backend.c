/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_backend.c: the operations table of the CPU backend; opens and closes it. */
#include "backend/cpu/cpu_backend.h"

#include "backend/cpu/cpu_blas.h"
#include "base/memory.h"
#include "base/processors.h"
#include <fistapruner/fistapruner.h>
#include <stdio.h>

static void cpu_close(fp_backend *be)
{
	fp_cpu_bf16_close(&((fp_cpu_state *)be->state)->bf16);
	fp_free(be->state);
	fp_free(be);
}

static fp_status cpu_synchronize(fp_backend *be)
{
	(void)be;
	return FP_OK;
}

static const fp_memory_operations cpu_memory = {
	.allocate = fp_cpu_allocate,
	.release = fp_cpu_release,
	.upload = fp_cpu_upload,
	.download = fp_cpu_download,
	.copy = fp_cpu_copy,
	.fill = fp_cpu_fill,
	.synchronize = cpu_synchronize,
	.available = fp_cpu_memory,
	.address = fp_cpu_address,
};

static const fp_linear_operations cpu_linear = {
	.gemm = fp_cpu_gemm,
	.gram = fp_cpu_gram,
	.mirror = fp_cpu_mirror,
	.axpby = fp_cpu_axpby,
	.combine = fp_cpu_combine,
	.dot = fp_cpu_dot,
	.row_dot = fp_cpu_row_dot,
	.row_axpby = fp_cpu_row_axpby,
	.scale_columns = fp_cpu_scale_columns,
	.gemm_blocks = fp_cpu_gemm_blocks,
	.permute_rows = fp_cpu_permute_rows,
	.permute_columns = fp_cpu_permute_columns,
	.diagonal = fp_cpu_diagonal,
	.add_diagonal = fp_cpu_add_diagonal,
	.inverse_factor = fp_cpu_inverse_factor,
	.inverse = fp_cpu_inverse,
	.eigen = fp_cpu_eigen,
	.max_abs = fp_cpu_max_abs,
	.finite = fp_cpu_finite,
};

static const fp_transformer_operations cpu_transformer = {
	.norm = fp_cpu_norm,
	.add_bias = fp_cpu_add_bias,
	.activate = fp_cpu_activate,
	.activate_gated = fp_cpu_activate_gated,
	.rotate = fp_cpu_rotate,
	.soft_cap = fp_cpu_soft_cap,
	.attention = fp_cpu_attention,
	.cross_entropy = fp_cpu_cross_entropy,
	.divergence = fp_cpu_divergence,
	.gather_rows = fp_cpu_gather_rows,
	.add_rows = fp_cpu_add_rows,
};

static const fp_pruning_operations cpu_pruning = {
	.fista_step = fp_cpu_fista_step,
	.mask_smallest = fp_cpu_mask_smallest,
	.mask_rows = fp_cpu_mask_rows,
	.mask_nonzero = fp_cpu_mask_nonzero,
	.apply_mask = fp_cpu_apply_mask,
	.mask_distance = fp_cpu_mask_distance,
	.support_step = fp_cpu_support_step,
	.cg_step = fp_cpu_cg_step,
	.sparsegpt_sweep = fp_cpu_sparsegpt_sweep,
};

static const fp_grid_operations cpu_grid = {
	.fit = fp_cpu_grid_fit,
	.round = fp_cpu_grid_round,
	.descend = fp_cpu_grid_descend,
	.rescale = fp_cpu_grid_rescale,
};

static const fp_decode_operations cpu_decode = {
	.hold = fp_cpu_hold,
	.expand = fp_cpu_expand,
	.multiply = fp_cpu_multiply_held,
	.read_time = fp_cpu_read_time,
};

static const fp_gradient_operations cpu_gradients = {
	.norm_backward = fp_cpu_norm_backward,
	.cross_entropy_backward = fp_cpu_cross_entropy_backward,
	.activate_backward = fp_cpu_activate_backward,
	.activate_gated_backward = fp_cpu_activate_gated_backward,
	.soft_cap_backward = fp_cpu_soft_cap_backward,
	.attention_backward = fp_cpu_attention_backward,
	.column_sums = fp_cpu_column_sums,
	.column_squares = fp_cpu_column_squares,
	.difference = fp_cpu_difference,
	.adam_step = fp_cpu_adam_step,
};

fp_status fp_cpu_open(fp_backend **out, fp_context *ctx, int threads)
{
	fp_status status;
	fp_backend *be = NULL;
	fp_cpu_state *state = NULL;
	char blas[64];
	*out = NULL;
	FP_TRY(fp_cpu_blas_start(ctx));
	FP_TRY(FP_NEW(ctx, &be, 1));
	FP_TRY(FP_NEW(ctx, &state, 1));
	state->loops = fp_cpu_loops_best();
	state->decode = fp_cpu_decode_loops_best();
	fp_cpu_bf16_open(&state->bf16, ctx);
	be->name = "cpu";
	be->close = cpu_close;
	be->memory = &cpu_memory;
	be->linear = &cpu_linear;
	be->transformer = &cpu_transformer;
	be->pruning = &cpu_pruning;
	be->grid = &cpu_grid;
	be->decode = &cpu_decode;
	be->gradients = &cpu_gradients;
	be->capabilities = FP_CAN_DIFFERENTIATE;
	if (state->bf16.engine)
		be->capabilities |= FP_CAN_ROUND | (state->bf16.engine->splits ? FP_CAN_SPLIT : 0);
	be->ctx = ctx;
	be->state = state;
	be->threads = threads > 0 ? threads : fp_usable_processors();
	if (be->threads > omp_get_thread_limit()) /* OpenBLAS would wait for threads that OMP_THREAD_LIMIT forbids */
		be->threads = omp_get_thread_limit();
	state->counts_rows = fp_cpu_blas_counts_rows();
	be->strip_rows = state->counts_rows ? FP_CPU_BLAS_STRIP : FP_CPU_BLAS_STRIP_AVX512;
	fp_cpu_blas_describe(blas, sizeof blas);
	snprintf(be->description, sizeof be->description, "cpu: %d thread%s, %s loops, %s%s%s", be->threads,
			 be->threads == 1 ? "" : "s", state->loops->name, blas, state->bf16.engine ? ", " : "",
			 state->bf16.engine ? state->bf16.engine->name : "");
	*out = be;
	return FP_OK;

cleanup:
	fp_free(state);
	fp_free(be);
	return status;
}
