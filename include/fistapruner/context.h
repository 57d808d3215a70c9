/* SPDX-License-Identifier: Apache-2.0 */
/* context.h: the object that every call takes: log, progress, interruption and the last error. */
#ifndef FISTAPRUNER_CONTEXT_H
#define FISTAPRUNER_CONTEXT_H

#include <fistapruner/status.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fp_context fp_context;

typedef enum fp_log_level { FP_LOG_ERROR, FP_LOG_WARNING, FP_LOG_INFO, FP_LOG_DEBUG } fp_log_level;

/* `text` has no newline at its end and is borrowed for the call. */
typedef void (*fp_log_function)(void *data, fp_log_level level, const char *text);

/* `stage` is borrowed for the call; done runs from 0 to total. */
typedef void (*fp_progress_function)(void *data, const char *stage, int64_t done, int64_t total);

/* Makes a context. The caller frees it with fp_context_free(). NULL if out of memory. */
FP_API fp_context *fp_context_new(void);
/* NULL is allowed. */
FP_API void fp_context_free(fp_context *ctx);

/* Why the last failing call with this context failed; "" if none did. Borrowed until the next call. */
FP_API const char *fp_context_message(const fp_context *ctx);

/* Without a function nothing is logged; the library never prints. */
FP_API void fp_context_set_log(fp_context *ctx, fp_log_function log, void *data, fp_log_level level);
/* NULL: no progress is reported. */
FP_API void fp_context_set_progress(fp_context *ctx, fp_progress_function progress, void *data);

/* `flag` is borrowed. When it becomes non-zero (set by a signal handler, say), the running call stops cleanly. */
FP_API void fp_context_set_interrupt(fp_context *ctx, const volatile int *flag);

#ifdef __cplusplus
}
#endif
#endif
