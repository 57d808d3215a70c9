/* SPDX-License-Identifier: Apache-2.0 */
#include "fitting/fit_optimiser.h"

#include "base/memory.h"
#include "base/numbers.h"
#include "fitting/matrix_parts.h"
#include "sharing/row_slices.h"

#include <math.h>

enum { WARM_UP_SHARE = 20, MOST_PARTS = 11 };
static const float BETA1 = 0.9F;
static const float BETA2 = 0.999F;
static const float EPSILON = 1e-12F; /* only avoids 0/0: the gradients of a relative loss are small */

/* True if products read weights in the very type of the checkpoint: then those are the rounded ones too. */
static bool narrow_is_rounded(const fp_model *model, const fp_tensor_info *weight)
{
	return fp_backend_rounds(fp_model_backend(model), FP_USE_ACTIVATION) && weight->dtype == FP_BF16 &&
		   fp_model_held_type(model, weight) == FP_BF16;
}

static fp_matrix own_rows(const fp_fit_optimiser *o, fp_matrix m)
{
	return fp_row_slice(&o->share, o->task->be, fp_share_rank(&o->share), m);
}

/* The matrices of these sets for one operator; returns how many. */
static int list_parts(fp_fit_optimiser *o, int number, int sets, fp_matrix_part parts[MOST_PARTS])
{
	const fp_model *model = o->task->layer->model;
	int64_t layer = o->task->layer->index;
	bool rounds = fp_backend_rounds(o->task->be, FP_USE_ACTIVATION);
	const fp_tensor_info *weight = fp_model_operator(model, layer, number);
	const fp_tensor_info *bias = fp_model_operator_bias(model, layer, number);
	const struct {
		fp_layer_matrices *matrices;
		int set;
		fp_dtype type;
	} floats[] = {
		{&o->weights, FP_FIT_WEIGHTS, FP_F32},
		{&o->gradients, FP_FIT_GRADIENTS, FP_F32},
		{&o->mean, FP_FIT_MOMENTS, rounds ? FP_BF16 : FP_F32}, /* Adam is limited by the bytes of all these */
		{&o->square, FP_FIT_MOMENTS, FP_F32},
	};
	int count = 0;
	if (!weight)
		return 0;
	int64_t rows = weight->shape[0], cols = weight->shape[1];
	for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
		fp_matrix whole[2] = {{.rows = rows, .cols = cols}, {.rows = 1, .cols = rows}};
		if (!(sets & floats[i].set))
			continue;
		for (int k = 0; k < 2 && floats[i].set == FP_FIT_MOMENTS; k++)
			whole[k] = own_rows(o, whole[k]);
		fp_layer_matrices *m = floats[i].matrices;
		parts[count++] = (fp_matrix_part){&m->weight[number], whole[0].rows, whole[0].cols, floats[i].type};
		if (bias)
			parts[count++] = (fp_matrix_part){&m->bias[number], whole[1].rows, whole[1].cols, FP_F32};
	}
	if (rounds && (sets & FP_FIT_WEIGHTS))
		parts[count++] = (fp_matrix_part){&o->narrow.weight[number], rows, cols, FP_BF16};
	if ((sets & FP_FIT_ROUNDED) && !narrow_is_rounded(model, weight))
		parts[count++] = (fp_matrix_part){&o->rounded.weight[number], rows, cols, fp_model_held_type(model, weight)};
	if ((sets & FP_FIT_ROUNDED) && bias)
		parts[count++] = (fp_matrix_part){&o->rounded.bias[number], 1, rows, FP_F32};
	return count;
}

/* True when rounding to a tensor's type takes a matrix of that type, because the result is held in another one. */
static bool rounds_through(const fp_tensor_info *tensor, fp_dtype held)
{
	return tensor->dtype != FP_F32 && tensor->dtype != held;
}

