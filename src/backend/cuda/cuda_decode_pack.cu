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
	int64_t size;          /* bytes of an entry */
	int64_t chunks;        /* of a row of a mask */
	bool same;             /* all rows of a mask have held->granules; else what takes the fewest bytes */
	decode_counts *counts; /* of a mask: those of each chunk, then those before it */
	char *values, *strays;
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

static int64_t chunk_columns(const packing *p, int64_t chunk)
{
	return fp_smaller(DECODE_CHUNK, p->held->cols - chunk * DECODE_CHUNK);
}

/* Chunks of a row of a mask, measured or packed. */
static void pack_mask(packing *p, int64_t row, bool measure)
{
	for (int64_t chunk = 0; chunk < p->chunks; chunk++) {
		decode_counts *counts = p->counts + row * p->chunks + chunk;
		const char *entries = row_at(p, row) + chunk * DECODE_CHUNK * p->size;
		int granules = p->same ? p->held->granules[chunk] : -1;
		char *out = measure ? nullptr : p->values + decode_mask_bytes(counts->granules, 0, p->size);
		char *strays = measure ? nullptr : p->strays + decode_mask_bytes(0, counts->strays, p->size);
		decode_counts found =
			decode_pack_mask(entries, chunk_columns(p, chunk), p->size, p->held->copies, granules, out, strays);
		if (measure)
			*counts = found;
	}
}

static void count_row(packing *p, int64_t row, fp_held_counts *counts)
{
	fp_held_count(counts, row_at(p, row), p->held->cols, p->size);
}

static void measure_row(packing *p, int64_t row, fp_held_counts *)
{
	pack_mask(p, row, true);
}

static void pack_row(packing *p, int64_t row, fp_held_counts *)
{
	int64_t cols = p->held->cols;
	if (p->held->form == FP_HELD_DENSE)
		memcpy(p->values + row * decode_dense_bytes(cols, p->size), row_at(p, row), (size_t)(cols * p->size));
	else if (p->held->form == FP_HELD_TWO_OF_FOUR)
		decode_pack_pairs(row_at(p, row), cols, p->size, p->values + row * decode_pairs_bytes(cols, p->size));
	else
		pack_mask(p, row, false);
}

/* Turns the counts into what lies before them; the last are the sums, also in *granules and *strays. */
static fp_status sum_counts(fp_backend *be, packing *p, int64_t *granules, int64_t *strays)
{
	int64_t units = p->held->rows * p->chunks;
	*granules = *strays = 0;
	for (int64_t i = 0; i <= units; i++) {
		decode_counts here = i < units ? p->counts[i] : decode_counts{0, 0};
		p->counts[i] = decode_counts{(uint32_t)*granules, (uint32_t)*strays};
		*granules += here.granules;
		*strays += here.strays;
	}
	if (*granules > UINT32_MAX || *strays > UINT32_MAX)
		return fp_fail(be->ctx, FP_ERROR_MEMORY, "a matrix of %lld × %lld is too large to be compressed",
					   (long long)p->held->rows, (long long)p->held->cols);
	return FP_OK;
}

/*
 * Chooses how many granules all rows have in one chunk, from some of the rows. *bytes += what that takes, *fewest += what
 * the best for each row would take. Granules are read two at a time, and strays beyond the early ones wait for memory:
 * an odd number costs a quarter of a granule, and a late stray twice its bytes.
 */
static void choose_granules(packing *p, int64_t chunk, double *bytes, double *fewest)
{
	const int64_t samples = fp_smaller(p->held->rows, 64), granule = decode_granule_bytes(p->size);
	const int most = decode_most_granules(chunk_columns(p, chunk));
	double cost[DECODE_LANE_COLUMNS / DECODE_GRANULE + 1] = {0}, taken[DECODE_LANE_COLUMNS / DECODE_GRANULE + 1] = {0};
	int best = 0;
	for (int64_t i = 0; i < samples; i++) {
		const char *entries = row_at(p, p->held->rows * i / samples) + chunk * DECODE_CHUNK * p->size;
		decode_slots lanes[32];
		double least = 0;
		decode_find_slots(lanes, entries, chunk_columns(p, chunk), p->size, p->held->copies);
		for (int g = 0; g <= most; g++) {
			int64_t strays = decode_count_strays(lanes, g), late = fp_larger(strays - DECODE_EARLY, 0);
			double own = (double)decode_mask_bytes(g, strays, p->size);
			taken[g] += own;
			cost[g] += own + (double)(g % 2 * granule / 4 + decode_mask_bytes(0, late, p->size));
			least = g == 0 || own < least ? own : least;
		}
		*fewest += least;
	}
	for (int g = 1; g <= most; g++)
		best = cost[g] < cost[best] ? g : best;
	p->held->granules[chunk] = (uint8_t)best;
	*bytes += taken[best];
}

