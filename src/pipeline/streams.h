/* SPDX-License-Identifier: Apache-2.0 */
/*
 * streams.h: the hidden states of all calibration windows between two steps, for the dense model and for the pruned
 * one, and the walk over them in batches.
 */
#ifndef FP_PIPELINE_STREAMS_H
#define FP_PIPELINE_STREAMS_H

#include "model/layer.h"
#include "text/windows.h"

enum { FP_DENSE, FP_PRUNED, FP_STREAM_COUNT };

typedef struct fp_streams {
	fp_model *model; /* borrowed */
	int64_t windows, length;
	int64_t batch;                      /* windows in a batch */
	fp_matrix hidden[FP_STREAM_COUNT];  /* tokens × hidden */
	fp_matrix context[FP_STREAM_COUNT]; /* attention's outputs, between two groups: all tokens of the pruned stream, a
										   batch of the dense one */
	fp_workspace *workspace[FP_STREAM_COUNT]; /* for one batch */
} fp_streams;

/* Embeds the windows into the dense stream; with `both` into the pruned one too. Windows without ids leave the streams
 * as they are. Freed with fp_streams_free(). */
fp_status fp_streams_new(fp_streams *out, fp_model *model, const fp_windows *windows, bool both);
void fp_streams_free(fp_streams *streams);
/* Bytes that fp_streams_new() takes, for planning. */
int64_t fp_streams_bytes(const fp_model *model, int64_t windows, int64_t length, bool both);
/* Most tokens in one batch. */
int64_t fp_streams_batch_tokens(const fp_streams *streams);

/* The batch that starts at window `first`, as a layer's state. Its views point into the stream. */
fp_layer_state fp_streams_batch(const fp_streams *streams, int stream, int64_t first);
/* One stream's hidden states ← the other's. */
fp_status fp_streams_copy(fp_streams *streams, int to, int from);
/* hidden ← layer(hidden) for a whole stream. */
fp_status fp_streams_forward(fp_streams *streams, int stream, const fp_layer *layer);

#endif
