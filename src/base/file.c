/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

#include "base/memory.h"
#include "base/numbers.h"
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <utf8proc.h>

enum { COPY_BLOCK = 1 << 20, PIECE_BYTES = 4 << 20, TRUNCATED = INT_MAX };

/* Opens a regular file for reading and gets its size. */
static fp_status open_for_reading(int *out, int64_t *size, fp_context *ctx, const char *path)
{
	int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a named pipe must not block */
	if (file < 0)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: cannot be opened: %s", path, strerror(errno));
	struct stat about;
	if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) {
		close(file);
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: is not a regular file", path);
	}
	*out = file;
	*size = (int64_t)about.st_size;
	return FP_OK;
}

fp_status fp_map_file(fp_mapping *out, fp_context *ctx, const char *path)
{
	*out = (fp_mapping){0};
	int file;
	int64_t size;
	fp_status status = open_for_reading(&file, &size, ctx, path);
	if (status != FP_OK)
		return status;
	if (size > 0) {
		void *bytes = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, file, 0);
		if (bytes == MAP_FAILED)
			status = fp_fail(ctx, errno == ENOMEM ? FP_ERROR_MEMORY : FP_ERROR_IO,
							 "%s: its %lld bytes cannot be mapped: %s", path, (long long)size, strerror(errno));
		else
			*out = (fp_mapping){bytes, size};
	}
	close(file);
	return status;
}

void fp_unmap_file(fp_mapping *mapping)
{
	if (mapping->bytes)
		munmap((void *)(uintptr_t)mapping->bytes, (size_t)mapping->size);
	*mapping = (fp_mapping){0};
}

void fp_forget_pages(const void *bytes, int64_t size)
{
	if (size <= 0)
		return;
	/* Neighbours on the first and last page are released, too, and read again when needed. */
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t start = (uintptr_t)bytes / page * page;
	uintptr_t end = (uintptr_t)bytes + (uintptr_t)size;
	madvise((void *)start, end - start, MADV_DONTNEED);
}

static fp_status read_all(fp_context *ctx, int file, const char *path, char *bytes, int64_t size)
{
	for (int64_t done = 0; done < size;) {
		ssize_t count = read(file, bytes + done, (size_t)(size - done));
		if (count < 0 && errno == EINTR)
			continue;
		if (count < 0)
			return fp_fail(ctx, FP_ERROR_IO, "%s: reading failed: %s", path, strerror(errno));
		if (count == 0)
			return fp_fail(ctx, FP_ERROR_IO, "%s: was truncated while it was read", path);
		done += count;
	}
	return FP_OK;
}

fp_status fp_read_file(char **out, int64_t *size, fp_context *ctx, const char *path, int64_t limit)
{
	*out = NULL;
	*size = 0;
	int file;
	int64_t length;
	char *bytes = NULL;
	fp_status status = open_for_reading(&file, &length, ctx, path);
	if (status != FP_OK)
		return status;
	if (length > limit) {
		status = fp_fail(ctx, FP_ERROR_INPUT, "%s: has %lld bytes; at most %lld are read", path, (long long)length,
						 (long long)limit);
		goto cleanup;
	}
	FP_TRY(FP_NEW(ctx, &bytes, length + 1));
	FP_TRY(read_all(ctx, file, path, bytes, length));
	*out = bytes;
	*size = length;
	bytes = NULL;
cleanup:
	fp_free(bytes);
	close(file);
	return status;
}

fp_status fp_join_path(char **out, fp_context *ctx, const char *folder, const char *name)
{
	if (name[0] == '/' || folder[0] == '\0')
		return fp_copy_text(ctx, out, name);
	size_t length = strlen(folder);
	const char *separator = folder[length - 1] == '/' ? "" : "/";
	int64_t size = (int64_t)(length + strlen(name) + 2);
	fp_status status = FP_NEW(ctx, out, size);
	if (status == FP_OK)
		snprintf(*out, (size_t)size, "%s%s%s", folder, separator, name);
	return status;
}

fp_status fp_check_path(fp_context *ctx, const char *path)
{
	utf8proc_int32_t code;
	utf8proc_ssize_t size;
	for (const char *at = path; *at; at += size) {
		size = utf8proc_iterate((const utf8proc_uint8_t *)at, -1, &code);
		if (size <= 0)
			return fp_fail(ctx, FP_ERROR_USAGE,
						   "%s: is not UTF-8 from byte %lld on, and results in JSON must be: rename it", path,
						   (long long)(at - path));
	}
	return FP_OK;
}

