/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_flash.cuh: attention of bf16 operands in one kernel (cuda_flash.cu). */
#ifndef FP_BACKEND_CUDA_FLASH_CUH
#define FP_BACKEND_CUDA_FLASH_CUH

#include "backend/cuda/cuda_backend.cuh"

struct fp_cuda_flash {
	const __nv_bfloat16 *q, *k, *v;
	float *out;                                       /* F32 result, or NULL */
	__nv_bfloat16 *narrow;                            /* BF16 result, or NULL */
	int64_t q_stride, k_stride, v_stride, out_stride; /* elements from one row to the next */
	int length, group, window;                        /* group: query heads per key head */
	float scale;
};

/* Gradients of the same attention, from its output and that output's gradient. */
struct fp_cuda_flash_gradients {
	const __nv_bfloat16 *out, *dout;
	int64_t out_stride, dout_stride;
	fp_matrix dQ, dK, dV; /* all F32 or all BF16 */
};

/* True when the kernel supports these operands. */
bool fp_cuda_flash_supports(const fp_cuda_flash *f, const fp_attention_shape *shape);
fp_status fp_cuda_flash_attention(fp_backend *be, const fp_cuda_flash *f, const fp_attention_shape *shape);
/* The same on a Hopper GPU, if the module is built for it (hopper/cuda_flash_hopper.cu). */
fp_status fp_cuda_flash_hopper(fp_backend *be, const fp_cuda_flash *f, const fp_attention_shape *shape);
/* Its gradients there (hopper/cuda_flash_backward_hopper.cu). */
fp_status fp_cuda_flash_backward_hopper(fp_backend *be, const fp_cuda_flash *f, const fp_cuda_flash_gradients *g,
										const fp_attention_shape *shape);

#endif
