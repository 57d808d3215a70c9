/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_few_queries.cuh: attention of a few new queries over kept keys and values (cuda_few_queries.cu). */
#ifndef FP_BACKEND_CUDA_FEW_QUERIES_CUH
#define FP_BACKEND_CUDA_FEW_QUERIES_CUH

#include "backend/cuda/cuda_backend.cuh"

/* True when the kernel supports this shape and is the best choice for it. */
bool fp_cuda_few_queries_supports(const fp_attention_shape *shape);
/* The operands were checked by fp_cuda_attention(): all F32 or all BF16. */
fp_status fp_cuda_few_queries(fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K, fp_matrix V,
							  fp_matrix out);

#endif
