/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal.h: saves the finished cells of a comparison, one JSON line each, so that an interrupted run can
 * continue. A cell's key is a hash of everything its figures depend on.
 */
#ifndef FP_COMPARISON_JOURNAL_H
#define FP_COMPARISON_JOURNAL_H

#include "base/digest.h"
#include "base/settings.h"
#include <jansson.h>

/* A 64-bit hash. */
typedef uint64_t fp_journal_key;
#define FP_JOURNAL_START FP_DIGEST_START
fp_journal_key fp_journal_key_text(fp_journal_key key, const char *text);
/* Adds the file's path, size and modification time. The file may be missing. */
fp_journal_key fp_journal_key_file(fp_journal_key key, const char *path);
/* Adds all settings except threads and memory, which do not affect the figures. */
fp_journal_key fp_journal_key_settings(fp_journal_key key, const fp_settings *settings, fp_context *ctx);

typedef struct fp_journal fp_journal;

/* Reads the existing lines and skips incomplete ones. path NULL: nothing is read or saved. */
fp_status fp_journal_open(fp_journal **out, fp_context *ctx, const char *path);
void fp_journal_close(fp_journal *journal); /* NULL is allowed */
/* The row with this key, or NULL. Borrowed. */
json_t *fp_journal_find(const fp_journal *journal, fp_journal_key key);
/* Appends a row (borrowed) and flushes it to disk. */
fp_status fp_journal_add(fp_journal *journal, fp_journal_key key, json_t *row);

#endif
