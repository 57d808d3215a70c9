/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include <fistapruner/fistapruner.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void check_failure(fp_context *ctx, fp_status wanted, const char *text, fp_status got, const char *call,
				   const char *file, int line)
{
	if (got != wanted || !strstr(fp_context_message(ctx), text))
		fail_msg("%s:%d: %s gave %s '%s', wanted %s with '%s'", file, line, call, fp_status_name(got),
				 fp_context_message(ctx), fp_status_name(wanted), text);
}

/* OpenBLAS runs about ten times slower than necessary on a processor that is newer than itself; it reads this variable
 * when it is loaded. The program does the same. */
__attribute__((constructor)) static void choose_blas_kernel(int count, char **words)
{
	const char *kernel = fp_openblas_kernel();
	if (count > 0 && kernel && setenv("OPENBLAS_CORETYPE", kernel, 1) == 0)
		execv("/proc/self/exe", words);
}

static bool skipped;

int finish_tests(int failed)
{
	return failed ? 1 : skipped ? 77 : 0;
}

void record_skip(const char *format, ...)
{
	va_list values;
	skipped = true;
	fflush(stderr); /* cmocka writes to both */
	fputs("SKIPPED: ", stdout);
	va_start(values, format);
	vprintf(format, values);
	va_end(values);
	fputc('\n', stdout);
	fflush(stdout);
}

const char *shared_path(const char *name)
{
	static char path[4096];
	const char *root = getenv("FP_SHARED");
	snprintf(path, sizeof path, "%s/%s", root ? root : FP_SHARED_DEFAULT, name);
	return access(path, R_OK) == 0 ? path : NULL;
}

const char *need_shared_path(const char *name)
{
	const char *path = shared_path(name);
	if (!path)
		skip_because("there is no %s in the folder of shared test material (FP_SHARED)", name);
	return path;
}

const char *source_path(const char *name)
{
	static char path[4096];
	snprintf(path, sizeof path, "%s/%s", FP_SOURCE_DIR, name);
	return path;
}

char *temporary_folder(void)
{
	char path[] = "/tmp/fistapruner-test-XXXXXX";
	if (!mkdtemp(path))
		fail_msg("no temporary folder");
	return strdup(path);
}

void remove_folder(const char *path)
{
	char command[4200];
	snprintf(command, sizeof command, "rm -rf '%s'", path);
	if (system(command) != 0)
		fail_msg("%s: could not be removed", path);
}

void write_file(const char *folder, const char *name, const void *bytes, size_t size)
{
	char path[4200];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *file = fopen(path, "wb");
	if (!file || fwrite(bytes, 1, size, file) != size || fclose(file) != 0)
		fail_msg("%s: could not be written", path);
}

void write_safetensors(const char *folder, const char *name, const char *header, const void *data, size_t size)
{
	size_t length = strlen(header);
	unsigned char *bytes = calloc(1, 8 + length + size);
	assert_non_null(bytes);
	for (int i = 0; i < 8; i++)
		bytes[i] = (unsigned char)(length >> (8 * i));
	memcpy(bytes + 8, header, length);
	memcpy(bytes + 8 + length, data, size);
	write_file(folder, name, bytes, 8 + length + size);
	free(bytes);
}

int context_set_up(void **state)
{
	*state = fp_context_new();
	return *state ? 0 : -1;
}

int context_tear_down(void **state)
{
	fp_context_free(*state);
	return 0;
}

int folder_set_up(void **state)
{
	folder_fixture *test = malloc(sizeof *test);
	test->ctx = fp_context_new();
	test->folder = temporary_folder();
	*state = test;
	return 0;
}

int folder_tear_down(void **state)
{
	folder_fixture *test = *state;
	remove_folder(test->folder);
	free(test->folder);
	fp_context_free(test->ctx);
	free(test);
	return 0;
}

float random_uniform(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return (float)((double)(*seed >> 40) / 8388608.0 - 1.0);
}

float random_normal(uint64_t *seed)
{
	float sum = 0;
	for (int i = 0; i < 12; i++)
		sum += random_uniform(seed);
	return sum / 2.0F; /* twelve uniforms on [-1, 1) have variance 4 */
}

fp_settings *resolved_settings(fp_context *ctx, const char *family, const char *const *assignments)
{
	fp_settings *settings;
	assert_ok(ctx, fp_settings_new(&settings, ctx));
	for (int i = 0; assignments[i]; i++)
		assert_ok(ctx, fp_settings_assign(settings, ctx, assignments[i]));
	assert_ok(ctx, fp_settings_resolve(settings, ctx, family));
	return settings;
}
