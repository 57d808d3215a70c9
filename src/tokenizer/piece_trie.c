/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer/piece_trie.h"

#include "base/memory.h"
#include <stdlib.h>
#include <string.h>

/* The sorted pieces whose first `depth` bytes lead to a node. */
typedef struct span {
	int64_t from, to, depth;
} span;

typedef struct builder {
	fp_context *ctx;
	fp_piece_trie *trie;
	const fp_trie_piece *pieces;
	span *spans; /* by node */
	int64_t capacity;
} builder;

static int by_text(const void *a, const void *b)
{
	const fp_trie_piece *x = a, *y = b;
	int order = memcmp(x->text, y->text, (size_t)(x->length < y->length ? x->length : y->length));
	return order ? order : (x->length > y->length) - (x->length < y->length);
}

static fp_status add_node(builder *b, span what, unsigned char label)
{
	fp_status status = FP_OK;
	fp_piece_trie *trie = b->trie;
	if (trie->count >= INT32_MAX - 1)
		return fp_fail(b->ctx, FP_ERROR_INPUT, "the pieces of the vocabulary have too many bytes");
	FP_TRY(FP_GROW(b->ctx, &trie->nodes, &trie->node_capacity, trie->count + 2));
	FP_TRY(FP_GROW(b->ctx, &trie->labels, &trie->label_capacity, trie->count + 1));
	FP_TRY(FP_GROW(b->ctx, &b->spans, &b->capacity, trie->count + 1));
	trie->nodes[trie->count] = (fp_trie_node){.id = -1};
	trie->labels[trie->count] = label;
	b->spans[trie->count++] = what;
cleanup:
	return status;
}

static fp_status add_children(builder *b, int64_t node)
{
	fp_status status = FP_OK;
	fp_piece_trie *trie = b->trie;
	span what = b->spans[node];
	trie->nodes[node].first_child = (int32_t)trie->count;
	if (what.from < what.to && b->pieces[what.from].length == what.depth) {
		trie->nodes[node].id = b->pieces[what.from].id;
		trie->nodes[node].score = b->pieces[what.from].score;
		what.from++;
	}
	while (what.from < what.to) {
		unsigned char label = (unsigned char)b->pieces[what.from].text[what.depth];
		int64_t end = what.from + 1;
		while (end < what.to && (unsigned char)b->pieces[end].text[what.depth] == label)
			end++;
		FP_TRY(add_node(b, (span){what.from, end, what.depth + 1}, label));
		what.from = end;
	}
cleanup:
	return status;
}

fp_status fp_piece_trie_build(fp_piece_trie *trie, fp_context *ctx, fp_trie_piece *pieces, int64_t count)
{
	fp_status status = FP_OK;
	builder b = {.ctx = ctx, .trie = trie, .pieces = pieces};
	int64_t first = 0;
	qsort(pieces, (size_t)count, sizeof *pieces, by_text);
	while (first < count && pieces[first].length == 0)
		first++;
	for (int64_t i = first; i < count; i++)
		if (pieces[i].length > trie->longest)
			trie->longest = pieces[i].length;
	FP_TRY(add_node(&b, (span){first, count, 0}, 0));
	for (int64_t node = 0; node < trie->count; node++)
		FP_TRY(add_children(&b, node));
	trie->nodes[trie->count] = (fp_trie_node){.id = -1, .first_child = (int32_t)trie->count};
	for (int i = 0; i < 256; i++)
		trie->roots[i] = fp_piece_trie_child(trie, 0, (unsigned char)i);
cleanup:
	fp_free(b.spans);
	return status;
}

void fp_piece_trie_clear(fp_piece_trie *trie)
{
	fp_free(trie->nodes);
	fp_free(trie->labels);
	*trie = (fp_piece_trie){0};
}