/* Chooses the granules of all chunks for so many copies of x; sets p->same, held->copies and held->granules. Returns what
 * some of the rows take. */
static double choose_layout(packing *p, int copies)
{
	const double worth = 1.03;
	double bytes = 0, fewest = 0;
	p->held->copies = copies;
	for (int64_t chunk = 0; chunk < p->chunks; chunk++)
		choose_granules(p, chunk, &bytes, &fewest);
	p->same = bytes <= worth * fewest;
	if (!p->same)
		memset(p->held->granules, 0, sizeof p->held->granules);
	return p->same ? bytes : fewest;
}

/* Measures all chunks. Where it costs few bytes, all rows get as many granules. *granules and *strays ← of all */
static fp_status measure_mask(fp_backend *be, packing *p, int64_t *granules, int64_t *strays)
{
	int room = 0;
	fp_held_counts unused = {};
	FP_CUDA(be, cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, fp_cuda_state_of(be)->device));
	p->held->copies = 1;
	if (p->chunks <= DECODE_SAME) {
		double once = choose_layout(p, 1);
		if (room >= DECODE_TWICE_ROOM && choose_layout(p, 2) >= once)
			choose_layout(p, 1);
	}
	for_rows(p, be->threads, measure_row, &unused);
	return sum_counts(be, p, granules, strays);
}

static fp_status upload_bytes(fp_backend *be, fp_matrix *out, const void *host, int64_t bytes)
{
	FP_OR_RETURN(fp_matrix_new(be, out, 1, bytes, FP_U8));
	return bytes > 0 ? fp_cuda_upload(be, *out, host, FP_U8, bytes) : FP_OK;
}

/* Counts, chooses, packs and uploads. */
static fp_status hold(fp_backend *be, packing *p, fp_held_form form)
{
	host_space offsets, values, behind;
	fp_held *held = p->held;
	int64_t granules = 0, strays = 0;
	p->chunks = decode_chunks(held->cols);
	int64_t offset_bytes = (held->rows * p->chunks + 1) * (int64_t)sizeof *p->counts;
	fp_held_counts counts = {0, held->cols % 4 == 0};
	for_rows(p, be->threads, count_row, &counts);
	held->nonzeros = counts.nonzeros;
	held->form = form == FP_HELD_SMALLEST ? fp_held_choose(&counts, held->rows, held->cols, p->size) : form;
	if (held->form == FP_HELD_TWO_OF_FOUR && !counts.two_of_four)
		return fp_fail(be->ctx, FP_ERROR_INTERNAL, "%s: the matrix is not 2:4", __func__);
	if (held->form == FP_HELD_MASK) {
		FP_OR_RETURN(offsets.take(be, offset_bytes));
		p->counts = offsets.as<decode_counts>();
		FP_OR_RETURN(measure_mask(be, p, &granules, &strays));
		held->bytes = decode_mask_bytes(granules, 0, p->size);
	} else {
		held->bytes = held->rows * (held->form == FP_HELD_DENSE ? decode_dense_bytes(held->cols, p->size)
																: decode_pairs_bytes(held->cols, p->size));
	}
	FP_OR_RETURN(values.take(be, held->bytes));
	FP_OR_RETURN(behind.take(be, decode_mask_bytes(0, strays, p->size)));
	p->values = values.as<char>();
	p->strays = behind.as<char>();
	for_rows(p, be->threads, pack_row, &counts);
	FP_OR_RETURN(upload_bytes(be, &held->values, p->values, held->bytes));
	if (held->form == FP_HELD_MASK) {
		held->bytes += offset_bytes + decode_mask_bytes(0, strays, p->size);
		FP_OR_RETURN(upload_bytes(be, &held->positions, p->strays, decode_mask_bytes(0, strays, p->size)));
		FP_OR_RETURN(upload_bytes(be, &held->offsets, p->counts, offset_bytes));
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
