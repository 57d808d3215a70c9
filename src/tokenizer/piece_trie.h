/* SPDX-License-Identifier: Apache-2.0 */
/* piece_trie.h: finds the pieces with which a text begins, a byte at a time. */
#ifndef FP_TOKENIZER_PIECE_TRIE_H
#define FP_TOKENIZER_PIECE_TRIE_H

#include "base/context.h"
#include <string.h>

typedef struct fp_trie_piece {
	const char *text;
	int64_t length;
	double score;
	int32_t id;
} fp_trie_piece;

typedef struct fp_trie_node {
	double score;
	int32_t id;          /* of the piece that ends here; −1: none does */
	int32_t first_child; /* its children end where the next node's begin */
} fp_trie_node;

typedef struct fp_piece_trie { /* all zero: no pieces */
	fp_trie_node *nodes;       /* level by level; the first is the root, and one more follows the last */
	unsigned char *labels;     /* of each node: the byte that leads to it */
	int32_t roots[256];        /* the root's child for a byte; −1: none */
	int64_t count, node_capacity, label_capacity, longest; /* longest: bytes of the longest piece */
} fp_piece_trie;

/* Sorts `pieces`, whose texts must differ; they are needed only during the call. Pieces without text are left out. */
fp_status fp_piece_trie_build(fp_piece_trie *trie, fp_context *ctx, fp_trie_piece *pieces, int64_t count);
void fp_piece_trie_clear(fp_piece_trie *trie);

/* The child of a node other than the root for a byte; −1: none. */
static inline int32_t fp_piece_trie_child(const fp_piece_trie *trie, int32_t node, unsigned char byte)
{
	enum { FEW = 8 };
	const int32_t first = trie->nodes[node].first_child, end = trie->nodes[node + 1].first_child;
	if (end - first > FEW) {
		const unsigned char *found = memchr(trie->labels + first, byte, (size_t)(end - first));
		return found ? (int32_t)(found - trie->labels) : -1;
	}
	for (int32_t child = first; child < end; child++)
		if (trie->labels[child] == byte)
			return child;
	return -1;
}

#endif
