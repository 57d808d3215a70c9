/* SPDX-License-Identifier: Apache-2.0 */
/* sentencepiece_model.h: what is read from SentencePiece's protocol buffer. Texts are borrowed from the file's bytes. */
#ifndef FP_TOKENIZER_SENTENCEPIECE_MODEL_H
#define FP_TOKENIZER_SENTENCEPIECE_MODEL_H

#include "base/context.h"

enum { FP_PIECE_NORMAL = 1, FP_PIECE_UNKNOWN, FP_PIECE_CONTROL, FP_PIECE_USER_DEFINED, FP_PIECE_UNUSED, FP_PIECE_BYTE };
enum { FP_SENTENCEPIECE_UNIGRAM = 1, FP_SENTENCEPIECE_BPE };

typedef struct fp_piece {
	const char *text;
	int64_t length;
	float score;
	int32_t type, rank; /* rank: by falling score; only for BPE */
} fp_piece;

typedef struct fp_sentencepiece_model { /* all zero at first */
	fp_piece *pieces;
	int64_t count, capacity;
	int64_t model_type, bos;
	const char *charsmap; /* precompiled_charsmap */
	int64_t charsmap_size;
	bool byte_fallback, space_as_suffix;
	bool add_dummy_prefix, remove_extra_spaces, escape_spaces;
} fp_sentencepiece_model;

/* Reads and checks the bytes of the file `path`. The caller frees model->pieces. */
fp_status fp_sentencepiece_model_read(fp_sentencepiece_model *model, fp_context *ctx, const char *bytes, int64_t size,
									  const char *path);

#endif
