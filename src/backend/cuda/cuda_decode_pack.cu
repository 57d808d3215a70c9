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

/* The matrix on the host and its parts; every stage goes over the rows once. */
struct packing {
	fp_held *held;
	const char *rows;
	int64_t size; /* bytes of an entry */
	int64_t chunks;
	decode_offsets *offsets; /* granules of each row's chunk, then those before it */
	char *values, *positions;
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

static const char *chunk_at(const packing *p, int64_t row, int64_t chunk, int64_t *cols)
{
	*cols = fp_smaller(DECODE_CHUNK, p->held->cols - chunk * DECODE_CHUNK);
	return p->rows + (row * p->held->cols + chunk * DECODE_CHUNK) * p->size;
}

static void count_row(packing *p, int64_t row, fp_held_counts *counts)
{
	fp_held_count(counts, p->rows + row * p->held->cols * p->size, p->held->cols, p->size);
}

static void count_row_granules(packing *p, int64_t row, fp_held_counts *)
{
	for (int64_t c = 0; c < p->chunks; c++) {
		int64_t cols;
		const char *chunk = chunk_at(p, row, c, &cols);
		p->offsets[row * p->chunks + c] = decode_count_granules(chunk, cols, p->size);
	}
}

static void pack_row(packing *p, int64_t row, fp_held_counts *)
{
	int64_t cols = p->held->cols;
	const char *in = p->rows + row * cols * p->size;
	if (p->held->form == FP_HELD_DENSE) {
		memcpy(p->values + row * decode_rounded_up(cols * p->size, 16), in, (size_t)(cols * p->size));
	} else if (p->held->form == FP_HELD_TWO_OF_FOUR) {
		int64_t steps = decode_steps(cols), words = (steps + 1) / 2 * 32;
		decode_pack_pairs(in, cols, p->size, p->values + row * steps * 32 * DECODE_GRANULE * p->size,
						  (uint32_t *)(void *)p->positions + row * words);
	} else {
		uint32_t *gaps = (uint32_t *)(void *)(p->positions + decode_counts_bytes(p->held->rows, cols));
		uint16_t *half_gaps = (uint16_t *)(void *)(gaps + p->held->whole);
		char *half_values = p->values + p->held->whole * DECODE_GRANULE * p->size;
		for (int64_t c = 0; c < p->chunks; c++) {
			int64_t index = row * p->chunks + c, width;
			decode_offsets before = p->offsets[index];
			const char *chunk = chunk_at(p, row, c, &width);
			decode_pack_gaps(chunk, width, p->size,
							 decode_gap_parts{p->values + (int64_t)before.whole * DECODE_GRANULE * p->size,
											  half_values + (int64_t)before.half * (DECODE_GRANULE / 2) * p->size,
											  gaps + before.whole, half_gaps + before.half,
											  (uint8_t *)p->positions + index * 32});
		}
	}
}

/* Turns numbers of granules into the numbers before them; the last are the sums. */
static fp_status sum_offsets(fp_backend *be, packing *p, int64_t count)
{
	uint64_t whole = 0, half = 0;
	for (int64_t i = 0; i <= count; i++) {
		decode_offsets here = i < count ? p->offsets[i] : decode_offsets{0, 0};
		p->offsets[i] = decode_offsets{(uint32_t)whole, (uint32_t)half};
		whole += here.whole;
		half += here.half;
	}
	if (whole > UINT32_MAX || half > UINT32_MAX)
		return fp_fail(be->ctx, FP_ERROR_MEMORY, "a matrix of %lld × %lld is too large to be compressed",
					   (long long)p->held->rows, (long long)p->held->cols);
	p->held->whole = (int64_t)whole;
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
	host_space offsets, values, positions;
	fp_held *held = p->held;
	int64_t count = held->rows * p->chunks, values_bytes, positions_bytes = 0;
	fp_held_counts counts = {0, held->cols % 4 == 0};
	for_rows(p, be->threads, count_row, &counts);
	held->nonzeros = counts.nonzeros;
	held->form = form == FP_HELD_SMALLEST ? fp_held_choose(&counts, held->rows, held->cols, p->size) : form;
	if (held->form == FP_HELD_TWO_OF_FOUR && !counts.two_of_four)
		return fp_fail(be->ctx, FP_ERROR_INTERNAL, "%s: the matrix is not 2:4", __func__);
	if (held->form == FP_HELD_DENSE) {
		values_bytes = held->rows * decode_rounded_up(held->cols * p->size, 16);
	} else if (held->form == FP_HELD_TWO_OF_FOUR) {
		int64_t steps = decode_steps(held->cols);
		values_bytes = held->rows * steps * 32 * DECODE_GRANULE * p->size;
		positions_bytes = held->rows * ((steps + 1) / 2) * 128;
	} else {
		FP_OR_RETURN(offsets.take(be, (count + 1) * (int64_t)sizeof *p->offsets));
		p->offsets = offsets.as<decode_offsets>();
		for_rows(p, be->threads, count_row_granules, &counts);
		FP_OR_RETURN(sum_offsets(be, p, count));
		decode_offsets all = p->offsets[count];
		values_bytes = ((int64_t)all.whole * DECODE_GRANULE + (int64_t)all.half * (DECODE_GRANULE / 2)) * p->size;
		positions_bytes = decode_counts_bytes(held->rows, held->cols) + (int64_t)all.whole * 4 + (int64_t)all.half * 2;
	}
	FP_OR_RETURN(values.take(be, values_bytes));
	FP_OR_RETURN(positions.take(be, positions_bytes));
	p->values = values.as<char>();
	p->positions = positions.as<char>();
	for_rows(p, be->threads, pack_row, &counts);
	held->bytes = values_bytes + positions_bytes;
	FP_OR_RETURN(upload_bytes(be, &held->values, p->values, values_bytes));
	if (held->form != FP_HELD_DENSE)
		FP_OR_RETURN(upload_bytes(be, &held->positions, p->positions, positions_bytes));
	if (held->form == FP_HELD_MASK) {
		held->bytes += (count + 1) * (int64_t)sizeof *p->offsets;
		FP_OR_RETURN(upload_bytes(be, &held->offsets, p->offsets, (count + 1) * (int64_t)sizeof *p->offsets));
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
	p.chunks = decode_chunks(W.cols);
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
