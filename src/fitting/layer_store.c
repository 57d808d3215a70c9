/* SPDX-License-Identifier: Apache-2.0 */
#include "fitting/layer_store.h"

#include "base/memory.h"
#include "base/numbers.h"

/* Number i of a layer: the weights and biases of its operators in turn. NULL: there is none. */
static const fp_tensor_info *tensor_of(const fp_model *model, int64_t layer, int i)
{
	return i % 2 ? fp_model_operator_bias(model, layer, i / 2) : fp_model_operator(model, layer, i / 2);
}

int64_t fp_layer_store_scratch(const fp_model *model)
{
	int64_t most = 0;
	for (int64_t layer = 0; layer < fp_model_get_config(model)->layers; layer++)
		for (int i = 0; i < fp_model_operators(model); i++) {
			const fp_tensor_info *weight = fp_model_operator(model, layer, i);
			most = fp_larger(most, weight ? weight->elements : 0);
		}
	return most * (int64_t)sizeof(float);
}

/* Where a matrix lies in the host's memory, with entries of this type: where it is, or in the scratch. */
static void *host_place(const fp_layer_store *store, fp_matrix m, fp_dtype type)
{
	void *place = m.dtype == type ? fp_matrix_on_host(fp_model_backend(store->model), m) : NULL;
	return place ? place : store->scratch;
}

static fp_status put_matrix(const fp_layer_store *store, int64_t place, void **packed, fp_matrix m, fp_dtype type)
{
	fp_backend *be = fp_model_backend(store->model);
	const fp_kept_matrix *kept = &store->kept.list[place];
	int64_t size = fp_dtype_size(type);
	void *host = host_place(store, m, type);
	fp_status status = FP_OK;
	if (!*packed)
		FP_TRY(fp_allocate_undefined(be->ctx, packed, fp_kept_count(kept, 0, kept->rows) * size + 1));
	if (host == store->scratch) {
		FP_TRY(be->memory->download(be, host, type, m.cols, m));
		FP_TRY(be->memory->synchronize(be));
	}
	fp_kept_copy(kept, 0, kept->rows, host, *packed, size, true, be->threads);
cleanup:
	return status;
}

static fp_status get_matrix(const fp_layer_store *store, int64_t place, void *packed, fp_matrix m, fp_dtype type)
{
	fp_backend *be = fp_model_backend(store->model);
	const fp_kept_matrix *kept = &store->kept.list[place];
	void *host = host_place(store, m, type);
	fp_status status = FP_OK;
	FP_REQUIRE(be, packed);
	fp_kept_copy(kept, 0, kept->rows, host, packed, fp_dtype_size(type), false, be->threads);
	if (host == store->scratch) {
		FP_TRY(be->memory->upload(be, m, host, type, m.cols));
		FP_TRY(be->memory->synchronize(be)); /* before the scratch is used again */
	}
cleanup:
	return status;
}

static fp_status exchange(const fp_layer_store *store, fp_stored what, const fp_layer_matrices *matrices, bool puts)
{
	int64_t place = 0;
	fp_status status = FP_OK;
	for (int i = 0; i < 2 * matrices->count; i++) {
		fp_matrix m = i % 2 ? matrices->bias[i / 2] : matrices->weight[i / 2];
		if (fp_matrix_is_absent(m))
			continue;
		fp_dtype type = what == FP_STORED_BEST ? tensor_of(store->model, store->layer, i)->dtype : m.dtype;
		void **packed = &store->packed[what][place];
		FP_TRY(puts ? put_matrix(store, place, packed, m, type) : get_matrix(store, place, *packed, m, type));
		place++;
	}
cleanup:
	return status;
}

fp_status fp_layer_store_put(fp_layer_store *store, fp_stored what, const fp_layer_matrices *matrices)
{
	fp_backend *be = fp_model_backend(store->model);
	fp_status status = FP_OK;
	if (!store->packed[what])
		FP_TRY(FP_NEW(be->ctx, &store->packed[what], store->kept.count));
	FP_TRY(exchange(store, what, matrices, true));
cleanup:
	return status;
}

fp_status fp_layer_store_get(const fp_layer_store *store, fp_stored what, const fp_layer_matrices *matrices)
{
	FP_REQUIRE(fp_model_backend(store->model), store->packed[what]);
	return exchange(store, what, matrices, false);
}

/* Zeros of biases may move. */
static fp_status list_kept(fp_kept_entries *kept, const fp_layer *layer, void *scratch)
{
	fp_backend *be = fp_model_backend(layer->model);
	fp_status status = FP_OK;
	for (int i = 0; i < fp_model_operators(layer->model); i++) {
		fp_matrix weight = layer->weight[i], bias = layer->bias[i];
		if (fp_matrix_is_absent(weight))
			continue;
		const float *entries = weight.dtype == FP_F32 ? fp_matrix_on_host(be, weight) : NULL;
		if (!entries) {
			FP_REQUIRE(be, scratch);
			entries = scratch;
			FP_TRY(be->memory->download(be, scratch, FP_F32, weight.cols, weight));
			FP_TRY(be->memory->synchronize(be));
		}
		FP_TRY(fp_kept_entries_add(kept, be->ctx, weight.rows, weight.cols, entries));
		if (!fp_matrix_is_absent(bias))
			FP_TRY(fp_kept_entries_add(kept, be->ctx, 1, bias.cols, NULL));
	}
cleanup:
	return status;
}

fp_status fp_layer_store_new(fp_layer_store *out, const fp_layer *layer, void *scratch)
{
	const fp_layer_matrices matrices = {fp_model_operators(layer->model), layer->weight, layer->bias};
	fp_status status;
	*out = (fp_layer_store){.model = layer->model, .layer = layer->index, .scratch = scratch};
	FP_TRY(list_kept(&out->kept, layer, scratch));
	FP_TRY(fp_layer_store_put(out, FP_STORED_BEST, &matrices));
cleanup:
	return status;
}

void fp_layer_store_free(fp_layer_store *store)
{
	for (int what = 0; what < FP_STORED_COUNT; what++) {
		for (int64_t i = 0; store->packed[what] && i < store->kept.count; i++)
			fp_free(store->packed[what][i]);
		fp_free(store->packed[what]);
	}
	fp_kept_entries_free(&store->kept);
	*store = (fp_layer_store){0};
}

fp_status fp_layer_store_bytes(const fp_model *model, int64_t layer, int64_t *bytes)
{
	const int64_t floats = 3 * (int64_t)sizeof(float); /* the weight and its moments */
	fp_layer *loaded = NULL;
	fp_kept_entries kept = {0};
	int64_t place = 0;
	fp_status status;
	*bytes = 0;
	FP_TRY(fp_layer_load(&loaded, model, layer));
	FP_TRY(list_kept(&kept, loaded, NULL));
	FP_REQUIRE(fp_model_backend(model), kept.list);
	for (int i = 0; i < 2 * fp_model_operators(model); i++) {
		const fp_tensor_info *tensor = tensor_of(model, layer, i);
		if (!tensor)
			continue;
		const fp_kept_matrix *one = &kept.list[place++];
		*bytes += fp_kept_bytes(one) + fp_kept_count(one, 0, one->rows) * (floats + fp_dtype_size(tensor->dtype));
	}
cleanup:
	fp_kept_entries_free(&kept);
	fp_layer_free(loaded);
	return status;
}
