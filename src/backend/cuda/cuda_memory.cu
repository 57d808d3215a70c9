/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_memory.cu: device buffers, uploads, downloads and copies.
 *
 * Transfers go in pieces through two pinned buffers: the host fills or empties one while the other is copied. Types are
 * converted on the device, so what crosses the bus has the host's type.
 */
#include "backend/cuda/cuda_backend.cuh"

#include <pthread.h>

fp_status fp_cuda_allocate(fp_backend *be, fp_buffer **out, int64_t bytes)
{
	fp_cuda_state *state = fp_cuda_state_of(be);
	fp_buffer *buffer = nullptr;
	*out = nullptr;
	FP_OR_RETURN(FP_NEW(be->ctx, &buffer, 1));
	cudaError_t error =
		cudaMallocFromPoolAsync(&buffer->data, (size_t)(bytes > 0 ? bytes : 1), state->pool, state->stream);
	if (error != cudaSuccess) {
		fp_free(buffer);
		(void)cudaGetLastError();
		if (error != cudaErrorMemoryAllocation)
			return fp_cuda_failed(be, error, __func__);
		int64_t available = 0, total = 0;
		(void)fp_cuda_available(be, &available, &total);
		return fp_fail(
			be->ctx, FP_ERROR_MEMORY,
			"device memory is full: %.1f MiB more were needed, %.1f MiB of %.1f MiB are free and %.1f MiB are "
			"held; use fewer --samples, a shorter --sequence-length or --device cpu",
			(double)bytes / 1048576.0, (double)available / 1048576.0, (double)total / 1048576.0,
			(double)state->held / 1048576.0);
	}
	buffer->bytes = bytes;
	state->held += bytes;
	int64_t *stage = &be->stage_bytes[be->ctx->stopwatch ? be->ctx->stopwatch->current : FP_STAGE_OTHER];
	if (state->held > *stage)
		*stage = state->held;
	if (state->held > be->peak_bytes)
		be->peak_bytes = state->held;
	*out = buffer;
	return FP_OK;
}

void fp_cuda_release(fp_backend *be, fp_buffer *buffer)
{
	if (buffer) {
		fp_cuda_state_of(be)->held -= buffer->bytes;
		(void)cudaFreeAsync(buffer->data, fp_cuda_stream(be));
	}
	fp_free(buffer);
}

/* --- conversions -------------------------------------------------------------------------------------------------- */

/* A rows × cols view as a plain pointer. */
struct raw_view {
	void *data;
	fp_dtype dtype;
	int64_t stride;
};

template <typename To, typename From>
static fp_status convert_as(fp_backend *be, raw_view out, raw_view in, int64_t rows, int64_t cols)
{
	To *y = (To *)out.data;
	const From *x = (const From *)in.data;
	int64_t ys = out.stride, xs = in.stride;
	bool flat = rows <= 1 || (ys == cols && xs == cols);
	return fp_cuda_map(be, rows, cols, flat, [=] __device__(int64_t i, int64_t j) {
		fp_cuda_store(y + i * ys + j, fp_cuda_load(x + i * xs + j));
	});
}

template <typename To>
static fp_status convert_to(fp_backend *be, raw_view out, raw_view in, int64_t rows, int64_t cols)
{
	if (in.dtype == FP_F32)
		return convert_as<To, float>(be, out, in, rows, cols);
	if (in.dtype == FP_F16)
		return convert_as<To, __half>(be, out, in, rows, cols);
	return convert_as<To, __nv_bfloat16>(be, out, in, rows, cols);
}

/* Between two views on the device. Equal types are copied as they are. */
static fp_status convert(fp_backend *be, raw_view out, raw_view in, int64_t rows, int64_t cols)
{
	int64_t size = fp_dtype_size(out.dtype);
	if (rows == 0 || cols == 0)
		return FP_OK;
	if (out.dtype == in.dtype) {
		size_t pitch_out = (size_t)((rows > 1 ? out.stride : cols) * size);
		size_t pitch_in = (size_t)((rows > 1 ? in.stride : cols) * size);
		if (rows > 1 && out.stride == cols && in.stride == cols)
			FP_CUDA(be, cudaMemcpyAsync(out.data, in.data, (size_t)(rows * cols * size), cudaMemcpyDeviceToDevice,
										fp_cuda_stream(be)));
		else
			FP_CUDA(be, cudaMemcpy2DAsync(out.data, pitch_out, in.data, pitch_in, (size_t)(cols * size), (size_t)rows,
										  cudaMemcpyDeviceToDevice, fp_cuda_stream(be)));
		return FP_OK;
	}
	if (out.dtype == FP_F32)
		return convert_to<float>(be, out, in, rows, cols);
	if (out.dtype == FP_F16)
		return convert_to<__half>(be, out, in, rows, cols);
	return convert_to<__nv_bfloat16>(be, out, in, rows, cols);
}

