/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer/text_map.h"

#include "base/memory.h"
#include <string.h>

uint64_t fp_text_hash(const char *key, int64_t length)
{
	/* Eight bytes per step. Words are short, so speed matters more than the quality of the hash. */
	const uint64_t odd = 0x9e3779b97f4a7c15ULL;
	uint64_t hash = odd ^ (uint64_t)length;
	while (length >= 8) {
		uint64_t part;
		memcpy(&part, key, 8);
		hash = (hash ^ part) * odd;
		hash ^= hash >> 29;
		key += 8;
		length -= 8;
	}
	uint64_t part = 0;
	memcpy(&part, key, (size_t)length);
	hash = (hash ^ part) * odd;
	hash ^= hash >> 32;
	hash *= odd;
	return hash ^ (hash >> 29);
}

static fp_text_slot *find_slot(const fp_text_map *map, const char *key, int64_t length, uint64_t hash)
{
	int64_t mask = map->capacity - 1;
	for (int64_t i = (int64_t)(hash & (uint64_t)mask);; i = (i + 1) & mask) {
		fp_text_slot *slot = &map->slots[i];
		if (slot->value < 0)
			return slot;
		if (slot->hash == hash && slot->length == length && memcmp(map->bytes + slot->offset, key, (size_t)length) == 0)
			return slot;
	}
}

static fp_status enlarge(fp_context *ctx, fp_text_map *map)
{
	fp_text_map bigger = *map;
	bigger.capacity = map->capacity ? 2 * map->capacity : 64;
	fp_status status = FP_NEW(ctx, &bigger.slots, bigger.capacity);
	if (status != FP_OK)
		return status;
	for (int64_t i = 0; i < bigger.capacity; i++)
		bigger.slots[i].value = -1;
	for (int64_t i = 0; i < map->capacity; i++) {
		const fp_text_slot *old = &map->slots[i];
		if (old->value >= 0)
			*find_slot(&bigger, map->bytes + old->offset, old->length, old->hash) = *old;
	}
	fp_free(map->slots);
	*map = bigger;
	return FP_OK;
}

fp_status fp_text_map_put(fp_context *ctx, fp_text_map *map, const char *key, int64_t length, int32_t value)
{
	fp_status status = FP_OK;
	if (length > INT32_MAX - 1)
		return fp_fail(ctx, FP_ERROR_INPUT, "a key of %lld bytes; at most 2147483646 are allowed", (long long)length);
	if (2 * (map->count + 1) > map->capacity)
		FP_TRY(enlarge(ctx, map));
	uint64_t hash = fp_text_hash(key, length);
	fp_text_slot *slot = find_slot(map, key, length, hash);
	if (slot->value < 0) {
		FP_TRY(FP_GROW(ctx, &map->bytes, &map->bytes_capacity, map->bytes_used + length + 1));
		memcpy(map->bytes + map->bytes_used, key, (size_t)length);
		map->bytes[map->bytes_used + length] = '\0';
		*slot = (fp_text_slot){.offset = map->bytes_used, .length = (int32_t)length, .hash = hash};
		map->bytes_used += length + 1;
		map->count++;
	}
	slot->value = value;
cleanup:
	return status;
}

int32_t fp_text_map_get(const fp_text_map *map, const char *key, int64_t length)
{
	if (map->capacity == 0)
		return -1;
	return find_slot(map, key, length, fp_text_hash(key, length))->value;
}

void fp_text_map_clear(fp_text_map *map)
{
	fp_free(map->slots);
	fp_free(map->bytes);
	*map = (fp_text_map){0};
}
