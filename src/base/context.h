/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.h: the state that is passed to every call of the library: last error, log, progress, interrupt flag.
 * There is no global state. One thread at a time may use a context.
 */
#ifndef FP_BASE_CONTEXT_H
#define FP_BASE_CONTEXT_H

#include <fistapruner/context.h>
#include <stdbool.h>
#include <stdint.h>

enum { FP_MESSAGE_SIZE = 2048 };

struct fp_context {
	char message[FP_MESSAGE_SIZE]; /* of the last failed call */
	fp_log_function log;
	void *log_data;
	fp_log_level log_level;
	fp_progress_function progress;
	void *progress_data;
	const volatile int *interrupt;  /* borrowed; non-zero requests an orderly stop */
	struct fp_stopwatch *stopwatch; /* borrowed; measures the stages of a run (clock.h); may be NULL */
	int64_t allocations;            /* made so far */
	int64_t fail_allocation_at;     /* for tests: the allocation of this number fails; 0: none */
};

/*
 * Records a message and returns `status`, so that a failure is one line:
 *     return fp_fail(ctx, FP_ERROR_INPUT, "%s: tensor '%s': ...", path, name);
 * The message names the file, tensor or flag, the rule, and a value that works.
 */
fp_status fp_fail(fp_context *ctx, fp_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Adds "prefix: " before the recorded message, for a caller that knows the file or layer. Returns status. */
fp_status fp_fail_in(fp_context *ctx, fp_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Passes on a failure of another thread: copies the message from that thread's context. Returns `status`. */
fp_status fp_fail_from(fp_context *ctx, fp_status status, const fp_context *from);

/* Removes the message: of a failure that was handled, or at the start of a public call. Otherwise a later failure could
 * show it. */
void fp_clear_message(fp_context *ctx);
/* At the end of a public call: a failure without a message gets one that names the status. */
void fp_require_message(fp_context *ctx, fp_status status);

#ifdef __clang_analyzer__
/* The static analyzer reads one file at a time and must know that a failure is never FP_OK. */
#define fp_fail(ctx, status, ...) ((void)fp_fail((ctx), (status), __VA_ARGS__), (status))
#define fp_fail_in(ctx, status, ...) ((void)fp_fail_in((ctx), (status), __VA_ARGS__), (status))
#endif

void fp_log(fp_context *ctx, fp_log_level level, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* FP_ERROR_INTERRUPTED if a stop was requested, else FP_OK. Called between operators and between batches. */
fp_status fp_check_interrupt(fp_context *ctx);

/* Calls the progress function, if there is one. done == total ends the stage. */
void fp_report_progress(fp_context *ctx, const char *stage, int64_t done, int64_t total);

/* Goes to the label `cleanup` if the call fails; needs a local `fp_status status`. */
#define FP_TRY(call)                                                                                                   \
	do {                                                                                                               \
		status = (call);                                                                                               \
		if (status != FP_OK)                                                                                           \
			goto cleanup;                                                                                              \
	} while (0)

#endif