static bool converts(fp_dtype a, fp_dtype b)
{
	return (a == b && fp_dtype_size(a) > 0) || (fp_dtype_is_weight(a) && fp_dtype_is_weight(b));
}

static raw_view view_of(fp_matrix m)
{
	return raw_view{(char *)m.buffer->data + m.offset * fp_dtype_size(m.dtype), m.dtype, m.stride};
}

fp_status fp_cuda_copy(fp_backend *be, fp_matrix out, fp_matrix in)
{
	FP_REQUIRE(be, fp_cuda_is_view(out, out.dtype) && fp_cuda_is_view(in, in.dtype));
	FP_REQUIRE(be, fp_cuda_same_shape(out, in) && converts(out.dtype, in.dtype));
	if (out.dtype == FP_BF16 && in.dtype == FP_F32 && fp_cuda_is_contiguous(out))
		return fp_cuda_round(be, in, fp_cuda_at<__nv_bfloat16>(out));
	return convert(be, view_of(out), view_of(in), in.rows, in.cols);
}

/* --- transfers ---------------------------------------------------------------------------------------------------- */

/* Walks over a host matrix in pieces that fit into a staging buffer. */
struct transfer {
	int64_t rows, cols, stride; /* of the host matrix */
	int64_t size;               /* bytes of an element */
	int64_t row, col;           /* start of the current piece */
	int64_t piece_rows, piece_cols;
};

static transfer transfer_of(int64_t rows, int64_t cols, int64_t stride, bool contiguous, int64_t size)
{
	transfer c = {rows, cols, stride, size, 0, 0, 0, 0};
	if (contiguous)
		c = {1, rows * cols, rows * cols, size, 0, 0, 0, 0};
	int64_t most = FP_CUDA_STAGING / size;
	c.piece_cols = fp_smaller(c.cols, most);
	c.piece_rows = c.piece_cols < c.cols ? 1 : fp_smaller(c.rows, most / (c.cols > 0 ? c.cols : 1));
	return c;
}

static bool piece_at(const transfer *c, int64_t *rows, int64_t *cols)
{
	*rows = fp_smaller(c->piece_rows, c->rows - c->row);
	*cols = fp_smaller(c->piece_cols, c->cols - c->col);
	return *rows > 0 && *cols > 0;
}

static void next_piece(transfer *c)
{
	c->col += c->piece_cols;
	if (c->col >= c->cols) {
		c->col = 0;
		c->row += c->piece_rows;
	}
}

/* Several threads copy large pieces, because one is slower than the bus. More than 12 do not help. */
enum { MAX_COPY_THREADS = 12, ONE_THREAD_BYTES = 4 << 20 };

struct copy_part {
	char *to;
	const char *from;
	size_t bytes;
	pthread_t thread;
	bool started;
};

static void *copy_run(void *data)
{
	copy_part *part = (copy_part *)data;
	memcpy(part->to, part->from, part->bytes);
	return nullptr;
}

static void copy_host(int threads, char *to, const char *from, size_t bytes)
{
	copy_part parts[MAX_COPY_THREADS] = {};
	int count = bytes < ONE_THREAD_BYTES ? 1 : threads < MAX_COPY_THREADS ? threads : MAX_COPY_THREADS;
	size_t each = (bytes / (size_t)count + 64) / 64 * 64; /* rounded up, to cover all bytes */
	for (int i = 0; i < count; i++) {
		size_t begin = (size_t)i * each < bytes ? (size_t)i * each : bytes;
		size_t size = bytes - begin < each ? bytes - begin : each;
		parts[i] = copy_part{to + begin, from + begin, size, pthread_t{}, false};
		if (i > 0 && size > 0)
			parts[i].started = pthread_create(&parts[i].thread, nullptr, copy_run, &parts[i]) == 0;
	}
	for (int i = 0; i < count; i++)
		if (!parts[i].started)
			copy_run(&parts[i]);
	for (int i = 0; i < count; i++)
		if (parts[i].started)
			pthread_join(parts[i].thread, nullptr);
}

