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
 * So whatever columns the lanes read at once, each reads from a bank of its own. A mask may need x twice (held->copies),
 * the second time in another bank, so that two lanes can read a column:
 *
 *     column of lane and q at [2q·32 + lane] and at [(2q + 1)·32 + (lane + q)%32]
 *
 * A lane then has twice as many places for columns, and a nonzero goes to the lane that has fewer so far. The lanes'
 * numbers of nonzeros, which at 50% differ by 6 in the root mean square, become equal but for one or two.
 *
 * A warp takes some rows one after the other, and reads them as one stream of bytes (cuda_decode_stream.cuh): whatever
 * it needs next comes next in memory. A row is
 *
 *     dense    its entries, zeros behind the last; a multiple of 16 bytes
 *     mask     for each chunk some granules: the lanes' gaps, then their values.
 *              A granule is GRANULE columns of a lane: their values, and for each the number of places of the lane that
 *              lie between it and the one before, in four bits. Positions as gaps take four bits for a nonzero, the bits
 *              of a mask two at 50%, but a lane finds all of a granule's columns in a few instructions. All lanes have
 *              the same number of granules, the one that takes the fewest bytes. A lane with too few nonzeros stores
 *              some zeros too, as it does where a gap would be larger than 15. If a lane has too many, its last ones are
 *              strays: values with their places in the chunk's x, which any lane may multiply. They lie elsewhere
 *              (held->positions), so that a stream has granules only, which are equally long.
 *              offsets: for each chunk of each row, and for the end, how many granules and strays lie before it. If
 *              that costs few bytes, all rows have as many granules in a chunk (held->granules): a warp then knows
 *              where its rows begin without reading it first.
 *     2:4      for each 1024 columns (two steps): the lanes' positions, 16 bits for each step, and the values, 8 of a
 *              lane in 16 bytes; an odd last step has no second values
 */
#ifndef FP_BACKEND_CUDA_DECODE_LAYOUT_CUH
#define FP_BACKEND_CUDA_DECODE_LAYOUT_CUH

#include <stdint.h>
#include <string.h>

