/* SPDX-License-Identifier: Apache-2.0 */
/* text_map.h: a hash table from byte strings to numbers, with open addressing; the keys are in one block of memory. */
#ifndef FP_TOKENIZER_TEXT_MAP_H
#define FP_TOKENIZER_TEXT_MAP_H

#include "base/context.h"

typedef struct fp_text_slot {
	int64_t offset; /* of the key in `bytes`, where a NUL follows it */
	int32_t length;
	int32_t value; /* −1: the slot is free */
	uint64_t hash;
} fp_text_slot;

typedef struct fp_text_map { /* all zero at first */
	fp_text_slot *slots;
	int64_t capacity, count; /* capacity is a power of two */
	char *bytes;
	int64_t bytes_used, bytes_capacity;
} fp_text_map;

uint64_t fp_text_hash(const char *key, int64_t length);

/* Adds a key, or replaces its value (≥ 0). */
fp_status fp_text_map_put(fp_context *ctx, fp_text_map *map, const char *key, int64_t length, int32_t value);
int32_t fp_text_map_get(const fp_text_map *map, const char *key, int64_t length); /* −1: not there */
void fp_text_map_clear(fp_text_map *map);

#endif
