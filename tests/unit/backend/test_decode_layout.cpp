/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that are packed as a mask for a GPU hold every nonzero once, at its column. Needs no GPU: packing is the host's. */
#define __host__
#define __device__
#include "backend/cuda/cuda_decode_layout.cuh"

#include <random>
#include <vector>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

struct chunk {
	int64_t size, cols; /* bytes of an entry, and entries */
	std::vector<char> row;
	chunk(std::mt19937 &random, int64_t bytes, int64_t count, double density)
		: size(bytes), cols(count), row((size_t)(bytes * count))
	{
		for (int64_t i = 0; i < cols; i++)
			if (std::uniform_real_distribution<>()(random) < density)
				row[(size_t)(i * size + size - 1)] = (char)(1 + random() % 100);
	}
};

/* The entry of lane and place of a layout; none may have one yet. */
static void put(std::vector<char> &row, const chunk &c, int lane, int place, int copies, const char *entry)
{
	int64_t column = decode_column(lane, place, copies);
	if (decode_is_zero(entry, c.size))
		return;
	assert_true(column < c.cols && decode_is_zero(&row[(size_t)(column * c.size)], c.size));
	memcpy(&row[(size_t)(column * c.size)], entry, (size_t)c.size);
}

static void expect_packed(const chunk &c, int copies, int granules)
{
	decode_counts counts = decode_pack_mask(c.row.data(), c.cols, c.size, copies, granules, nullptr, nullptr);
	std::vector<char> packed((size_t)decode_mask_bytes(counts.granules, 0, c.size) + 1);
	std::vector<char> strays((size_t)decode_mask_bytes(0, counts.strays, c.size) + 1);
	decode_counts again =
		decode_pack_mask(c.row.data(), c.cols, c.size, copies, granules, packed.data(), strays.data());
	assert_true(again.granules == counts.granules && again.strays == counts.strays);
	assert_true(packed.back() == 0 && strays.back() == 0); /* nothing behind the end */
	std::vector<char> row(c.row.size());
	for (int lane = 0; lane < 32; lane++) {
		int place = 0;
		for (unsigned g = 0; g < counts.granules; g++) {
			const char *granule = &packed[(size_t)(g * decode_granule_bytes(c.size))];
			uint32_t gaps;
			memcpy(&gaps, granule + lane * 4, 4);
			for (int i = 0; i < DECODE_GRANULE; i++, place++) {
				place += gaps >> (4 * i) & 15;
				assert_true(place < copies * DECODE_LANE_COLUMNS);
				put(row, c, lane, place, copies, granule + 128 + (lane * DECODE_GRANULE + i) * c.size);
			}
		}
	}
	for (unsigned i = 0; i < counts.strays; i++) {
		const char *stray = &strays[(size_t)(i * 2 * c.size)];
		uint16_t at;
		memcpy(&at, stray + c.size, 2);
		put(row, c, at % 32, at / 32, copies, stray);
	}
	assert_true(row == c.row);
}

static void holds_every_nonzero(void **)
{
	std::mt19937 random(1);
	static const int64_t widths[] = {1, 31, 128, 300, 768, 2047, DECODE_CHUNK};
	static const double densities[] = {0, 0.01, 0.1, 0.3, 0.5, 0.9, 1};
	for (int64_t cols : widths)
		for (double density : densities)
			for (int64_t size = 2; size <= 4; size += 2)
				for (int copies = 1; copies <= 2; copies++) {
					chunk c(random, size, cols, density);
					expect_packed(c, copies, -1);
					for (int granules = 0; granules <= decode_most_granules(cols); granules += 3)
						expect_packed(c, copies, granules);
				}
}

/* What the second copy of x is for. */
static void two_copies_leave_few_strays(void **)
{
	std::mt19937 random(2);
	int64_t strays[3] = {0, 0, 0};
	for (int row = 0; row < 50; row++) {
		chunk c(random, 2, DECODE_CHUNK, 0.5);
		for (int copies = 1; copies <= 2; copies++)
			strays[copies] += decode_pack_mask(c.row.data(), c.cols, c.size, copies, 8, nullptr, nullptr).strays;
	}
	assert_true(3 * strays[2] < strays[1]);
}

int main()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(holds_every_nonzero),
		cmocka_unit_test(two_copies_leave_few_strays),
	};
	return cmocka_run_group_tests(tests, nullptr, nullptr);
}
