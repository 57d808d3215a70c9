/* SPDX-License-Identifier: Apache-2.0 */
/* The input as the record of an earlier run: the cells of a comparison, their rows in a report, run.json of a prune. */
#include "base/memory.h"
#include "comparison/journal.h"
#include "report/page.h"
#include "run/run_identity.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char path[] = "/tmp/fuzz-journal-XXXXXX";
	int file = mkstemp(path);
	if (file < 0 || write(file, data, size) != (ssize_t)size || close(file) != 0)
		abort();
	fp_context *ctx = fp_context_new();
	fp_journal *journal = NULL;
	if (fp_journal_open(&journal, ctx, path) != FP_OK)
		abort(); /* damaged lines are skipped */
	fp_journal_find(journal, FP_JOURNAL_START);
	fp_journal_close(journal);

	json_t *document = json_loadb((const char *)data, size, 0, NULL);
	char *page = NULL;
	fp_page_write(&page, ctx, document);
	fp_free(page);
	json_t *now = json_pack("{s:s, s:{s:s}, s:{s:s}, s:s}", "program", "fistapruner", "settings", "pattern", "50%",
							"files", "config.json", "1", "text", "2");
	fp_run_identity_compare(ctx, document, now, "fuzz");
	json_decref(now);
	json_decref(document);
	fp_context_free(ctx);
	unlink(path);
	return 0;
}
