/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_backend.cu: opens and closes the CUDA backend, fills its tables, and reports errors. */
#include "backend/cuda/cuda_backend.cuh"

extern "C" {
#include "backend/module.h"
#include "base/processors.h"
}

#include <stdio.h>
#include <stdlib.h>

fp_status fp_cuda_failed(fp_backend *be, cudaError_t error, const char *where)
{
	fp_status status = error == cudaErrorMemoryAllocation ? FP_ERROR_MEMORY : FP_ERROR_DEVICE;
	(void)cudaGetLastError();
	return fp_fail(be->ctx, status, "%s: CUDA error: %s (%s)", where, cudaGetErrorString(error),
				   cudaGetErrorName(error));
}

fp_status fp_cuda_blas_failed(fp_backend *be, int code, const char *library, const char *where)
{
	return fp_fail(be->ctx, FP_ERROR_DEVICE, "%s: %s failed with status %d", where, library, code);
}

bool fp_cuda_is_view(fp_matrix m, fp_dtype dtype)
{
	return m.buffer && fp_matrix_lies_within(m, dtype, m.buffer->bytes);
}

static void cuda_close(fp_backend *be)
{
	fp_cuda_state *state = fp_cuda_state_of(be);
	if (state) {
		if (state->stream)
			(void)cudaStreamSynchronize(state->stream);
		if (state->download_stream)
			(void)cudaStreamSynchronize(state->download_stream);
		if (state->upload_stream)
			(void)cudaStreamSynchronize(state->upload_stream);
		if (state->blas)
			(void)cublasDestroy(state->blas);
		if (state->solver)
			(void)cusolverDnDestroy(state->solver);
		for (int i = 0; i < 2; i++) {
			if (state->staged[i])
				(void)cudaEventDestroy(state->staged[i]);
			(void)cudaFreeHost(state->staging[i]);
		}
		(void)cudaFreeHost(state->numbers);
		(void)cudaFree(state->blas_space);
		(void)cudaFree(state->device_numbers);
		(void)cudaFree(state->parts);
		if (state->ready)
			(void)cudaEventDestroy(state->ready);
		if (state->download_stream)
			(void)cudaStreamDestroy(state->download_stream);
		if (state->uploaded)
			(void)cudaEventDestroy(state->uploaded);
		if (state->upload_stream)
			(void)cudaStreamDestroy(state->upload_stream);
		if (state->stream)
			(void)cudaStreamDestroy(state->stream);
		if (state->pool)
			(void)cudaMemPoolDestroy(state->pool);
	}
	fp_free(state);
	fp_free(be);
}

static fp_status cuda_synchronize(fp_backend *be)
{
	FP_CUDA(be, cudaStreamSynchronize(fp_cuda_stream(be)));
	return FP_OK;
}

static fp_memory_operations make_memory(void)
{
	fp_memory_operations ops = {};
	ops.allocate = fp_cuda_allocate;
	ops.release = fp_cuda_release;
	ops.upload = fp_cuda_upload;
	ops.download = fp_cuda_download;
	ops.copy = fp_cuda_copy;
	ops.fill = fp_cuda_fill;
	ops.synchronize = cuda_synchronize;
	ops.available = fp_cuda_available;
	return ops;
}

static fp_linear_operations make_linear(void)
{
	fp_linear_operations ops = {};
	ops.gemm = fp_cuda_gemm;
	ops.gram = fp_cuda_gram;
	ops.mirror = fp_cuda_mirror;
	ops.axpby = fp_cuda_axpby;
	ops.combine = fp_cuda_combine;
	ops.dot = fp_cuda_dot;
	ops.row_dot = fp_cuda_row_dot;
	ops.row_axpby = fp_cuda_row_axpby;
	ops.scale_columns = fp_cuda_scale_columns;
	ops.gemm_blocks = fp_cuda_gemm_blocks;
	ops.permute_rows = fp_cuda_permute_rows;
	ops.permute_columns = fp_cuda_permute_columns;
	ops.diagonal = fp_cuda_diagonal;
	ops.add_diagonal = fp_cuda_add_diagonal;
	ops.inverse_factor = fp_cuda_inverse_factor;
	ops.inverse = fp_cuda_inverse;
	ops.eigen = fp_cuda_eigen;
	ops.max_abs = fp_cuda_max_abs;
	ops.finite = fp_cuda_finite;
	return ops;
}

