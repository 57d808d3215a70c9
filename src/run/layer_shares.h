/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_shares.h: distributes the layers over the ranks, and passes the dense hidden states from rank to rank.
 *
 * Rank r owns the layers [first[r], first[r + 1]). It first runs the dense stream through its layers and sends it to the
 * next rank, batch by batch, and only then prunes, so that the next rank waits for forward passes only. With f seconds
 * for a layer's forward pass and c[l] seconds for pruning layer l, rank r finishes at about
 *
 *     f·first[r + 1] + Σ c[l] over its layers
 *
 * The shares minimise the latest of these times, so that early ranks get more layers.
 */
#ifndef FP_RUN_LAYER_SHARES_H
#define FP_RUN_LAYER_SHARES_H

#include "comm/comm.h"
#include "pruning/streams.h"

/* first (ranks + 1 numbers) ← the shares of `layers` layers; the last ranks may get none. */
void fp_share_layers(int64_t *first, int ranks, int64_t layers, double forward, const double *cost);

/* Receives the dense stream from the rank before; rank 0 has embedded it. If `sends`, runs a copy of it, in the pruned
 * stream's place, through the layers [begin, end) and sends that to the next rank. On return the dense stream holds the
 * input of layer `begin`. */
fp_status fp_streams_relay(fp_streams *streams, fp_comm *comm, int64_t begin, int64_t end, bool sends);

#endif
