/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_decode_pack.cu: packs weights on the host, by several threads, into the forms of cuda_decode_layout.cuh. */
#include "backend/cuda/cuda_backend.cuh"

#include "backend/cuda/cuda_decode_layout.cuh"

#include <pthread.h>

/* Host memory that is freed at the end of its scope. */
struct host_space {
	void *data = nullptr;
	~host_space()
	{
		fp_free(data);
	}
	fp_status take(fp_backend *be, int64_t bytes)
	{
		return fp_allocate(be->ctx, &data, bytes > 0 ? bytes : 1, 1);
	}
	template <typename T> T *as() const
	{
		return (T *)data;
	}
};

/* The matrix on the host; every stage goes over the rows once. */
struct packing {
	fp_held *held;
	const char *rows;
	int64_t size;      /* bytes of an entry */
	uint32_t *offsets; /* of a mask: units of 16 bytes of each row, then those before it */
	char *values;
};

struct row_range {
	packing *p;
	void (*stage)(packing *p, int64_t row, fp_held_counts *counts);
	int64_t begin, end;
	fp_held_counts counts;
	pthread_t thread;
	bool started;
};

static void *run_range(void *data)
{
	row_range *range = (row_range *)data;
	for (int64_t row = range->begin; row < range->end; row++)
		range->stage(range->p, row, &range->counts);
	return nullptr;
}

/* Calls `stage` for every row. *counts: the sum of those of all threads. */
static void for_rows(packing *p, int threads, void (*stage)(packing *, int64_t, fp_held_counts *),
					 fp_held_counts *counts)
{
	enum { MOST_THREADS = 64 };
	row_range ranges[MOST_THREADS] = {};
	int used = threads < MOST_THREADS ? threads : MOST_THREADS;
	int64_t rows = p->held->rows;
	for (int i = 0; i < used; i++) {
		ranges[i] = row_range{p, stage, rows * i / used, rows * (i + 1) / used, *counts, pthread_t{}, false};
		if (i > 0)
			ranges[i].started = pthread_create(&ranges[i].thread, nullptr, run_range, &ranges[i]) == 0;
	}
	for (int i = 0; i < used; i++) {
		if (ranges[i].started)
			pthread_join(ranges[i].thread, nullptr);
		else
			run_range(&ranges[i]);
		counts->nonzeros += ranges[i].counts.nonzeros;
		counts->two_of_four = counts->two_of_four && ranges[i].counts.two_of_four;
	}
}

static const char *row_at(const packing *p, int64_t row)
{
	return p->rows + row * p->held->cols * p->size;
}

/* A row of a mask at `out`, or null. Returns its bytes. */
static int64_t pack_mask(const packing *p, int64_t row, char *out)
{
	int64_t bytes = 0, cols = p->held->cols, chunk = decode_mask_chunk((int)cols);
	for (int64_t first = 0; first < cols; first += chunk)
		bytes += decode_pack_mask(row_at(p, row) + first * p->size, fp_smaller(chunk, cols - first), p->size,
								  out ? out + bytes : nullptr);
	return bytes;
}

static void count_row(packing *p, int64_t row, fp_held_counts *counts)
{
	fp_held_count(counts, row_at(p, row), p->held->cols, p->size);
}

static void measure_row(packing *p, int64_t row, fp_held_counts *)
{
	p->offsets[row] = (uint32_t)(pack_mask(p, row, nullptr) / 16);
}

static void pack_row(packing *p, int64_t row, fp_held_counts *)
{
	int64_t cols = p->held->cols;
	if (p->held->form == FP_HELD_DENSE)
		memcpy(p->values + row * decode_dense_bytes(cols, p->size), row_at(p, row), (size_t)(cols * p->size));
	else if (p->held->form == FP_HELD_TWO_OF_FOUR)
		decode_pack_pairs(row_at(p, row), cols, p->size, p->values + row * decode_pairs_bytes(cols, p->size));
	else
		(void)pack_mask(p, row, p->values + (int64_t)p->offsets[row] * 16);
}

