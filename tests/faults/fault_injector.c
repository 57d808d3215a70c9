/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault_injector.c: loaded with LD_PRELOAD, makes one call of the C library fail.
 *     FP_FAIL_READ=N      the N-th of all reads, and openings for reading, of regular files fails with EIO
 *     FP_FAIL_WRITE=N     the N-th of all writes, openings for writing, reservations, changes of size, syncs, new
 *                         directories and renames fails with ENOSPC
 *     FP_FAIL_RENAME=TEXT every rename to a path that contains TEXT fails with ENOSPC
 *     FP_FAIL_COUNT=FILE  writes the number of reads and of writes to FILE when the process ends
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

/* Counts a call and sets errno if it is the one that fails. */
static bool fails(atomic_long *count, const char *variable, int error)
{
	const char *wanted = getenv(variable);
	long number = atomic_fetch_add(count, 1) + 1;
	if (!wanted || number != strtol(wanted, NULL, 10))
		return false;
	errno = error;
	return true;
}

static bool read_fails(void)
{
	return fails(&reads, "FP_FAIL_READ", EIO);
}

static bool write_fails(void)
{
	return fails(&writes, "FP_FAIL_WRITE", ENOSPC);
}

#define ORIGINAL(type, name, ...)                                                                                      \
	type (*original)(__VA_ARGS__);                                                                                     \
	void *found = dlsym(RTLD_NEXT, #name);                                                                             \
	memcpy(&original, &found, sizeof original)

int open(const char *path, int flags, ...)
{
	ORIGINAL(int, open, const char *, int, ...);
	struct stat about;
	mode_t mode = 0;
	if (flags & O_CREAT) {
		va_list args;
		va_start(args, flags);
		mode = va_arg(args, mode_t);
		va_end(args);
	}
	if ((flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT)
			? write_fails()
			: stat(path, &about) == 0 && S_ISREG(about.st_mode) && read_fails())
		return -1;
	return original(path, flags, mode);
}

ssize_t read(int file, void *bytes, size_t size)
{
	ORIGINAL(ssize_t, read, int, void *, size_t);
	return is_file(file) && read_fails() ? -1 : original(file, bytes, size);
}

ssize_t pread(int file, void *bytes, size_t size, off_t offset)
{
	ORIGINAL(ssize_t, pread, int, void *, size_t, off_t);
	return is_file(file) && read_fails() ? -1 : original(file, bytes, size, offset);
}

ssize_t pwrite(int file, const void *bytes, size_t size, off_t offset)
{
	ORIGINAL(ssize_t, pwrite, int, const void *, size_t, off_t);
	return write_fails() ? -1 : original(file, bytes, size, offset);
}

int fsync(int file)
{
	ORIGINAL(int, fsync, int);
	return write_fails() ? -1 : original(file);
}

int fallocate(int file, int mode, off_t offset, off_t size)
{
	ORIGINAL(int, fallocate, int, int, off_t, off_t);
	return write_fails() ? -1 : original(file, mode, offset, size);
}

int ftruncate(int file, off_t size)
{
	ORIGINAL(int, ftruncate, int, off_t);
	return write_fails() ? -1 : original(file, size);
}

int mkdir(const char *path, mode_t mode)
{
	ORIGINAL(int, mkdir, const char *, mode_t);
	return write_fails() ? -1 : original(path, mode);
}

int rename(const char *from, const char *to)
{
	ORIGINAL(int, rename, const char *, const char *);
	const char *text = getenv("FP_FAIL_RENAME");
	if (text && strstr(to, text)) {
		errno = ENOSPC;
		return -1;
	}
	return write_fails() ? -1 : original(from, to);
}

__attribute__((destructor)) static void write_counts(void)
{
	const char *path = getenv("FP_FAIL_COUNT");
	FILE *file = path ? fopen(path, "w") : NULL;
	if (!file)
		return;
	fprintf(file, "%ld %ld\n", atomic_load(&reads), atomic_load(&writes));
	fclose(file);
}
