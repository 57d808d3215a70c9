/* SPDX-License-Identifier: Apache-2.0 */
/* status.h: how a call ended. One list gives the enum, the names and the exit codes of the program. */
#ifndef FISTAPRUNER_STATUS_H
#define FISTAPRUNER_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FP_API __attribute__((visibility("default")))
#else
#define FP_API
#endif

/* X(identifier, exit code, meaning) */
#define FP_STATUS_LIST(X)                                                                                              \
	X(FP_OK, 0, "done")                                                                                                \
	X(FP_ERROR_RUN, 1, "the run failed")                                                                               \
	X(FP_ERROR_IO, 1, "reading or writing failed")                                                                     \
	X(FP_ERROR_NUMERIC, 1, "a number is not finite or a matrix is unusable")                                           \
	X(FP_ERROR_INTERNAL, 1, "a defect of this program")                                                                \
	X(FP_ERROR_USAGE, 2, "the request is not valid")                                                                   \
	X(FP_ERROR_INPUT, 3, "an input file is missing or damaged")                                                        \
	X(FP_ERROR_DEVICE, 4, "no such device")                                                                            \
	X(FP_ERROR_MEMORY, 4, "not enough memory")                                                                         \
	X(FP_ERROR_CHECK, 5, "a check failed")                                                                             \
	X(FP_ERROR_INTERRUPTED, 130, "interrupted")

typedef enum fp_status {
#define FP_STATUS_ENUM(id, code, text) id,
	FP_STATUS_LIST(FP_STATUS_ENUM)
#undef FP_STATUS_ENUM
} fp_status;

/* The identifier of a status, such as "FP_ERROR_IO". Borrowed, never NULL. */
FP_API const char *fp_status_name(fp_status status);
/* What the status means, in a few words. Borrowed, never NULL. */
FP_API const char *fp_status_text(fp_status status);
/* The exit code that the program gives for this status. */
FP_API int fp_status_exit_code(fp_status status);

#ifdef __cplusplus
}
#endif
#endif
