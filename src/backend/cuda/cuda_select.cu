/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_select.cu: selects exactly the k smallest magnitudes by radix selection, without a sort and without the host.
 *
 * The order of |x| is that of its bits without the sign. Three passes over digits of 11, 10 and 10 bits build a
 * histogram of the entries that share the digits found so far, and find the bin of the k-th smallest. After the last
 * pass the threshold is known exactly, and so is the number of entries equal to it that must be pruned. Among these the
 * first in memory are pruned: chunks count their ties, a scan gives the number of ties before each chunk, and only the
 * chunk in which the count runs out ranks its ties in order.
 */
#include "backend/cuda/cuda_keys.cuh"

enum { THREADS = 256, DIGITS = 3, BINS = 2048, PER_THREAD = 16, CHUNK = THREADS * PER_THREAD };

struct digit {
	int shift;
	unsigned last; /* bins − 1 */
};

__host__ __device__ static inline digit digit_of(int index)
{
	return index == 0 ? digit{20, 2047} : index == 1 ? digit{10, 1023} : digit{0, 1023};
}

/* What is known of the threshold; in device memory. */
struct selection {
	unsigned prefix, known; /* the digits found so far, and a mask of their bits */
	long long left;         /* how many of the entries that match the prefix are pruned */
};

/* A matrix of scores; entry e of the chunked order is row e / cols, column e % cols. */
struct scores {
	const float *x;
	int64_t rows, cols, stride;
	__device__ inline float at(int64_t entry) const
	{
		if (stride == cols)
			return x[entry];
		int64_t row = entry / cols;
		return x[row * stride + entry - row * cols];
	}
};

__global__ static void start_kernel(selection *s, long long zeros, unsigned long long *bins)
{
	if (threadIdx.x == 0)
		*s = selection{0, 0, zeros};
	for (int b = threadIdx.x; b < BINS; b += blockDim.x)
		bins[b] = 0;
}

__global__ static void count_kernel(scores x, const selection *s, digit d, unsigned long long *bins)
{
	__shared__ unsigned own[BINS];
	for (int b = threadIdx.x; b < BINS; b += THREADS)
		own[b] = 0;
	__syncthreads();
	unsigned prefix = s->prefix, known = s->known;
	int64_t total = x.rows * x.cols;
	for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < total; e += (int64_t)gridDim.x * THREADS) {
		unsigned key = fp_cuda_key(x.at(e));
		if ((key & known) == prefix)
			atomicAdd(&own[key >> d.shift & d.last], 1U);
	}
	__syncthreads();
	for (int b = threadIdx.x; b < BINS; b += THREADS)
		if (own[b])
			atomicAdd(&bins[b], (unsigned long long)own[b]);
}

/* Finds the bin of the left-th smallest and clears the bins for the next digit. One block of THREADS. */
__device__ static void find_digit(selection *s, digit d, unsigned long long *bins, unsigned long long *sums)
{
	const int per = BINS / THREADS;
	unsigned long long own = 0;
	for (int k = 0; k < per; k++)
		own += bins[threadIdx.x * per + k];
	sums[threadIdx.x] = own;
	__syncthreads();
	if (threadIdx.x == 0) {
		long long left = s->left;
		int owner = 0;
		while (owner + 1 < THREADS && (long long)sums[owner] < left)
			left -= (long long)sums[owner++];
		unsigned bin = (unsigned)(owner * per);
		while (bin < d.last && (long long)bins[bin] < left)
			left -= (long long)bins[bin++];
		s->left = left;
		s->prefix |= bin << d.shift;
		s->known |= d.last << d.shift;
	}
	__syncthreads();
	for (int k = 0; k < per; k++)
		bins[threadIdx.x * per + k] = 0;
	__syncthreads();
}

__global__ static void find_digit_kernel(selection *s, digit d, unsigned long long *bins)
{
	__shared__ unsigned long long sums[THREADS];
	find_digit(s, d, bins, sums);
}

/* ties[chunk] ← entries equal to the threshold */
__global__ static void ties_kernel(scores x, const selection *s, int64_t chunks, unsigned *ties)
{
	__shared__ unsigned shared[33];
	unsigned threshold = s->prefix;
	int64_t total = x.rows * x.cols;
	for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
		unsigned count = 0;
		for (int k = 0; k < PER_THREAD; k++) {
			int64_t e = c * CHUNK + k * THREADS + threadIdx.x;
			count += e < total && fp_cuda_key(x.at(e)) == threshold;
		}
		count = fp_cuda_block_sum(count, shared);
		if (threadIdx.x == 0)
			ties[c] = count;
	}
}

