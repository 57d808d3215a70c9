/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_decode.cu: products with held weights: which kernel, how much of x in shared memory, how many blocks. */
#include "backend/cuda/cuda_backend.cuh"

#include "backend/cuda/cuda_decode_kernels.cuh"

static_assert((int)DECODE_PARTS == (int)FP_DECODE_PARTS, "one launch takes all parts of a product");

static decode_part part_of(const fp_held *W)
{
	decode_part p = {};
	int64_t size = fp_dtype_size(W->dtype);
	p.values = fp_cuda_at<const uint4>(W->values);
	p.rows = (int)W->rows;
	if (W->form == FP_HELD_DENSE) {
		p.vectors = decode_rounded_up(W->cols * size, 16) / 16;
	} else if (W->form == FP_HELD_MASK) {
		p.counts = fp_cuda_bytes(W->positions);
		p.positions = (const uint32_t *)(p.counts + decode_counts_bytes(W->rows, W->cols));
		p.half_values = (const uint2 *)(p.values + W->whole * DECODE_GRANULE * size / 16);
		p.half_gaps = (const uint16_t *)(p.positions + W->whole);
		p.offsets = fp_cuda_at<const decode_offsets>(W->offsets);
	} else {
		p.vectors = decode_steps(W->cols) * 32 * DECODE_GRANULE * size / 16;
		p.positions = (const uint32_t *)fp_cuda_bytes(W->positions);
	}
	return p;
}

/* --- products ---------------------------------------------------------------------------------------------------- */

/* Starts the kernel so that it may begin while the one before it ends: between short kernels the memory would idle. */
template <typename Form, int B, int R>
static fp_status launch(fp_backend *be, decode_arguments *a, int64_t shared, int64_t per_processor)
{
	auto kernel = decode_kernel<Form, B, R>;
	a->tasks = 0;
	for (int i = 0; i < a->parts; i++) {
		a->part[i].first_task = a->tasks;
		a->tasks += (a->part[i].rows + DECODE_WARPS * R - 1) / (DECODE_WARPS * R);
	}
	if (a->tasks == 0)
		return FP_OK;
	if (shared > 48 << 10)
		FP_CUDA(be, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
	int64_t blocks = (int64_t)fp_cuda_state_of(be)->processors * per_processor;
	cudaLaunchAttribute attribute = {};
	attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attribute.val.programmaticStreamSerializationAllowed = 1;
	cudaLaunchConfig_t config = {};
	config.gridDim = dim3((unsigned)fp_smaller(a->tasks, blocks));
	config.blockDim = dim3(DECODE_THREADS);
	config.dynamicSmemBytes = (size_t)shared;
	config.stream = fp_cuda_stream(be);
	config.attrs = &attribute;
	config.numAttrs = fp_cuda_state_of(be)->begins_early ? 1 : 0;
	FP_CUDA(be, cudaLaunchKernelEx(&config, kernel, (const decode_arguments)*a));
	return FP_OK;
}

/* With B rows of x at once. All of x lies in shared memory if it has room for it, else one chunk. */
template <typename Form, int B> static fp_status launch_rows(fp_backend *be, decode_arguments *a, int64_t room)
{
	const int64_t unit = 32 * B * (int64_t)sizeof(float);
	int64_t all = (decode_rounded_up(a->cols, DECODE_STEP) / 32 + DECODE_PAD) * unit;
	int64_t chunk = (DECODE_LANE_COLUMNS + DECODE_PAD) * unit;
	a->resident = all <= room;
	int64_t shared = a->resident ? all : chunk;
	/* more rows of x take longer to load: more rows of W for each */
	return launch < Form, B, B <= 2 ? 1 : 2 > (be, a, shared, B <= 2 && 2 * shared <= room ? 2 : 1);
}

template <typename Form> static fp_status multiply_form(fp_backend *be, decode_arguments a, int64_t room)
{
	/* eight rows of x at once need 136 KiB, which not every GPU has */
	int most = (DECODE_LANE_COLUMNS + DECODE_PAD) * 32 * 8 * (int64_t)sizeof(float) <= room ? 8 : 4;
	int rows = a.batch;
	for (int done = 0; done < rows; done += most) {
		a.batch = (int)fp_smaller(most, rows - done);
		if (a.batch == 1)
			FP_OR_RETURN((launch_rows<Form, 1>(be, &a, room)));
		else if (a.batch == 2)
			FP_OR_RETURN((launch_rows<Form, 2>(be, &a, room)));
		else if (a.batch <= 4)
			FP_OR_RETURN((launch_rows<Form, 4>(be, &a, room)));
		else
			FP_OR_RETURN((launch_rows<Form, 8>(be, &a, room)));
		a.x += a.x ? most * a.x_stride : 0;
		a.narrow_x += a.narrow_x ? most * a.x_stride : 0;
		for (int i = 0; i < a.parts; i++) {
			decode_part *p = &a.part[i];
			p->y += p->y ? most * p->y_stride : 0;
			p->narrow_y += p->narrow_y ? most * p->y_stride : 0;
		}
	}
	return FP_OK;
}

template <typename T>
static fp_status multiply_type(fp_backend *be, fp_held_form form, const decode_arguments &a, int64_t room)
{
	switch (form) {
	case FP_HELD_DENSE:
		return multiply_form<decode_dense<T>>(be, a, room);
	case FP_HELD_MASK:
		return multiply_form<decode_gaps<T>>(be, a, room);
	default:
		return multiply_form<decode_pairs<T>>(be, a, room);
	}
}

fp_status fp_cuda_multiply_held(fp_backend *be, fp_matrix X, int count, const fp_held *const *W, bool add,
								const fp_matrix *Y)
{
	int room = 0;
	FP_REQUIRE(be, fp_cuda_is_f32_or_bf16(X) && X.rows >= 1 && X.rows <= FP_DECODE_BATCH && X.cols <= INT32_MAX);
	FP_REQUIRE(be, count >= 1 && count <= FP_DECODE_PARTS);
	for (int i = 0; i < count; i++)
		FP_REQUIRE(be, W[i]->cols == X.cols && fp_cuda_is_f32_or_bf16(Y[i]) && Y[i].rows == X.rows &&
						   Y[i].cols == W[i]->rows);
	FP_CUDA(be, cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, fp_cuda_state_of(be)->device));
	for (int first = 0; first < count;) { /* parts of one form and type in one launch */
		decode_arguments a = {};
		a.x = X.dtype == FP_F32 ? fp_cuda_floats(X) : nullptr;
		a.narrow_x = X.dtype == FP_BF16 ? fp_cuda_at<__nv_bfloat16>(X) : nullptr;
		a.x_stride = X.stride;
		a.add = add;
		a.batch = (int)X.rows;
		a.cols = (int)X.cols;
		fp_held_form form = W[first]->form;
		fp_dtype dtype = W[first]->dtype;
		for (; first < count && W[first]->form == form && W[first]->dtype == dtype; first++) {
			decode_part *p = &a.part[a.parts++];
			*p = part_of(W[first]);
			p->y = Y[first].dtype == FP_F32 ? fp_cuda_floats(Y[first]) : nullptr;
			p->narrow_y = Y[first].dtype == FP_BF16 ? fp_cuda_at<__nv_bfloat16>(Y[first]) : nullptr;
			p->y_stride = Y[first].stride;
		}
		FP_OR_RETURN(dtype == FP_BF16  ? multiply_type<__nv_bfloat16>(be, form, a, room)
					 : dtype == FP_F16 ? multiply_type<__half>(be, form, a, room)
									   : multiply_type<float>(be, form, a, room));
	}
	return FP_OK;
}

