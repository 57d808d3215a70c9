/* SPDX-License-Identifier: Apache-2.0 */
/*
 * streams.h: the hidden states of all calibration windows between two steps, for the dense model and for the pruned
 * one, and the walk over them in batches.
 *
 * Where memory is short they are not all there: attention's outputs are made again instead of being kept, and the
 * hidden states of all but one batch wait in a file without a name. Neither changes a bit of the result.
 */
#ifndef FP_PRUNING_STREAMS_H
#define FP_PRUNING_STREAMS_H

#include "model/layer.h"
#include "text/windows.h"

/* The two streams, and what the pruned one was before a layer, which a fit of the layer reads. */
enum { FP_DENSE, FP_PRUNED, FP_STREAM_COUNT, FP_LAYER_INPUT = FP_STREAM_COUNT, FP_SLOT_COUNT };

/* What is kept in the backend's memory, from much to little. */
typedef enum fp_residence {
	FP_RESIDENT,  /* hidden states of all windows, and attention's outputs of the pruned stream */
	FP_RECOMPUTE, /* hidden states of all windows; work space only while it is in use */
	FP_PARKED     /* those of one batch; the rest is in a file */
} fp_residence;

typedef struct fp_streams_plan {
	bool both;   /* a dense and a pruned stream */
	bool fitted; /* FP_LAYER_INPUT is needed too */
	int64_t batch;
	fp_residence residence;
	const char *folder; /* of the files; borrowed */
} fp_streams_plan;

typedef struct fp_streams {
	fp_model *model; /* borrowed */
	int64_t windows, length;
	int64_t batch; /* windows in a batch */
	fp_residence residence;
	int count;                                /* of streams */
	fp_matrix hidden[FP_SLOT_COUNT];          /* tokens × hidden; parked: of one batch */
	fp_matrix context[FP_STREAM_COUNT];       /* attention's outputs, between two groups: of a batch, or kept */
	fp_workspace *workspace[FP_STREAM_COUNT]; /* for one batch */
	int file[FP_SLOT_COUNT];                  /* parked: −1 or open */
	int source[FP_SLOT_COUNT]; /* parked: the file that it is in, maybe with others; −1: it is nowhere */
	int target[FP_SLOT_COUNT]; /* parked: the file that it is being stored to, or −1 */
	float *host;               /* parked: a batch on its way */
} fp_streams;

/* Embeds the windows into the dense stream; with `both` into the pruned one too. Windows without ids leave the streams
 * as they are. Freed with fp_streams_free(). */
fp_status fp_streams_new(fp_streams *out, fp_model *model, const fp_windows *windows, bool both);
/* The same by a plan. */
fp_status fp_streams_open(fp_streams *out, fp_model *model, const fp_windows *windows, const fp_streams_plan *plan);
void fp_streams_free(fp_streams *streams);
/* Windows in a batch where memory is no concern. */
int64_t fp_streams_usual_batch(const fp_model *model, int64_t windows, int64_t length);
/* Bytes that the streams take for as long as they live, and beside it while a pass goes over them; for planning. */
int64_t fp_streams_bytes(const fp_model *model, int64_t windows, int64_t length, const fp_streams_plan *plan);
int64_t fp_streams_pass_bytes(const fp_model *model, int64_t length, const fp_streams_plan *plan);
/* Most tokens in one batch. */
int64_t fp_streams_batch_tokens(const fp_streams *streams);

/* Around every pass over the batches: the work space is there in between. */
fp_status fp_streams_begin_pass(fp_streams *streams);
void fp_streams_end_pass(fp_streams *streams);
/* Before and after the use of a stream's batch. A pass that stores one batch stores all, with fp_streams_begin_store()
 * before it and fp_streams_stored() at its end, and fetches a batch from all streams that it reads before it stores it.
 */
fp_status fp_streams_fetch(fp_streams *streams, int stream, int64_t first);
void fp_streams_begin_store(fp_streams *streams, int stream);
fp_status fp_streams_store(fp_streams *streams, int stream, int64_t first);
void fp_streams_stored(fp_streams *streams, int stream);

/* The batch that starts at window `first`, as a layer's state. Its views point into the stream. */
fp_layer_state fp_streams_batch(const fp_streams *streams, int stream, int64_t first);
/* One stream's (or FP_LAYER_INPUT's) hidden states ← the other's. */
fp_status fp_streams_copy(fp_streams *streams, int to, int from);
/* out ← the hidden states of one window. */
fp_status fp_streams_read(fp_streams *streams, int slot, int64_t window, fp_matrix out);
/* A stream that is not read before it is written again. */
void fp_streams_forget(fp_streams *streams, int stream);
/* hidden ← layer(hidden) for a whole stream. */
fp_status fp_streams_forward(fp_streams *streams, int stream, const fp_layer *layer);

#endif
