/* SPDX-License-Identifier: Apache-2.0 */
/*
 * character_map.h: sentencepiece's precompiled_charsmap, which replaces characters and short sequences, such as nmt_nfkc.
 *
 *     size of the trie in bytes (4 bytes, little-endian) | trie | the replacements, each with a NUL behind it
 *
 * The trie is a double array as the library Darts-clone writes it, of 32-bit units: a node's child for a byte is the unit
 * at (position ⊕ offset ⊕ byte), which must carry the byte as its label.
 */
#ifndef FP_TOKENIZER_CHARACTER_MAP_H
#define FP_TOKENIZER_CHARACTER_MAP_H

#include "tokenizer/unicode_text.h"

typedef struct fp_character_map { /* all zero: replaces nothing */
	uint32_t *units;
	int64_t count;
	char *replacements;
	int64_t size;
} fp_character_map;

typedef struct fp_replacement {
	int64_t taken; /* bytes of the text; 0: it begins with no key */
	const char *text;
	int64_t length;
} fp_replacement;

fp_status fp_character_map_read(fp_character_map *map, fp_context *ctx, const char *bytes, int64_t size);
fp_status fp_character_map_read_base64(fp_character_map *map, fp_context *ctx, const char *text, int64_t length);
void fp_character_map_clear(fp_character_map *map);

/* What replaces the longest key, or the shortest, with which a text begins. */
fp_status fp_character_map_find(const fp_character_map *map, fp_context *ctx, const char *text, int64_t length,
								bool longest, fp_replacement *out);

/* Appends the text as Hugging Face's normalizer Precompiled changes it: a grapheme cluster of fewer than 6 bytes which
 * begins with a key becomes the shortest such key's replacement as a whole; any other is replaced by characters. */
fp_status fp_character_map_apply(const fp_character_map *map, fp_context *ctx, const char *text, int64_t length,
								 fp_text_buffer *out);

#endif
