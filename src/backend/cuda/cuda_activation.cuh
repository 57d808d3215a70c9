/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_activation.cuh: activation functions and their derivatives. */
#ifndef FP_BACKEND_CUDA_ACTIVATION_CUH
#define FP_BACKEND_CUDA_ACTIVATION_CUH

#include "backend/cuda/cuda_backend.cuh"

#include <type_traits>

/* The argument u of GELU's tanh form:
 *     ½x(1 + tanh u) = x / (1 + exp(−2u))
 *     u = √(2/π)(x + 0.044715 x³) */
__device__ static inline float gelu_argument(float x)
{
	return 0.7978845608f * (x + 0.044715f * x * x * x);
}

template <fp_activation kind> __device__ static inline float activation(float x)
{
	if (kind == FP_RELU)
		return x < 0.0f ? 0.0f : x;
	if (kind == FP_SILU)
		return x / (1.0f + expf(-x));
	return kind == FP_GELU ? 0.5f * x * (1.0f + erff(x * 0.70710678118f)) : x / (1.0f + expf(-2.0f * gelu_argument(x)));
}

/* σ + x·u·σ(1 − σ) with σ = 1/(1 + e). For large −x, e may be infinite and σ is 0. */
__device__ static inline float sigmoid_slope(float x, float u, float e)
{
	float sigma = 1.0f / (1.0f + e), rest = e / (1.0f + e);
	return sigma + (sigma > 0.0f ? x * u * sigma * rest : 0.0f);
}

template <fp_activation kind> __device__ static inline float activation_slope(float x)
{
	if (kind == FP_RELU)
		return x > 0.0f ? 1.0f : 0.0f;
	if (kind == FP_SILU)
		return sigmoid_slope(x, 1.0f, expf(-x));
	if (kind == FP_GELU)
		return 0.5f * (1.0f + erff(x * 0.70710678118f)) + x * 0.39894228040f * expf(-0.5f * x * x);
	return sigmoid_slope(x, 2.0f * 0.7978845608f * (1.0f + 0.134145f * x * x), expf(-2.0f * gelu_argument(x)));
}

/* Calls f with the kind as a std::integral_constant. */
template <typename F> static inline fp_status fp_cuda_by_activation(fp_backend *be, fp_activation kind, F f)
{
	switch (kind) {
	case FP_RELU:
		return f(std::integral_constant<fp_activation, FP_RELU>());
	case FP_SILU:
		return f(std::integral_constant<fp_activation, FP_SILU>());
	case FP_GELU:
		return f(std::integral_constant<fp_activation, FP_GELU>());
	case FP_GELU_TANH:
		return f(std::integral_constant<fp_activation, FP_GELU_TANH>());
	}
	return fp_fail(be->ctx, FP_ERROR_INTERNAL, "activation %d is unknown", (int)kind);
}

#endif
