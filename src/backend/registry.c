/* SPDX-License-Identifier: Apache-2.0 */
/* registry.c: opens a backend by name. */
#include "backend/backend.h"

#include "backend/cpu/cpu_backend.h"
#include "backend/module.h"
#include <string.h>

/* One row per backend. `device` is what follows the colon of "name:device", or NULL. */
typedef struct registry_row {
	const char *name;
	fp_status (*open)(fp_backend **out, fp_context *ctx, const char *device, int threads);
} registry_row;

static fp_status open_cpu(fp_backend **out, fp_context *ctx, const char *device, int threads)
{
	if (device)
		return fp_fail(ctx, FP_ERROR_USAGE, "device 'cpu:%s': CPUs are not numbered; use --device cpu", device);
	return fp_cpu_open(out, ctx, threads);
}

static const registry_row registry[] = {
	{"cpu", open_cpu},
	{"cuda", fp_cuda_module_open},
};

/* The GPU if there is one, else the CPU. A module that is there but of no use deserves a warning; a machine without a
 * GPU does not. */
static fp_status open_auto(fp_backend **out, fp_context *ctx, int threads)
{
	fp_status status = fp_cuda_module_open(out, ctx, NULL, threads);
	if (status != FP_OK) {
		fp_log(ctx, status == FP_ERROR_DEVICE ? FP_LOG_DEBUG : FP_LOG_WARNING, "device auto: not cuda: %s",
			   fp_context_message(ctx));
		fp_clear_message(ctx);
		status = fp_cpu_open(out, ctx, threads);
	}
	if (status == FP_OK)
		fp_log(ctx, FP_LOG_INFO, "device auto: chose %s", (*out)->description);
	return status;
}

fp_status fp_backend_open(fp_backend **out, fp_context *ctx, const char *name, int threads)
{
	*out = NULL;
	if (threads < 0)
		return fp_fail(ctx, FP_ERROR_USAGE, "--threads %d: must be 1 or more, or 0 for all processors", threads);
	if (strcmp(name, "auto") == 0)
		return open_auto(out, ctx, threads);
	const char *colon = strchr(name, ':');
	size_t length = colon ? (size_t)(colon - name) : strlen(name);
	for (size_t i = 0; i < sizeof registry / sizeof *registry; i++) {
		if (strlen(registry[i].name) == length && strncmp(registry[i].name, name, length) == 0)
			return registry[i].open(out, ctx, colon ? colon + 1 : NULL, threads);
	}
	return fp_fail(ctx, FP_ERROR_USAGE, "unknown device '%s'; there are: auto, cpu, cuda, cuda:NUMBER", name);
}

static bool can_compute(const fp_backend *be, fp_precision precision)
{
	switch (precision) {
	case FP_PRECISION_BF16X3:
	case FP_PRECISION_TF32:
		return fp_backend_can(be, FP_CAN_SPLIT);
	case FP_PRECISION_BF16:
		return fp_backend_can(be, FP_CAN_ROUND);
	default:
		return true;
	}
}

/* The precision that `auto` means: `wide` for wide models, whose time goes into products (measurements are in
 * docs/performance.md), else float. A narrow model would gain nothing, and in float a GPU prunes it as a CPU does;
 * rounding alone would change the result of a search that has not converged. */
static fp_precision automatic_precision(const fp_backend *be, int64_t width, fp_precision wide)
{
	enum { NARROW = 512 };
	return can_compute(be, wide) && width > NARROW ? wide : FP_PRECISION_FP32;
}

static const struct {
	const char *word;
	fp_precision precision;
} precision_words[] = {
#define PRECISION_ROW(id, name) {name, id},
	FP_PRECISION_LIST(PRECISION_ROW)
#undef PRECISION_ROW
};

const char *fp_backend_precision_name(const fp_backend *be)
{
	return precision_words[be->precision].word; /* in the order of the list */
}

static fp_status set_precision(fp_backend *be, const char *word, int64_t width, fp_precision wide)
{
	if (strcmp(word, "auto") == 0) {
		fp_precision before = be->precision;
		be->precision = automatic_precision(be, width, wide);
		if (be->precision != before)
			fp_log(be->ctx, FP_LOG_INFO, "precision auto: chose %s", fp_backend_precision_name(be));
		return FP_OK;
	}
	for (size_t i = 0; i < sizeof precision_words / sizeof *precision_words; i++) {
		if (strcmp(precision_words[i].word, word) != 0)
			continue;
		be->precision = precision_words[i].precision;
		if (!can_compute(be, be->precision)) {
			fp_log(be->ctx, FP_LOG_WARNING, "precision %s: this processor has no %s; products are computed in fp32",
				   word, be->precision == FP_PRECISION_BF16 ? "AMX or AVX512-BF16" : "AMX");
			be->precision = FP_PRECISION_FP32;
		}
		return FP_OK;
	}
	return fp_fail(be->ctx, FP_ERROR_USAGE, "precision '%s': must be auto, fp32, bf16x3, tf32 or bf16", word);
}

fp_status fp_backend_set_precision(fp_backend *be, const char *word, int64_t width)
{
	return set_precision(be, word, width, FP_PRECISION_BF16);
}

fp_status fp_backend_set_figure_precision(fp_backend *be, const char *word, int64_t width)
{
	return set_precision(be, word, width, FP_PRECISION_TF32);
}
