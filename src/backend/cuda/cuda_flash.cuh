/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_flash.cuh: attention of bf16 operands in one kernel (cuda_flash.cu). */
#ifndef FP_BACKEND_CUDA_FLASH_CUH
#define FP_BACKEND_CUDA_FLASH_CUH

#include "backend/cuda/cuda_backend.cuh"

#include <cuda_bf16.h>

struct fp_cuda_flash {
	const __nv_bfloat16 *q, *k, *v;
	float *out;                                       /* or, in its place, */
	__nv_bfloat16 *narrow;                            /* bf16 */
	int64_t q_stride, k_stride, v_stride, out_stride; /* elements from row to row */
	int length, group, window;                        /* group: heads of Q for one of K */
	float scale;
};

/* Whether the kernel takes these operands; else the caller does without. */
bool fp_cuda_flash_serves(const fp_cuda_flash *f, const fp_attention_shape *shape);
fp_status fp_cuda_flash_attention(fp_backend *be, const fp_cuda_flash *f, const fp_attention_shape *shape);

#endif
