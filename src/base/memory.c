/* SPDX-License-Identifier: Apache-2.0 */
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGNMENT = 64 }; /* a cache line, and the widest SIMD register */
enum { LARGE_PAGE = 2 << 20 };

/* Asks for large pages where a block has whole ones: loops that read a matrix once miss the TLB less often. A wish; the
 * kernel may refuse it. */
static void prefer_large_pages(char *block, int64_t bytes)
{
#if defined(MADV_HUGEPAGE)
	uintptr_t first = ((uintptr_t)block + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
	uintptr_t end = ((uintptr_t)block + (uintptr_t)bytes) / LARGE_PAGE * LARGE_PAGE;
	if (end > first)
		(void)madvise(block + (first - (uintptr_t)block), end - first, MADV_HUGEPAGE);
#else
	(void)block;
	(void)bytes;
#endif
}

bool fp_multiply_checked(int64_t a, int64_t b, int64_t *out)
{
	int64_t product;
	if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product))
		return false;
	*out = product;
	return true;
}

bool fp_add_checked(int64_t a, int64_t b, int64_t *out)
{
	int64_t sum;
	if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &sum))
		return false;
	*out = sum;
	return true;
}

/* `clear`: the bytes are zero */
static fp_status allocate(fp_context *ctx, void **out, int64_t count, int64_t size, bool clear)
{
	*out = NULL;
	int64_t bytes;
	int64_t padded;
	if (!fp_multiply_checked(count, size, &bytes) || !fp_add_checked(bytes, ALIGNMENT, &padded))
		return fp_fail(ctx, FP_ERROR_MEMORY, "a size of %lld elements of %lld bytes is out of range", (long long)count,
					   (long long)size);
	padded = padded / ALIGNMENT * ALIGNMENT;
	ctx->allocations++;
	void *pointer = NULL;
	if (ctx->allocations != ctx->fail_allocation_at)
		pointer = aligned_alloc(ALIGNMENT, (size_t)padded);
	if (!pointer)
		return fp_fail(ctx, FP_ERROR_MEMORY, "out of memory: %.1f MiB more were needed", (double)padded / 1048576.0);
	prefer_large_pages(pointer, padded);
	if (clear)
		memset(pointer, 0, (size_t)padded);
	*out = pointer;
	return FP_OK;
}

fp_status fp_allocate(fp_context *ctx, void **out, int64_t count, int64_t size)
{
	return allocate(ctx, out, count, size, true);
}

fp_status fp_allocate_undefined(fp_context *ctx, void **out, int64_t bytes)
{
	return allocate(ctx, out, bytes, 1, false);
}

fp_status fp_grow(fp_context *ctx, void **array, int64_t *capacity, int64_t count, int64_t size)
{
	if (count <= *capacity && *array)
		return FP_OK;
	int64_t wanted = *capacity + *capacity / 2;
	if (wanted < count)
		wanted = count;
	if (wanted < 16)
		wanted = 16;
	void *larger;
	fp_status status = fp_allocate(ctx, &larger, wanted, size);
	if (status != FP_OK)
		return status;
	if (*array)
		memcpy(larger, *array, (size_t)(*capacity * size));
	fp_free(*array);
	*array = larger;
	*capacity = wanted;
	return FP_OK;
}

fp_status fp_copy_text(fp_context *ctx, char **out, const char *text)
{
	int64_t length = (int64_t)strlen(text);
	fp_status status = FP_NEW(ctx, out, length + 1);
	if (status == FP_OK)
		memcpy(*out, text, (size_t)length);
	return status;
}

void fp_free(void *pointer)
{
	free(pointer);
}
