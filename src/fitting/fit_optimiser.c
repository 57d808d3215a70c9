/* SPDX-License-Identifier: Apache-2.0 */
#include "fitting/fit_optimiser.h"

#include "base/numbers.h"
#include "fitting/matrix_parts.h"

#include <math.h>
#include <string.h>

enum { WARM_UP_SHARE = 20, FLOAT_SETS = 4, MOST_PARTS = FP_ROLE_COUNT * (2 * FLOAT_SETS + 3) };
static const float BETA1 = 0.9F;
static const float BETA2 = 0.999F;
static const float EPSILON = 1e-12F; /* only avoids 0/0: the gradients of a relative loss are small */

/* All matrices of the optimiser; returns how many. */
static int list_parts(fp_fit_optimiser *o, const fp_model *model, int64_t layer, fp_matrix_part parts[MOST_PARTS])
{
	fp_layer_matrices *sets[FLOAT_SETS] = {&o->weights, &o->gradients, &o->mean, &o->square};
	bool rounds = fp_backend_rounds(fp_model_backend(model), FP_USE_ACTIVATION);
	int count = 0;
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		const fp_tensor_info *weight = fp_model_operator(model, layer, (fp_role)role);
		const fp_tensor_info *bias = fp_model_operator_bias(model, layer, (fp_role)role);
		if (!weight)
			continue;
		int64_t rows = weight->shape[0], cols = weight->shape[1];
		for (int i = 0; i < FLOAT_SETS; i++) {
			parts[count++] = (fp_matrix_part){&sets[i]->weight[role], rows, cols, FP_F32};
			if (bias)
				parts[count++] = (fp_matrix_part){&sets[i]->bias[role], 1, rows, FP_F32};
		}
		if (rounds)
			parts[count++] = (fp_matrix_part){&o->narrow.weight[role], rows, cols, FP_BF16};
		parts[count++] = (fp_matrix_part){&o->rounded.weight[role], rows, cols, fp_model_held_type(model, weight)};
		if (bias)
			parts[count++] = (fp_matrix_part){&o->rounded.bias[role], 1, rows, FP_F32};
	}
	return count;
}

/* True when rounding to a tensor's type takes a matrix of that type, because the result is held in another one. */
static bool rounds_through(const fp_tensor_info *tensor, fp_dtype held)
{
	return tensor->dtype != FP_F32 && tensor->dtype != held;
}

int64_t fp_fit_optimiser_bytes(const fp_model *model, int64_t layer)
{
	fp_fit_optimiser o = {0};
	fp_matrix_part parts[MOST_PARTS];
	int64_t largest = 0;
	int count = list_parts(&o, model, layer, parts);
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		const fp_tensor_info *weight = fp_model_operator(model, layer, (fp_role)role);
		if (weight && rounds_through(weight, fp_model_held_type(model, weight)))
			largest = fp_larger(largest, weight->bytes);
	}
	return fp_matrix_parts_bytes(parts, count) + largest;
}

fp_status fp_fit_optimiser_new(fp_fit_optimiser *out, const fp_fit_task *task)
{
	fp_matrix_part parts[MOST_PARTS];
	fp_status status;
	*out = (fp_fit_optimiser){.task = task};
	int count = list_parts(out, task->layer->model, task->layer->index, parts);
	FP_TRY(fp_matrix_parts_new(task->be, parts, count));
cleanup:
	if (status != FP_OK)
		fp_fit_optimiser_free(out);
	return status;
}

