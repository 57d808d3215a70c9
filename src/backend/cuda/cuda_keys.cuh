/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_keys.cuh: magnitudes in order, and the choice within a group of four. */
#ifndef FP_BACKEND_CUDA_KEYS_CUH
#define FP_BACKEND_CUDA_KEYS_CUH

#include "backend/cuda/cuda_backend.cuh"

/* The order of |x| is that of its bits without the sign. */
__device__ static inline unsigned fp_cuda_key(float x)
{
	return __float_as_uint(x) & 0x7fffffffU;
}

/* A byte of 1 for each of the `kept` largest, 0 for the others; of equals the first stays. */
__device__ static inline unsigned fp_cuda_keep_of_four(float4 four, int kept)
{
	unsigned key[4] = {fp_cuda_key(four.x), fp_cuda_key(four.y), fp_cuda_key(four.z), fp_cuda_key(four.w)};
	unsigned bytes = 0;
#pragma unroll
	for (int a = 0; a < 4; a++) {
		int ahead = 0;
#pragma unroll
		for (int b = 0; b < 4; b++)
			ahead += key[b] > key[a] || (key[b] == key[a] && b < a);
		bytes |= (ahead < kept ? 1U : 0U) << (8 * a);
	}
	return bytes;
}

#endif