/* Copies a piece of the host matrix to a packed buffer, or back. */
static void pack(const fp_backend *be, char *packed, char *host, const transfer *c, int64_t rows, int64_t cols,
				 bool to_packed)
{
	for (int64_t i = 0; i < rows; i++) {
		char *at = host + ((c->row + i) * c->stride + c->col) * c->size;
		if (to_packed)
			copy_host(be->threads, packed + i * cols * c->size, at, (size_t)(cols * c->size));
		else
			copy_host(be->threads, at, packed + i * cols * c->size, (size_t)(cols * c->size));
	}
}

static raw_view part_of(raw_view whole, const transfer *c, bool contiguous)
{
	int64_t stride = contiguous ? c->cols : whole.stride;
	char *data = (char *)whole.data + (c->row * stride + c->col) * fp_dtype_size(whole.dtype);
	return raw_view{data, whole.dtype, stride};
}

fp_status fp_cuda_upload(fp_backend *be, fp_matrix out, const void *host, fp_dtype dtype, int64_t stride)
{
	FP_REQUIRE(be, fp_cuda_is_view(out, out.dtype) && converts(out.dtype, dtype));
	FP_REQUIRE(be, out.rows <= 1 || stride >= out.cols);
	fp_cuda_state *state = fp_cuda_state_of(be);
	bool contiguous = out.rows <= 1 || (stride == out.cols && out.stride == out.cols);
	transfer c = transfer_of(out.rows, out.cols, stride, contiguous, fp_dtype_size(dtype));
	bool direct = contiguous && out.dtype == dtype;
	fp_cuda_scratch received[2];
	int64_t rows, cols;
	for (int half = 0; piece_at(&c, &rows, &cols); half ^= 1, next_piece(&c)) {
		raw_view to = part_of(view_of(out), &c, contiguous);
		if (!direct && !received[half].buffer)
			FP_OR_RETURN(received[half].take(be, c.piece_rows * c.piece_cols * c.size));
		void *target = direct ? to.data : received[half].as<void>();
		FP_CUDA(be, cudaEventSynchronize(state->staged[half])); /* its previous copy has finished */
		pack(be, state->staging[half], (char *)(uintptr_t)host, &c, rows, cols, true);
		FP_CUDA(be, cudaMemcpyAsync(target, state->staging[half], (size_t)(rows * cols * c.size),
									cudaMemcpyHostToDevice, state->stream));
		FP_CUDA(be, cudaEventRecord(state->staged[half], state->stream));
		if (!direct)
			FP_OR_RETURN(convert(be, to, raw_view{target, dtype, cols}, rows, cols));
	}
	return FP_OK;
}

/* Operations run on another stream while this exists. */
struct stream_scope {
	fp_cuda_state *state;
	cudaStream_t previous;
	stream_scope(fp_cuda_state *s, cudaStream_t other) : state(s), previous(s->stream)
	{
		state->stream = other;
	}
	~stream_scope()
	{
		state->stream = previous;
	}
};

/* Allocates and uploads a new matrix on the current stream. */
static fp_status upload_new(fp_backend *be, fp_matrix *out, int64_t rows, int64_t cols, fp_dtype type, const void *host,
							fp_dtype dtype)
{
	FP_OR_RETURN(fp_matrix_new(be, out, rows, cols, type));
	fp_status status = fp_cuda_upload(be, *out, host, dtype, cols);
	if (status != FP_OK)
		fp_matrix_free(be, out);
	return status;
}

fp_status fp_cuda_upload_async(fp_backend *be, fp_matrix *out, int64_t rows, int64_t cols, fp_dtype type,
							   const void *host, fp_dtype dtype)
{
	fp_cuda_state *state = fp_cuda_state_of(be);
	fp_status status;
	{
		stream_scope scope(state, state->upload_stream);
		status = upload_new(be, out, rows, cols, type, host, dtype);
	}
	/* later operations wait for the upload */
	FP_CUDA(be, cudaEventRecord(state->uploaded, state->upload_stream));
	FP_CUDA(be, cudaStreamWaitEvent(state->stream, state->uploaded, 0));
	if (status == FP_ERROR_MEMORY) { /* queued work may free enough: on its stream the allocation waits for that */
		fp_clear_message(be->ctx);
		status = upload_new(be, out, rows, cols, type, host, dtype);
	}
	return status;
}

