/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_entries.cuh: reads and writes matrix entries of any weight type as floats. */
#ifndef FP_BACKEND_CUDA_ENTRIES_CUH
#define FP_BACKEND_CUDA_ENTRIES_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ static inline float fp_cuda_load(const float *x)
{
	return *x;
}
__device__ static inline float fp_cuda_load(const __nv_bfloat16 *x)
{
	return __bfloat162float(*x);
}
__device__ static inline float fp_cuda_load(const __half *x)
{
	return __half2float(*x);
}
__device__ static inline void fp_cuda_store(float *out, float x)
{
	*out = x;
}
__device__ static inline void fp_cuda_store(__half *out, float x)
{
	*out = __float2half_rn(x);
}
__device__ static inline void fp_cuda_store(__nv_bfloat16 *out, float x)
{
	*out = __float2bfloat16_rn(x);
}

/* Four entries; the address must be aligned to all four. */
__device__ static inline float4 fp_cuda_load4(const float *x)
{
	return *(const float4 *)x;
}
__device__ static inline float4 fp_cuda_load4(const __nv_bfloat16 *x)
{
	uint2 both = *(const uint2 *)x;
	float2 low = __bfloat1622float2(*(const __nv_bfloat162 *)&both.x);
	float2 high = __bfloat1622float2(*(const __nv_bfloat162 *)&both.y);
	return float4{low.x, low.y, high.x, high.y};
}
__device__ static inline float4 fp_cuda_load4(const __half *x)
{
	uint2 both = *(const uint2 *)x;
	float2 low = __half22float2(*(const __half2 *)&both.x), high = __half22float2(*(const __half2 *)&both.y);
	return float4{low.x, low.y, high.x, high.y};
}
__device__ static inline void fp_cuda_store4(float *out, float4 x)
{
	*(float4 *)out = x;
}
__device__ static inline void fp_cuda_store4(__nv_bfloat16 *out, float4 x)
{
	__nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y), high = __floats2bfloat162_rn(x.z, x.w);
	*(uint2 *)out = uint2{*(const unsigned *)&low, *(const unsigned *)&high};
}
__device__ static inline void fp_cuda_store4(__half *out, float4 x)
{
	__half2 low = __floats2half2_rn(x.x, x.y), high = __floats2half2_rn(x.z, x.w);
	*(uint2 *)out = uint2{*(const unsigned *)&low, *(const unsigned *)&high};
}

/* The number closest to x in the range of the pointer's type. */
__device__ static inline float fp_cuda_clamp(const float *, float x)
{
	return x;
}
__device__ static inline float fp_cuda_clamp(const __half *, float x)
{
	return fminf(fmaxf(x, -65504.0f), 65504.0f);
}

#endif
