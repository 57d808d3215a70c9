/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer.h: writes the output checkpoint: the input directory with new bytes for the replaced tensors.
 * Everything goes into a hidden folder beside the target (working_folder.h), is synced, and is renamed last: a
 * directory under its final name is complete. A caller that records finished parts can resume after a crash.
 *
 * Calls with a context may be made by another thread than the one that opened the writer, and report to that context.
 * The others report to the context of fp_writer_open().
 */
#ifndef FP_CHECKPOINT_WRITER_H
#define FP_CHECKPOINT_WRITER_H

#include "checkpoint/writer_layout.h"

typedef struct fp_writer fp_writer;

/* Starts a copy of `source` that will appear as `directory`. Fails if the directory exists and is not empty, if it is
 * the source or inside it, or if there is too little disk space. Shards keep their names, order, header bytes and
 * offsets; a safetensors header without __metadata__.format gets "pt"; `.bin` shards become .safetensors (with an index
 * if there are several). Coded tensors (tensor_coding.h) are written decoded: the files and the config get new headers and
 * a new text. Config, tokenizer, generation and licence files are copied byte for byte, with symlinks
 * followed. Other weight files (.bin beside safetensors, .h5, .msgpack, .onnx, original/, …) are left out.
 * change: what the output has besides; NULL: nothing. fp_writer_replace() must give bytes to an added tensor, which goes to
 * the last shard, and fp_writer_quantise() to each one that is to be quantised; then config.json says so. */
fp_status fp_writer_open(fp_writer **out, fp_context *ctx, const fp_checkpoint *source, const char *directory,
						 const fp_output_change *change);
/* The files of a packed source as they were before it was packed, to the byte. */
fp_status fp_writer_open_exact(fp_writer **out, fp_context *ctx, const fp_checkpoint *source, const char *directory);
/* The same as fp_writer_open(), but continues an unfinished output that has finished parts, and then sets *begun. */
fp_status fp_writer_resume(fp_writer **out, fp_context *ctx, const fp_checkpoint *source, const char *directory,
						   const fp_output_change *change, bool *begun);
/* Fails where fp_writer_open() would because of the directory; writes nothing. */
fp_status fp_writer_check(fp_context *ctx, const fp_checkpoint *source, const char *directory);
/* A second writer, of another process, into the output that the first one has open. It must not commit. */
fp_status fp_writer_join(fp_writer **out, fp_context *ctx, const fp_checkpoint *source, const char *directory,
						 const fp_output_change *change);
/* Writes new bytes for a tensor, of the same type and shape. In any order; the other tensors keep their bytes. */
fp_status fp_writer_replace(fp_writer *writer, fp_context *ctx, const fp_tensor_info *tensor, const void *bytes);
/* The same for one that is to be quantised, whose new entries lie on a grid. */
fp_status fp_writer_quantise(fp_writer *writer, fp_context *ctx, const fp_tensor_info *tensor, const void *bytes,
							 fp_grid_numbers numbers);
/* Notes that an earlier run or another process has replaced a tensor. */
fp_status fp_writer_mark(fp_writer *writer, fp_context *ctx, const fp_tensor_info *tensor);
/* Reads the new bytes of a tensor; those of a quantised one are decoded. */
fp_status fp_writer_read(fp_writer *writer, fp_context *ctx, const fp_tensor_info *tensor, void *bytes);
/* Waits until everything replaced so far is on the disk. */
fp_status fp_writer_sync(fp_writer *writer, fp_context *ctx);
/* The text of config.json: the source's, with quantization_config if tensors are quantised and with its entries replaced
 * by those of `entries`, which may be NULL. NULL: out of memory. Freed with free(). */
char *fp_writer_config(const fp_writer *writer, const json_t *entries);
/* The folder for records of finished parts, whose names begin with FP_FINISHED_PREFIX. Borrowed. */
const char *fp_writer_folder(const fp_writer *writer);
/* Says that a finished part is recorded: fp_writer_close() without a commit then leaves the folder. */
void fp_writer_keep(fp_writer *writer);
/* Adds a file that the source does not have, or replaces the source's: pruning_report.json. */
fp_status fp_writer_add_file(fp_writer *writer, const char *name, const void *bytes, int64_t size);
/* Copies the tensors that were not replaced, syncs, and renames: the directory is there and complete. */
fp_status fp_writer_commit(fp_writer *writer);
/* Without a commit, removes what was written unless it is to be kept. NULL is allowed. */
void fp_writer_close(fp_writer *writer);

#endif
