/* SPDX-License-Identifier: Apache-2.0 */
/* numbers.h: minimum and maximum of two integers. */
#ifndef FP_BASE_NUMBERS_H
#define FP_BASE_NUMBERS_H

#include <stdint.h>

static inline int64_t fp_smaller(int64_t a, int64_t b)
{
	return a < b ? a : b;
}
static inline int64_t fp_larger(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

#endif
