/* SPDX-License-Identifier: Apache-2.0 */
/* MT19937 (Matsumoto and Nishimura, 1998) with the seeding by an array and the draws of CPython's random module. */
#include "base/mersenne.h"

enum { SIZE = 624, MIDDLE = 397 };

static void seed_by_number(fp_mersenne *random, uint32_t seed)
{
	uint32_t *state = random->state;
	state[0] = seed;
	for (uint32_t i = 1; i < SIZE; i++)
		state[i] = 1812433253U * (state[i - 1] ^ (state[i - 1] >> 30)) + i;
	random->index = SIZE;
}

void fp_mersenne_seed(fp_mersenne *random, uint64_t seed)
{
	/* CPython seeds with the 32-bit digits of the number, least significant first; zero has one digit. */
	const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
	const uint32_t length = key[1] ? 2 : 1;
	uint32_t *state = random->state;
	seed_by_number(random, 19650218U);

	uint32_t i = 1, j = 0;
	for (int k = 0; k < SIZE; k++) {
		state[i] = (state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30)) * 1664525U)) + key[j] + j;
		if (++i == SIZE) {
			state[0] = state[SIZE - 1];
			i = 1;
		}
		if (++j == length)
			j = 0;
	}
	for (int k = 0; k < SIZE - 1; k++) {
		state[i] = (state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30)) * 1566083941U)) - i;
		if (++i == SIZE) {
			state[0] = state[SIZE - 1];
			i = 1;
		}
	}
	state[0] = 0x80000000U;
}

static void refill(fp_mersenne *random)
{
	uint32_t *state = random->state;
	for (int i = 0; i < SIZE; i++) {
		uint32_t mixed = (state[i] & 0x80000000U) | (state[(i + 1) % SIZE] & 0x7fffffffU);
		state[i] = state[(i + MIDDLE) % SIZE] ^ (mixed >> 1) ^ ((mixed & 1U) ? 0x9908b0dfU : 0U);
	}
	random->index = 0;
}

static uint32_t next_word(fp_mersenne *random)
{
	if (random->index >= SIZE)
		refill(random);
	uint32_t word = random->state[random->index++];
	word ^= word >> 11;
	word ^= (word << 7) & 0x9d2c5680U;
	word ^= (word << 15) & 0xefc60000U;
	return word ^ (word >> 18);
}

uint32_t fp_mersenne_bits(fp_mersenne *random, int bits)
{
	return next_word(random) >> (32 - bits);
}

int64_t fp_mersenne_below(fp_mersenne *random, int64_t n)
{
	/* Draws as many bits as n has, until the number is below n. */
	int bits = 64 - __builtin_clzll((uint64_t)n);
	for (;;) {
		uint64_t drawn;
		if (bits <= 32) {
			drawn = fp_mersenne_bits(random, bits);
		} else { /* least significant word first; only the last one has fewer bits */
			drawn = next_word(random);
			drawn |= (uint64_t)fp_mersenne_bits(random, bits - 32) << 32;
		}
		if (drawn < (uint64_t)n)
			return (int64_t)drawn;
	}
}

int64_t fp_mersenne_between(fp_mersenne *random, int64_t a, int64_t b)
{
	return a + fp_mersenne_below(random, b - a + 1);
}

double fp_mersenne_unit(fp_mersenne *random)
{
	uint32_t high = next_word(random) >> 5, low = next_word(random) >> 6;
	return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0);
}