/* Turns the rows' sizes into what lies before them; the last is the sum, *units. */
static fp_status sum_offsets(fp_backend *be, packing *p, int64_t *units)
{
	*units = 0;
	for (int64_t row = 0; row <= p->held->rows; row++) {
		int64_t here = row < p->held->rows ? p->offsets[row] : 0;
		p->offsets[row] = (uint32_t)*units;
		*units += here;
	}
	if (*units > UINT32_MAX)
		return fp_fail(be->ctx, FP_ERROR_MEMORY, "a matrix of %lld × %lld is too large to be compressed",
					   (long long)p->held->rows, (long long)p->held->cols);
	return FP_OK;
}

static fp_status upload_bytes(fp_backend *be, fp_matrix *out, const void *host, int64_t bytes)
{
	FP_OR_RETURN(fp_matrix_new(be, out, 1, bytes, FP_U8));
	return bytes > 0 ? fp_cuda_upload(be, *out, host, FP_U8, bytes) : FP_OK;
}

/* Counts, chooses, packs and uploads. */
static fp_status hold(fp_backend *be, packing *p, fp_held_form form)
{
	host_space offsets, values;
	fp_held *held = p->held;
	int64_t units, offset_bytes = (held->rows + 1) * (int64_t)sizeof *p->offsets;
	fp_held_counts counts = {0, held->cols % 4 == 0};
	for_rows(p, be->threads, count_row, &counts);
	held->nonzeros = counts.nonzeros;
	held->form = form == FP_HELD_SMALLEST ? fp_held_choose(&counts, held->rows, held->cols, p->size) : form;
	if (held->form == FP_HELD_TWO_OF_FOUR && !counts.two_of_four)
		return fp_fail(be->ctx, FP_ERROR_INTERNAL, "%s: the matrix is not 2:4", __func__);
	if (held->form == FP_HELD_MASK) {
		FP_OR_RETURN(offsets.take(be, offset_bytes));
		p->offsets = offsets.as<uint32_t>();
		for_rows(p, be->threads, measure_row, &counts);
		FP_OR_RETURN(sum_offsets(be, p, &units));
		held->bytes = units * 16;
	} else {
		held->bytes = held->rows * (held->form == FP_HELD_DENSE ? decode_dense_bytes(held->cols, p->size)
																: decode_pairs_bytes(held->cols, p->size));
	}
	FP_OR_RETURN(values.take(be, held->bytes));
	p->values = values.as<char>();
	for_rows(p, be->threads, pack_row, &counts);
	FP_OR_RETURN(upload_bytes(be, &held->values, p->values, held->bytes));
	if (held->form == FP_HELD_MASK) {
		held->bytes += offset_bytes;
		FP_OR_RETURN(upload_bytes(be, &held->offsets, p->offsets, offset_bytes));
	}
	return FP_OK;
}

fp_status fp_cuda_hold(fp_backend *be, fp_held *out, fp_matrix W, fp_dtype dtype, fp_held_form form)
{
	*out = fp_held{};
	FP_REQUIRE(be, fp_dtype_is_weight(dtype) && fp_cuda_is_weight(W));
	FP_REQUIRE(be, W.rows <= INT32_MAX / DECODE_STEP && W.cols <= INT32_MAX / DECODE_STEP);
	host_space rows;
	packing p = {};
	p.held = out;
	p.size = fp_dtype_size(dtype);
	FP_OR_RETURN(rows.take(be, W.rows * W.cols * p.size));
	p.rows = rows.as<char>();
	out->dtype = dtype;
	out->rows = W.rows;
	out->cols = W.cols;
	fp_status status = FP_OK;
	if (W.rows > 0 && W.cols > 0)
		status = fp_cuda_download(be, rows.data, dtype, W.cols, W);
	if (status == FP_OK)
		status = hold(be, &p, form);
	if (status == FP_OK) /* products may begin before what is queued has ended, except for copies that have */
		status = be->memory->synchronize(be);
	if (status != FP_OK)
		fp_held_free(be, out);
	return status;
}