int64_t fp_fit_optimiser_bytes(const fp_model *model, int64_t layer, int sets, int registers)
{
	bool rounds = fp_backend_rounds(fp_model_backend(model), FP_USE_ACTIVATION);
	int64_t largest = 0, bytes = 0;
	for (int i = 0; i < fp_model_operators(model); i++) {
		const fp_tensor_info *weight = fp_model_operator(model, layer, i);
		if (!weight)
			continue;
		fp_dtype held = fp_model_held_type(model, weight);
		int64_t floats = 0;
		floats += sets & FP_FIT_WEIGHTS ? 1 : 0;
		floats += sets & FP_FIT_MOMENTS ? 2 : 0;
		floats += sets & FP_FIT_GRADIENTS ? registers : 0;
		int64_t entry = floats * (int64_t)sizeof(float);
		entry += rounds && (sets & FP_FIT_WEIGHTS) ? 2 : 0; /* `narrow` */
		entry -= rounds && (sets & FP_FIT_MOMENTS) ? 2 : 0; /* the mean */
		entry += (sets & FP_FIT_ROUNDED) && !narrow_is_rounded(model, weight) ? fp_dtype_size(held) : 0;
		bytes += weight->elements * entry;
		if (fp_model_operator_bias(model, layer, i))
			bytes += weight->shape[0] * (floats + (sets & FP_FIT_ROUNDED ? 1 : 0)) * (int64_t)sizeof(float);
		if ((sets & FP_FIT_ROUNDED) && rounds_through(weight, held))
			largest = fp_larger(largest, weight->bytes);
	}
	return bytes + largest;
}

static bool is_frozen(const fp_fit_optimiser *o, int number)
{
	return o->task->frozen && o->task->frozen[number];
}

fp_status fp_fit_optimiser_new(fp_fit_optimiser *out, const fp_fit_task *task)
{
	const fp_model *model = task->layer->model;
	fp_status status = FP_OK;
	*out = (fp_fit_optimiser){.task = task, .share = task->share ? *task->share : fp_share_whole(task->windows)};
	fp_layer_matrices *all[] = {&out->weights, &out->narrow, &out->rounded, &out->gradients, &out->mean, &out->square};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		FP_TRY(fp_layer_matrices_empty(all[i], model));
	FP_TRY(FP_NEW(task->ctx, &out->rate, fp_model_operators(model)));
cleanup:
	if (status != FP_OK)
		fp_fit_optimiser_free(out);
	return status;
}

fp_status fp_fit_optimiser_allocate(fp_fit_optimiser *o, int sets)
{
	const fp_layer *layer = o->task->layer;
	fp_matrix_part parts[MOST_PARTS];
	fp_status status = FP_OK;
	for (int i = 0; i < o->weights.count; i++) {
		int count = list_parts(o, i, sets, parts);
		for (int k = 0; k < count; k++)
			if (fp_matrix_is_absent(*parts[k].matrix))
				FP_TRY(fp_matrix_parts_new(o->task->be, &parts[k], 1));
		if ((sets & FP_FIT_ROUNDED) && !fp_matrix_is_absent(o->weights.weight[i]) &&
			narrow_is_rounded(layer->model, fp_model_operator(layer->model, layer->index, i)))
			o->rounded.weight[i] = o->narrow.weight[i];
	}
cleanup:
	return status;
}

/* True if the rounded weights of an operator are those that products read. */
static bool is_shared(const fp_fit_optimiser *o, int number)
{
	return !fp_matrix_is_absent(o->rounded.weight[number]) &&
		   o->rounded.weight[number].buffer == o->narrow.weight[number].buffer;
}

void fp_fit_optimiser_release(fp_fit_optimiser *o, int sets)
{
	fp_matrix_part parts[MOST_PARTS];
	for (int i = 0; i < o->weights.count; i++) {
		if ((sets & (FP_FIT_WEIGHTS | FP_FIT_ROUNDED)) && is_shared(o, i))
			o->rounded.weight[i] = (fp_matrix){0};
		int count = list_parts(o, i, sets, parts);
		for (int k = 0; k < count; k++)
			fp_matrix_free(o->task->be, parts[k].matrix);
	}
}

void fp_fit_optimiser_free(fp_fit_optimiser *optimiser)
{
	fp_fit_optimiser *o = optimiser;
	fp_layer_matrices *all[] = {&o->weights, &o->narrow, &o->rounded, &o->gradients, &o->mean, &o->square};
	if (!o->task)
		return;
	for (int i = 0; i < o->rounded.count; i++)
		if (is_shared(o, i))
			o->rounded.weight[i] = (fp_matrix){0};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		fp_layer_matrices_free(o->task->be, all[i]);
	fp_addends_free(&o->moving);
	fp_kept_entries_free(&o->kept);
	fp_free(o->rate);
	*o = (fp_fit_optimiser){0};
}

/* Adam moves all weights of a row by about the same length. When the signs of these steps agree with those of the
 * inputs, as they do for outliers, the relative change of the output grows with the root of the number of inputs. */
static double relative_rate(const fp_settings *settings, fp_matrix weight)
{
	return settings->fit_rate * fmin(1, sqrt((double)settings->fit_width / (double)weight.cols));
}