bool fp_is_directory(const char *path)
{
	struct stat about;
	return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

bool fp_is_file(const char *path)
{
	struct stat about;
	return stat(path, &about) == 0 && S_ISREG(about.st_mode);
}

fp_status fp_create_file(int *out, fp_context *ctx, const char *path, int64_t size)
{
	int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (file < 0)
		return fp_fail(ctx, FP_ERROR_IO, "%s: cannot be created: %s", path, strerror(errno));
	/* File systems that cannot reserve space report a full disk later, on writing. */
	int failure = size > 0 && fallocate(file, 0, 0, (off_t)size) != 0 ? errno : 0;
	if (failure == ENOSPC || failure == EFBIG || failure == EDQUOT || failure == EIO) {
		close(file);
		unlink(path);
		return fp_fail(ctx, FP_ERROR_IO, "%s: no space for %lld bytes: %s; free some space or choose another disk",
					   path, (long long)size, strerror(failure));
	}
	*out = file;
	return FP_OK;
}

fp_status fp_scratch_file(int *out, fp_context *ctx, const char *folder, int64_t size)
{
	char *path = NULL;
	fp_status status;
	FP_TRY(fp_join_path(&path, ctx, folder, ".fistapruner-XXXXXX"));
	*out = mkostemp(path, O_CLOEXEC);
	if (*out < 0)
		FP_TRY(fp_fail(ctx, FP_ERROR_IO, "%s: cannot create a file for hidden states: %s", folder, strerror(errno)));
	unlink(path);
	int failure = fallocate(*out, 0, 0, (off_t)size) != 0 ? errno : 0;
	if (failure == EOPNOTSUPP)
		failure = ftruncate(*out, (off_t)size) != 0 ? errno : 0;
	if (failure) {
		close(*out);
		*out = -1;
		status = fp_fail(ctx, FP_ERROR_IO, "%s: no space for %.1f MiB of hidden states: %s; free some space there",
						 folder, (double)size / 1048576.0, strerror(failure));
	}
cleanup:
	fp_free(path);
	return status;
}

/* 0, or the errno of what failed */
static int write_range(int file, const char *from, int64_t size, int64_t offset)
{
	for (int64_t done = 0; done < size;) {
		ssize_t count = pwrite(file, from + done, (size_t)(size - done), (off_t)(offset + done));
		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0)
			return count < 0 ? errno : ENOSPC;
		done += count;
	}
	return 0;
}

/* 0, the errno of what failed, or TRUNCATED */
static int read_range(int file, char *to, int64_t size, int64_t offset)
{
	for (int64_t done = 0; done < size;) {
		ssize_t count = pread(file, to + done, (size_t)(size - done), (off_t)(offset + done));
		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0)
			return count < 0 ? errno : TRUNCATED;
		done += count;
	}
	return 0;
}

static fp_status writing_failed(fp_context *ctx, const char *path, int failure)
{
	return failure ? fp_fail(ctx, FP_ERROR_IO, "%s: writing failed: %s", path, strerror(failure)) : FP_OK;
}

static fp_status reading_failed(fp_context *ctx, const char *path, int failure)
{
	const char *reason = failure == TRUNCATED ? "the file was truncated" : strerror(failure);
	return failure ? fp_fail(ctx, FP_ERROR_IO, "%s: reading failed: %s", path, reason) : FP_OK;
}

fp_status fp_write_at(fp_context *ctx, int file, const char *path, const void *bytes, int64_t size, int64_t offset)
{
	return writing_failed(ctx, path, write_range(file, bytes, size, offset));
}

fp_status fp_read_at(fp_context *ctx, int file, const char *path, void *bytes, int64_t size, int64_t offset)
{
	return reading_failed(ctx, path, read_range(file, bytes, size, offset));
}

fp_status fp_write_parallel(fp_context *ctx, int threads, int file, const char *path, const void *bytes, int64_t size,
							int64_t offset)
{
	int failure = 0;
	(void)threads; /* unused without OpenMP */
#pragma omp parallel for num_threads(threads) reduction(max : failure)
	for (int64_t at = 0; at < size; at += PIECE_BYTES) {
		int own = write_range(file, (const char *)bytes + at, fp_smaller(PIECE_BYTES, size - at), offset + at);
		failure = own > failure ? own : failure;
	}
	return writing_failed(ctx, path, failure);
}

fp_status fp_read_parallel(fp_context *ctx, int threads, int file, const char *path, void *bytes, int64_t size,
						   int64_t offset)
{
	int failure = 0;
	(void)threads; /* unused without OpenMP */
#pragma omp parallel for num_threads(threads) reduction(max : failure)
	for (int64_t at = 0; at < size; at += PIECE_BYTES) {
		int own = read_range(file, (char *)bytes + at, fp_smaller(PIECE_BYTES, size - at), offset + at);
		failure = own > failure ? own : failure;
	}
	return reading_failed(ctx, path, failure);
}

