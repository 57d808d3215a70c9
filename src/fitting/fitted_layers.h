/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fitted_layers.h: all layers of a model, each with the optimiser of its weights. One layer is worked on at a time, between
 * _enter() and _leave(). Gradients and rounded weights are on the device only then. The others stay there, or all lie in the
 * host's memory until their layer is entered (offloaded).
 */
#ifndef FP_FITTING_FITTED_LAYERS_H
#define FP_FITTING_FITTED_LAYERS_H

#include "base/settings.h"
#include "fitting/fit_optimiser.h"
#include "fitting/layer_store.h"

typedef struct fp_fitted_layers { /* freed with fp_fitted_layers_close(); all zero: closed */
	fp_backend *be;
	bool offloaded;
	int64_t count;
	fp_layer **layer; /* the best point so far; offloaded: without the operators */
	fp_fit_task *task;
	fp_fit_optimiser *optimiser;
	fp_layer_store *store; /* offloaded */
	void *scratch;         /* of all stores */
} fp_fitted_layers;

/* Takes one fitted layer after the other. */
typedef fp_status (*fp_take_layer)(void *data, const fp_layer *layer);

fp_status fp_fitted_layers_open(fp_fitted_layers *out, const fp_model *model, const fp_settings *settings,
								bool offloaded);
void fp_fitted_layers_close(fp_fitted_layers *l);
/* *bytes ← what they take of the device's memory, for planning. Reads the layers, if they are offloaded to the very memory
 * of the device. */
fp_status fp_fitted_layers_bytes(const fp_model *model, bool offloaded, int64_t *bytes);

/* All start from the best point (fp_fit_optimiser_start()). */
fp_status fp_fitted_layers_start(fp_fitted_layers *l, double factor);
/* The device has these sets of layer number i, for its optimiser. Gradients and rounded weights are undefined. */
fp_status fp_fitted_layers_enter(fp_fitted_layers *l, int64_t i, int sets);
/* Keeps what has changed: FP_FIT_WEIGHTS and FP_FIT_MOMENTS, or neither (0). */
fp_status fp_fitted_layers_leave(fp_fitted_layers *l, int64_t i, int changed);
/* The best point ← the weights, rounded. */
fp_status fp_fitted_layers_keep(fp_fitted_layers *l);
/* Gives away the layers of the best point, in order. */
fp_status fp_fitted_layers_give(fp_fitted_layers *l, fp_take_layer take, void *data);

#endif
