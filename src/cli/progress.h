/* SPDX-License-Identifier: Apache-2.0 */
/* progress.h: what goes to stderr while a command runs: log lines, and a bar or a line per stage. */
#ifndef FP_CLI_PROGRESS_H
#define FP_CLI_PROGRESS_H

#include "cli/options.h"

typedef struct fp_cli_progress {
	bool shown;        /* false: silent */
	bool bar;          /* else a line per stage */
	bool colour;       /* the terminal takes colours */
	bool drawn;        /* a bar stands on the current line */
	char stage[64];    /* the one under way; "" : none */
	double started;    /* seconds, of the stage */
	double last_shown; /* seconds, when it was last drawn or printed */
} fp_cli_progress;

/* Connects the context's log and progress to stderr, as the options ask. `progress` must outlive the context's use. */
void fp_cli_progress_attach(fp_cli_progress *progress, fp_context *ctx, const fp_cli_options *options);
/* Shows how far a stage of the program's own has come; done == total ends it. Silent where the options say so. */
void fp_cli_progress_step(fp_cli_progress *progress, const char *stage, int64_t done, int64_t total);
/* Takes a bar off the screen, so that what follows starts on a clean line. */
void fp_cli_progress_clear(fp_cli_progress *progress);

#endif
