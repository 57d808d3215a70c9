/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a model's tokenizer, and passes text through its parts. */
#include "base/file.h"
#include "base/memory.h"
#include "base/name_list.h"
#include "tokenizer/tokenizer_parts.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The kinds of tokenizer files. The first row whose files the directory has is read. To add a kind, write its reader
 * and add its row. */
static const struct file_kind {
	const char *file, *companion; /* companion: a second file that must be there; may be NULL */
	fp_status (*read)(fp_tokenizer *tokenizer, const fp_tokenizer_settings *settings, const char *path);
} file_kinds[] = {
	{"tokenizer.json", NULL, fp_read_tokenizer_json},
	{"tokenizer.model", NULL, fp_read_sentencepiece},
	{"vocab.json", "merges.txt", fp_read_vocabulary_and_merges},
};
enum { FILE_KINDS = sizeof file_kinds / sizeof file_kinds[0] };

static bool is_readable(const char *directory, const char *name)
{
	char path[4096];
	return snprintf(path, sizeof path, "%s/%s", directory, name) < (int)sizeof path && access(path, R_OK) == 0;
}

static const struct file_kind *find_kind(const char *directory)
{
	for (const struct file_kind *kind = file_kinds; kind < file_kinds + FILE_KINDS; kind++)
		if (is_readable(directory, kind->file) && (!kind->companion || is_readable(directory, kind->companion)))
			return kind;
	return NULL;
}

static fp_status no_tokenizer(fp_context *ctx, const char *directory)
{
	fp_name_list names = {0};
	for (const struct file_kind *kind = file_kinds; kind < file_kinds + FILE_KINDS; kind++) {
		char name[128];
		snprintf(name, sizeof name, "%s%s%s", kind->file, kind->companion ? " with " : "",
				 kind->companion ? kind->companion : "");
		fp_name_list_add(&names, name);
	}
	return fp_fail(ctx, FP_ERROR_INPUT, "%s: no tokenizer: needs one of %s", directory, names.text);
}

static fp_status read_files(fp_tokenizer *tokenizer, const char *directory)
{
	fp_context *ctx = tokenizer->ctx;
	fp_tokenizer_settings settings = {0};
	char *path = NULL;
	fp_status status = FP_OK;
	FP_TRY(fp_tokenizer_settings_read(&settings, ctx, directory));
	const struct file_kind *kind = find_kind(directory);
	if (!kind)
		FP_TRY(no_tokenizer(ctx, directory));
	FP_TRY(fp_join_path(&path, ctx, directory, kind->file));
	FP_TRY(kind->read(tokenizer, &settings, path));
	FP_TRY(fp_bpe_finish(ctx, &tokenizer->bpe));
	FP_TRY(fp_tokenizer_settings_apply(&settings, tokenizer));
cleanup:
	fp_free(path);
	fp_tokenizer_settings_clear(&settings);
	return status;
}

fp_status fp_tokenizer_open(fp_tokenizer **out, fp_context *ctx, const char *directory)
{
	fp_status status = FP_OK;
	fp_tokenizer *tokenizer = NULL;
	*out = NULL;
	FP_TRY(FP_NEW(ctx, &tokenizer, 1));
	tokenizer->ctx = ctx;
	tokenizer->bos = tokenizer->eos = -1;
	fp_bpe_start(&tokenizer->bpe, &tokenizer->vocabulary);
	fp_unigram_start(&tokenizer->unigram, &tokenizer->vocabulary);
	FP_TRY(fp_copy_text(ctx, &tokenizer->directory, directory));
	FP_TRY(read_files(tokenizer, directory));
	*out = tokenizer;
	tokenizer = NULL;
cleanup:
	fp_tokenizer_free(tokenizer);
	return status;
}

void fp_tokenizer_free(fp_tokenizer *tokenizer)
{
	if (!tokenizer)
		return;
	fp_bpe_clear(&tokenizer->bpe);
	fp_unigram_clear(&tokenizer->unigram);
	fp_vocabulary_clear(&tokenizer->vocabulary);
	fp_added_tokens_clear(&tokenizer->raw_added);
	fp_added_tokens_clear(&tokenizer->normalized_added);
	fp_normalizer_clear(&tokenizer->normalizer);
	fp_pretokenizer_clear(&tokenizer->pretokenizer);
	fp_free(tokenizer->repaired.bytes);
	fp_free(tokenizer->directory);
	fp_free(tokenizer);
}