fp_status fp_cuda_download(fp_backend *be, void *host, fp_dtype dtype, int64_t stride, fp_matrix in)
{
	FP_REQUIRE(be, fp_cuda_is_view(in, in.dtype) && converts(dtype, in.dtype));
	FP_REQUIRE(be, in.rows <= 1 || stride >= in.cols);
	fp_cuda_state *state = fp_cuda_state_of(be);
	bool contiguous = in.rows <= 1 || (stride == in.cols && in.stride == in.cols);
	transfer c = transfer_of(in.rows, in.cols, stride, contiguous, fp_dtype_size(dtype)), before = c;
	fp_cuda_scratch converted[2];
	int64_t rows, cols, rows_before = 0, cols_before = 0;
	for (int half = 0;; half ^= 1) {
		bool more = piece_at(&c, &rows, &cols);
		if (more) {
			if (!converted[half].buffer)
				FP_OR_RETURN(converted[half].take(be, c.piece_rows * c.piece_cols * c.size));
			FP_OR_RETURN(convert(be, raw_view{converted[half].as<void>(), dtype, cols},
								 part_of(view_of(in), &c, contiguous), rows, cols));
			FP_CUDA(be, cudaEventSynchronize(state->staged[half])); /* an upload may still be reading it */
			FP_CUDA(be, cudaMemcpyAsync(state->staging[half], converted[half].as<void>(),
										(size_t)(rows * cols * c.size), cudaMemcpyDeviceToHost, state->stream));
			FP_CUDA(be, cudaEventRecord(state->staged[half], state->stream));
		}
		if (rows_before > 0) { /* unpack the previous piece during this copy */
			FP_CUDA(be, cudaEventSynchronize(state->staged[half ^ 1]));
			pack(be, state->staging[half ^ 1], (char *)host, &before, rows_before, cols_before, false);
		}
		if (!more)
			return FP_OK;
		before = c;
		rows_before = rows;
		cols_before = cols;
		next_piece(&c);
	}
}

template <typename T> static fp_status fill_as(fp_backend *be, fp_matrix out, float value)
{
	T *entries = fp_cuda_at<T>(out);
	int64_t stride = out.stride;
	return fp_cuda_map(be, out.rows, out.cols, fp_cuda_is_contiguous(out),
					   [=] __device__(int64_t i, int64_t j) { fp_cuda_store(entries + i * stride + j, value); });
}

fp_status fp_cuda_fill(fp_backend *be, fp_matrix out, float value)
{
	FP_REQUIRE(be, fp_cuda_is_f32_or_bf16(out) || fp_cuda_is_u8(out));
	FP_REQUIRE(be, out.dtype != FP_U8 || (value >= 0.0f && value <= 255.0f));
	int64_t stride = out.stride;
	if (out.dtype == FP_U8) {
		uint8_t *bytes = fp_cuda_bytes(out), byte = (uint8_t)value;
		return fp_cuda_map(be, out.rows, out.cols, fp_cuda_is_contiguous(out),
						   [=] __device__(int64_t i, int64_t j) { bytes[i * stride + j] = byte; });
	}
	return out.dtype == FP_BF16 ? fill_as<__nv_bfloat16>(be, out, value) : fill_as<float>(be, out, value);
}

/* Memory that the pool holds but nobody uses counts as available. */
fp_status fp_cuda_available(fp_backend *be, int64_t *available, int64_t *total)
{
	fp_cuda_state *state = fp_cuda_state_of(be);
	size_t unused = 0, all = 0;
	uint64_t reserved = 0, used = 0;
	FP_CUDA(be, cudaMemGetInfo(&unused, &all));
	FP_CUDA(be, cudaMemPoolGetAttribute(state->pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
	FP_CUDA(be, cudaMemPoolGetAttribute(state->pool, cudaMemPoolAttrUsedMemCurrent, &used));
	*available = (int64_t)(unused + (reserved > used ? reserved - used : 0));
	*total = (int64_t)all;
	if (*available > *total)
		*available = *total;
	return FP_OK;
}
