/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/working_folder.h"

#include "base/file.h"
#include "base/memory.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Disk space for the report and for the file system itself. */
enum { SPARE_SPACE = 16 << 20 };

/* Splits the requested directory into its real parent and its name, without trailing slashes. */
static fp_status resolve_target(fp_working_folder *folder, const char *directory)
{
	fp_context *ctx = folder->ctx;
	fp_status status;
	char *wanted = NULL, *real = NULL;
	FP_TRY(fp_check_path(ctx, directory));
	real = realpath(directory, NULL);
	FP_TRY(fp_copy_text(ctx, &wanted, real ? real : directory));
	size_t length = strlen(wanted);
	while (length > 1 && wanted[length - 1] == '/')
		wanted[--length] = '\0';
	char *slash = strrchr(wanted, '/');
	const char *name = slash ? slash + 1 : wanted;
	if (name[0] == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
		status = fp_fail(ctx, FP_ERROR_USAGE, "'%s' cannot be the output: give the name of a new directory", directory);
		goto cleanup;
	}
	free(real);
	if (slash)
		*slash = '\0';
	const char *parent = !slash ? "." : slash == wanted ? "/" : wanted;
	real = realpath(parent, NULL);
	if (!real || !fp_is_directory(real)) {
		status = fp_fail(ctx, FP_ERROR_USAGE, "%s: no such directory for the output '%s': create it first", parent,
						 directory);
		goto cleanup;
	}
	FP_TRY(fp_copy_text(ctx, &folder->parent, real));
	FP_TRY(fp_join_path(&folder->target, ctx, real, name));
cleanup:
	free(real);
	fp_free(wanted);
	return status;
}

fp_status fp_working_folder_resolve(fp_working_folder *out, fp_context *ctx, const char *directory)
{
	fp_status status;
	*out = (fp_working_folder){.ctx = ctx, .lock = -1};
	FP_TRY(resolve_target(out, directory));
	int64_t size = (int64_t)strlen(out->target) + 16;
	FP_TRY(FP_NEW(ctx, &out->path, size));
	snprintf(out->path, (size_t)size, "%s/.%s.partial", strcmp(out->parent, "/") ? out->parent : "",
			 strrchr(out->target, '/') + 1);
	FP_TRY(fp_join_path(&out->output, ctx, out->path, "output"));
	FP_TRY(fp_join_path(&out->lock_path, ctx, out->path, "lock"));
cleanup:
	return status;
}

static bool is_empty_directory(const char *path)
{
	DIR *folder = opendir(path);
	if (!folder)
		return false;
	bool empty = true;
	for (const struct dirent *entry = readdir(folder); entry && empty; entry = readdir(folder))
		empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
	closedir(folder);
	return empty;
}

