/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fisher_store.h: what fisher.h keeps. Slots of bf16 hold the outputs of a layer for all windows and later their
 * gradients; besides, each layer has one matrix of floats. Both are on the device or in an unnamed temporary file.
 *
 * The number of tokens grows with the hidden size, so that the slots of all layers may take too much. Then only each
 * stride-th output is kept. The outputs between two of them share slots: whoever reads them computes them again first.
 */
#ifndef FP_FITTING_FISHER_STORE_H
#define FP_FITTING_FISHER_STORE_H

#include "backend/backend.h"

typedef struct fp_fisher_store { /* freed with fp_fisher_store_close() */
	fp_backend *be;
	int64_t layers, first, end; /* of the model; those that have matrices */
	int64_t windows, length, width;
	int64_t batch;      /* windows read or written at once */
	bool keeps_slots;   /* to be read until the end: the stride is 1 */
	bool resident;      /* the slots are on the device */
	bool holds;         /* the matrices are on the device */
	int64_t slot_limit; /* bytes of all slots, if a stride can achieve it */
	int64_t stride;
	fp_matrix slots, matrices; /* those on the device */
	int file;                  /* −1: none */
	uint16_t *host;            /* a batch between the device and the file */
} fp_fisher_store;

/* Sets the stride of a store whose sizes are set: the smallest with which the slots are small enough, or else the one
 * with the fewest slots. */
void fp_fisher_store_plan(fp_fisher_store *f);
/* Of a planned store: the bytes of all slots and of all matrices, and the size of the file. */
int64_t fp_fisher_store_slot_bytes(const fp_fisher_store *f);
int64_t fp_fisher_store_matrix_bytes(const fp_fisher_store *f);
int64_t fp_fisher_store_file_bytes(const fp_fisher_store *f);
/* Opens a planned store, with its file in `folder`. */
fp_status fp_fisher_store_open(fp_fisher_store *f, const char *folder);
void fp_fisher_store_close(fp_fisher_store *f); /* one that is not open is allowed */
/* Frees slots on the device that need not stay; only matrices can be read then. */
void fp_fisher_store_drop_slots(fp_fisher_store *f);

/* True if the outputs below `layer`, as far as the next kept one, are in slots that layers above it have used. */
bool fp_fisher_store_shares_below(const fp_fisher_store *f, int64_t layer);

/* The slot of a layer, from `window` on (rows: whole windows, at most a batch). Layers below the first share its slot.
 */
fp_status fp_fisher_write_slot(const fp_fisher_store *f, int64_t layer, int64_t window, fp_matrix rows);
fp_status fp_fisher_read_slot(const fp_fisher_store *f, int64_t layer, int64_t window, fp_matrix rows);

/* The matrix (width × width) of a layer of [first, end). */
fp_status fp_fisher_write_matrix(const fp_fisher_store *f, int64_t layer, fp_matrix matrix);
fp_status fp_fisher_read_matrix(const fp_fisher_store *f, int64_t layer, fp_matrix out);

#endif
