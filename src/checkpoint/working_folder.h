/* SPDX-License-Identifier: Apache-2.0 */
/*
 * working_folder.h: where a checkpoint is made: a hidden folder beside the target, on the same disk, so that the rename
 * at the end is one step. Its name follows from the target's, so that a later run finds it again:
 *     PARENT/.NAME.partial/output     what will be PARENT/NAME
 *     PARENT/.NAME.partial/lock       held by the process that writes
 *     PARENT/.NAME.partial/…          records: which run this is, and what of it is finished
 */
#ifndef FP_CHECKPOINT_WORKING_FOLDER_H
#define FP_CHECKPOINT_WORKING_FOLDER_H

#include "base/context.h"

/* Records of finished parts begin like this; a folder without one holds nothing worth keeping. */
#define FP_FINISHED_PREFIX "layer-"

typedef struct fp_working_folder {
	fp_context *ctx;
	char *parent; /* the real directory that holds the target */
	char *target; /* the final name */
	char *path, *output, *lock_path;
	int lock;  /* −1: not held */
	bool made; /* path is there and this process may remove it */
} fp_working_folder;

/* Only finds the names. The caller frees them with fp_working_folder_close(), also after a failure. */
fp_status fp_working_folder_resolve(fp_working_folder *out, fp_context *ctx, const char *directory);
/* Takes the folder for this process. What is in it is left alone when parts are finished and `resume` is set (then
 * *begun), refused when parts are finished and it is not, and else removed. */
fp_status fp_working_folder_take(fp_working_folder *folder, bool resume, bool *begun);
/* The folder becomes the target; the caller has synced what is in it. */
fp_status fp_working_folder_commit(fp_working_folder *folder);
/* Removes it unless something in it is to be kept. */
void fp_working_folder_close(fp_working_folder *folder, bool keep);
/* Removes what a process that was killed after its commit may have left. */
void fp_working_folder_forget(fp_context *ctx, const char *directory);

#endif