/* before[chunk] ← ties of the chunks before it. One block. */
__global__ static void scan_kernel(const unsigned *ties, int64_t chunks, long long *before)
{
	__shared__ long long sums[1024];
	int64_t per = (chunks + 1023) / 1024, first = per * threadIdx.x;
	long long own = 0;
	for (int64_t c = first; c < first + per && c < chunks; c++)
		own += ties[c];
	sums[threadIdx.x] = own;
	__syncthreads();
	for (int offset = 1; offset < 1024; offset *= 2) {
		long long value = (int)threadIdx.x >= offset ? sums[threadIdx.x - offset] : 0;
		__syncthreads();
		sums[threadIdx.x] += value;
		__syncthreads();
	}
	long long running = sums[threadIdx.x] - own;
	for (int64_t c = first; c < first + per && c < chunks; c++) {
		before[c] = running;
		running += ties[c];
	}
}

/* Returns the number of earlier threads of the block with `mine`; *total ← the number of all such threads. */
__device__ static inline int rank_in_block(bool mine, int *warps, int *total)
{
	unsigned votes = __ballot_sync(0xffffffffU, mine);
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = __popc(votes & ((1U << lane) - 1)), sum = 0;
	if (lane == 0)
		warps[warp] = __popc(votes);
	__syncthreads();
	for (int w = 0; w < THREADS / 32; w++) {
		rank += w < warp ? warps[w] : 0;
		sum += warps[w];
	}
	__syncthreads();
	*total = sum;
	return rank;
}

__global__ static void write_kernel(scores x, const selection *s, const long long *before, int64_t chunks,
									uint8_t *mask, int64_t mask_stride)
{
	__shared__ int warps[THREADS / 32];
	unsigned threshold = s->prefix;
	int64_t total = x.rows * x.cols;
	for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
		long long left = s->left - before[c]; /* ties that this chunk has to prune */
		bool ordered = left > 0 && left < CHUNK;
		for (int k = 0; k < PER_THREAD; k++) {
			int64_t e = c * CHUNK + k * THREADS + threadIdx.x;
			unsigned key = e < total ? fp_cuda_key(x.at(e)) : 0xffffffffU;
			bool tie = key == threshold;
			long long rank = 0;
			int among = 0;
			if (ordered)
				rank = rank_in_block(tie, warps, &among);
			if (e < total) {
				int64_t row = e / x.cols;
				mask[row * mask_stride + e - row * x.cols] = key < threshold || (tie && rank < left) ? 0 : 1;
			}
			left -= among;
		}
	}
}

