/* SPDX-License-Identifier: Apache-2.0 */
/* support.h: what every test needs: cmocka, a context, the shared material, temporary folders. */
#ifndef FP_TESTS_SUPPORT_H
#define FP_TESTS_SUPPORT_H

/* cmocka.h wants these before it */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/context.h"
#include "base/memory.h"
#include "base/settings.h"

/* A context that ends the test with the message when a call fails: assert_ok(ctx, call). */
#define assert_ok(ctx, call)                                                                                           \
	do {                                                                                                               \
		fp_status got_ = (call);                                                                                       \
		if (got_ != FP_OK)                                                                                             \
			fail_msg("%s: %s: %s", #call, fp_status_name(got_), fp_context_message(ctx));                              \
	} while (0)
/* The call must fail with this status and a message that contains this text. */
#define assert_fails(ctx, wanted, text, call) check_failure((ctx), (wanted), (text), (call), #call, __FILE__, __LINE__)
void check_failure(fp_context *ctx, fp_status wanted, const char *text, fp_status got, const char *call,
				   const char *file, int line);

/* "<shared>/name" when it exists, else NULL: then the test calls skip() (cmocka) or exits with 77. Borrowed until the
 * next call. */
const char *shared_path(const char *name);
/* A file of the project: "<source>/name". Borrowed until the next call. */
const char *source_path(const char *name);
/* A new empty folder; removed with everything in it by remove_folder(). The caller frees the path with free(). */
char *temporary_folder(void);
void remove_folder(const char *path);
/* Writes bytes into folder/name. */
void write_file(const char *folder, const char *name, const void *bytes, size_t size);

/* For cmocka's set-up and tear-down: *state is a context. */
int context_set_up(void **state);
int context_tear_down(void **state);
/* *state is a folder_fixture: a context and an empty folder. */
typedef struct folder_fixture {
	fp_context *ctx;
	char *folder;
} folder_fixture;
int folder_set_up(void **state);
int folder_tear_down(void **state);

/* A uniform number in [-1, 1) from a small generator with its state in *seed: the same on every machine. */
float random_uniform(uint64_t *seed);
/* About normal, mean 0, deviation 1. */
float random_normal(uint64_t *seed);

/* Settings with these assignments ("name=value", NULL behind the last), resolved for a family. The caller frees them
 * with fp_settings_free(). */
fp_settings *resolved_settings(fp_context *ctx, const char *family, const char *const *assignments);

#endif