static fp_transformer_operations make_transformer(void)
{
	fp_transformer_operations ops = {};
	ops.norm = fp_cuda_norm;
	ops.add_bias = fp_cuda_add_bias;
	ops.activate = fp_cuda_activate;
	ops.activate_gated = fp_cuda_activate_gated;
	ops.rotate = fp_cuda_rotate;
	ops.soft_cap = fp_cuda_soft_cap;
	ops.attention = fp_cuda_attention;
	ops.cross_entropy = fp_cuda_cross_entropy;
	ops.divergence = fp_cuda_divergence;
	ops.gather_rows = fp_cuda_gather_rows;
	ops.add_rows = fp_cuda_add_rows;
	return ops;
}

static fp_pruning_operations make_pruning(void)
{
	fp_pruning_operations ops = {};
	ops.fista_step = fp_cuda_fista_step;
	ops.mask_smallest = fp_cuda_mask_smallest;
	ops.mask_rows = fp_cuda_mask_rows;
	ops.mask_nonzero = fp_cuda_mask_nonzero;
	ops.apply_mask = fp_cuda_apply_mask;
	ops.mask_distance = fp_cuda_mask_distance;
	ops.support_step = fp_cuda_support_step;
	ops.cg_step = fp_cuda_cg_step;
	ops.sparsegpt_sweep = fp_cuda_sparsegpt_sweep;
	return ops;
}

static fp_grid_operations make_grid(void)
{
	fp_grid_operations ops = {};
	ops.fit = fp_cuda_grid_fit;
	ops.round = fp_cuda_grid_round;
	ops.descend = fp_cuda_grid_descend;
	ops.rescale = fp_cuda_grid_rescale;
	return ops;
}

static fp_decode_operations make_decode(void)
{
	fp_decode_operations ops = {};
	ops.hold = fp_cuda_hold;
	ops.expand = fp_cuda_expand;
	ops.multiply = fp_cuda_multiply_held;
	ops.read_time = fp_cuda_read_time;
	return ops;
}

static fp_delta_operations make_delta(void)
{
	fp_delta_operations ops = {};
	ops.split = fp_cuda_split_delta;
	ops.join = fp_cuda_join_delta;
	ops.step = fp_cuda_fista_step_delta;
	ops.round = fp_cuda_round_delta;
	ops.sum = fp_cuda_delta_sum;
	return ops;
}

static fp_transfer_operations make_transfer(void)
{
	fp_transfer_operations ops = {};
	ops.upload_async = fp_cuda_upload_async;
	ops.round_weights = fp_cuda_round_weights;
	ops.allocate_host = fp_cuda_allocate_host;
	ops.release_host = fp_cuda_release_host;
	ops.begin_download = fp_cuda_begin_download;
	ops.end_download = fp_cuda_end_download;
	return ops;
}

static fp_gradient_operations make_gradients(void)
{
	fp_gradient_operations ops = {};
	ops.norm_backward = fp_cuda_norm_backward;
	ops.cross_entropy_backward = fp_cuda_cross_entropy_backward;
	ops.activate_backward = fp_cuda_activate_backward;
	ops.activate_gated_backward = fp_cuda_activate_gated_backward;
	ops.soft_cap_backward = fp_cuda_soft_cap_backward;
	ops.attention_backward = fp_cuda_attention_backward;
	ops.column_sums = fp_cuda_column_sums;
	ops.column_squares = fp_cuda_column_squares;
	ops.difference = fp_cuda_difference;
	ops.adam_step = fp_cuda_adam_step;
	return ops;
}

