/* SPDX-License-Identifier: Apache-2.0 */
/* support.h: common to all tests: cmocka, contexts, shared files, temporary folders. */
#ifndef FP_TESTS_SUPPORT_H
#define FP_TESTS_SUPPORT_H

/* cmocka.h needs these */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/context.h"
#include "base/memory.h"
#include "base/settings.h"

/*
 * A case that lacks something (a shared model, a processor feature) calls skip_because(). The program then ends with 77,
 * which CTest shows as "Skipped". So that this does not hide the cases that did run, cases that may be skipped stand in
 * an array of their own, and main() says TEST_PART(array) before it runs the others: tests/CMakeLists.txt finds these
 * lines and adds a CTest test "<test>.<array>" for each.
 */
#define TEST_PART(tests)                                                                                               \
	if (argc > 1 && strcmp(argv[1], #tests) == 0)                                                                      \
	return cmocka_run_group_tests(tests, NULL, NULL)
/* Ends the test as skipped. The reason is given as for printf(); ctest repeats it in its last lines. */
#define skip_because(...)                                                                                              \
	do {                                                                                                               \
		record_skip(__VA_ARGS__);                                                                                      \
		_skip(__FILE__, __LINE__);                                                                                     \
	} while (0)
void record_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The value for main() to return: 1 after a failure, else 77 after a skip, else 0. */
int finish_tests(int failed);
/* cmocka would count a skipped test as passed. */
#undef skip
#undef cmocka_run_group_tests
#define cmocka_run_group_tests(tests, set_up, tear_down)                                                               \
	finish_tests(_cmocka_run_group_tests(#tests, tests, sizeof(tests) / sizeof((tests)[0]), set_up, tear_down))

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

/* True in a build with AddressSanitizer or ThreadSanitizer: a test that would take minutes there takes smaller cases. */
enum {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	sanitized_build = 1,
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
	sanitized_build = 1,
#else
	sanitized_build = 0,
#endif
#else
	sanitized_build = 0,
#endif
};

/* "<shared>/name", or NULL if there is no such file. Borrowed until the next call. */
const char *shared_path(const char *name);
/* The same; skips the test if there is no such file. */
const char *need_shared_path(const char *name);
/* A file of the project: "<source>/name". Borrowed until the next call. */
const char *source_path(const char *name);
/* Creates an empty folder. The caller removes it with remove_folder() and frees the path with free(). */
char *temporary_folder(void);
void remove_folder(const char *path);
/* Writes folder/name. */
void write_file(const char *folder, const char *name, const void *bytes, size_t size);
/* A safetensors file of the header's text, of any length, and the bytes behind it. */
void write_safetensors(const char *folder, const char *name, const char *header, const void *data, size_t size);

/* Set-up and tear-down for cmocka; *state is a context. */
int context_set_up(void **state);
int context_tear_down(void **state);
/* The same with a context and an empty folder. */
typedef struct folder_fixture {
	fp_context *ctx;
	char *folder;
} folder_fixture;
int folder_set_up(void **state);
int folder_tear_down(void **state);

/* Uniform in [-1, 1); *seed is the generator's state. The same on every machine. */
float random_uniform(uint64_t *seed);
/* Approximately standard normal. */
float random_normal(uint64_t *seed);

/* Settings from "name=value" assignments (ended by NULL), resolved for a family. The caller frees them with
 * fp_settings_free(). */
fp_settings *resolved_settings(fp_context *ctx, const char *family, const char *const *assignments);

#endif
