/* SPDX-License-Identifier: Apache-2.0 */
/*
 * counting_allocator.h: the peak of the bytes that a backend allocates between two points of a test.
 *
 * Only be->memory->allocate() is counted. A buffer allocated before counting_allocator_begin() counts for nothing,
 * whether it is released or not. One thread at a time.
 */
#ifndef FP_TESTS_COUNTING_ALLOCATOR_H
#define FP_TESTS_COUNTING_ALLOCATOR_H

#include "backend/backend.h"

typedef struct counted_buffer {
	const fp_buffer *buffer;
	int64_t bytes;
} counted_buffer;

typedef struct counting_allocator {
	fp_memory_operations operations; /* first: be->memory points here while counting */
	const fp_memory_operations *original;
	fp_backend *be;
	counted_buffer *buffers;
	int64_t count, capacity;
	int64_t held, peak; /* bytes */
} counting_allocator;

void counting_allocator_begin(counting_allocator *c, fp_backend *be);
/* Restores be->memory. Returns the peak in bytes above what was held at the beginning. */
int64_t counting_allocator_end(counting_allocator *c);

#endif
