/* SPDX-License-Identifier: Apache-2.0 */
/* progress.h: what a running command prints on stderr: log lines, and a progress bar or a line per stage. */
#ifndef FP_CLI_PROGRESS_H
#define FP_CLI_PROGRESS_H

#include "cli/options.h"

typedef struct fp_cli_progress {
	bool shown;        /* false: silent */
	bool bar;          /* else a line per stage */
	bool colour;       /* the terminal takes colours */
	bool drawn;        /* a bar is on the current line */
	char stage[64];    /* the current one; "" : none */
	double started;    /* seconds, of the stage */
	double last_shown; /* seconds, when it was last drawn or printed */
} fp_cli_progress;

/* Sends the context's log and progress to stderr, as the options ask. `progress` must outlive the context's use. */
void fp_cli_progress_attach(fp_cli_progress *progress, fp_context *ctx, const fp_cli_options *options);
/* Shows the progress of a stage of the program's own; done == total ends it. Silent if the options say so. */
void fp_cli_progress_step(fp_cli_progress *progress, const char *stage, int64_t done, int64_t total);
/* Removes a bar from the screen, so that other output starts on an empty line. */
void fp_cli_progress_clear(fp_cli_progress *progress);

#endif
