/* SPDX-License-Identifier: Apache-2.0 */
/*
 * working_folder.h: the hidden folder beside the target in which a checkpoint is written. It is on the same disk, so that
 * one rename completes the output, and its name follows from the target's, so that a later run finds it:
 *     PARENT/.NAME.partial/output     becomes PARENT/NAME
 *     PARENT/.NAME.partial/lock       locked by the process that writes
 *     PARENT/.NAME.partial/…          records: which run this is, and which layers are finished
 */
#ifndef FP_CHECKPOINT_WORKING_FOLDER_H
#define FP_CHECKPOINT_WORKING_FOLDER_H

#include "base/context.h"

/* The names of records of finished parts begin with this; a folder without one is not worth keeping. */
#define FP_FINISHED_PREFIX "layer-"

typedef struct fp_working_folder {
	fp_context *ctx;
	char *parent; /* the real directory that holds the target */
	char *target; /* the final name */
	char *path, *output, *lock_path;
	int lock;  /* −1: not held */
	bool made; /* path exists and this process may remove it */
} fp_working_folder;

/* Only fills in the names. The caller frees them with fp_working_folder_close(), also after a failure. */
fp_status fp_working_folder_resolve(fp_working_folder *out, fp_context *ctx, const char *directory);
/* Fails if the target is the source or inside it, or if it exists and is not empty. */
fp_status fp_working_folder_check(const fp_working_folder *folder, const char *source);
/* Fails if the target's disk has no room for this many bytes. */
fp_status fp_working_folder_check_space(const fp_working_folder *folder, int64_t bytes);
/* Fails if an earlier run left finished parts. */
fp_status fp_working_folder_check_unfinished(const fp_working_folder *folder);
/* Creates and locks the folder. If an earlier run left finished parts, they are kept with `resume` (then *begun is set)
 * and are an error without. Otherwise the folder is emptied. */
fp_status fp_working_folder_take(fp_working_folder *folder, bool resume, bool *begun);
/* Renames the output to the target; the caller has synced it. */
fp_status fp_working_folder_commit(fp_working_folder *folder);
/* Unlocks the folder and frees the names. Removes the folder unless `keep` is set. */
void fp_working_folder_close(fp_working_folder *folder, bool keep);
/* Removes the folder of a process that was killed after its commit. Failures are ignored. */
void fp_working_folder_forget(fp_context *ctx, const char *directory);

#endif
