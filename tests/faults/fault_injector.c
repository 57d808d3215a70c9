/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault_injector.c: loaded with LD_PRELOAD, makes one call of the C library fail.
 *     FP_FAIL_READ=N    the N-th read of a file fails with EIO
 *     FP_FAIL_WRITE=N   the N-th of all writes, syncs, creations and renames fails with ENOSPC
 *     FP_FAIL_COUNT=FILE  writes how many there were of each when the process ends
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#pragma GCC visibility push(default)

static atomic_long reads, writes;

static bool is_file(int file)
{
	struct stat about;
	return fstat(file, &about) == 0 && S_ISREG(about.st_mode);
}

static bool strikes(atomic_long *count, const char *variable)
{
	const char *wanted = getenv(variable);
	long number = atomic_fetch_add(count, 1) + 1;
	return wanted && number == strtol(wanted, NULL, 10);
}

static void *next(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}

#define ORIGINAL(type, name, ...)                                                                                      \
	type (*original)(__VA_ARGS__);                                                                                     \
	void *found = next(#name);                                                                                         \
	memcpy(&original, &found, sizeof original)

ssize_t read(int file, void *bytes, size_t size)
{
	ORIGINAL(ssize_t, read, int, void *, size_t);
	if (is_file(file) && strikes(&reads, "FP_FAIL_READ")) {
		errno = EIO;
		return -1;
	}
	return original(file, bytes, size);
}

ssize_t pread(int file, void *bytes, size_t size, off_t offset)
{
	ORIGINAL(ssize_t, pread, int, void *, size_t, off_t);
	if (is_file(file) && strikes(&reads, "FP_FAIL_READ")) {
		errno = EIO;
		return -1;
	}
	return original(file, bytes, size, offset);
}

ssize_t pwrite(int file, const void *bytes, size_t size, off_t offset)
{
	ORIGINAL(ssize_t, pwrite, int, const void *, size_t, off_t);
	if (strikes(&writes, "FP_FAIL_WRITE")) {
		errno = ENOSPC;
		return -1;
	}
	return original(file, bytes, size, offset);
}

int fsync(int file)
{
	ORIGINAL(int, fsync, int);
	if (strikes(&writes, "FP_FAIL_WRITE")) {
		errno = ENOSPC;
		return -1;
	}
	return original(file);
}

int fallocate(int file, int mode, off_t offset, off_t size)
{
	ORIGINAL(int, fallocate, int, int, off_t, off_t);
	if (strikes(&writes, "FP_FAIL_WRITE")) {
		errno = ENOSPC;
		return -1;
	}
	return original(file, mode, offset, size);
}

int rename(const char *from, const char *to)
{
	ORIGINAL(int, rename, const char *, const char *);
	if (strikes(&writes, "FP_FAIL_WRITE")) {
		errno = ENOSPC;
		return -1;
	}
	return original(from, to);
}

__attribute__((destructor)) static void tell(void)
{
	const char *path = getenv("FP_FAIL_COUNT");
	FILE *file = path ? fopen(path, "w") : NULL;
	if (!file)
		return;
	fprintf(file, "%ld %ld\n", atomic_load(&reads), atomic_load(&writes));
	fclose(file);
}
