/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_decode_layout.cuh: how held weights lie in the memory of a GPU, and how a row is packed.
 *
 * A warp multiplies a row. The columns are cut into chunks of CHUNK, whose part of x fits into shared memory for eight
 * rows of X. Within a chunk a lane owns the groups of four columns whose number is the lane's modulo 32, and numbers
 * its own columns by q:
 *
 *     column of the chunk = q/4·128 + lane·4 + q%4          x is in shared memory at [q·32 + lane]
 *
 * So whatever columns the lanes read at once, each reads from a bank of its own.
 *
 *     dense    values: rows of 16-byte vectors
 *     mask     the lane's nonzeros of a row's chunk in granules of GRANULE: their values, and for each the number of
 *              columns of the lane that lie between it and the one before, in four bits. Positions as gaps take four
 *              bits for a nonzero, the bits of a mask two at 50%, but the lane finds all of a granule's columns in a few
 *              instructions. A gap of more than 15 has zeros as entries in between; zeros fill the last granule, which
 *              is a half one if four entries are enough.
 *              All lanes' first granules lie side by side, then the second ones of those lanes that have two, and so on.
 *              values: all whole granules, then all half ones
 *              positions: for each row and chunk the 32 lanes' numbers of granules (HALF added if there is a half one),
 *              the whole granules' gaps, the half ones' gaps
 *              offsets: for each row and chunk the whole and half granules before it, 32 bits each, and their sums
 *     2:4      the lane's values of 512 columns, 8 of them in 16 bytes, one row after the other
 *              positions: their 16 bits, those of 1024 columns in a word
 */
#ifndef FP_BACKEND_CUDA_DECODE_LAYOUT_CUH
#define FP_BACKEND_CUDA_DECODE_LAYOUT_CUH

#include <stdint.h>
#include <string.h>

enum {
	DECODE_CHUNK = 4096,
	DECODE_LANE_COLUMNS = DECODE_CHUNK / 32, /* of a chunk */
	DECODE_GRANULE = 8,
	DECODE_STEP = 512, /* columns of a granule of all lanes, 2:4 */
	DECODE_MOST_GAP = 15,
	DECODE_HALF = 0x80,
};

static inline int64_t decode_rounded_up(int64_t n, int64_t unit)
{
	return (n + unit - 1) / unit * unit;
}
static inline int64_t decode_chunks(int64_t cols)
{
	return (cols + DECODE_CHUNK - 1) / DECODE_CHUNK;
}
static inline int64_t decode_steps(int64_t cols)
{
	return (cols + DECODE_STEP - 1) / DECODE_STEP;
}
/* Bytes of the numbers of granules, before the gaps. */
static inline int64_t decode_counts_bytes(int64_t rows, int64_t cols)
{
	return rows * decode_chunks(cols) * 32;
}

/* Column of lane and q in a chunk. */
static inline int64_t decode_column(int lane, int q)
{
	return (int64_t)(q / 4) * 128 + lane * 4 + q % 4;
}

static inline bool decode_is_zero(const char *entry, int64_t size)
{
	for (int64_t i = 0; i < size; i++)
		if (entry[i] != 0)
			return false;
	return true;
}

/* A lane's entries of one chunk: columns q with their values' places, fillers among them. */
struct decode_list {
	int count;
	uint8_t gap[DECODE_LANE_COLUMNS];
	int16_t column[DECODE_LANE_COLUMNS]; /* of the chunk; −1: a zero that fills */
};

/* `row` is the chunk's part of a row, of `cols` entries. */
static inline void decode_list_lane(decode_list *list, const char *row, int64_t cols, int lane, int64_t size)
{
	int next = 0; /* the q behind the last entry */
	list->count = 0;
	for (int q = 0; q < DECODE_LANE_COLUMNS; q++) {
		int64_t column = decode_column(lane, q);
		if (column >= cols || decode_is_zero(row + column * size, size))
			continue;
		for (; q - next > DECODE_MOST_GAP; next += DECODE_MOST_GAP + 1) {
			list->gap[list->count] = DECODE_MOST_GAP;
			list->column[list->count++] = -1;
		}
		list->gap[list->count] = (uint8_t)(q - next);
		list->column[list->count++] = (int16_t)column;
		next = q + 1;
	}
}

/* Granules. */
struct decode_offsets {
	uint32_t whole, half;
};

