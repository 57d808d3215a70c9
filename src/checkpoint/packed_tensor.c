/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/packed_tensor.h"

#include "base/memory.h"
#include <string.h>

/* Of the 2:4 form's bytes, the share (1/…) that the mask must save to be preferred: kernels like 2:4 better. */
enum { GAIN = 100 };

static int64_t mask_bytes(int64_t cols)
{
	return cols / 8 + (cols % 8 != 0);
}

bool fp_packed_fits(const fp_tensor_info *tensor)
{
	static const char ending[] = ".weight";
	size_t length = strlen(tensor->name), tail = sizeof ending - 1;
	bool known = fp_dtype_is_weight(tensor->dtype) || tensor->dtype == FP_I8 || tensor->dtype == FP_F8_E4M3;
	return tensor->rank == 2 && tensor->elements > 0 && known && length > tail &&
		   strcmp(tensor->name + length - tail, ending) == 0;
}

/* The bits of an entry of 1, 2 or 4 bytes, which may be unaligned. */
static uint32_t load(const char *bytes, int64_t index, int64_t size)
{
	uint16_t half;
	uint32_t word;
	if (size == 1)
		return (unsigned char)bytes[index];
	if (size == 2) {
		memcpy(&half, bytes + 2 * index, sizeof half);
		return half;
	}
	memcpy(&word, bytes + 4 * index, sizeof word);
	return word;
}

static void store(char *bytes, int64_t index, int64_t size, uint32_t bits)
{
	uint16_t half = (uint16_t)bits;
	if (size == 1)
		bytes[index] = (char)bits;
	else if (size == 2)
		memcpy(bytes + 2 * index, &half, sizeof half);
	else
		memcpy(bytes + 4 * index, &bits, sizeof bits);
}

/* The entries of a row that are stored; *dense: a group of four has more than two of them. */
static int64_t count_row(const char *row, int64_t cols, int64_t size, bool *dense)
{
	int64_t stored = 0;
	*dense = false;
	for (int64_t first = 0; first < cols; first += 4) {
		int64_t last = first + 4 < cols ? first + 4 : cols, group = 0;
		for (int64_t col = first; col < last; col++)
			group += load(row, col, size) != 0;
		stored += group;
		*dense |= group > 2;
	}
	return stored;
}

fp_packed_plan fp_packed_choose(const fp_tensor_info *tensor, const void *bytes)
{
	const int64_t rows = tensor->shape[0], cols = tensor->shape[1], size = fp_dtype_size(tensor->dtype);
	int64_t stored = 0, broken = 0;
#pragma omp parallel for schedule(static) reduction(+ : stored, broken)
	for (int64_t row = 0; row < rows; row++) {
		bool dense;
		stored += count_row((const char *)bytes + row * cols * size, cols, size, &dense);
		broken += dense;
	}
	int64_t by_mask = rows * mask_bytes(cols) + stored * size;
	int64_t by_pairs = rows * (cols / 8) + rows * (cols / 2) * size;
	bool pairs = cols % 8 == 0 && broken == 0 && by_pairs - by_mask <= by_pairs / GAIN;
	return (fp_packed_plan){
		.packed = (pairs ? by_pairs : by_mask) < tensor->bytes,
		.kind = pairs ? FP_CODED_TWO_OF_FOUR : FP_CODED_MASK,
		.stored = pairs ? rows * (cols / 2) : stored,
		.guide_bytes = rows * (pairs ? cols / 8 : mask_bytes(cols)),
	};
}

/* Up to 64 bits of a mask, from byte `first` on. A loop over the bits that are set has one branch that cannot be foreseen
 * for 64 entries, where a test of each bit has 64. */
static uint64_t mask_word(const unsigned char *mask, int64_t first, int64_t bytes)
{
	uint64_t word = 0;
	for (int64_t i = 0; i < 8 && first + i < bytes; i++)
		word |= (uint64_t)mask[first + i] << (8 * i);
	return word;
}

static void encode_mask_row(char *values, unsigned char *mask, const char *row, int64_t cols, int64_t size)
{
	const int64_t bytes = mask_bytes(cols);
	int64_t stored = 0;
	for (int64_t byte = 0; byte < bytes; byte++) {
		int64_t last = 8 * byte + 8 < cols ? 8 : cols - 8 * byte;
		unsigned bits = 0;
		for (int64_t i = 0; i < last; i++)
			bits |= (unsigned)(load(row, 8 * byte + i, size) != 0) << i;
		mask[byte] = (unsigned char)bits;
	}
	for (int64_t byte = 0; byte < bytes; byte += 8)
		for (uint64_t word = mask_word(mask, byte, bytes); word; word &= word - 1)
			store(values, stored++, size, load(row, 8 * byte + __builtin_ctzll(word), size));
}

