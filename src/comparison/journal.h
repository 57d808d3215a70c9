/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal.h: finished cells of a comparison, one JSON line each, so that a stopped run goes on where it was. A line is
 * found again by a key made of everything that its figures depend on.
 */
#ifndef FP_COMPARISON_JOURNAL_H
#define FP_COMPARISON_JOURNAL_H

#include "base/digest.h"
#include "base/settings.h"
#include <jansson.h>

/* What the figures depend on, folded into 64 bits. */
typedef uint64_t fp_journal_key;
#define FP_JOURNAL_START FP_DIGEST_START
fp_journal_key fp_journal_key_text(fp_journal_key key, const char *text);
/* The file's path, size and time of change; a file that is not there counts as well. */
fp_journal_key fp_journal_key_file(fp_journal_key key, const char *path);
/* All settings but those that only say how the work is done (threads, memory). */
fp_journal_key fp_journal_key_settings(fp_journal_key key, const fp_settings *settings, fp_context *ctx);

typedef struct fp_journal fp_journal;

/* Reads what is there. path NULL: a journal that is empty and keeps nothing. A line that was cut off is left out. */
fp_status fp_journal_open(fp_journal **out, fp_context *ctx, const char *path);
void fp_journal_close(fp_journal *journal); /* NULL is allowed */
/* The row with this key, or NULL. Borrowed. */
json_t *fp_journal_find(const fp_journal *journal, fp_journal_key key);
/* Appends a row (borrowed) and makes it last. */
fp_status fp_journal_add(fp_journal *journal, fp_journal_key key, json_t *row);

#endif
