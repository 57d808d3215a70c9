/* SPDX-License-Identifier: Apache-2.0 */
/* The input as a corpus: plain text, JSON lines, gzip or zstd. The first byte chooses the file's name. */
#include "text/corpus.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 1)
		return 0;
	char folder[] = "/tmp/fuzz-jsonl-XXXXXX", path[64];
	if (!mkdtemp(folder))
		abort();
	snprintf(path, sizeof path, "%s/%s", folder, data[0] & 1 ? "a.jsonl" : "a.txt");
	FILE *file = fopen(path, "wb");
	if (!file || fwrite(data + 1, 1, size - 1, file) != size - 1 || fclose(file) != 0)
		abort();

	fp_context *ctx = fp_context_new();
	fp_corpus *corpus = NULL;
	if (fp_corpus_read(&corpus, ctx, path) == FP_OK) {
		volatile char last = 0;
		for (int64_t i = 0; i < fp_corpus_count(corpus); i++) {
			fp_document document = fp_corpus_document(corpus, i);
			if (document.length > 0)
				last = document.text[document.length - 1];
		}
		(void)last;
	}
	fp_corpus_free(corpus);
	fp_context_free(ctx);
	unlink(path);
	rmdir(folder);
	return 0;
}
