/* SPDX-License-Identifier: Apache-2.0 */
#include "counting_allocator.h"

#include "support.h"

#include <stdlib.h>

static counting_allocator *allocator_of(const fp_backend *be)
{
	return (counting_allocator *)(uintptr_t)be->memory;
}

static fp_status count_allocate(fp_backend *be, fp_buffer **out, int64_t bytes)
{
	counting_allocator *c = allocator_of(be);
	fp_status status = c->original->allocate(be, out, bytes);
	if (status != FP_OK)
		return status;
	if (c->count == c->capacity) {
		c->capacity = c->capacity ? 2 * c->capacity : 64;
		c->buffers = realloc(c->buffers, (size_t)c->capacity * sizeof *c->buffers);
		assert_non_null(c->buffers);
	}
	c->buffers[c->count++] = (counted_buffer){*out, bytes};
	c->held += bytes;
	c->peak = c->held > c->peak ? c->held : c->peak;
	return FP_OK;
}

static void count_release(fp_backend *be, fp_buffer *buffer)
{
	counting_allocator *c = allocator_of(be);
	for (int64_t i = 0; buffer && i < c->count; i++)
		if (c->buffers[i].buffer == buffer) {
			c->held -= c->buffers[i].bytes;
			c->buffers[i] = c->buffers[--c->count];
			break;
		}
	c->original->release(be, buffer);
}

void counting_allocator_begin(counting_allocator *c, fp_backend *be)
{
	*c = (counting_allocator){.operations = *be->memory, .original = be->memory, .be = be};
	c->operations.allocate = count_allocate;
	c->operations.release = count_release;
	be->memory = &c->operations;
}

int64_t counting_allocator_end(counting_allocator *c)
{
	c->be->memory = c->original;
	free(c->buffers);
	c->buffers = NULL;
	return c->peak;
}
