/* SPDX-License-Identifier: Apache-2.0 */
#include "base/context.h"

#include "base/number_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef fp_fail /* macros for the static analyzer */
#undef fp_fail_in

fp_context *fp_context_new(void)
{
	return calloc(1, sizeof(fp_context));
}

void fp_context_free(fp_context *ctx)
{
	free(ctx);
}

const char *fp_context_message(const fp_context *ctx)
{
	return ctx->message;
}

void fp_context_set_log(fp_context *ctx, fp_log_function log, void *data, fp_log_level level)
{
	ctx->log = log;
	ctx->log_data = data;
	ctx->log_level = level;
}

void fp_context_set_progress(fp_context *ctx, fp_progress_function progress, void *data)
{
	ctx->progress = progress;
	ctx->progress_data = data;
}

void fp_context_set_interrupt(fp_context *ctx, const volatile int *flag)
{
	ctx->interrupt = flag;
}

fp_status fp_fail(fp_context *ctx, fp_status status, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	fp_format_arguments(ctx->message, sizeof ctx->message, format, args);
	va_end(args);
	return status;
}

fp_status fp_fail_in(fp_context *ctx, fp_status status, const char *format, ...)
{
	char prefix[FP_MESSAGE_SIZE];
	va_list args;
	va_start(args, format);
	fp_format_arguments(prefix, sizeof prefix, format, args);
	va_end(args);

	char joined[2 * FP_MESSAGE_SIZE + sizeof ": "];
	snprintf(joined, sizeof joined, "%s: %s", prefix, ctx->message);
	memcpy(ctx->message, joined, sizeof ctx->message - 1);
	ctx->message[sizeof ctx->message - 1] = '\0';
	return status;
}

fp_status fp_fail_from(fp_context *ctx, fp_status status, const fp_context *from)
{
	memcpy(ctx->message, from->message, sizeof ctx->message);
	fp_require_message(ctx, status);
	return status;
}

void fp_clear_message(fp_context *ctx)
{
	ctx->message[0] = '\0';
}

void fp_require_message(fp_context *ctx, fp_status status)
{
	if (status != FP_OK && !ctx->message[0])
		fp_fail(ctx, status, "%s (%s, without further details)", fp_status_text(status), fp_status_name(status));
}

void fp_log(fp_context *ctx, fp_log_level level, const char *format, ...)
{
	if (!ctx->log || level > ctx->log_level)
		return;
	char text[FP_MESSAGE_SIZE];
	va_list args;
	va_start(args, format);
	fp_format_arguments(text, sizeof text, format, args);
	va_end(args);
	ctx->log(ctx->log_data, level, text);
}

fp_status fp_check_interrupt(fp_context *ctx)
{
	/* a signal handler or another thread sets it */
	if (ctx->interrupt && __atomic_load_n(ctx->interrupt, __ATOMIC_RELAXED))
		return fp_fail(ctx, FP_ERROR_INTERRUPTED, "interrupted");
	return FP_OK;
}

void fp_report_progress(fp_context *ctx, const char *stage, int64_t done, int64_t total)
{
	if (ctx->progress)
		ctx->progress(ctx->progress_data, stage, done, total);
}
