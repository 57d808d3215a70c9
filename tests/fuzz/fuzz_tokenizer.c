/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input as a tokenizer's file, which then encodes a text. The first byte chooses the file: tokenizer.json,
 * tokenizer.model, merges.txt beside a fixed vocabulary, or tokenizer_config.json beside a fixed model.
 */
#include "base/memory.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void put(const char *folder, const char *name, const void *bytes, size_t size)
{
	char path[128];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *file = fopen(path, "wb");
	if (!file || fwrite(bytes, 1, size, file) != size || fclose(file) != 0)
		abort();
}

static void drop(const char *folder, const char *name)
{
	char path[128];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	unlink(path);
}

static void decode(fp_context *ctx, const fp_tokenizer *tokenizer, const fp_tokens *tokens)
{
	fp_detokenizer *detokenizer;
	const char *text;
	int64_t length;
	if (fp_detokenizer_new(&detokenizer, ctx, tokenizer, true) != FP_OK)
		return;
	for (int64_t i = 0; i < tokens->count; i++)
		if (fp_detokenizer_add(detokenizer, tokens->ids[i], &text, &length) != FP_OK)
			break;
	fp_detokenizer_finish(detokenizer, &text, &length);
	fp_detokenizer_free(detokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char vocabulary[] =
		"{\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, \"abc\": 4, \"\\u0120a\": 5, \"\\u0120\": 6, \"</s>\": 7}";
	static const char merges[] = "#version: 0.2\na b\nab c\n";
	static const char text[] =
		"abc ab a </s> \xF0\x9F\x98\x80 <s>  x\n\xFF 123 'll\t\xEF\xAC\x81\xC2\xA8 \xE6\x97\xA5\xE6\x9C\xAC";
	if (size < 1)
		return 0;
	char folder[] = "/tmp/fuzz-tokenizer-XXXXXX";
	if (!mkdtemp(folder))
		abort();
	int kind = data[0] % 4;
	data++;
	size--;
	if (kind >= 2) {
		put(folder, "vocab.json", vocabulary, sizeof vocabulary - 1);
		put(folder, "merges.txt", merges, sizeof merges - 1);
	}
	static const char *const names[] = {"tokenizer.json", "tokenizer.model", "merges.txt", "tokenizer_config.json"};
	put(folder, names[kind], data, size);

	fp_context *ctx = fp_context_new();
	fp_tokenizer *tokenizer = NULL;
	if (fp_tokenizer_open(&tokenizer, ctx, folder) == FP_OK) {
		fp_tokens tokens = {0};
		if (fp_tokenizer_encode(tokenizer, text, sizeof text - 1, true, &tokens) == FP_OK &&
			fp_tokenizer_encode(tokenizer, (const char *)data, (int64_t)size, false, &tokens) == FP_OK)
			for (int64_t i = 0; i < tokens.count; i++)
				if (tokens.ids[i] < 0 || tokens.ids[i] >= fp_tokenizer_size(tokenizer))
					abort();
		decode(ctx, tokenizer, &tokens);
		fp_free(tokens.ids);
	}
	fp_tokenizer_free(tokenizer);
	fp_context_free(ctx);
	drop(folder, names[kind]);
	drop(folder, "vocab.json");
	drop(folder, "merges.txt");
	rmdir(folder);
	return 0;
}
