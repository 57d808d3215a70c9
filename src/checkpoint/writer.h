/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer.h: the checkpoint that comes out: the input directory with only the replaced tensors' bytes changed.
 * Everything is written into a folder beside the target (working_folder.h), synced, and renamed last: a directory under
 * its final name is whole. Who records what is finished can go on after the process was killed.
 */
#ifndef FP_CHECKPOINT_WRITER_H
#define FP_CHECKPOINT_WRITER_H

#include "checkpoint/checkpoint.h"

typedef struct fp_writer fp_writer;

/* Starts a copy of `source` that will appear as `directory`. Fails when the directory exists already (unless it is
 * empty), when it is the source or inside it, or when the disk has too little room. Shards keep names, order, header
 * bytes and offsets; a safetensors header without __metadata__.format gets "pt"; `.bin` shards come out as .safetensors
 * (with an index where there are several); config, tokenizer, generation and licence files are copied byte for byte,
 * following symlinks; other weight files
 * (.bin beside safetensors, .h5, .msgpack, .onnx, original/, …) are left out. */
fp_status fp_writer_open(fp_writer **out, fp_context *ctx, const fp_checkpoint *source, const char *directory);
/* The same, or goes on with an unfinished one where parts of it are recorded: then *begun. */
fp_status fp_writer_resume(fp_writer **out, fp_context *ctx, const fp_checkpoint *source, const char *directory,
						   bool *begun);
/* A second writer, of another process, into what the first one has open. It must not commit. */
fp_status fp_writer_join(fp_writer **out, fp_context *ctx, const fp_checkpoint *source, const char *directory);
/* New bytes for one tensor: same type, same shape. In any order; tensors never replaced keep their bytes. */
fp_status fp_writer_replace(fp_writer *writer, const fp_tensor_info *tensor, const void *bytes);
/* Its new bytes are there from an earlier run or another process. */
fp_status fp_writer_mark(fp_writer *writer, const fp_tensor_info *tensor);
/* Its new bytes back again. */
fp_status fp_writer_read(fp_writer *writer, const fp_tensor_info *tensor, void *bytes);
/* Everything replaced so far reaches the disk. */
fp_status fp_writer_sync(fp_writer *writer);
/* Where records of finished parts go, named FP_FINISHED_PREFIX… Borrowed. */
const char *fp_writer_folder(const fp_writer *writer);
/* Something is recorded: without a commit the folder stays. */
void fp_writer_keep(fp_writer *writer);
/* A file that the source does not have, or that replaces the source's: pruning_report.json. */
fp_status fp_writer_add_file(fp_writer *writer, const char *name, const void *bytes, int64_t size);
/* Syncs and renames. After it the directory is there and whole. */
fp_status fp_writer_commit(fp_writer *writer);
/* Failures are recorded in this context from now on: for a thread that writes. */
void fp_writer_report_to(fp_writer *writer, fp_context *ctx);
/* Without a commit before, removes what was written, unless it is to be kept. NULL is allowed. */
void fp_writer_close(fp_writer *writer);

#endif
