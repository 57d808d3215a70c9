/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel_order.h: for N:M patterns, an order of the inner channels in which the groups of M consecutive columns of
 * `down` lose little. Two large entries in one group compete; in different groups both stay.
 *
 * A round pairs the groups at random. In each pair it looks at every exchange of a channel of one group with a channel of
 * the other, and makes the one that lowers the removed mass, Σ w²E[x²] over the entries that the pattern removes, the
 * most.
 */
#ifndef FP_BASIS_CHANNEL_ORDER_H
#define FP_BASIS_CHANNEL_ORDER_H

#include "basis/layer_inputs.h"
#include "basis/learn_basis.h"

/* order[i] ← the channel that comes to place i, for each block of the layer as in fp_layer_basis; `inner` as in
 * fp_layer_inputs. *out is allocated, and stays NULL for unstructured patterns and where the groups divide the channels of
 * no block. Freed with fp_free(). */
fp_status fp_order_channels(int32_t **out, const fp_basis_task *task, const fp_layer *layer, fp_matrix inner);

#endif
