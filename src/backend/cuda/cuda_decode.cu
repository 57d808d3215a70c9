/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_decode.cu: products with held weights: which kernel, how much of x in shared memory, how many blocks. */
#include "backend/cuda/cuda_backend.cuh"

#include "backend/cuda/cuda_decode_expand.cuh"

static_assert((int)DECODE_PARTS == (int)FP_DECODE_PARTS, "one launch takes all parts of a product");

static decode_part part_of(const fp_held *W)
{
	decode_part p = {};
	int64_t size = fp_dtype_size(W->dtype);
	p.values = fp_cuda_at<const char>(W->values);
	p.rows = (int)W->rows;
	if (W->form == FP_HELD_MASK) {
		p.counts = (const decode_counts *)(const void *)fp_cuda_bytes(W->offsets);
		p.strays = fp_cuda_at<const char>(W->positions);
		p.copies = W->copies;
		memcpy(p.granules, W->granules, sizeof p.granules);
		for (size_t i = 0; i < sizeof p.granules; i++)
			p.row_granules += p.granules[i];
	} else {
		p.row_bytes = W->form == FP_HELD_DENSE ? decode_dense_bytes(W->cols, size) : decode_pairs_bytes(W->cols, size);
	}
	return p;
}

/* --- products ---------------------------------------------------------------------------------------------------- */

/* Bytes of shared memory for `cols` columns of x, in whole steps. */
template <typename Form, int B> static int64_t x_bytes(const decode_arguments *a, int64_t cols)
{
	int copies = Form::TWICE ? a->copies : 1;
	return decode_rounded_up(cols, DECODE_STEP) * copies * B * (int64_t)sizeof(float);
}

/* The number of warps, at most `most`, whose rings and x have room in shared memory; 0 if it is less than 3/4 of `most`. */
template <typename Form, int B> static int warps_in(int64_t room, const decode_arguments *a, int most, int64_t cols)
{
	int64_t fit = (room - x_bytes<Form, B>(a, cols)) / (int64_t)Form::template reader<B>::RING;
	return fit < most * 3 / 4 ? 0 : (int)fp_smaller(fit, most);
}

/* The mean number of rows of a warp, divided by the largest, if the rows are dealt out evenly. */
static double evenness(int64_t rows, int64_t warps)
{
	return (double)rows / (double)((rows + warps - 1) / warps * warps);
}

/* How many warps a block should have, at most `most`. It is fewer if otherwise many would idle while the others multiply
 * their last row. */
static int choose_warps(int64_t rows, int64_t blocks, int most)
{
	const double worthwhile = 0.05; /* fewer warps wait for the memory more often */
	int best = most;
	for (int warps = most - 1; warps >= most * 3 / 4; warps--)
		if (evenness(rows, blocks * warps) > evenness(rows, blocks * best) + worthwhile)
			best = warps;
	return best;
}

/* Up to B rows of x at once, WARPS at most in a block. Up to 32 warps work on each processor, if its memory has room. All
 * of x lies in shared memory if that has room for it, else one chunk, which always has. The kernel may begin while the
 * one before it ends: between short kernels the memory would idle. */
template <typename Form, int B, int WARPS> static fp_status launch(fp_backend *be, decode_arguments *a, int64_t room)
{
	auto kernel = decode_kernel<Form, B, WARPS>;
	int64_t most_blocks = fp_cuda_state_of(be)->processors * (B <= 2 ? 32 / WARPS : 1);
	a->resident = warps_in<Form, B>(room, a, WARPS, a->cols) > 0;
	int64_t cols = a->resident ? a->cols : DECODE_CHUNK;
	int warps = choose_warps(a->rows, most_blocks, warps_in<Form, B>(room, a, WARPS, cols));
	int64_t shared = warps * (int64_t)Form::template reader<B>::RING + x_bytes<Form, B>(a, cols);
	if (a->rows == 0)
		return FP_OK;
	FP_CUDA(be, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
	int64_t blocks = fp_smaller((a->rows + warps - 1) / warps, most_blocks);
	a->chunks = (int)decode_chunks(a->cols);
	a->block_rows = (int)(a->rows / blocks);
	a->longer_blocks = (int)(a->rows % blocks);
	cudaLaunchAttribute attribute = {};
	attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attribute.val.programmaticStreamSerializationAllowed = 1;
	cudaLaunchConfig_t config = {};
	config.gridDim = dim3((unsigned)blocks);
	config.blockDim = dim3((unsigned)warps * 32);
	config.dynamicSmemBytes = (size_t)shared;
	config.stream = fp_cuda_stream(be);
	config.attrs = &attribute;
	config.numAttrs = fp_cuda_state_of(be)->begins_early ? 1 : 0;
	FP_CUDA(be, cudaLaunchKernelEx(&config, kernel, (const decode_arguments)*a));
	return FP_OK;
}

/* Several rows of x need much memory, which 32 warps share better than 16 would; not every GPU has so much. */
template <typename Form> static fp_status multiply_form(fp_backend *be, decode_arguments a, int64_t room)
{
	bool wide = warps_in<Form, 4>(room, &a, 32, DECODE_CHUNK) > 0;
	bool one_block =
		Form::ONE_BLOCK && a.cols * a.copies > 2 * DECODE_CHUNK && warps_in<Form, 1>(room, &a, 32, a.cols) > 0;
	int rows = a.batch, most = wide || warps_in<Form, 4>(room, &a, 16, DECODE_CHUNK) > 0 ? 4 : 2;
	for (int done = 0; done < rows; done += most) {
		a.batch = (int)fp_smaller(most, rows - done);
		if (a.batch == 1)
			FP_OR_RETURN((one_block ? launch<Form, 1, 32>(be, &a, room) : launch<Form, 1, 16>(be, &a, room)));
		else if (a.batch == 2)
			FP_OR_RETURN((wide ? launch<Form, 2, 32>(be, &a, room) : launch<Form, 2, 16>(be, &a, room)));
		else
			FP_OR_RETURN((wide ? launch<Form, 4, 32>(be, &a, room) : launch<Form, 4, 16>(be, &a, room)));
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
		return multiply_form<decode_mask<T>>(be, a, room);
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
	for (int first = 0; first < count;) { /* parts of one form and type in one launch, with one x */
		decode_arguments a = {};
		a.x = X.dtype == FP_F32 ? fp_cuda_floats(X) : nullptr;
		a.narrow_x = X.dtype == FP_BF16 ? fp_cuda_at<__nv_bfloat16>(X) : nullptr;
		a.x_stride = X.stride;
		a.fours = fp_cuda_in_fours(X);
		a.add = add;
		a.batch = (int)X.rows;
		a.cols = (int)X.cols;
		fp_held_form form = W[first]->form;
		fp_dtype dtype = W[first]->dtype;
		a.copies = W[first]->copies;
		for (; first < count && W[first]->form == form && W[first]->dtype == dtype && W[first]->copies == a.copies;
			 first++) {
			decode_part *p = &a.part[a.parts++];
			*p = part_of(W[first]);
			p->first_row = (int)a.rows;
			a.rows += p->rows;
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