static fp_status root_mean_square(fp_backend *be, fp_matrix W, double *out)
{
	fp_status status = be->linear->dot(be, W, W, out);
	*out = sqrt(*out / (double)(fp_matrix_size(W) > 0 ? fp_matrix_size(W) : 1));
	return status;
}

/* Zeros of weights stay, those of biases may not. Only matrices in the host's memory have lists of entries. */
static fp_status list_moving(fp_fit_optimiser *o)
{
	fp_backend *be = o->task->be;
	fp_status status = FP_OK;
	fp_addends_free(&o->moving);
	fp_kept_entries_free(&o->kept);
	for (int i = 0; i < o->weights.count && fp_share_ranks(&o->share) > 1; i++) {
		fp_matrix weight = o->weights.weight[i], bias = o->weights.bias[i];
		if (is_frozen(o, i))
			continue;
		FP_TRY(fp_addends_matrix(&o->moving, be->ctx, weight));
		FP_TRY(fp_addends_matrix(&o->moving, be->ctx, bias));
		if (be->memory->address && !fp_matrix_is_absent(weight))
			FP_TRY(fp_kept_entries_add(&o->kept, be->ctx, weight.rows, weight.cols, fp_matrix_on_host(be, weight)));
		if (be->memory->address && !fp_matrix_is_absent(bias))
			FP_TRY(fp_kept_entries_add(&o->kept, be->ctx, 1, bias.cols, NULL));
	}
cleanup:
	return status;
}

const fp_kept_entries *fp_fit_optimiser_kept(const fp_fit_optimiser *o)
{
	return o->kept.count > 0 ? &o->kept : NULL;
}

fp_status fp_fit_optimiser_narrow(fp_fit_optimiser *o)
{
	fp_backend *be = o->task->be;
	fp_status status = FP_OK;
	for (int i = 0; i < o->weights.count; i++)
		if (!fp_matrix_is_absent(o->narrow.weight[i]))
			FP_TRY(be->memory->copy(be, o->narrow.weight[i], o->weights.weight[i]));
cleanup:
	return status;
}

fp_status fp_fit_optimiser_restart(fp_fit_optimiser *o, double factor)
{
	fp_backend *be = o->task->be;
	fp_status status;
	FP_TRY(fp_fit_optimiser_narrow(o));
	for (int i = 0; i < o->weights.count; i++) {
		fp_matrix weight = o->weights.weight[i];
		if (fp_matrix_is_absent(weight))
			continue;
		FP_TRY(be->memory->fill(be, o->mean.weight[i], 0));
		FP_TRY(be->memory->fill(be, o->square.weight[i], 0));
		FP_TRY(root_mean_square(be, weight, &o->rate[i]));
		o->rate[i] *= relative_rate(o->task->settings, weight);
		o->rate[i] *= factor;
		if (fp_matrix_is_absent(o->weights.bias[i]))
			continue;
		FP_TRY(be->memory->fill(be, o->mean.bias[i], 0));
		FP_TRY(be->memory->fill(be, o->square.bias[i], 0));
	}
	FP_TRY(list_moving(o));
cleanup:
	return status;
}

fp_status fp_fit_optimiser_start(fp_fit_optimiser *o, double factor)
{
	fp_backend *be = o->task->be;
	const fp_layer *layer = o->task->layer;
	fp_status status = FP_OK;
	for (int i = 0; i < o->weights.count; i++) {
		if (!fp_matrix_is_absent(layer->weight[i]))
			FP_TRY(be->memory->copy(be, o->weights.weight[i], layer->weight[i]));
		if (!fp_matrix_is_absent(layer->bias[i]))
			FP_TRY(be->memory->copy(be, o->weights.bias[i], layer->bias[i]));
	}
	FP_TRY(fp_fit_optimiser_restart(o, factor));
cleanup:
	return status;
}

/* Half a cosine from 1 to 0, after a short warm-up. */
static double schedule(int64_t step, int64_t steps)
{
	int64_t warm_up = steps / WARM_UP_SHARE;
	double decay = 0.5 * (1 + cos(3.14159265358979323846 * (double)step / (double)steps));
	return step < warm_up ? decay * (double)(step + 1) / (double)(warm_up + 1) : decay;
}

/* Adam on this rank's rows of a matrix. */
static fp_status step_rows(const fp_fit_optimiser *o, fp_adam rule, fp_matrix gradient, fp_matrix mean,
						   fp_matrix square, fp_matrix weights)
{
	fp_backend *be = o->task->be;
	if (mean.rows == 0)
		return FP_OK;
	if (!fp_matrix_is_absent(rule.narrow))
		rule.narrow = own_rows(o, rule.narrow);
	return be->gradients->adam_step(be, &rule, own_rows(o, gradient), mean, square, own_rows(o, weights));
}