/* The number of granules of a list, as `counts` has it. */
static inline uint8_t decode_granules(const decode_list *list)
{
	int rest = list->count % DECODE_GRANULE, whole = list->count / DECODE_GRANULE + (rest > DECODE_GRANULE / 2);
	return (uint8_t)(whole | (rest > 0 && rest <= DECODE_GRANULE / 2 ? DECODE_HALF : 0));
}

/* Granules of a row's chunk. */
static inline decode_offsets decode_count_granules(const char *row, int64_t cols, int64_t size)
{
	decode_offsets total = {0, 0};
	for (int lane = 0; lane < 32; lane++) {
		decode_list list;
		decode_list_lane(&list, row, cols, lane, size);
		uint8_t count = decode_granules(&list);
		total.whole += count & ~DECODE_HALF;
		total.half += count / DECODE_HALF;
	}
	return total;
}

/* Entries [first, first + most) of a list; returns their gaps. */
static inline uint32_t decode_pack_granule(const decode_list *list, int first, int most, const char *row, int64_t size,
										   char *values)
{
	uint32_t gaps = 0;
	for (int i = first; i < first + most && i < list->count; i++) {
		gaps |= (uint32_t)list->gap[i] << (4 * (i - first));
		if (list->column[i] >= 0)
			memcpy(values + (i - first) * size, row + list->column[i] * size, (size_t)size);
	}
	return gaps;
}

/* Where a chunk's granules begin; all zero before. */
struct decode_gap_parts {
	char *values, *half_values;
	uint32_t *gaps;
	uint16_t *half_gaps;
	uint8_t *counts; /* 32 */
};

static inline void decode_pack_gaps(const char *row, int64_t cols, int64_t size, decode_gap_parts out)
{
	decode_list lists[32];
	for (int lane = 0; lane < 32; lane++) {
		decode_list_lane(&lists[lane], row, cols, lane, size);
		out.counts[lane] = decode_granules(&lists[lane]);
	}
	for (int g = 0; g < DECODE_LANE_COLUMNS / DECODE_GRANULE; g++)
		for (int lane = 0; lane < 32; lane++) {
			if (g >= (out.counts[lane] & ~DECODE_HALF))
				continue;
			*out.gaps++ = decode_pack_granule(&lists[lane], g * DECODE_GRANULE, DECODE_GRANULE, row, size, out.values);
			out.values += DECODE_GRANULE * size;
		}
	for (int lane = 0; lane < 32; lane++) {
		if (!(out.counts[lane] & DECODE_HALF))
			continue;
		int first = (out.counts[lane] & ~DECODE_HALF) * DECODE_GRANULE;
		*out.half_gaps++ =
			(uint16_t)decode_pack_granule(&lists[lane], first, DECODE_GRANULE / 2, row, size, out.half_values);
		out.half_values += DECODE_GRANULE / 2 * size;
	}
}

/* One row of 2:4. values: steps × 32 granules; positions: a word for each two steps and lane; all zero before. */
static inline void decode_pack_pairs(const char *row, int64_t cols, int64_t size, char *values, uint32_t *positions)
{
	for (int64_t step = 0; step < decode_steps(cols); step++)
		for (int lane = 0; lane < 32; lane++) {
			uint32_t bits = 0;
			char *out = values + (step * 32 + lane) * DECODE_GRANULE * size;
			for (int group = 0; group < 4; group++) {
				int64_t first = step * DECODE_STEP + group * 128 + lane * 4;
				int place[2] = {0, 1}, found = 0;
				for (int j = 0; j < 4 && found < 2 && first < cols; j++)
					if (!decode_is_zero(row + (first + j) * size, size))
						place[found++] = j;
				if (found == 1) { /* a zero of the same group completes the pair */
					place[1] = place[0] == 3 ? 3 : place[0] + 1;
					place[0] = place[0] == 3 ? 2 : place[0];
				} else if (found == 0) {
					place[0] = 0;
				}
				bits |= (uint32_t)(place[0] | place[1] << 2) << (4 * group);
				for (int i = 0; i < 2 && first < cols; i++)
					memcpy(out + (group * 2 + i) * size, row + (first + place[i]) * size, (size_t)size);
			}
			positions[step / 2 * 32 + lane] |= bits << (16 * (step % 2));
		}
}

#endif