static const fp_memory_operations cuda_memory = make_memory();
static const fp_linear_operations cuda_linear = make_linear();
static const fp_transformer_operations cuda_transformer = make_transformer();
static const fp_pruning_operations cuda_pruning = make_pruning();
static const fp_grid_operations cuda_grid = make_grid();
static const fp_decode_operations cuda_decode = make_decode();
static const fp_delta_operations cuda_delta = make_delta();
static const fp_transfer_operations cuda_transfer = make_transfer();
static const fp_gradient_operations cuda_gradients = make_gradients();

/* --- opening ------------------------------------------------------------------------------------------------------ */

__global__ static void probe_kernel(int *out)
{
	*out = 1;
}

static fp_status choose_device(fp_context *ctx, const char *text, int *out)
{
	int count = 0;
	cudaError_t error = cudaGetDeviceCount(&count);
	(void)cudaGetLastError();
	if (error == cudaErrorInsufficientDriver)
		return fp_fail(
			ctx, FP_ERROR_DEVICE,
			"the NVIDIA driver is older than CUDA %d.%d, which this build needs; update it or use --device cpu",
			CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
	if (error != cudaSuccess || count == 0)
		return fp_fail(ctx, FP_ERROR_DEVICE, "no CUDA device was found (%s); use --device cpu",
					   error == cudaSuccess ? "none is visible" : cudaGetErrorString(error));
	*out = 0;
	if (!text)
		return FP_OK;
	char *end;
	long number = strtol(text, &end, 10);
	if (end == text || *end || number < 0 || number >= count)
		return fp_fail(ctx, FP_ERROR_DEVICE,
					   "'%s' is not the number of a CUDA device; there %s %d, counted from 0; use cuda:0", text,
					   count == 1 ? "is" : "are", count);
	*out = (int)number;
	return FP_OK;
}

/* Fails unless the module has machine code for this device, or PTX that the driver can compile for it. */
static fp_status check_architecture(fp_backend *be, const cudaDeviceProp *properties)
{
	cudaFuncAttributes attributes;
	cudaError_t error = cudaFuncGetAttributes(&attributes, probe_kernel);
	if (error == cudaSuccess)
		return FP_OK;
	(void)cudaGetLastError();
	if (error != cudaErrorNoKernelImageForDevice && error != cudaErrorUnsupportedPtxVersion)
		return fp_cuda_failed(be, error, __func__);
	return fp_fail(be->ctx, FP_ERROR_DEVICE,
				   "%s has compute capability %d.%d, for which this build has no code (it has %s); build with "
				   "-DCMAKE_CUDA_ARCHITECTURES=%d%d or use --device cpu",
				   properties->name, properties->major, properties->minor, FP_CUDA_ARCHITECTURES, properties->major,
				   properties->minor);
}

/* A memory pool that keeps freed memory, so that scratch space is allocated without the driver. The pool must not give
 * memory that one stream has yet to free to another stream, which would then wait: upload_async() must not wait. */
static fp_status make_pool(fp_backend *be)
{
	fp_cuda_state *state = fp_cuda_state_of(be);
	cudaMemPoolProps properties = {};
	properties.allocType = cudaMemAllocationTypePinned;
	properties.location.type = cudaMemLocationTypeDevice;
	properties.location.id = state->device;
	uint64_t keep = UINT64_MAX;
	int reuse = 0;
	FP_CUDA(be, cudaMemPoolCreate(&state->pool, &properties));
	FP_CUDA(be, cudaMemPoolSetAttribute(state->pool, cudaMemPoolAttrReleaseThreshold, &keep));
	FP_CUDA(be, cudaMemPoolSetAttribute(state->pool, cudaMemPoolReuseAllowInternalDependencies, &reuse));
	return FP_OK;
}

static fp_status make_state(fp_backend *be)
{
	enum { BLAS_SPACE = 64 << 20 };
	fp_cuda_state *state = fp_cuda_state_of(be);
	FP_CUDA(be, cudaStreamCreateWithFlags(&state->stream, cudaStreamNonBlocking));
	FP_CUDA(be, cudaStreamCreateWithFlags(&state->download_stream, cudaStreamNonBlocking));
	FP_CUDA(be, cudaEventCreateWithFlags(&state->ready, cudaEventDisableTiming));
	FP_CUDA(be, cudaStreamCreateWithFlags(&state->upload_stream, cudaStreamNonBlocking));
	FP_CUDA(be, cudaEventCreateWithFlags(&state->uploaded, cudaEventDisableTiming));
	FP_OR_RETURN(make_pool(be));
	FP_CUDA(be, cudaMalloc(&state->blas_space, BLAS_SPACE));
	FP_CUDA(be, cudaMalloc(&state->device_numbers, FP_CUDA_NUMBERS));
	FP_CUDA(be, cudaMalloc((void **)&state->parts, FP_CUDA_PARTS * sizeof *state->parts));
	FP_CUDA(be, cudaHostAlloc(&state->numbers, FP_CUDA_NUMBERS, cudaHostAllocDefault));
	for (int i = 0; i < 2; i++) {
		FP_CUDA(be, cudaHostAlloc((void **)&state->staging[i], FP_CUDA_STAGING, cudaHostAllocDefault));
		FP_CUDA(be, cudaEventCreateWithFlags(&state->staged[i], cudaEventDisableTiming));
	}
	FP_BLAS(be, cublasCreate(&state->blas));
	FP_BLAS(be, cublasSetStream(state->blas, state->stream));
	FP_BLAS(be, cublasSetWorkspace(state->blas, state->blas_space,
								   BLAS_SPACE)); /* a fixed size gives reproducible results */
	FP_SOLVER(be, cusolverDnCreate(&state->solver));
	FP_SOLVER(be, cusolverDnSetStream(state->solver, state->stream));
	return FP_OK;
}

static fp_status open_device(fp_backend *be, const char *device)
{
	fp_cuda_state *state = fp_cuda_state_of(be);
	cudaDeviceProp properties;
	FP_OR_RETURN(choose_device(be->ctx, device, &state->device));
	FP_CUDA(be, cudaSetDevice(state->device));
	FP_CUDA(be, cudaGetDeviceProperties(&properties, state->device));
	FP_OR_RETURN(check_architecture(be, &properties));
	state->processors = properties.multiProcessorCount;
	state->begins_early = properties.major >= 9;
	state->is_hopper = properties.major == 9 && properties.minor == 0;
	snprintf(be->description, sizeof be->description, "cuda:%d: %.60s, sm_%d%d, %.0f GiB", state->device,
			 properties.name, properties.major, properties.minor, (double)properties.totalGlobalMem / 1073741824.0);
	return make_state(be);
}

extern "C" __attribute__((visibility("default"))) fp_status fp_backend_module_open(fp_backend **out, fp_context *ctx,
																				   const char *device, int threads)
{
	*out = nullptr;
	fp_backend *be = nullptr;
	fp_cuda_state *state = nullptr;
	FP_OR_RETURN(FP_NEW(ctx, &be, 1));
	fp_status status = FP_NEW(ctx, &state, 1);
	be->name = "cuda";
	be->close = cuda_close;
	be->memory = &cuda_memory;
	be->linear = &cuda_linear;
	be->transformer = &cuda_transformer;
	be->pruning = &cuda_pruning;
	be->grid = &cuda_grid;
	be->decode = &cuda_decode;
	be->delta = &cuda_delta;
	be->transfer = &cuda_transfer;
	be->gradients = &cuda_gradients;
	be->capabilities = FP_CAN_MULTIPLY_NARROW | FP_CAN_STEP_DELTA | FP_CAN_UPLOAD_ASYNC | FP_CAN_DOWNLOAD_ASYNC |
					   FP_CAN_DIFFERENTIATE | FP_CAN_ROUND | FP_CAN_SPLIT;
	be->ctx = ctx;
	be->state = state;
	be->threads = threads > 0 ? threads : fp_usable_processors();
	be->asynchronous = true;
	if (status == FP_OK)
		status = open_device(be, device);
	if (status != FP_OK) {
		cuda_close(be);
		return status;
	}
	*out = be;
	return FP_OK;
}