/* starts[row] holds the number of entries that the row stores; it becomes that of the rows before, starts[rows] of all. */
static void add_up(int64_t *starts, int64_t rows)
{
	int64_t sum = 0;
	for (int64_t row = 0; row <= rows; row++) {
		int64_t count = starts[row];
		starts[row] = sum;
		sum += count;
	}
}

static fp_status encode_mask(char *values, unsigned char *mask, fp_context *ctx, const fp_tensor_info *tensor,
							 const char *bytes)
{
	const int64_t rows = tensor->shape[0], cols = tensor->shape[1], size = fp_dtype_size(tensor->dtype);
	int64_t *starts = NULL;
	fp_status status;
	FP_TRY(FP_NEW(ctx, &starts, rows + 1));
#pragma omp parallel for schedule(static)
	for (int64_t row = 0; row < rows; row++) {
		bool dense;
		starts[row] = count_row(bytes + row * cols * size, cols, size, &dense);
	}
	add_up(starts, rows);
#pragma omp parallel for schedule(static)
	for (int64_t row = 0; row < rows; row++)
		encode_mask_row(values + starts[row] * size, mask + row * mask_bytes(cols), bytes + row * cols * size, cols,
						size);
cleanup:
	fp_free(starts);
	return status;
}

/* The positions of the two entries that a group of four stores: of those that are not zero, and of the first others. */
static void choose_pair(int pair[2], const uint32_t bits[4])
{
	bool taken[4];
	int count = 0;
	for (int i = 0; i < 4; i++)
		count += taken[i] = bits[i] != 0;
	for (int i = 0; i < 4 && count < 2; i++)
		if (!taken[i]) {
			taken[i] = true;
			count++;
		}
	for (int i = 0, found = 0; i < 4 && found < 2; i++)
		if (taken[i])
			pair[found++] = i;
}

static void encode_pairs(char *values, unsigned char *positions, const fp_tensor_info *tensor, const char *bytes)
{
	const int64_t groups = tensor->elements / 4, size = fp_dtype_size(tensor->dtype);
#pragma omp parallel for schedule(static)
	for (int64_t byte = 0; byte < groups / 2; byte++) {
		unsigned both = 0;
		for (int64_t group = 2 * byte; group < 2 * byte + 2; group++) {
			uint32_t bits[4];
			int pair[2] = {0, 1};
			for (int i = 0; i < 4; i++)
				bits[i] = load(bytes, 4 * group + i, size);
			choose_pair(pair, bits);
			for (int i = 0; i < 2; i++)
				store(values, 2 * group + i, size, bits[pair[i]]);
			both |= (unsigned)(pair[0] | pair[1] << 2) << (4 * (group % 2));
		}
		positions[byte] = (unsigned char)both;
	}
}

fp_status fp_packed_encode(void *values, void *guide, fp_context *ctx, const fp_tensor_info *tensor,
						   const fp_packed_plan *packing, const void *bytes)
{
	if (packing->kind == FP_CODED_MASK)
		return encode_mask(values, guide, ctx, tensor, bytes);
	encode_pairs(values, guide, tensor, bytes);
	return FP_OK;
}

static fp_status damaged(fp_context *ctx, const fp_tensor_info *tensor, const char *what)
{
	return fp_fail(ctx, FP_ERROR_INPUT, "tensor '%s' is damaged: %s", tensor->coding->guide->name, what);
}

/* The bits of a row's mask; −1: some are set behind its last entry. */
static int64_t count_mask(const unsigned char *mask, int64_t cols)
{
	int64_t count = 0;
	for (int64_t i = 0; i < mask_bytes(cols); i++)
		count += __builtin_popcount(mask[i]);
	if (cols % 8 != 0 && mask[cols / 8] >> (cols % 8) != 0)
		return -1;
	return count;
}

