/* SPDX-License-Identifier: Apache-2.0 */
/*
 * streams.h: the hidden states of the calibration windows that this rank has, for the dense model and for the pruned one,
 * and the batches in which passes process them.
 *
 * If memory is short, attention outputs are recomputed instead of kept, and then hidden states are kept in an unnamed
 * temporary file, with one batch in memory. The result is the same to the bit.
 */
#ifndef FP_PRUNING_STREAMS_H
#define FP_PRUNING_STREAMS_H

#include "model/layer.h"
#include "sharing/share.h"
#include "text/windows.h"

/* The two streams, and the pruned stream's state before the layer, which a layer fit reads. */
enum { FP_DENSE, FP_PRUNED, FP_STREAM_COUNT, FP_LAYER_INPUT = FP_STREAM_COUNT, FP_SLOT_COUNT };

/* What is kept in the backend's memory, from most to least. */
typedef enum fp_residence {
	FP_RESIDENT,  /* hidden states of all windows, attention outputs of the pruned stream, and workspaces */
	FP_RECOMPUTE, /* hidden states of all windows; workspaces only during a pass */
	FP_ON_DISK    /* hidden states of one batch; the others are in a file */
} fp_residence;

typedef struct fp_streams_plan {
	bool both;   /* a dense and a pruned stream */
	bool fitted; /* FP_LAYER_INPUT is needed too */
	int64_t batch;
	fp_residence residence;
	const char *folder; /* for the temporary files; borrowed */
	fp_share share;     /* all zero: this process has all windows */
} fp_streams_plan;

typedef struct fp_streams {
	fp_model *model; /* borrowed */
	fp_share share;
	int64_t first;           /* of this rank's windows, in the text */
	int64_t windows, length; /* of this rank */
	int64_t batch;           /* windows in a batch, at most */
	fp_residence residence;
	int count;                                /* of streams */
	fp_matrix hidden[FP_SLOT_COUNT];          /* tokens × hidden; on disk: of one batch */
	fp_matrix context[FP_STREAM_COUNT];       /* attention outputs of a batch, or of all tokens if they are kept */
	fp_workspace *workspace[FP_STREAM_COUNT]; /* for one batch */
	int file[FP_SLOT_COUNT];                  /* on disk: file descriptors; −1: not open */
	int source[FP_SLOT_COUNT];                /* on disk: the slot's file, maybe shared with others; −1: none */
	int target[FP_SLOT_COUNT];                /* on disk: the file that the slot is being stored to; −1: none */
	float *host;                              /* on disk: a batch in transfer */
} fp_streams;

/* Embeds this rank's windows into the dense stream, and with plan->both into the pruned one. Windows without ids leave the
 * streams undefined. Freed with fp_streams_free(). */
fp_status fp_streams_open(fp_streams *out, fp_model *model, const fp_windows *windows, const fp_streams_plan *plan);
void fp_streams_free(fp_streams *streams);
/* Windows in a batch if memory is plentiful, of a text or the largest part of one. */
int64_t fp_streams_usual_batch(const fp_model *model, int64_t windows, int64_t length);
/* Estimates: bytes that the streams hold all the time, and additional bytes during a pass. */
int64_t fp_streams_bytes(const fp_model *model, int64_t windows, int64_t length, const fp_streams_plan *plan);
int64_t fp_streams_pass_bytes(const fp_model *model, int64_t length, const fp_streams_plan *plan);
/* Additional bytes for the products of a pass over a group with `inputs` inputs, whose operators have at most `outputs`
 * outputs. rounded: the entries of the largest operator that is not in BF16. */
int64_t fp_streams_product_bytes(const fp_model *model, int64_t length, const fp_streams_plan *plan, int64_t inputs,
								 int64_t outputs, int64_t rounded);
/* The maximum number of tokens in a batch. */
int64_t fp_streams_batch_tokens(const fp_streams *streams);

/* Call before and after every pass over the batches; workspaces exist in between. */
fp_status fp_streams_begin_pass(fp_streams *streams);
void fp_streams_end_pass(fp_streams *streams);
/* Call before and after the use of a stream's batch. A pass that stores one batch stores all of them, between
 * fp_streams_begin_store() and fp_streams_stored(), and fetches a batch of all streams that it reads before it stores
 * that batch. */
fp_status fp_streams_fetch(fp_streams *streams, int stream, int64_t first);
void fp_streams_begin_store(fp_streams *streams, int stream);
fp_status fp_streams_store(fp_streams *streams, int stream, int64_t first);
void fp_streams_stored(fp_streams *streams, int stream);

/* The batch that starts at this rank's window `first`, as a layer's state; its matrices are views of the stream. */
fp_layer_state fp_streams_batch(const fp_streams *streams, int stream, int64_t first);
/* Where the next batch starts: batches end with their part of the text. */
int64_t fp_streams_next(const fp_streams *streams, int64_t first);
/* The part of a batch, and whether the batch is its first or its last one. */
int fp_streams_part(const fp_streams *streams, int64_t first);
bool fp_streams_begins_part(const fp_streams *streams, int64_t first);
bool fp_streams_ends_part(const fp_streams *streams, int64_t first);
/* Copies the hidden states of one stream or FP_LAYER_INPUT to another. */
fp_status fp_streams_copy(fp_streams *streams, int to, int from);
/* out ← the hidden states of one window of this rank, by its number in the text. */
fp_status fp_streams_read(fp_streams *streams, int slot, int64_t window, fp_matrix out);
/* Declares that a stream will not be read before it is written again. */
void fp_streams_forget(fp_streams *streams, int stream);
/* hidden ← layer(hidden) for a whole stream. */
fp_status fp_streams_forward(fp_streams *streams, int stream, const fp_layer *layer);

#endif
