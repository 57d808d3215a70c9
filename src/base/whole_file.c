/* SPDX-License-Identifier: Apache-2.0 */
#include "base/whole_file.h"

#include "base/memory.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

fp_status fp_read_whole_file(char **out, int64_t *size, fp_context *ctx, const char *path, int64_t limit)
{
	fp_status status = FP_OK;
	char *bytes = NULL;
	*out = NULL;
	*size = 0;
	FILE *file = fopen(path, "rb");
	if (!file)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: cannot be opened: %s", path, strerror(errno));

	struct stat about;
	if (fstat(fileno(file), &about) != 0 || !S_ISREG(about.st_mode)) {
		status = fp_fail(ctx, FP_ERROR_INPUT, "%s: not a regular file", path);
		goto cleanup;
	}
	if (about.st_size > limit) {
		status = fp_fail(ctx, FP_ERROR_INPUT, "%s: %lld bytes; a file of this kind has at most %lld", path,
						 (long long)about.st_size, (long long)limit);
		goto cleanup;
	}
	FP_TRY(FP_NEW(ctx, &bytes, (int64_t)about.st_size + 1));
	size_t got = fread(bytes, 1, (size_t)about.st_size, file);
	if (ferror(file) || got != (size_t)about.st_size) {
		status = fp_fail(ctx, FP_ERROR_INPUT, "%s: only %zu of %lld bytes could be read", path, got,
						 (long long)about.st_size);
		goto cleanup;
	}
	*out = bytes;
	*size = (int64_t)got;
	bytes = NULL;
cleanup:
	fp_free(bytes);
	fclose(file);
	return status;
}