enum {
	DECODE_CHUNK = 4096,
	DECODE_LANE_COLUMNS = DECODE_CHUNK / 32,      /* of a chunk */
	DECODE_LANE_PLACES = 2 * DECODE_LANE_COLUMNS, /* the most */
	DECODE_GRANULE = 8,
	DECODE_STEP = 512, /* columns of a granule of all lanes, 2:4 */
	DECODE_MOST_GAP = 15,
	DECODE_EARLY = 3 * 32,          /* strays of a chunk that are read early; more of them cost time */
	DECODE_SAME = 8,                /* the most chunks of rows that have the same granules */
	DECODE_TWICE_ROOM = 208 * 1024, /* bytes of shared memory of a block, with which x may lie there twice */
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

/* The column in a chunk whose copy of x is at [place·32 + lane]. */
__host__ __device__ static inline int64_t decode_column(int lane, int place, int copies)
{
	int q = place / copies;
	if (place % copies == 1)
		lane = (lane - q) & 31;
	return (int64_t)(q / 4) * 128 + lane * 4 + q % 4;
}

static inline bool decode_is_zero(const char *entry, int64_t size)
{
	for (int64_t i = 0; i < size; i++)
		if (entry[i] != 0)
			return false;
	return true;
}

/* --- mask -------------------------------------------------------------------------------------------------------- */

/* Of a chunk of a row, or of all before it. */
struct decode_counts {
	uint32_t granules; /* of each lane */
	uint32_t strays;
};
/* An entry of T anywhere in a chunk. */
template <typename T> struct decode_stray {
	T value;
	uint16_t place; /* of x: place·32 + lane */
};

/* The places of a lane in one chunk that are in a granule. */
struct decode_slots {
	int count; /* of them, also beyond what has room */
	int next;  /* the place behind the last one */
	bool used[DECODE_LANE_PLACES];
	bool nonzero[DECODE_LANE_PLACES];
};

/* How many slots there would be with this place, if it is not one of them. */
static inline int decode_count_with(const decode_slots *slots, int place)
{
	return slots->count + (place - slots->next) / (DECODE_MOST_GAP + 1) + 1;
}

static inline void decode_use_place(decode_slots *slots, int place)
{
	for (; place - slots->next > DECODE_MOST_GAP; slots->next += DECODE_MOST_GAP + 1, slots->count++)
		slots->used[slots->next + DECODE_MOST_GAP] = true;
	slots->count += !slots->used[place]; /* place 2q may come after 2q + 1, and be used to fill a gap */
	slots->used[place] = slots->nonzero[place] = true;
	slots->next = place >= slots->next ? place + 1 : slots->next;
}

/* `row` is the chunk's part of a row, of `cols` entries. */
static inline void decode_find_slots(decode_slots lanes[32], const char *row, int64_t cols, int64_t size, int copies)
{
	memset(lanes, 0, 32 * sizeof *lanes);
	for (int q = 0; q < DECODE_LANE_COLUMNS; q++)
		for (int lane = 0; lane < 32; lane++) {
			int64_t column = decode_column(lane, q, 1);
			if (column >= cols || decode_is_zero(row + column * size, size))
				continue;
			decode_slots *own = &lanes[lane], *other = &lanes[(lane + q) % 32];
			if (copies == 2 && decode_count_with(other, 2 * q + 1) < decode_count_with(own, 2 * q))
				decode_use_place(other, 2 * q + 1);
			else
				decode_use_place(own, copies * q);
		}
}

/* Nonzeros behind the first `room` slots. */
static inline int decode_strays_of(const decode_slots *slots, int room)
{
	int strays = 0, seen = 0;
	for (int place = 0; place < DECODE_LANE_PLACES && slots->count > room; place++) {
		strays += seen >= room && slots->nonzero[place];
		seen += slots->used[place];
	}
	return strays;
}

/* Makes it exactly `room` slots, of which there are no more than places. */
static inline void decode_fill_slots(decode_slots *slots, int room)
{
	for (int place = DECODE_LANE_PLACES - 1; place >= 0 && slots->count > room; place--) {
		slots->count -= slots->used[place];
		slots->used[place] = false;
	}
	for (int place = 0; place < DECODE_LANE_PLACES && slots->count < room; place++) {
		slots->count += !slots->used[place];
		slots->used[place] = true;
	}
}

/* Of a granule of all lanes. */
__host__ __device__ static inline constexpr int64_t decode_granule_bytes(int64_t size)
{
	return 32 * (4 + DECODE_GRANULE * size);
}
/* Of so many granules and strays. */
static inline int64_t decode_mask_bytes(int64_t granules, int64_t strays, int64_t size)
{
	return granules * decode_granule_bytes(size) + strays * 2 * size;
}

/* The lanes' granules; values and gaps of one granule of all lanes at `out`. */
static inline void decode_pack_lane(const decode_slots *slots, const char *row, int lane, int64_t size, int copies,
									char *out)
{
	const int64_t all = decode_granule_bytes(size);
	int slot = 0, next = 0;
	uint32_t gaps = 0;
	for (int place = 0; place < DECODE_LANE_PLACES; place++) {
		if (!slots->used[place])
			continue;
		char *granule = out + slot / DECODE_GRANULE * all;
		int i = slot++ % DECODE_GRANULE;
		gaps |= (uint32_t)(place - next) << (4 * i);
		next = place + 1;
		if (slots->nonzero[place])
			memcpy(granule + 128 + (lane * DECODE_GRANULE + i) * size, row + decode_column(lane, place, copies) * size,
				   (size_t)size);
		if (i == DECODE_GRANULE - 1) {
			memcpy(granule + lane * 4, &gaps, 4);
			gaps = 0;
		}
	}
}

/* The most granules that a chunk of `cols` columns may have; x has zeros behind them. */
static inline int decode_most_granules(int64_t cols)
{
	return (int)(decode_rounded_up(cols, 128) / 32 / DECODE_GRANULE);
}

static inline int64_t decode_count_strays(const decode_slots lanes[32], int granules)
{
	int64_t strays = 0;
	for (int lane = 0; lane < 32; lane++)
		strays += decode_strays_of(&lanes[lane], granules * DECODE_GRANULE);
	return strays;
}

/* A chunk of a row in the fewest bytes. */
static inline decode_counts decode_measure_mask(const decode_slots lanes[32], int64_t cols, int64_t size)
{
	decode_counts best = {0, 0};
	int64_t least = INT64_MAX;
	for (int granules = 0; granules <= decode_most_granules(cols); granules++) {
		int64_t strays = decode_count_strays(lanes, granules), bytes = decode_mask_bytes(granules, strays, size);
		if (bytes < least) {
			least = bytes;
			best = decode_counts{(uint32_t)granules, (uint32_t)strays};
		}
		if (strays == 0)
			break;
	}
	return best;
}

/* Packs a chunk of a row, unless out is null: granules to `out`, strays to `stray`, all zero before. Returns how many.
 * granules: how many it must have; less than zero: those that take the fewest bytes. */
static inline decode_counts decode_pack_mask(const char *row, int64_t cols, int64_t size, int copies, int granules,
											 char *out, char *stray)
{
	decode_slots lanes[32];
	decode_find_slots(lanes, row, cols, size, copies);
	decode_counts counts = granules < 0
							   ? decode_measure_mask(lanes, cols, size)
							   : decode_counts{(uint32_t)granules, (uint32_t)decode_count_strays(lanes, granules)};
	for (int lane = 0; out && lane < 32; lane++) {
		decode_fill_slots(&lanes[lane], (int)counts.granules * DECODE_GRANULE);
		decode_pack_lane(&lanes[lane], row, lane, size, copies, out);
		for (int place = 0; place < DECODE_LANE_PLACES; place++) {
			if (!lanes[lane].nonzero[place] || lanes[lane].used[place])
				continue;
			uint16_t at = (uint16_t)(place * 32 + lane);
			memcpy(stray, row + decode_column(lane, place, copies) * size, (size_t)size);
			memcpy(stray + size, &at, 2);
			stray += 2 * size;
		}
	}
	return counts;
}

/* --- 2:4 --------------------------------------------------------------------------------------------------------- */

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
