/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_store.h: what the fit of a layer goes on with, in the host's memory while the device works on other layers. Of
 * weights, and of what there is for each weight, only the entries are stored that pruning kept. At 50% that is half of
 * them, and one bit for each entry.
 */
#ifndef FP_FITTING_LAYER_STORE_H
#define FP_FITTING_LAYER_STORE_H

#include "model/layer_backward.h"
#include "sharing/kept_entries.h"

typedef enum fp_stored {
	FP_STORED_WEIGHTS,
	FP_STORED_MEAN,
	FP_STORED_SQUARE,
	FP_STORED_BEST, /* weights in the checkpoint's types */
	FP_STORED_COUNT
} fp_stored;

typedef struct fp_layer_store { /* freed with fp_layer_store_free(); all zero: empty */
	const fp_model *model;
	int64_t layer;
	fp_kept_entries kept;           /* of the weight and the bias of each operator, where it has them */
	void **packed[FP_STORED_COUNT]; /* the same order; NULL: not stored yet */
	void *scratch;                  /* borrowed */
} fp_layer_store;

/* Stores the weights of a layer as FP_STORED_BEST. scratch: fp_layer_store_scratch() bytes, which stores may share. */
fp_status fp_layer_store_new(fp_layer_store *out, const fp_layer *layer, void *scratch);
void fp_layer_store_free(fp_layer_store *store);
/* The store ← matrices, of which all that were not kept are zero; and the reverse. */
fp_status fp_layer_store_put(fp_layer_store *store, fp_stored what, const fp_layer_matrices *matrices);
fp_status fp_layer_store_get(const fp_layer_store *store, fp_stored what, const fp_layer_matrices *matrices);

int64_t fp_layer_store_scratch(const fp_model *model);
/* *bytes ← of the store of this layer once everything is stored. Reads the layer; for devices whose memory is the host's. */
fp_status fp_layer_store_bytes(const fp_model *model, int64_t layer, int64_t *bytes);

#endif
