/* SPDX-License-Identifier: Apache-2.0 */
/* text_map.h: byte strings to numbers, by open addressing; the keys live in one arena. */
#ifndef FP_TOKENIZER_TEXT_MAP_H
#define FP_TOKENIZER_TEXT_MAP_H

#include "base/context.h"

typedef struct fp_text_slot {
	int64_t offset; /* of the key in `bytes`; keys end with a NUL that is not counted */
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

/* Adds key → value (≥ 0), or replaces the value of a key that is there. */
fp_status fp_text_map_put(fp_context *ctx, fp_text_map *map, const char *key, int64_t length, int32_t value);
int32_t fp_text_map_get(const fp_text_map *map, const char *key, int64_t length); /* −1: not there */
void fp_text_map_clear(fp_text_map *map);

#endif