void fp_start_writing(int file, int64_t offset, int64_t size)
{
#ifdef SYNC_FILE_RANGE_WRITE
	(void)sync_file_range(file, (off_t)offset, (off_t)size, SYNC_FILE_RANGE_WRITE);
#else
	(void)file;
	(void)offset;
	(void)size;
#endif
}

fp_status fp_open_for_update(int *out, fp_context *ctx, const char *path, int64_t size)
{
	struct stat about;
	int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (file < 0)
		return fp_fail(ctx, errno == ENOENT ? FP_ERROR_INPUT : FP_ERROR_IO, "%s: cannot be opened: %s", path,
					   strerror(errno));
	bool known = fstat(file, &about) == 0;
	if (!known || !S_ISREG(about.st_mode) || (int64_t)about.st_size != size) {
		close(file);
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: has %lld bytes, but %lld are expected", path,
					   known ? (long long)about.st_size : -1, (long long)size);
	}
	*out = file;
	return FP_OK;
}

fp_status fp_close_synced(fp_context *ctx, int file, const char *path)
{
	int failure = fsync(file) != 0 ? errno : 0;
	if (close(file) != 0 && !failure)
		failure = errno;
	if (failure)
		return fp_fail(ctx, FP_ERROR_IO, "%s: writing failed: %s", path, strerror(failure));
	return FP_OK;
}

fp_status fp_write_file(fp_context *ctx, const char *path, const void *bytes, int64_t size)
{
	int file;
	fp_status status = fp_create_file(&file, ctx, path, size);
	if (status != FP_OK)
		return status;
	status = fp_write_at(ctx, file, path, bytes, size, 0);
	if (status == FP_OK)
		status = fp_close_synced(ctx, file, path);
	else
		close(file);
	if (status != FP_OK)
		unlink(path);
	return status;
}

fp_status fp_write_file_atomic(fp_context *ctx, const char *path, const void *bytes, int64_t size)
{
	fp_status status;
	char *beside = NULL;
	int64_t length = (int64_t)strlen(path) + 32;
	bool written = false;
	FP_TRY(FP_NEW(ctx, &beside, length));
	snprintf(beside, (size_t)length, "%s.%ld.tmp", path, (long)getpid());
	unlink(beside); /* left by a killed process that had the same id */
	FP_TRY(fp_write_file(ctx, beside, bytes, size));
	written = true;
	if (rename(beside, path) != 0) {
		status = fp_fail(ctx, FP_ERROR_IO, "%s: cannot be replaced: %s", path, strerror(errno));
		goto cleanup;
	}
	written = false;
	char *slash = strrchr(beside, '/');
	if (slash)
		slash[slash == beside] = '\0';
	FP_TRY(fp_sync_directory(ctx, slash ? beside : "."));
cleanup:
	if (written)
		unlink(beside);
	fp_free(beside);
	return status;
}

fp_status fp_copy_file(fp_context *ctx, const char *from, const char *to)
{
	fp_status status;
	int in = -1, out = -1;
	int64_t size;
	char *block = NULL;
	FP_TRY(open_for_reading(&in, &size, ctx, from));
	FP_TRY(FP_NEW(ctx, &block, COPY_BLOCK));
	FP_TRY(fp_create_file(&out, ctx, to, size));
	for (int64_t done = 0; done < size;) {
		int64_t count = size - done < COPY_BLOCK ? size - done : COPY_BLOCK;
		FP_TRY(read_all(ctx, in, from, block, count));
		FP_TRY(fp_write_at(ctx, out, to, block, count, done));
		done += count;
	}
	int finished = out;
	out = -1;
	FP_TRY(fp_close_synced(ctx, finished, to));
cleanup:
	if (in >= 0)
		close(in);
	if (out >= 0) {
		close(out);
		unlink(to);
	}
	fp_free(block);
	return status;
}

fp_status fp_sync_directory(fp_context *ctx, const char *path)
{
	int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder < 0)
		return fp_fail(ctx, FP_ERROR_IO, "%s: cannot be opened: %s", path, strerror(errno));
	int failure = fsync(folder) != 0 ? errno : 0;
	close(folder);
	if (failure && failure != EINVAL) /* some network file systems cannot sync a directory */
		return fp_fail(ctx, FP_ERROR_IO, "%s: cannot be synced: %s", path, strerror(failure));
	return FP_OK;
}

fp_status fp_free_space(int64_t *out, fp_context *ctx, const char *path)
{
	struct statvfs about;
	if (statvfs(path, &about) != 0)
		return fp_fail(ctx, FP_ERROR_IO, "%s: the free space is unknown: %s", path, strerror(errno));
	if (!fp_multiply_checked((int64_t)about.f_bavail, (int64_t)about.f_frsize, out))
		*out = INT64_MAX;
	return FP_OK;
}

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *where)
{
	(void)about;
	(void)kind;
	(void)where;
	remove(path);
	return 0;
}

void fp_remove_tree(const char *path)
{
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
