/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.h: what every call of the library carries: the last error, the log, the interrupt flag.
 * There is no global state; a context belongs to one thread at a time.
 */
#ifndef FP_BASE_CONTEXT_H
#define FP_BASE_CONTEXT_H

#include <fistapruner/context.h>
#include <stdbool.h>
#include <stdint.h>

enum { FP_MESSAGE_SIZE = 1024 };

struct fp_context {
	char message[FP_MESSAGE_SIZE]; /* why the last failing call failed */
	fp_log_function log;
	void *log_data;
	fp_log_level log_level;
	fp_progress_function progress;
	void *progress_data;
	const volatile int *interrupt;  /* borrowed; non-zero asks for an orderly stop */
	struct fp_stopwatch *stopwatch; /* borrowed; where a run's time is counted (clock.h), or NULL */
	int64_t allocations;            /* made so far; with fail_at, lets a test fail the n-th one */
	int64_t fail_allocation_at;     /* 0: never */
};

/*
 * Records a message and returns `status`, so that a failure is one line:
 *     return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s': ...", path, name);
 * The message names the file, tensor or flag, the rule that is broken, and a value that works.
 */
fp_status fp_fail(fp_context *ctx, fp_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " in front of the recorded message; for a caller that knows which file or layer it was. Returns status.
 */
fp_status fp_fail_in(fp_context *ctx, fp_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Passes on a failure of another thread: copies the message from that thread's context. Returns `status`. */
fp_status fp_fail_from(fp_context *ctx, fp_status status, const fp_context *from);

/* Removes the message: of a failure that was handled, or at the start of a public call. Otherwise a later failure could
 * show it. */
void fp_clear_message(fp_context *ctx);
/* At the end of a public call: a failure without a message gets one that names the status. */
void fp_require_message(fp_context *ctx, fp_status status);

#ifdef __clang_analyzer__
/* The static analyzer sees one file at a time: tell it that a failure is never FP_OK. */
#define fp_fail(ctx, status, ...) ((void)fp_fail((ctx), (status), __VA_ARGS__), (status))
#define fp_fail_in(ctx, status, ...) ((void)fp_fail_in((ctx), (status), __VA_ARGS__), (status))
#endif

void fp_log(fp_context *ctx, fp_log_level level, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* FP_ERROR_INTERRUPTED when a stop was asked for, else FP_OK. Called between operators and batches. */
fp_status fp_check_interrupt(fp_context *ctx);

/* Tells how far a stage has come; done == total ends it. Cheap when nobody listens. */
void fp_report_progress(fp_context *ctx, const char *stage, int64_t done, int64_t total);

/* In a function with a local `fp_status status` and a label `cleanup`: go there when the call fails. */
#define FP_TRY(call)                                                                                                   \
	do {                                                                                                               \
		status = (call);                                                                                               \
		if (status != FP_OK)                                                                                           \
			goto cleanup;                                                                                              \
	} while (0)

#endif
