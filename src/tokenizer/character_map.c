/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer/character_map.h"

#include "base/memory.h"
#include <string.h>
#include <utf8proc.h>

enum { CLUSTER_LIMIT = 6, HEAD = 4, UNIT = 4 };

static uint32_t read_unit(const char *bytes)
{
	const unsigned char *at = (const unsigned char *)bytes;
	return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

fp_status fp_character_map_read(fp_character_map *map, fp_context *ctx, const char *bytes, int64_t size)
{
	fp_status status = FP_OK;
	const int64_t trie = size > HEAD ? (int64_t)read_unit(bytes) : 0, rest = size - HEAD - trie;
	if (trie < UNIT || trie % UNIT != 0 || rest < 1 || bytes[size - 1] != '\0' ||
		fp_utf8_valid_prefix(bytes + HEAD + trie, rest) != rest)
		return fp_fail(ctx, FP_ERROR_INPUT,
					   "character map: must be the size of a trie, the trie, and UTF-8 texts with a NUL behind each");
	FP_TRY(FP_NEW(ctx, &map->units, trie / UNIT));
	FP_TRY(FP_NEW(ctx, &map->replacements, rest));
	map->count = trie / UNIT;
	map->size = rest;
	for (int64_t i = 0; i < map->count; i++)
		map->units[i] = read_unit(bytes + HEAD + UNIT * i);
	memcpy(map->replacements, bytes + HEAD + trie, (size_t)rest);
cleanup:
	return status;
}

static int value_of_digit(char digit)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const char *place = digit ? strchr(digits, digit) : NULL;
	return place ? (int)(place - digits) : -1;
}

fp_status fp_character_map_read_base64(fp_character_map *map, fp_context *ctx, const char *text, int64_t length)
{
	fp_status status = FP_OK;
	char *bytes = NULL;
	int64_t size = 0;
	uint32_t bits = 0;
	int64_t digits = length;
	while (digits > 0 && length - digits < 2 && text[digits - 1] == '=')
		digits--;
	bool is_valid = length % 4 == 0;
	FP_TRY(FP_NEW(ctx, &bytes, length / 4 * 3 + 1));
	for (int64_t i = 0; i < digits && is_valid; i++) {
		int value = value_of_digit(text[i]);
		is_valid = value >= 0;
		bits = bits << 6 | ((uint32_t)value & 0x3F);
		if (i % 4 > 0)
			bytes[size++] = (char)(bits >> (6 - 2 * (i % 4)) & 0xFF);
	}
	if (is_valid)
		status = fp_character_map_read(map, ctx, bytes, size);
	else
		status = fp_fail(ctx, FP_ERROR_INPUT, "character map: must be base64");
cleanup:
	fp_free(bytes);
	return status;
}

void fp_character_map_clear(fp_character_map *map)
{
	fp_free(map->units);
	fp_free(map->replacements);
	*map = (fp_character_map){0};
}

/* The fields of a unit. The value of a leaf is in the unit at the position of its child for the byte 0. */
static uint32_t label_of(uint32_t unit)
{
	return unit & (0x80000000U | 0xFF);
}

static bool has_leaf(uint32_t unit)
{
	return unit >> 8 & 1;
}

static uint32_t offset_of(uint32_t unit)
{
	return unit >> 10 << (unit >> 6 & 8);
}

static fp_status damaged(fp_context *ctx)
{
	return fp_fail(ctx, FP_ERROR_INPUT, "character map: damaged: its trie points outside of it or into a character");
}

static fp_status take_leaf(const fp_character_map *map, fp_context *ctx, uint32_t position, int64_t taken,
						   fp_replacement *out)
{
	if (position >= map->count)
		return damaged(ctx);
	const int64_t start = map->units[position] & 0x7FFFFFFF;
	if (start >= map->size || ((unsigned char)map->replacements[start] & 0xC0) == 0x80)
		return damaged(ctx);
	*out = (fp_replacement){.taken = taken, .text = map->replacements + start};
	out->length = (int64_t)strlen(out->text); /* the last byte is NUL */
	return FP_OK;
}

fp_status fp_character_map_find(const fp_character_map *map, fp_context *ctx, const char *text, int64_t length,
								bool longest, fp_replacement *out)
{
	out->taken = 0;
	if (map->count == 0)
		return FP_OK;
	uint32_t position = offset_of(map->units[0]);
	for (int64_t i = 0; i < length && text[i]; i++) {
		const unsigned char byte = (unsigned char)text[i];
		position ^= byte;
		if (position >= map->count)
			return damaged(ctx);
		const uint32_t unit = map->units[position];
		if (label_of(unit) != byte)
			return FP_OK;
		position ^= offset_of(unit);
		if (!has_leaf(unit))
			continue;
		fp_status status = take_leaf(map, ctx, position, i + 1, out);
		if (status != FP_OK || !longest)
			return status;
	}
	return FP_OK;
}

/* The bytes of the first grapheme cluster (Unicode, annex 29). */
static int64_t cluster_size(const char *text, int64_t length)
{
	uint32_t code, next;
	utf8proc_int32_t state = 0;
	int64_t size = fp_utf8_decode(text, length, &code);
	while (size < length) {
		/* two ASCII characters are two clusters, except for CR LF */
		if (code < 0x80 && !(text[size] & 0x80) && !(code == '\r' && text[size] == '\n'))
			break;
		int further = fp_utf8_decode(text + size, length - size, &next);
		if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)code, (utf8proc_int32_t)next, &state))
			break;
		size += further;
		code = next;
	}
	return size;
}

/* Appends the first `length` bytes with their characters replaced one by one. */
static fp_status apply_to_characters(const fp_character_map *map, fp_context *ctx, const char *text, int64_t length,
									 fp_text_buffer *out)
{
	fp_status status = FP_OK;
	fp_replacement found;
	for (int64_t at = 0; at < length;) {
		uint32_t code;
		int size = fp_utf8_decode(text + at, length - at, &code);
		FP_TRY(fp_character_map_find(map, ctx, text + at, size, false, &found));
		if (found.taken > 0)
			FP_TRY(fp_text_append(ctx, out, found.text, found.length));
		else
			FP_TRY(fp_text_append(ctx, out, text + at, size));
		at += size;
	}
cleanup:
	return status;
}

fp_status fp_character_map_apply(const fp_character_map *map, fp_context *ctx, const char *text, int64_t length,
								 fp_text_buffer *out)
{
	fp_status status = FP_OK;
	fp_replacement found;
	for (int64_t at = 0; at < length;) {
		const int64_t size = cluster_size(text + at, length - at);
		found.taken = 0;
		if (size < CLUSTER_LIMIT)
			FP_TRY(fp_character_map_find(map, ctx, text + at, size, false, &found));
		if (found.taken > 0)
			FP_TRY(fp_text_append(ctx, out, found.text, found.length));
		else
			FP_TRY(apply_to_characters(map, ctx, text + at, size, out));
		at += size;
	}
cleanup:
	return status;
}
