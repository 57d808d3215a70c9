/* SPDX-License-Identifier: Apache-2.0 */
#include "comparison/journal.h"

#include "base/file.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_BYTES ((int64_t)1 << 30)

struct fp_journal {
	fp_context *ctx;
	char *path;   /* NULL: nothing is saved */
	json_t *rows; /* key → row */
	bool unended; /* the file's last line has no newline */
};

fp_journal_key fp_journal_key_text(fp_journal_key key, const char *text)
{
	return fp_digest_text(key, text);
}

fp_journal_key fp_journal_key_file(fp_journal_key key, const char *path)
{
	return fp_digest_file(fp_digest_text(key, path), path);
}

fp_journal_key fp_journal_key_settings(fp_journal_key key, const fp_settings *settings, fp_context *ctx)
{
	const fp_setting_info *info;
	for (size_t i = 0; (info = fp_setting_at(i)); i++) {
		char value[FP_SETTING_TEXT_SIZE];
		if (fp_is(info->name, "threads") || fp_is(info->name, "memory"))
			continue;
		if (fp_settings_get(settings, ctx, info->name, value, sizeof value) != FP_OK)
			continue;
		key = fp_journal_key_text(fp_journal_key_text(key, info->name), value);
	}
	return key;
}

/* Skips a line that is not a row (incomplete, or of another program). */
static void read_line(fp_journal *journal, const char *line, size_t length)
{
	json_t *entry = json_loadb(line, length, 0, NULL);
	const char *key = json_string_value(json_object_get(entry, "key"));
	json_t *row = json_object_get(entry, "row");
	if (key && json_is_object(row))
		json_object_set(journal->rows, key, row);
	json_decref(entry);
}

static fp_status read_rows(fp_journal *journal)
{
	char *text = NULL;
	int64_t size;
	fp_status status;
	if (!fp_is_file(journal->path))
		return FP_OK;
	FP_TRY(fp_read_file(&text, &size, journal->ctx, journal->path, MOST_BYTES));
	for (const char *at = text; at < text + size;) {
		const char *end = memchr(at, '\n', (size_t)(text + size - at));
		journal->unended = !end;
		if (!end)
			break;
		read_line(journal, at, (size_t)(end - at));
		at = end + 1;
	}
cleanup:
	fp_free(text);
	return status;
}

/* Reports a file that cannot be written at once, not after the first cell. */
static fp_status check_writable(const fp_journal *journal)
{
	int file = open(journal->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
	if (file < 0)
		return fp_fail(journal->ctx, FP_ERROR_IO, "%s: cannot save finished cells: %s", journal->path, strerror(errno));
	close(file);
	return FP_OK;
}

fp_status fp_journal_open(fp_journal **out, fp_context *ctx, const char *path)
{
	fp_journal *journal = NULL;
	fp_status status;
	*out = NULL;
	FP_TRY(FP_NEW(ctx, &journal, 1));
	journal->ctx = ctx;
	journal->rows = json_object();
	if (!journal->rows)
		FP_TRY(fp_fail(ctx, FP_ERROR_MEMORY, "out of memory for the journal"));
	if (path) {
		FP_TRY(fp_copy_text(ctx, &journal->path, path));
		FP_TRY(read_rows(journal));
		FP_TRY(check_writable(journal));
	}
	*out = journal;
	journal = NULL;
cleanup:
	fp_journal_close(journal);
	return status;
}

void fp_journal_close(fp_journal *journal)
{
	if (!journal)
		return;
	json_decref(journal->rows);
	fp_free(journal->path);
	fp_free(journal);
}

json_t *fp_journal_find(const fp_journal *journal, fp_journal_key key)
{
	char name[FP_DIGEST_TEXT_SIZE];
	fp_digest_spell(name, key);
	return json_object_get(journal->rows, name);
}

static fp_status append(fp_journal *journal, const char *line)
{
	size_t size = strlen(line);
	int file = open(journal->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
	bool good = file >= 0;
	if (good && journal->unended)
		good = write(file, "\n", 1) == 1;
	for (size_t done = 0; good && done < size;) {
		ssize_t count = write(file, line + done, size - done);
		good = count > 0;
		done += good ? (size_t)count : 0;
	}
	good = good && write(file, "\n", 1) == 1 && fsync(file) == 0;
	int error = errno;
	if (file >= 0)
		close(file);
	journal->unended = journal->unended && !good;
	return good ? FP_OK
				: fp_fail(journal->ctx, FP_ERROR_IO, "%s: cannot save a finished cell: %s", journal->path,
						  strerror(error));
}

fp_status fp_journal_add(fp_journal *journal, fp_journal_key key, json_t *row)
{
	char name[FP_DIGEST_TEXT_SIZE];
	fp_digest_spell(name, key);
	if (!journal->path)
		return FP_OK;
	json_t *entry = json_pack("{s:s, s:O}", "key", name, "row", row);
	char *line = entry ? json_dumps(entry, JSON_COMPACT | JSON_REAL_PRECISION(10)) : NULL;
	fp_status status = line ? append(journal, line) : fp_fail(journal->ctx, FP_ERROR_MEMORY, "out of memory");
	json_decref(entry);
	free(line);
	if (status == FP_OK)
		json_object_set(journal->rows, name, row);
	return status;
}
