/* SPDX-License-Identifier: Apache-2.0 */
/* mersenne.h: CPython's random.Random, bit for bit, to draw the same calibration samples as the scripts of SparseGPT
 * and Wanda. */
#ifndef FP_BASE_MERSENNE_H
#define FP_BASE_MERSENNE_H

#include <stdint.h>

typedef struct fp_mersenne {
	uint32_t state[624];
	int index;
} fp_mersenne;

void fp_mersenne_seed(fp_mersenne *random, uint64_t seed);              /* random.seed(seed) for a non-negative int */
uint32_t fp_mersenne_bits(fp_mersenne *random, int bits);               /* random.getrandbits(bits), 1…32 bits */
int64_t fp_mersenne_below(fp_mersenne *random, int64_t n);              /* random.randrange(n), n ≥ 1 */
int64_t fp_mersenne_between(fp_mersenne *random, int64_t a, int64_t b); /* random.randint(a, b) */
double fp_mersenne_unit(fp_mersenne *random);                           /* random.random() */

#endif