/* --- back to dense ----------------------------------------------------------------------------------------------- */

template <typename T> static fp_status expand_type(fp_backend *be, const fp_held *W, fp_matrix out)
{
	const int threads = 256;
	unsigned blocks = (unsigned)((W->rows + threads / 32 - 1) / (threads / 32));
	if (blocks == 0)
		return FP_OK;
	return fp_cuda_by_weight_type(out, [=](auto *to) {
		decode_expand_kernel<T>
			<<<blocks, threads, 0, fp_cuda_stream(be)>>>(part_of(W), (int)W->form, (int)W->cols, to, out.stride);
		FP_LAUNCHED(be);
		return FP_OK;
	});
}

fp_status fp_cuda_expand(fp_backend *be, const fp_held *W, fp_matrix out)
{
	FP_REQUIRE(be, fp_cuda_is_weight(out) && out.rows == W->rows && out.cols == W->cols);
	return W->dtype == FP_BF16  ? expand_type<__nv_bfloat16>(be, W, out)
		   : W->dtype == FP_F16 ? expand_type<__half>(be, W, out)
								: expand_type<float>(be, W, out);
}

/* --- the memory's speed ------------------------------------------------------------------------------------------ */

fp_status fp_cuda_read_time(fp_backend *be, int64_t bytes, double *seconds)
{
	const int repeats = 10;
	fp_cuda_scratch space;
	fp_cuda_state *state = fp_cuda_state_of(be);
	FP_OR_RETURN(space.take(be, bytes));
	FP_CUDA(be, cudaMemsetAsync(space.as<char>(), 1, (size_t)bytes, state->stream));
	*seconds = 0;
	for (int r = 0; r < repeats; r++) {
		FP_CUDA(be, cudaStreamSynchronize(state->stream));
		double started = fp_clock();
		decode_read_kernel<<<(unsigned)state->processors * 8, 256, 0, state->stream>>>(
			space.as<uint4>(), bytes / 16, (unsigned *)state->device_numbers);
		FP_LAUNCHED(be);
		FP_CUDA(be, cudaStreamSynchronize(state->stream));
		double took = fp_clock() - started;
		*seconds = r == 0 || took < *seconds ? took : *seconds;
	}
	return FP_OK;
}