void fp_fit_optimiser_free(fp_fit_optimiser *optimiser)
{
	fp_fit_optimiser *o = optimiser;
	fp_layer_matrices *all[] = {&o->weights, &o->narrow, &o->rounded, &o->gradients, &o->mean, &o->square};
	if (!o->task)
		return;
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		fp_layer_matrices_free(o->task->be, all[i]);
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

static fp_status start_operator(fp_fit_optimiser *o, int role, double factor)
{
	fp_backend *be = o->task->be;
	fp_matrix weight = o->task->layer->weight[role], bias = o->task->layer->bias[role];
	fp_status status;
	FP_TRY(be->memory->copy(be, o->weights.weight[role], weight));
	if (!fp_matrix_is_absent(o->narrow.weight[role]))
		FP_TRY(be->memory->copy(be, o->narrow.weight[role], weight));
	FP_TRY(be->memory->fill(be, o->mean.weight[role], 0));
	FP_TRY(be->memory->fill(be, o->square.weight[role], 0));
	FP_TRY(root_mean_square(be, o->weights.weight[role], &o->rate[role]));
	o->rate[role] *= relative_rate(o->task->settings, weight);
	o->rate[role] *= factor;
	if (fp_matrix_is_absent(bias))
		goto cleanup;
	FP_TRY(be->memory->copy(be, o->weights.bias[role], bias));
	FP_TRY(be->memory->fill(be, o->mean.bias[role], 0));
	FP_TRY(be->memory->fill(be, o->square.bias[role], 0));
cleanup:
	return status;
}

fp_status fp_fit_optimiser_start(fp_fit_optimiser *o, double factor)
{
	fp_status status = FP_OK;
	for (int role = 0; role < FP_ROLE_COUNT && status == FP_OK; role++)
		if (!fp_matrix_is_absent(o->weights.weight[role]))
			status = start_operator(o, role, factor);
	return status;
}

/* Half a cosine from 1 to 0, after a short warm-up. */
static double schedule(int64_t step, int64_t steps)
{
	int64_t warm_up = steps / WARM_UP_SHARE;
	double decay = 0.5 * (1 + cos(3.14159265358979323846 * (double)step / (double)steps));
	return step < warm_up ? decay * (double)(step + 1) / (double)(warm_up + 1) : decay;
}

fp_status fp_fit_optimiser_step(fp_fit_optimiser *o, int64_t step, int64_t steps)
{
	fp_backend *be = o->task->be;
	double share = schedule(step, steps);
	fp_status status = FP_OK;
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		fp_adam rule = {.rate = (float)(share * o->rate[role]),
						.beta1 = BETA1,
						.beta2 = BETA2,
						.epsilon = EPSILON,
						.step = step + 1,
						.keep_zeros = true,
						.narrow = o->narrow.weight[role]};
		if (fp_matrix_is_absent(o->weights.weight[role]) || o->task->frozen[role])
			continue;
		FP_TRY(be->gradients->adam_step(be, &rule, o->gradients.weight[role], o->mean.weight[role],
										o->square.weight[role], o->weights.weight[role]));
		rule.keep_zeros = false;
		rule.narrow = (fp_matrix){0};
		if (!fp_matrix_is_absent(o->weights.bias[role]))
			FP_TRY(be->gradients->adam_step(be, &rule, o->gradients.bias[role], o->mean.bias[role],
											o->square.bias[role], o->weights.bias[role]));
	}
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
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		if (!fp_matrix_is_absent(layer->weight[role]))
			FP_TRY(round_matrix(be, fp_model_operator(layer->model, layer->index, (fp_role)role),
								o->weights.weight[role], o->rounded.weight[role]));
		if (!fp_matrix_is_absent(layer->bias[role]))
			FP_TRY(round_matrix(be, fp_model_operator_bias(layer->model, layer->index, (fp_role)role),
								o->weights.bias[role], o->rounded.bias[role]));
	}
cleanup:
	return status;
}

fp_status fp_fit_optimiser_keep(fp_fit_optimiser *o)
{
	fp_backend *be = o->task->be;
	fp_layer *layer = o->task->layer;
	fp_status status = FP_OK;
	for (int role = 0; role < FP_ROLE_COUNT; role++) {
		if (!fp_matrix_is_absent(layer->weight[role]))
			FP_TRY(be->memory->copy(be, layer->weight[role], o->rounded.weight[role]));
		if (!fp_matrix_is_absent(layer->bias[role]))
			FP_TRY(be->memory->copy(be, layer->bias[role], o->rounded.bias[role]));
	}
cleanup:
	return status;
}

static fp_layer with_matrices(const fp_layer *layer, const fp_layer_matrices *matrices)
{
	fp_layer other = *layer;
	memcpy(other.weight, matrices->weight, sizeof other.weight);
	memcpy(other.bias, matrices->bias, sizeof other.bias);
	return other;
}

fp_layer fp_fit_optimiser_layer(const fp_fit_optimiser *o)
{
	fp_layer layer = with_matrices(o->task->layer, &o->weights);
	if (fp_backend_rounds(o->task->be, FP_USE_ACTIVATION))
		memcpy(layer.weight, o->narrow.weight, sizeof layer.weight);
	return layer;
}

fp_layer fp_fit_optimiser_rounded_layer(const fp_fit_optimiser *o)
{
	return with_matrices(o->task->layer, &o->rounded);
}