/* *out ← where each row's values start; the caller frees it. */
static fp_status read_starts(int64_t **out, fp_context *ctx, const fp_tensor_info *tensor, const unsigned char *mask)
{
	const int64_t rows = tensor->shape[0], cols = tensor->shape[1];
	int64_t wrong = 0;
	fp_status status = FP_NEW(ctx, out, rows + 1);
	if (status != FP_OK)
		return status;
#pragma omp parallel for schedule(static) reduction(+ : wrong)
	for (int64_t row = 0; row < rows; row++) {
		(*out)[row] = count_mask(mask + row * mask_bytes(cols), cols);
		wrong += (*out)[row] < 0;
	}
	if (wrong > 0)
		return damaged(ctx, tensor, "it has bits after the last entry of a row");
	add_up(*out, rows);
	if ((*out)[rows] != tensor->coding->values->elements)
		return damaged(ctx, tensor, "it does not have as many bits as there are values");
	return FP_OK;
}

static void decode_mask_row(char *row, const char *values, const unsigned char *mask, int64_t cols, int64_t size)
{
	const int64_t bytes = mask_bytes(cols);
	int64_t next = 0;
	memset(row, 0, (size_t)(cols * size));
	for (int64_t byte = 0; byte < bytes; byte += 8)
		for (uint64_t word = mask_word(mask, byte, bytes); word; word &= word - 1)
			store(row, 8 * byte + __builtin_ctzll(word), size, load(values, next++, size));
}

static fp_status decode_mask(char *bytes, fp_context *ctx, const fp_tensor_info *tensor, const char *values,
							 const unsigned char *mask)
{
	const int64_t rows = tensor->shape[0], cols = tensor->shape[1], size = fp_dtype_size(tensor->dtype);
	int64_t *starts = NULL;
	fp_status status;
	FP_TRY(read_starts(&starts, ctx, tensor, mask));
#pragma omp parallel for schedule(static)
	for (int64_t row = 0; row < rows; row++) {
		char *out = bytes + row * cols * size;
		const char *from = values + starts[row] * size;
		const unsigned char *bits = mask + row * mask_bytes(cols);
		if (size == 2) /* a constant size makes the loop several times faster */
			decode_mask_row(out, from, bits, cols, 2);
		else if (size == 1)
			decode_mask_row(out, from, bits, cols, 1);
		else
			decode_mask_row(out, from, bits, cols, 4);
	}
cleanup:
	fp_free(starts);
	return status;
}

/* The two positions of each nibble must increase. */
static fp_status check_positions(fp_context *ctx, const fp_tensor_info *tensor, const unsigned char *positions)
{
	const int64_t count = tensor->coding->guide->elements;
	int64_t wrong = 0;
#pragma omp parallel for schedule(static) reduction(+ : wrong)
	for (int64_t i = 0; i < count; i++) {
		unsigned low = positions[i] & 0xF, high = positions[i] >> 4;
		wrong += (low & 3) >= low >> 2 || (high & 3) >= high >> 2;
	}
	return wrong > 0 ? damaged(ctx, tensor, "positions in a group of four do not increase") : FP_OK;
}

static void decode_pairs(char *bytes, const fp_tensor_info *tensor, const char *values, const unsigned char *positions)
{
	const int64_t groups = tensor->elements / 4, size = fp_dtype_size(tensor->dtype);
#pragma omp parallel for schedule(static)
	for (int64_t group = 0; group < groups; group++) {
		unsigned pair = positions[group / 2] >> (4 * (group % 2)) & 0xF;
		memset(bytes + 4 * group * size, 0, (size_t)(4 * size));
		store(bytes, 4 * group + (pair & 3), size, load(values, 2 * group, size));
		store(bytes, 4 * group + (pair >> 2), size, load(values, 2 * group + 1, size));
	}
}

fp_status fp_packed_decode(void *bytes, fp_context *ctx, const fp_tensor_info *tensor, const void *values,
						   const void *guide)
{
	if (tensor->coding->kind == FP_CODED_MASK)
		return decode_mask(bytes, ctx, tensor, values, guide);
	fp_status status = check_positions(ctx, tensor, guide);
	if (status == FP_OK)
		decode_pairs(bytes, tensor, values, guide);
	return status;
}

fp_status fp_packed_check(fp_context *ctx, const fp_tensor_info *tensor, const void *guide)
{
	int64_t *starts = NULL;
	if (tensor->coding->kind == FP_CODED_TWO_OF_FOUR)
		return check_positions(ctx, tensor, guide);
	fp_status status = read_starts(&starts, ctx, tensor, guide);
	fp_free(starts);
	return status;
}
