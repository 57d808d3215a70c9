/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file.h: reads, maps and writes files. Written files are complete and on the disk before they get their name.
 * A file that is missing or cannot be opened for reading is FP_ERROR_INPUT; a failure while writing is FP_ERROR_IO.
 */
#ifndef FP_BASE_FILE_H
#define FP_BASE_FILE_H

#include "base/context.h"

/* A file mapped read-only. An empty file is {NULL, 0}. */
typedef struct fp_mapping {
	const unsigned char *bytes;
	int64_t size;
} fp_mapping;

/* Maps a regular file, which must not be truncated while it is mapped. */
fp_status fp_map_file(fp_mapping *out, fp_context *ctx, const char *path);
void fp_unmap_file(fp_mapping *mapping);
/* Releases the pages of a part of a mapping; the next access reads them again. */
void fp_forget_pages(const void *bytes, int64_t size);

/* Reads a whole file and appends a NUL that *size does not count. A file of more than `limit` bytes is refused. The
 * caller frees *out with fp_free(). */
fp_status fp_read_file(char **out, int64_t *size, fp_context *ctx, const char *path, int64_t limit);

/* "folder/name", or just name if it is absolute or folder is empty. The caller frees it with fp_free(). */
fp_status fp_join_path(char **out, fp_context *ctx, const char *folder, const char *name);
/* Refuses a path that a result could not name, because JSON is UTF-8. */
fp_status fp_check_path(fp_context *ctx, const char *path);
bool fp_is_directory(const char *path); /* follows symlinks */
bool fp_is_file(const char *path);      /* follows symlinks */

/* Creates a file and reserves its full size, so that a full disk is noticed at once. The caller closes it with
 * fp_close_synced() or close(). */
fp_status fp_create_file(int *out, fp_context *ctx, const char *path, int64_t size);
fp_status fp_write_at(fp_context *ctx, int file, const char *path, const void *bytes, int64_t size, int64_t offset);
/* Starts writing these bytes to the disk without waiting; fp_close_synced() or fsync() reports errors. */
void fp_start_writing(int file, int64_t offset, int64_t size);
fp_status fp_read_at(fp_context *ctx, int file, const char *path, void *bytes, int64_t size, int64_t offset);
/* The same by several threads, because one is slower than a fast disk or the system's cache. */
fp_status fp_write_parallel(fp_context *ctx, int threads, int file, const char *path, const void *bytes, int64_t size,
							int64_t offset);
fp_status fp_read_parallel(fp_context *ctx, int threads, int file, const char *path, void *bytes, int64_t size,
						   int64_t offset);
/* Opens an existing file of this size for reading and writing. Symbolic links are not followed. The caller closes it.
 */
fp_status fp_open_for_update(int *out, fp_context *ctx, const char *path, int64_t size);
/* Syncs and closes the file. It is closed even if that fails. */
fp_status fp_close_synced(fp_context *ctx, int file, const char *path);

/* A file of `size` bytes without a name, which vanishes when it is closed. The caller closes it. */
fp_status fp_scratch_file(int *out, fp_context *ctx, const char *folder, int64_t size);

/* Creates, writes and syncs a file; removes it on failure. */
fp_status fp_write_file(fp_context *ctx, const char *path, const void *bytes, int64_t size);
/* The same by a temporary file and a rename: a reader sees the old content or the new one. */
fp_status fp_write_file_atomic(fp_context *ctx, const char *path, const void *bytes, int64_t size);
/* A synced copy. Symbolic links are followed. */
fp_status fp_copy_file(fp_context *ctx, const char *from, const char *to);

/* Syncs the entries of a directory, after a rename or a new file. */
fp_status fp_sync_directory(fp_context *ctx, const char *path);
/* Bytes that an unprivileged user can still write on the disk of `path`. */
fp_status fp_free_space(int64_t *out, fp_context *ctx, const char *path);
/* Removes a directory and its content. Symbolic links are not followed, failures are ignored. */
void fp_remove_tree(const char *path);

#endif
