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
 * A warp takes some rows one after the other, and reads them as one stream of bytes (cuda_decode_stream.cuh): whatever
 * it needs next comes next in memory, in parts whose sizes are multiples of 16 bytes. A row is
 *
 *     dense    its entries, zeros behind the last
 *     mask     for each chunk: 32 lanes' numbers of granules, one byte each (HALF added if there is a half one); the
 *              gaps of all lanes' first granules and their values; those of the second ones of the lanes that have two,
 *              and so on; the gaps and the values of the half ones.
 *              A granule is GRANULE nonzeros of a lane, and for each the number of columns of the lane that lie between
 *              it and the one before, in four bits. Positions as gaps take four bits for a nonzero, the bits of a mask
 *              two at 50%, but the lane finds all of a granule's columns in a few instructions. A gap of more than 15
 *              has zeros as entries in between; zeros fill the last granule, which is a half one if four entries are
 *              enough.
 *              offsets: where each row begins, in units of 16 bytes, and the end
 *     2:4      for each 1024 columns (two steps): the lanes' positions, 16 bits for each step, and the values, 8 of a
 *              lane in 16 bytes; an odd last step has no second values
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
static inline int64_t decode_dense_bytes(int64_t cols, int64_t size)
{
	return decode_rounded_up(cols * size, 16);
}
/* Of a row of 2:4. */
static inline int64_t decode_pairs_bytes(int64_t cols, int64_t size)
{
	int64_t steps = decode_steps(cols);
	return (steps + 1) / 2 * 128 + steps * 32 * DECODE_GRANULE * size;
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

/* The number of granules of a list, as the row has it. */
static inline uint8_t decode_granules(const decode_list *list)
{
	int rest = list->count % DECODE_GRANULE, whole = list->count / DECODE_GRANULE + (rest > DECODE_GRANULE / 2);
	return (uint8_t)(whole | (rest > 0 && rest <= DECODE_GRANULE / 2 ? DECODE_HALF : 0));
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

/* A chunk of a row at `out`, all zero before, or null: its bytes. Returns them. */
static inline int64_t decode_pack_gaps(const char *row, int64_t cols, int64_t size, char *out)
{
	decode_list lists[32];
	int64_t bytes = 32;
	uint8_t counts[32];
	for (int lane = 0; lane < 32; lane++) {
		decode_list_lane(&lists[lane], row, cols, lane, size);
		counts[lane] = decode_granules(&lists[lane]);
	}
	if (out)
		memcpy(out, counts, 32);
	for (int g = 0; g <= DECODE_LANE_COLUMNS / DECODE_GRANULE; g++) {
		bool halves = g == DECODE_LANE_COLUMNS / DECODE_GRANULE; /* behind all whole ones */
		const int64_t entries = halves ? DECODE_GRANULE / 2 : DECODE_GRANULE;
		int64_t lanes = 0, done = 0;
		for (int lane = 0; lane < 32; lane++)
			lanes += halves ? counts[lane] / DECODE_HALF : g < counts[lane] % DECODE_HALF;
		int64_t gaps = decode_rounded_up(lanes * entries / 2, 16);
		for (int lane = 0; out && lane < 32; lane++) {
			if (!(halves ? counts[lane] / DECODE_HALF : g < counts[lane] % DECODE_HALF))
				continue;
			int first = (halves ? counts[lane] % DECODE_HALF : g) * DECODE_GRANULE;
			char *values = out + bytes + gaps + done * entries * size;
			uint32_t word = decode_pack_granule(&lists[lane], first, (int)entries, row, size, values);
			memcpy(out + bytes + done * entries / 2, &word, (size_t)(entries / 2)); /* little-endian */
			done++;
		}
		bytes += gaps + decode_rounded_up(lanes * entries * size, 16);
	}
	return bytes;
}

/* One row of 2:4, all zero before. */
static inline void decode_pack_pairs(const char *row, int64_t cols, int64_t size, char *packed)
{
	const int64_t values = 32 * DECODE_GRANULE * size;
	for (int64_t step = 0; step < decode_steps(cols); step++) {
		char *both = packed + step / 2 * (128 + 2 * values);
		for (int lane = 0; lane < 32; lane++) {
			uint32_t bits = 0;
			char *out = both + 128 + step % 2 * values + lane * DECODE_GRANULE * size;
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
			uint16_t half = (uint16_t)bits;
			memcpy(both + lane * 4 + step % 2 * 2, &half, 2);
		}
	}
}

#endif