/* Every rank ← the rows that others have moved */
static fp_status collect(fp_fit_optimiser *o)
{
	fp_status status = FP_OK;
	if (fp_share_ranks(&o->share) == 1)
		return FP_OK;
	FP_TRY(fp_row_slices_collect(&o->moving, fp_fit_optimiser_kept(o), &o->share, o->task->be));
	FP_TRY(fp_fit_optimiser_narrow(o));
cleanup:
	return status;
}

fp_status fp_fit_optimiser_step(fp_fit_optimiser *o, int64_t step, int64_t steps)
{
	double share = schedule(step, steps);
	fp_status status = FP_OK;
	for (int i = 0; i < o->weights.count; i++) {
		fp_adam rule = {.rate = (float)(share * o->rate[i]),
						.beta1 = BETA1,
						.beta2 = BETA2,
						.epsilon = EPSILON,
						.step = step + 1,
						.keep_zeros = true,
						.narrow = o->narrow.weight[i]};
		if (fp_matrix_is_absent(o->weights.weight[i]) || is_frozen(o, i))
			continue;
		FP_TRY(
			step_rows(o, rule, o->gradients.weight[i], o->mean.weight[i], o->square.weight[i], o->weights.weight[i]));
		rule.keep_zeros = false;
		rule.narrow = (fp_matrix){0};
		if (!fp_matrix_is_absent(o->weights.bias[i]))
			FP_TRY(step_rows(o, rule, o->gradients.bias[i], o->mean.bias[i], o->square.bias[i], o->weights.bias[i]));
	}
	FP_TRY(collect(o));
cleanup:
	return status;
}

/* out ← in, rounded to the tensor's type */
static fp_status round_matrix(fp_backend *be, const fp_tensor_info *tensor, fp_matrix in, fp_matrix out)
{
	fp_matrix rounded = {0};
	fp_status status;
	if (!rounds_through(tensor, out.dtype))
		return be->memory->copy(be, out, in);
	FP_TRY(fp_matrix_new(be, &rounded, in.rows, in.cols, tensor->dtype));
	FP_TRY(be->memory->copy(be, rounded, in));
	FP_TRY(be->memory->copy(be, out, rounded));
cleanup:
	fp_matrix_free(be, &rounded);
	return status;
}

fp_status fp_fit_optimiser_round(fp_fit_optimiser *o)
{
	fp_backend *be = o->task->be;
	const fp_layer *layer = o->task->layer;
	fp_status status = FP_OK;
	for (int i = 0; i < o->weights.count; i++) {
		if (!fp_matrix_is_absent(o->weights.weight[i]) && !is_shared(o, i))
			FP_TRY(round_matrix(be, fp_model_operator(layer->model, layer->index, i), o->weights.weight[i],
								o->rounded.weight[i]));
		if (!fp_matrix_is_absent(o->weights.bias[i]))
			FP_TRY(round_matrix(be, fp_model_operator_bias(layer->model, layer->index, i), o->weights.bias[i],
								o->rounded.bias[i]));
	}
cleanup:
	return status;
}

fp_status fp_fit_optimiser_keep(fp_fit_optimiser *o)
{
	fp_backend *be = o->task->be;
	fp_layer *layer = o->task->layer;
	fp_status status = FP_OK;
	for (int i = 0; i < o->weights.count; i++) {
		if (!fp_matrix_is_absent(layer->weight[i]))
			FP_TRY(be->memory->copy(be, layer->weight[i], o->rounded.weight[i]));
		if (!fp_matrix_is_absent(layer->bias[i]))
			FP_TRY(be->memory->copy(be, layer->bias[i], o->rounded.bias[i]));
	}
cleanup:
	return status;
}

static fp_layer with_matrices(const fp_layer *layer, const fp_layer_matrices *matrices)
{
	fp_layer other = *layer;
	other.weight = matrices->weight;
	other.bias = matrices->bias;
	return other;
}

fp_layer fp_fit_optimiser_layer(const fp_fit_optimiser *o)
{
	fp_layer layer = with_matrices(o->task->layer, &o->weights);
	if (fp_backend_rounds(o->task->be, FP_USE_ACTIVATION))
		layer.weight = o->narrow.weight;
	return layer;
}

fp_layer fp_fit_optimiser_rounded_layer(const fp_fit_optimiser *o)
{
	return with_matrices(o->task->layer, &o->rounded);
}
