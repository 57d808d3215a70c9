/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_keys.cuh: compares magnitudes, and chooses the largest of four. */
#ifndef FP_BACKEND_CUDA_KEYS_CUH
#define FP_BACKEND_CUDA_KEYS_CUH

#include "backend/cuda/cuda_backend.cuh"

/* Keys order like |x|: they are its bits without the sign. */
__device__ static inline unsigned fp_cuda_key(float x)
{
	return __float_as_uint(x) & 0x7fffffffU;
}

/* Four mask bytes: 1 for the `kept` largest, 0 for the others. Among equals the first is kept. */
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
