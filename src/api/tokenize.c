/* SPDX-License-Identifier: Apache-2.0 */
/* tokenize.c: fp_tokenize(): the token ids of a text, by the model's own tokenizer. */
#include "api/result_text.h"
#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "text/corpus.h"
#include "tokenizer/tokenizer.h"

#include <fistapruner/fistapruner.h>
#include <sys/stat.h>

/* Adds the ids of one text to `object`. */
static fp_status add_ids(json_t *object, fp_context *ctx, fp_tokenizer *tokenizer, fp_tokens *tokens, const char *text,
						 int64_t length)
{
	tokens->count = 0;
	fp_status status = fp_tokenizer_encode(tokenizer, text, length, true, tokens);
	if (status != FP_OK)
		return status;
	json_t *ids = json_array();
	bool good = json_object_set_new(object, "ids", ids) == 0;
	for (int64_t i = 0; good && i < tokens->count; i++)
		good = json_array_append_new(ids, json_integer(tokens->ids[i])) == 0;
	return good ? FP_OK : fp_fail(ctx, FP_ERROR_MEMORY, "out of memory for %lld token ids", (long long)tokens->count);
}

static fp_status add_documents(json_t *result, fp_context *ctx, fp_tokenizer *tokenizer, fp_tokens *tokens,
							   const fp_corpus *corpus, int64_t *total)
{
	json_t *documents = json_array();
	if (json_object_set_new(result, "documents", documents) != 0)
		return fp_fail(ctx, FP_ERROR_MEMORY, "out of memory for the result");
	int64_t count = fp_corpus_count(corpus);
	for (int64_t i = 0; i < count; i++) {
		fp_document document = fp_corpus_document(corpus, i);
		json_t *row = json_object();
		if (json_array_append_new(documents, row) != 0)
			return fp_fail(ctx, FP_ERROR_MEMORY, "out of memory for the result");
		fp_status status = add_ids(row, ctx, tokenizer, tokens, document.text, document.length);
		if (status == FP_OK)
			status = fp_check_interrupt(ctx);
		if (status != FP_OK)
			return status;
		*total += tokens->count;
	}
	return FP_OK;
}

/* A directory needs only its tokenizer files; a name in the hub's cache is looked up like any model. */
static fp_status open_tokenizer(fp_tokenizer **out, fp_context *ctx, const char *model)
{
	struct stat info;
	if (stat(model, &info) == 0 && S_ISDIR(info.st_mode))
		return fp_tokenizer_open(out, ctx, model);
	fp_checkpoint *checkpoint = NULL;
	fp_status status = fp_checkpoint_open(&checkpoint, ctx, model);
	if (status == FP_OK)
		status = fp_tokenizer_open(out, ctx, fp_checkpoint_directory(checkpoint));
	fp_checkpoint_close(checkpoint);
	return status;
}

fp_status fp_tokenize(char **json, fp_context *ctx, const char *model_name, const char *text, const char *bytes,
					  int64_t size)
{
	fp_status status;
	fp_tokenizer *tokenizer = NULL;
	fp_corpus *corpus = NULL;
	fp_tokens tokens = {0};
	int64_t total = 0;
	json_t *result = json_object();

	*json = NULL;
	FP_TRY(open_tokenizer(&tokenizer, ctx, model_name));
	if (text)
		FP_TRY(fp_corpus_read(&corpus, ctx, text));
	json_object_set_new(result, "model", json_string(model_name));
	json_object_set_new(result, "tokenizer", json_string(fp_tokenizer_kind(tokenizer)));
	if (corpus && !fp_corpus_is_plain(corpus)) {
		FP_TRY(add_documents(result, ctx, tokenizer, &tokens, corpus, &total));
	} else {
		fp_document document = corpus ? fp_corpus_document(corpus, 0) : (fp_document){bytes, size};
		FP_TRY(add_ids(result, ctx, tokenizer, &tokens, document.text, document.length));
		total = tokens.count;
	}
	json_object_set_new(result, "tokens", json_integer(total));
	FP_TRY(fp_result_line(json, ctx, json_incref(result)));

cleanup:
	json_decref(result);
	fp_free(tokens.ids);
	fp_corpus_free(corpus);
	fp_tokenizer_free(tokenizer);
	return status;
}
