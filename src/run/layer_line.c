/* SPDX-License-Identifier: Apache-2.0 */
#include "run/layer_line.h"

#include "base/number_text.h"
#include <math.h>
#include <stdarg.h>

typedef struct line {
	char text[256];
	size_t used;
} line;

__attribute__((format(printf, 2, 3))) static void append(line *out, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	int length = fp_format_arguments(out->text + out->used, sizeof out->text - out->used, format, arguments);
	va_end(arguments);
	if (length > 0 && out->used + (size_t)length < sizeof out->text)
		out->used += (size_t)length;
}

/* The relative error over the layer's operators and, if FISTA ran, the range of their best λ. */
static void append_operators(line *out, const fp_prune_result *result, int64_t layer)
{
	double error = 0, output = 0;
	double lowest = INFINITY, highest = 0;
	for (int64_t i = 0; i < result->count; i++) {
		const fp_operator_result *done = &result->operators[i];
		if (done->layer != layer)
			continue;
		error += done->squared_error;
		output += done->squared_output;
		lowest = fmin(lowest, done->solution.lambda);
		highest = fmax(highest, done->solution.lambda);
	}
	append(out, "error %.4f", output > 0 ? sqrt(error / output) : 0);
	if (highest > 0)
		append(out, lowest < highest ? ", λ %.2g to %.2g" : ", λ %.2g", lowest, highest);
}

static void append_fit(line *out, const fp_prune_result *result, int64_t layer)
{
	for (int64_t i = 0; i < result->fit_count; i++)
		if (result->fits[i].layer == layer)
			append(out, ", fit %.4f to %.4f%s", result->fits[i].loss_before, result->fits[i].loss_after,
				   result->fits[i].steps > 0 ? "" : " (dropped)");
}

void fp_log_layer(fp_context *ctx, const fp_prune_result *result, int64_t layer, int64_t layers, double seconds,
				  double left)
{
	line out = {.used = 0};
	append_operators(&out, result, layer);
	append_fit(&out, result, layer);
	append(&out, ", %.1f s", seconds);
	if (left >= 120)
		append(&out, ", %.0f min left", left / 60);
	else if (left > 0)
		append(&out, ", %.0f s left", left);
	fp_log(ctx, FP_LOG_INFO, "layer %lld of 0-%lld: %s", (long long)layer, (long long)layers - 1, out.text);
}

fp_expert_counts fp_count_experts(const fp_prune_result *result)
{
	fp_expert_counts counts = {0};
	for (int64_t i = 0; i < result->count; i++) {
		const fp_operator_result *done = &result->operators[i];
		if (done->tokens < 0 || fp_operator_role(done->number) != FP_GATE)
			continue;
		counts.experts++;
		counts.few += done->tokens < FP_ENOUGH_TOKENS * done->tensor->shape[1];
		counts.none += done->tokens == 0;
	}
	return counts;
}

void fp_log_experts(fp_context *ctx, const fp_prune_result *result)
{
	fp_expert_counts counts = fp_count_experts(result);
	if (counts.few > 0)
		fp_log(
			ctx, FP_LOG_WARNING,
			"%lld of %lld experts were read by fewer than %d tokens per input, %lld of them by none: they are pruned "
			"with a stronger ridge; more --samples would help",
			(long long)counts.few, (long long)counts.experts, (int)FP_ENOUGH_TOKENS, (long long)counts.none);
}
