/* SPDX-License-Identifier: Apache-2.0 */
#include "fitting/fitted_layers.h"

#include "base/memory.h"
#include "base/numbers.h"

/* The layer goes to its store. Norms and what else is not fitted stay on the device. */
static fp_status offload(fp_fitted_layers *l, int64_t i)
{
	fp_layer *layer = l->layer[i];
	fp_status status;
	FP_TRY(fp_layer_store_new(&l->store[i], layer, l->scratch));
	for (int k = 0; k < fp_model_operators(layer->model); k++) {
		fp_matrix_free(l->be, &layer->weight[k]);
		fp_matrix_free(l->be, &layer->bias[k]);
	}
cleanup:
	return status;
}

fp_status fp_fitted_layers_open(fp_fitted_layers *out, const fp_model *model, const fp_settings *settings,
								bool offloaded)
{
	fp_backend *be = fp_model_backend(model);
	fp_fitted_layers *l = out;
	fp_status status;
	*l = (fp_fitted_layers){.be = be, .offloaded = offloaded, .count = fp_model_get_config(model)->layers};
	FP_TRY(FP_NEW(be->ctx, &l->layer, l->count));
	FP_TRY(FP_NEW(be->ctx, &l->task, l->count));
	FP_TRY(FP_NEW(be->ctx, &l->optimiser, l->count));
	FP_TRY(FP_NEW(be->ctx, &l->store, l->count));
	if (offloaded)
		FP_TRY(fp_allocate_undefined(be->ctx, &l->scratch, fp_layer_store_scratch(model)));
	for (int64_t i = 0; i < l->count; i++) {
		FP_TRY(fp_check_interrupt(be->ctx));
		FP_TRY(fp_layer_load(&l->layer[i], model, i));
		l->task[i] = (fp_fit_task){.be = be, .ctx = be->ctx, .settings = settings, .layer = l->layer[i], .windows = 1};
		FP_TRY(fp_fit_optimiser_new(&l->optimiser[i], &l->task[i]));
		FP_TRY(offloaded ? offload(l, i)
						 : fp_fit_optimiser_allocate(&l->optimiser[i], FP_FIT_WEIGHTS | FP_FIT_MOMENTS));
	}
cleanup:
	return status;
}

void fp_fitted_layers_close(fp_fitted_layers *l)
{
	for (int64_t i = 0; i < l->count; i++) {
		if (l->optimiser)
			fp_fit_optimiser_free(&l->optimiser[i]);
		if (l->store)
			fp_layer_store_free(&l->store[i]);
		if (l->layer)
			fp_layer_free(l->layer[i]);
	}
	void *all[] = {l->layer, l->task, l->optimiser, l->store, l->scratch};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		fp_free(all[i]);
	*l = (fp_fitted_layers){0};
}

fp_status fp_fitted_layers_bytes(const fp_model *model, bool offloaded, int64_t *bytes)
{
	const int64_t layers = fp_model_get_config(model)->layers;
	const int kept = FP_FIT_WEIGHTS | FP_FIT_MOMENTS, there = offloaded ? 0 : kept;
	bool on_host = fp_model_backend(model)->memory->address != NULL;
	int64_t entered = 0, stored;
	fp_status status = FP_OK;
	*bytes = offloaded && on_host ? fp_layer_store_scratch(model) : 0;
	for (int64_t i = 0; i < layers; i++) {
		int64_t step = fp_fit_optimiser_bytes(model, i, (kept | FP_FIT_GRADIENTS) & ~there, 1);
		int64_t look = fp_fit_optimiser_bytes(model, i, (FP_FIT_WEIGHTS | FP_FIT_ROUNDED) & ~there, 1);
		entered = fp_larger(entered, fp_larger(step, look));
		if (!offloaded)
			*bytes += fp_layer_bytes(model, i) + fp_fit_optimiser_bytes(model, i, kept, 1);
		if (!offloaded || !on_host)
			continue;
		FP_TRY(fp_layer_store_bytes(model, i, &stored));
		*bytes += stored;
	}
	*bytes += entered;
cleanup:
	return status;
}

