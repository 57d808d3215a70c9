/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_shares.h: which rank prunes which layers, and the dense hidden states on their way down the ranks.
 *
 * Rank r owns the layers [first[r], first[r + 1]). It takes the dense stream through its layers first and sends it on,
 * batch by batch, and only then prunes: the next rank waits for forward passes only. With f seconds for a layer's
 * forward pass and c[l] for pruning layer l, rank r is done at about f·first[r + 1] + Σc[l] over its layers; the shares
 * make the latest of these as early as can be, so early ranks have more layers.
 */
#ifndef FP_RUN_LAYER_SHARES_H
#define FP_RUN_LAYER_SHARES_H

#include "comm/comm.h"
#include "pruning/streams.h"

/* first (ranks + 1 numbers) ← the shares of layers 0 to `layers` − 1; late ranks may get none. */
void fp_share_layers(int64_t *first, int ranks, int64_t layers, double forward, const double *cost);

/* The dense stream arrives from the rank before (rank 0 has embedded it), goes through the layers [begin, end) in the
 * place of the pruned one, and is sent to the rank after, where `onward`. Afterwards the dense stream is what layer
 * `begin` reads. */
fp_status fp_streams_relay(fp_streams *streams, fp_comm *comm, int64_t begin, int64_t end, bool onward);

#endif