static bool is_inside(const char *path, const char *directory)
{
	size_t length = strlen(directory);
	return strncmp(path, directory, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

fp_status fp_working_folder_check(const fp_working_folder *folder, const char *source)
{
	struct stat about;
	if (strcmp(folder->target, source) == 0)
		return fp_fail(folder->ctx, FP_ERROR_USAGE, "%s: is the input; give another directory for the output",
					   folder->target);
	if (is_inside(folder->target, source))
		return fp_fail(folder->ctx, FP_ERROR_USAGE, "%s: is inside the input %s; give a directory outside it",
					   folder->target, source);
	if (lstat(folder->target, &about) != 0 || is_empty_directory(folder->target))
		return FP_OK;
	if (!fp_is_directory(folder->target))
		return fp_fail(folder->ctx, FP_ERROR_USAGE, "%s: exists already and is not a directory; name a new one",
					   folder->target);
	return fp_fail(folder->ctx, FP_ERROR_USAGE, "%s: exists already; name a new directory or remove this one",
				   folder->target);
}

fp_status fp_working_folder_check_space(const fp_working_folder *folder, int64_t bytes)
{
	int64_t wanted = INT64_MAX, available = 0;
	fp_status status = fp_free_space(&available, folder->ctx, folder->parent);
	if (status != FP_OK)
		return status;
	if (!fp_add_checked(bytes, SPARE_SPACE, &wanted) || wanted > available)
		return fp_fail(
			folder->ctx, FP_ERROR_IO,
			"%s: the output needs %.1f MiB and its disk has %.1f MiB free; free some space or choose another "
			"disk",
			folder->target, (double)wanted / 1048576.0, (double)available / 1048576.0);
	return FP_OK;
}

/* Creates the folder, or accepts an existing directory of the same user. */
static fp_status make(fp_working_folder *folder)
{
	struct stat about;
	if (mkdir(folder->path, 0777) == 0)
		return FP_OK;
	if (errno != EEXIST)
		return fp_fail(folder->ctx, FP_ERROR_IO, "%s: cannot be created: %s", folder->path, strerror(errno));
	if (lstat(folder->path, &about) != 0 || !S_ISDIR(about.st_mode) || about.st_uid != geteuid())
		return fp_fail(folder->ctx, FP_ERROR_IO, "%s: exists and is not a folder of this user; remove it",
					   folder->path);
	return FP_OK;
}

static fp_status take_lock(fp_working_folder *folder)
{
	folder->lock = open(folder->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
	if (folder->lock < 0) {
		int failure = errno;
		rmdir(folder->path); /* removes it only if it is empty: then we have just created it */
		return fp_fail(folder->ctx, FP_ERROR_IO, "%s: cannot be created: %s", folder->lock_path, strerror(failure));
	}
	if (flock(folder->lock, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
		return FP_OK; /* a file system without locks is used without */
	close(folder->lock);
	folder->lock = -1;
	return fp_fail(folder->ctx, FP_ERROR_USAGE, "%s: another run is writing it; wait for it or give another directory",
				   folder->target);
}

static bool has_finished_parts(const fp_working_folder *folder)
{
	DIR *listing = fp_is_directory(folder->output) ? opendir(folder->path) : NULL;
	bool found = false;
	if (!listing)
		return false;
	for (const struct dirent *entry = readdir(listing); entry && !found; entry = readdir(listing))
		found = strncmp(entry->d_name, FP_FINISHED_PREFIX, strlen(FP_FINISHED_PREFIX)) == 0 &&
				!strstr(entry->d_name, ".tmp");
	closedir(listing);
	return found;
}

/* Removes everything in it but the lock, which is held. Records no failure: the message of the failure that it cleans
 * up after stays. */
static void empty(const fp_working_folder *folder)
{
	DIR *listing = opendir(folder->path);
	if (!listing)
		return;
	for (const struct dirent *entry = readdir(listing); entry; entry = readdir(listing)) {
		char path[PATH_MAX];
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 || strcmp(entry->d_name, "lock") == 0)
			continue;
		if (snprintf(path, sizeof path, "%s/%s", folder->path, entry->d_name) < (int)sizeof path)
			fp_remove_tree(path);
	}
	closedir(listing);
}

fp_status fp_working_folder_check_unfinished(const fp_working_folder *folder)
{
	if (!has_finished_parts(folder))
		return FP_OK;
	return fp_fail(folder->ctx, FP_ERROR_USAGE,
				   "%s: an unfinished run of it is in %s; continue it with --resume, or remove that directory",
				   folder->target, folder->path);
}

fp_status fp_working_folder_take(fp_working_folder *folder, bool resume, bool *begun)
{
	fp_status status;
	*begun = false;
	FP_TRY(make(folder));
	FP_TRY(take_lock(folder));
	bool finished = has_finished_parts(folder);
	if (!resume)
		FP_TRY(fp_working_folder_check_unfinished(folder));
	folder->made = true;
	*begun = finished;
	if (finished)
		return FP_OK;
	empty(folder);
	if (mkdir(folder->output, 0777) != 0)
		FP_TRY(fp_fail(folder->ctx, FP_ERROR_IO, "%s: cannot be created: %s", folder->output, strerror(errno)));
cleanup:
	return status;
}

fp_status fp_working_folder_commit(fp_working_folder *folder)
{
	if (rename(folder->output, folder->target) != 0)
		return fp_fail(folder->ctx, FP_ERROR_IO, "%s: cannot be put in place: %s", folder->target, strerror(errno));
	return fp_sync_directory(folder->ctx, folder->parent);
}

void fp_working_folder_close(fp_working_folder *folder, bool keep)
{
	if (folder->made && !keep) {
		empty(folder);
		fp_remove_tree(folder->path); /* the lock last, so that no other run takes the folder meanwhile */
	}
	if (folder->lock >= 0)
		close(folder->lock);
	fp_free(folder->parent);
	fp_free(folder->target);
	fp_free(folder->path);
	fp_free(folder->output);
	fp_free(folder->lock_path);
	*folder = (fp_working_folder){.lock = -1};
}

void fp_working_folder_forget(fp_context *ctx, const char *directory)
{
	fp_working_folder folder;
	if (fp_working_folder_resolve(&folder, ctx, directory) == FP_OK && fp_is_directory(folder.path) &&
		make(&folder) == FP_OK && take_lock(&folder) == FP_OK)
		folder.made = !has_finished_parts(&folder);
	fp_clear_message(ctx);
	fp_working_folder_close(&folder, false);
}
