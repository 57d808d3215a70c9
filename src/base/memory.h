/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h: all memory is allocated here. Sizes are int64_t, and products of sizes are checked. */
#ifndef FP_BASE_MEMORY_H
#define FP_BASE_MEMORY_H

#include "base/context.h"
#include <stddef.h>

/*
 * Allocates count × size bytes, zeroed, aligned to 64 bytes, and stores the pointer in *out.
 * count == 0 gives a valid pointer. On failure *out is NULL and the message gives the size.
 */
fp_status fp_allocate(fp_context *ctx, void **out, int64_t count, int64_t size);

/* The same with undefined content: pages that threads write first, they clear at the same time. */
fp_status fp_allocate_undefined(fp_context *ctx, void **out, int64_t bytes);

/* The same for a typed pointer:  float *x; FP_TRY(FP_NEW(ctx, &x, n)); */
#define FP_NEW(ctx, out, count) fp_allocate((ctx), (void **)(out), (count), (int64_t)sizeof **(out))

/* Grows *array (NULL at first) to at least `count` elements and updates *capacity. New bytes are zero. */
fp_status fp_grow(fp_context *ctx, void **array, int64_t *capacity, int64_t count, int64_t size);
#define FP_GROW(ctx, array, capacity, count)                                                                           \
	fp_grow((ctx), (void **)(array), (capacity), (count), (int64_t)sizeof **(array))

/* A copy of text; the caller frees it with fp_free(). */
fp_status fp_copy_text(fp_context *ctx, char **out, const char *text);

/* NULL is allowed. */
void fp_free(void *pointer);

/* *out ← a × b and a + b. False on overflow and for negative numbers; then *out is unchanged. */
bool fp_multiply_checked(int64_t a, int64_t b, int64_t *out);
bool fp_add_checked(int64_t a, int64_t b, int64_t *out);

#endif