fp_status fp_cuda_prune_smallest(fp_backend *be, const float *data, int64_t stride, int64_t rows, int64_t cols,
								 int64_t zeros, uint8_t *mask, int64_t mask_stride)
{
	int64_t total = rows * cols;
	if (total == 0)
		return FP_OK;
	if (zeros <= 0 || zeros >= total) {
		uint8_t all = zeros <= 0 ? 1 : 0;
		return fp_cuda_map(be, rows, cols, false,
						   [=] __device__(int64_t i, int64_t j) { mask[i * mask_stride + j] = all; });
	}
	fp_cuda_state *state = fp_cuda_state_of(be);
	int64_t chunks = (total + CHUNK - 1) / CHUNK;
	fp_cuda_scratch space;
	FP_OR_RETURN(space.take(be, 64 + BINS * 8 + chunks * 12));
	selection *s = space.as<selection>();
	unsigned long long *bins = (unsigned long long *)(space.as<char>() + 64);
	long long *before = (long long *)(bins + BINS);
	unsigned *ties = (unsigned *)(before + chunks);
	scores x = {data, rows, cols, rows <= 1 ? cols : stride};
	unsigned grid = (unsigned)fp_smaller(chunks, (int64_t)state->processors * 8);
	start_kernel<<<1, THREADS, 0, state->stream>>>(s, zeros, bins);
	for (int d = 0; d < DIGITS; d++) {
		count_kernel<<<grid, THREADS, 0, state->stream>>>(x, s, digit_of(d), bins);
		find_digit_kernel<<<1, THREADS, 0, state->stream>>>(s, digit_of(d), bins);
	}
	ties_kernel<<<grid, THREADS, 0, state->stream>>>(x, s, chunks, ties);
	scan_kernel<<<1, 1024, 0, state->stream>>>(ties, chunks, before);
	write_kernel<<<grid, THREADS, 0, state->stream>>>(x, s, before, chunks, mask, mask_stride);
	FP_LAUNCHED(be);
	return FP_OK;
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

/* A block for each row, its bins in shared memory. */
__global__ static void row_kernel(scores x, long long zeros, uint8_t *mask, int64_t mask_stride)
{
	__shared__ unsigned long long bins[BINS];
	__shared__ unsigned long long sums[THREADS];
	__shared__ selection s;
	__shared__ int warps[THREADS / 32];
	for (int64_t i = blockIdx.x; i < x.rows; i += gridDim.x) {
		const float *row = x.x + i * x.stride;
		for (int b = threadIdx.x; b < BINS; b += THREADS)
			bins[b] = 0;
		if (threadIdx.x == 0)
			s = selection{0, 0, zeros};
		__syncthreads();
		for (int index = 0; index < DIGITS; index++) {
			digit d = digit_of(index);
			unsigned prefix = s.prefix, known = s.known;
			for (int64_t j = threadIdx.x; j < x.cols; j += THREADS) {
				unsigned key = fp_cuda_key(row[j]);
				if ((key & known) == prefix)
					atomicAdd(&bins[key >> d.shift & d.last], 1ULL);
			}
			__syncthreads();
			find_digit(&s, d, bins, sums);
		}
		long long left = s.left;
		unsigned threshold = s.prefix;
		for (int64_t begin = 0; begin < x.cols; begin += THREADS) {
			int64_t j = begin + threadIdx.x;
			unsigned key = j < x.cols ? fp_cuda_key(row[j]) : 0xffffffffU;
			int among;
			int rank = rank_in_block(key == threshold, warps, &among);
			if (j < x.cols)
				mask[i * mask_stride + j] = key < threshold || (key == threshold && rank < left) ? 0 : 1;
			left -= among;
		}
		__syncthreads();
	}
}

fp_status fp_cuda_mask_rows(fp_backend *be, fp_matrix score, const fp_pattern *pattern, fp_matrix mask)
{
	FP_REQUIRE(be, fp_cuda_is_f32(score) && fp_cuda_is_u8(mask) && fp_cuda_same_shape(score, mask));
	FP_REQUIRE(be, pattern->group == 0);
	int64_t zeros = fp_pattern_zeros(pattern, score.cols);
	if (fp_matrix_size(score) == 0)
		return FP_OK;
	if (zeros <= 0 || zeros >= score.cols)
		return fp_cuda_fill(be, mask, zeros <= 0 ? 1.0f : 0.0f);
	scores x = {fp_cuda_floats(score), score.rows, score.cols, score.stride};
	row_kernel<<<(unsigned)fp_smaller(score.rows, 65535), THREADS, 0, fp_cuda_stream(be)>>>(
		x, zeros, fp_cuda_bytes(mask), mask.stride);
	FP_LAUNCHED(be);
	return FP_OK;
}

/* --- groups ------------------------------------------------------------------------------------------------------- */

/* The thread of an entry counts the entries of its group that rank above it. */
static fp_status mask_groups(fp_backend *be, fp_matrix score, const fp_pattern *pattern, fp_matrix mask)
{
	const float *x = fp_cuda_floats(score);
	uint8_t *m = fp_cuda_bytes(mask);
	int64_t xs = score.stride, ms = mask.stride, cols = score.cols, group = pattern->group, kept = pattern->kept;
	return fp_cuda_map(be, score.rows, cols, false, [=] __device__(int64_t i, int64_t j) {
		int64_t begin = j / group * group, size = cols - begin < group ? cols - begin : group;
		int64_t keep = (kept * size + group - 1) / group, ahead = 0;
		const float *first = x + i * xs + begin;
		unsigned key = fp_cuda_key(x[i * xs + j]);
		for (int64_t k = 0; k < size; k++) {
			unsigned other = fp_cuda_key(first[k]);
			ahead += other > key || (other == key && begin + k < j);
		}
		m[i * ms + j] = ahead < keep ? 1 : 0;
	});
}

/* N:4, one group per thread. */
static fp_status mask_fours(fp_backend *be, fp_matrix score, int kept, fp_matrix mask)
{
	const float *x = fp_cuda_floats(score);
	uint8_t *m = fp_cuda_bytes(mask);
	int64_t xs = score.stride, ms = mask.stride;
	bool flat = fp_cuda_is_contiguous(score) && fp_cuda_is_contiguous(mask);
	return fp_cuda_map(be, score.rows, score.cols / 4, flat, [=] __device__(int64_t i, int64_t j) {
		float4 four = *(const float4 *)(x + i * xs + 4 * j);
		*(unsigned *)(m + i * ms + 4 * j) = fp_cuda_keep_of_four(four, kept);
	});
}

fp_status fp_cuda_mask_smallest(fp_backend *be, fp_matrix score, const fp_pattern *pattern, fp_matrix mask)
{
	FP_REQUIRE(be, fp_cuda_is_f32(score) && fp_cuda_is_u8(mask) && fp_cuda_same_shape(score, mask));
	FP_REQUIRE(be, pattern->group >= 0 && pattern->kept >= 0 && pattern->kept <= pattern->group);
	if (fp_matrix_size(score) == 0)
		return FP_OK;
	if (pattern->group == 0)
		return fp_cuda_prune_smallest(be, fp_cuda_floats(score), score.stride, score.rows, score.cols,
									  fp_pattern_zeros(pattern, fp_matrix_size(score)), fp_cuda_bytes(mask),
									  mask.stride);
	bool aligned = score.cols % 4 == 0 && score.stride % 4 == 0 && mask.stride % 4 == 0 &&
				   (uintptr_t)fp_cuda_floats(score) % 16 == 0 && (uintptr_t)fp_cuda_bytes(mask) % 4 == 0;
	if (pattern->group == 4 && aligned)
		return mask_fours(be, score, (int)pattern->kept, mask);
	return mask_groups(be, score, pattern, mask);
}