fp_status fp_fitted_layers_enter(fp_fitted_layers *l, int64_t i, int sets)
{
	fp_fit_optimiser *o = &l->optimiser[i];
	fp_status status;
	FP_TRY(fp_fit_optimiser_allocate(o, sets));
	if (l->offloaded && (sets & FP_FIT_WEIGHTS)) {
		FP_TRY(fp_layer_store_get(&l->store[i], FP_STORED_WEIGHTS, &o->weights));
		FP_TRY(fp_fit_optimiser_narrow(o));
	}
	if (l->offloaded && (sets & FP_FIT_MOMENTS)) {
		FP_TRY(fp_layer_store_get(&l->store[i], FP_STORED_MEAN, &o->mean));
		FP_TRY(fp_layer_store_get(&l->store[i], FP_STORED_SQUARE, &o->square));
	}
cleanup:
	return status;
}

fp_status fp_fitted_layers_leave(fp_fitted_layers *l, int64_t i, int changed)
{
	fp_fit_optimiser *o = &l->optimiser[i];
	fp_status status = FP_OK;
	if (l->offloaded && (changed & FP_FIT_WEIGHTS))
		FP_TRY(fp_layer_store_put(&l->store[i], FP_STORED_WEIGHTS, &o->weights));
	if (l->offloaded && (changed & FP_FIT_MOMENTS)) {
		FP_TRY(fp_layer_store_put(&l->store[i], FP_STORED_MEAN, &o->mean));
		FP_TRY(fp_layer_store_put(&l->store[i], FP_STORED_SQUARE, &o->square));
	}
	fp_fit_optimiser_release(o, l->offloaded ? FP_FIT_ALL : FP_FIT_GRADIENTS | FP_FIT_ROUNDED);
cleanup:
	return status;
}

fp_status fp_fitted_layers_start(fp_fitted_layers *l, double factor)
{
	fp_status status = FP_OK;
	for (int64_t i = 0; i < l->count; i++) {
		fp_fit_optimiser *o = &l->optimiser[i];
		if (!l->offloaded) {
			FP_TRY(fp_fit_optimiser_start(o, factor));
			continue;
		}
		FP_TRY(fp_fit_optimiser_allocate(o, FP_FIT_WEIGHTS | FP_FIT_MOMENTS));
		FP_TRY(fp_layer_store_get(&l->store[i], FP_STORED_BEST, &o->weights));
		FP_TRY(fp_fit_optimiser_restart(o, factor));
		FP_TRY(fp_fitted_layers_leave(l, i, FP_FIT_WEIGHTS | FP_FIT_MOMENTS));
	}
cleanup:
	return status;
}

fp_status fp_fitted_layers_keep(fp_fitted_layers *l)
{
	fp_status status = FP_OK;
	for (int64_t i = 0; i < l->count; i++) {
		fp_fit_optimiser *o = &l->optimiser[i];
		FP_TRY(fp_fitted_layers_enter(l, i, FP_FIT_WEIGHTS | FP_FIT_ROUNDED));
		FP_TRY(fp_fit_optimiser_round(o));
		FP_TRY(l->offloaded ? fp_layer_store_put(&l->store[i], FP_STORED_BEST, &o->rounded) : fp_fit_optimiser_keep(o));
		FP_TRY(fp_fitted_layers_leave(l, i, 0));
	}
cleanup:
	return status;
}

fp_status fp_fitted_layers_give(fp_fitted_layers *l, fp_take_layer take, void *data)
{
	fp_status status = FP_OK;
	for (int64_t i = 0; i < l->count; i++) {
		fp_fit_optimiser *o = &l->optimiser[i];
		if (!l->offloaded) {
			FP_TRY(take(data, l->layer[i]));
			continue;
		}
		FP_TRY(fp_fit_optimiser_allocate(o, FP_FIT_WEIGHTS | FP_FIT_ROUNDED));
		FP_TRY(fp_layer_store_get(&l->store[i], FP_STORED_BEST, &o->rounded));
		const fp_layer best = fp_fit_optimiser_rounded_layer(o);
		FP_TRY(take(data, &best));
		FP_TRY(fp_fitted_layers_leave(l, i, 0));
	}
cleanup:
	return status;
}
