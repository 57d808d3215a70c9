/* SPDX-License-Identifier: Apache-2.0 */
/* Made by make_c4_draws.py with CPython 3.11.7; do not edit. */
#include <stdint.h>

enum { DRAW_DOCUMENTS = 200, DRAW_LENGTH = 80, DRAW_SAMPLES = 12 };

static const struct draws {
	uint64_t seed;
	struct {
		int document, offset;
	} windows[DRAW_SAMPLES];
} c4_draws[] = {
	{0ULL, {{107, 0}, {149, 0}, {136, 5}, {186, 1}, {52, 2}, {102, 0}, {186, 5}, {81, 8}, {31, 1}, {52, 2}, {73, 3}, {152, 12}}},
	{1ULL, {{34, 2}, {115, 3}, {110, 9}, {178, 7}, {68, 11}, {26, 5}, {5, 0}, {55, 13}, {173, 7}, {5, 6}, {47, 10}, {128, 1}}},
	{42ULL, {{26, 10}, {55, 7}, {107, 0}, {178, 6}, {39, 1}, {26, 1}, {186, 7}, {31, 1}, {94, 2}, {68, 11}, {165, 1}, {136, 5}}},
	{1099511627781ULL, {{68, 10}, {34, 7}, {31, 0}, {199, 7}, {73, 1}, {170, 2}, {157, 7}, {199, 2}, {123, 9}, {26, 3}, {73, 0}, {13, 14}}},
};
