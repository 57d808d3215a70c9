/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file.h: mapping and reading files, and writing them so that what stands under a name is whole and on the disk.
 * A file that is missing or cannot be opened for reading is FP_ERROR_INPUT; a failure while writing is FP_ERROR_IO.
 */
#ifndef FP_BASE_FILE_H
#define FP_BASE_FILE_H

#include "base/context.h"

/* A whole file in memory, read-only. {NULL, 0} is a valid mapping of nothing. */
typedef struct fp_mapping {
	const unsigned char *bytes;
	int64_t size;
} fp_mapping;

/* Maps a regular file. Pages are read when they are touched; the file must not shrink meanwhile. */
fp_status fp_map_file(fp_mapping *out, fp_context *ctx, const char *path);
void fp_unmap_file(fp_mapping *mapping);
/* Drops the pages of a run of a mapping from this process; touching them again reads them again. */
void fp_forget_pages(const void *bytes, int64_t size);

/* The whole file, with a zero byte after its end that is not counted. The caller frees *out with fp_free(). A file of
 * more than `limit` bytes is refused. */
fp_status fp_read_file(char **out, int64_t *size, fp_context *ctx, const char *path, int64_t limit);

/* "folder/name", or name where it is absolute or folder is empty. The caller frees it with fp_free(). */
fp_status fp_join_path(char **out, fp_context *ctx, const char *folder, const char *name);
bool fp_is_directory(const char *path); /* follows symlinks */
bool fp_is_file(const char *path);      /* follows symlinks */

/* A new file for writing, at its full size from the start so that a full disk shows now; the caller closes it with
 * fp_close_synced() or close(). */
fp_status fp_create_file(int *out, fp_context *ctx, const char *path, int64_t size);
fp_status fp_write_at(fp_context *ctx, int file, const char *path, const void *bytes, int64_t size, int64_t offset);
/* Has the system begin to bring these bytes to the disk; whether they arrive is for fp_close_synced() or fsync() to
 * say.
 */
void fp_start_writing(int file, int64_t offset, int64_t size);
fp_status fp_read_at(fp_context *ctx, int file, const char *path, void *bytes, int64_t size, int64_t offset);
/* A file of ours that is there already, of this size, for reading and writing; symlinks are not followed. The caller
 * closes it. */
fp_status fp_open_for_update(int *out, fp_context *ctx, const char *path, int64_t size);
/* Syncs and closes; the file is closed in any case. */
fp_status fp_close_synced(fp_context *ctx, int file, const char *path);

/* A file of `size` bytes without a name in a folder: it is gone when the process is. The caller closes it. */
fp_status fp_scratch_file(int *out, fp_context *ctx, const char *folder, int64_t size);

/* Writes and syncs a file; on failure nothing stands under the name. */
fp_status fp_write_file(fp_context *ctx, const char *path, const void *bytes, int64_t size);
/* The same, beside the target and renamed: a reader sees the old bytes or the new ones. */
fp_status fp_write_file_atomic(fp_context *ctx, const char *path, const void *bytes, int64_t size);
/* A synced copy, symlinks followed. */
fp_status fp_copy_file(fp_context *ctx, const char *from, const char *to);

/* Makes the names in a directory last. */
fp_status fp_sync_directory(fp_context *ctx, const char *path);
/* Bytes that an ordinary user may still write on the disk of `path`. */
fp_status fp_free_space(int64_t *out, fp_context *ctx, const char *path);
/* Removes a directory and all in it, symlinks not followed. Failures are ignored: it cleans up after another one. */
void fp_remove_tree(const char *path);

#endif