fp_status fp_tokenizer_add_token(fp_tokenizer *tokenizer, const char *content, int64_t id, fp_added_settings settings)
{
	fp_context *ctx = tokenizer->ctx;
	fp_vocabulary *vocabulary = &tokenizer->vocabulary;
	int64_t length = (int64_t)strlen(content);
	int32_t known = fp_vocabulary_get(vocabulary, content, length);
	if (known < 0) {
		if (id < 0)
			id = vocabulary->size;
		fp_status status = fp_vocabulary_put(ctx, vocabulary, content, length, id);
		if (status != FP_OK)
			return status;
		known = (int32_t)id;
	}
	fp_added_token token = {.id = known,
							.left_strip = settings.left_strip,
							.right_strip = settings.right_strip,
							.single_word = settings.single_word,
							.special = settings.special};
	if (!settings.normalized)
		return fp_added_tokens_put(ctx, &tokenizer->raw_added, content, length, token);
	const char *normalized;
	fp_status status = fp_normalizer_run(ctx, &tokenizer->normalizer, content, length, &normalized, &length);
	return status != FP_OK ? status : fp_added_tokens_put(ctx, &tokenizer->normalized_added, normalized, length, token);
}

typedef struct encoding {
	fp_tokenizer *tokenizer;
	fp_tokens *out;
} encoding;

static fp_status encode_piece(void *data, const char *piece, int64_t length)
{
	const encoding *job = data;
	fp_tokenizer *tokenizer = job->tokenizer;
	if (tokenizer->is_unigram)
		return fp_unigram_encode(tokenizer->ctx, &tokenizer->unigram, piece, length, job->out);
	return fp_bpe_encode(tokenizer->ctx, &tokenizer->bpe, piece, length, job->out);
}

typedef fp_status (*part_function)(const encoding *job, const char *text, int64_t length, bool first);

static fp_status cut_part(const encoding *job, const char *text, int64_t length, bool first)
{
	encoding copy = *job;
	return fp_pretokenizer_run(job->tokenizer->ctx, &job->tokenizer->pretokenizer, text, length, first, encode_piece,
							   &copy);
}

/* Appends the ids of added tokens and passes the text between them to `part`. */
static fp_status split_by_added(const encoding *job, const fp_added_tokens *added, const char *text, int64_t length,
								bool first, part_function part)
{
	fp_status status = FP_OK;
	fp_added_match match;
	int64_t done = 0, from = 0;
	while (fp_added_tokens_find(added, text, length, from, done, &match)) {
		if (match.start > done)
			FP_TRY(part(job, text + done, match.start - done, first && done == 0));
		FP_TRY(fp_tokens_append(job->tokenizer->ctx, job->out, match.id));
		done = match.end;
		from = match.match_end;
	}
	if (done < length)
		FP_TRY(part(job, text + done, length - done, first && done == 0));
cleanup:
	return status;
}

static fp_status normalize_part(const encoding *job, const char *text, int64_t length, bool first)
{
	const char *normalized;
	fp_status status =
		fp_normalizer_run(job->tokenizer->ctx, &job->tokenizer->normalizer, text, length, &normalized, &length);
	if (status != FP_OK)
		return status;
	first = first && !job->tokenizer->normalizer.start_removed; /* as in Hugging Face, for Metaspace's "first" */
	return split_by_added(job, &job->tokenizer->normalized_added, normalized, length, first, cut_part);
}

fp_status fp_tokenizer_encode(fp_tokenizer *tokenizer, const char *text, int64_t length, bool with_special,
							  fp_tokens *out)
{
	fp_status status = FP_OK;
	fp_context *ctx = tokenizer->ctx;
	const encoding job = {.tokenizer = tokenizer, .out = out};
	int64_t before = out->count;
	if (fp_utf8_valid_prefix(text, length) != length) {
		tokenizer->repaired.length = 0;
		FP_TRY(fp_utf8_repair(ctx, text, length, &tokenizer->repaired));
		text = tokenizer->repaired.bytes;
		length = tokenizer->repaired.length;
	}
	for (int i = 0; with_special && i < tokenizer->prefix_count; i++)
		FP_TRY(fp_tokens_append(ctx, out, tokenizer->prefix[i]));
	FP_TRY(split_by_added(&job, &tokenizer->raw_added, text, length, true, normalize_part));
	for (int i = 0; with_special && i < tokenizer->suffix_count; i++)
		FP_TRY(fp_tokens_append(ctx, out, tokenizer->suffix[i]));
cleanup:
	if (status != FP_OK)
		out->count = before;
	if (status == FP_ERROR_INPUT)
		fp_fail_in(ctx, status, "%s", tokenizer->directory);
	return status;
}

int32_t fp_tokenizer_bos(const fp_tokenizer *tokenizer)
{
	return tokenizer->bos;
}

int32_t fp_tokenizer_eos(const fp_tokenizer *tokenizer)
{
	return tokenizer->eos;
}

int64_t fp_tokenizer_size(const fp_tokenizer *tokenizer)
{
	return tokenizer->vocabulary.size;
}

const char *fp_tokenizer_kind(const fp_tokenizer *tokenizer)
{
	return tokenizer->kind;
}

const char *fp_tokenizer_token(const fp_tokenizer *tokenizer, int32_t id)
{
	return fp_vocabulary_text(&tokenizer->vocabulary, id);
}
