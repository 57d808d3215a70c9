/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/progress.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { BAR_LEAST = 10, BAR_MOST = 60, LINE_SECONDS = 30 };

static double seconds_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* 75 → "1:15", 4000 → "1:06:40" */
static void format_seconds(char out[static 32], double seconds)
{
	long whole = seconds > 0 ? (long)(seconds + 0.5) : 0;
	if (whole >= 3600)
		snprintf(out, 32, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
	else
		snprintf(out, 32, "%ld:%02ld", whole / 60, whole % 60);
}

void fp_cli_progress_clear(fp_cli_progress *progress)
{
	if (progress->drawn)
		fputs("\r\033[K", stderr);
	progress->drawn = false;
}

static void show_log(void *data, fp_log_level level, const char *text)
{
	fp_cli_progress *progress = data;
	fp_cli_progress_clear(progress);
	fprintf(stderr, "%s%s\n", level == FP_LOG_WARNING ? "warning: " : level == FP_LOG_ERROR ? "error: " : "", text);
}

/* Columns of the terminal; 80 if unknown. */
static int terminal_columns(void)
{
	struct winsize size = {0};
	return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/* Heeds NO_COLOR (no-color.org) and terminals without colours. */
static bool wants_colour(void)
{
	const char *no_colour = getenv("NO_COLOR"), *terminal = getenv("TERM");
	return !(no_colour && *no_colour) && terminal && strcmp(terminal, "dumb") != 0 && isatty(STDERR_FILENO);
}

/* The bar takes the columns that the words leave, so that all fits on one line. */
static void draw_bar(fp_cli_progress *progress, int64_t done, int64_t total, double now)
{
	char bar[BAR_MOST + 1], words[96], left[32] = "?";
	double share = total > 0 ? (double)done / (double)total : 0;
	if (done > 0)
		format_seconds(left, (now - progress->started) / share * (1 - share));
	snprintf(words, sizeof words, "%lld/%lld, %s left", (long long)done, (long long)total, left);
	int columns = terminal_columns() - (int)strlen(progress->stage) - (int)strlen(words) - 5;
	int width = columns < BAR_LEAST ? 0 : columns > BAR_MOST ? BAR_MOST : columns;
	int filled = (int)(share * width);
	filled = filled < 0 ? 0 : filled > width ? width : filled;
	memset(bar, '#', (size_t)width);
	fprintf(stderr, "\r\033[K%s ", progress->stage);
	if (width > 0)
		fprintf(stderr, "[%s%.*s%s%*s] ", progress->colour ? "\033[32m" : "", filled, bar,
				progress->colour ? "\033[0m" : "", width - filled, "");
	fputs(words, stderr);
	fflush(stderr);
	progress->drawn = true;
}

static void show_progress(void *data, const char *stage, int64_t done, int64_t total)
{
	fp_cli_progress *progress = data;
	double now = seconds_now();
	if (strncmp(progress->stage, stage, sizeof progress->stage - 1) != 0) {
		snprintf(progress->stage, sizeof progress->stage, "%s", stage);
		progress->started = now;
		progress->last_shown = now;
	}
	char took[32];
	if (done >= total) {
		fp_cli_progress_clear(progress);
		format_seconds(took, now - progress->started);
		fprintf(stderr, "%s: done in %s\n", progress->stage, took);
		progress->stage[0] = '\0';
	} else if (progress->bar && (now - progress->last_shown > 0.1 || !progress->drawn)) {
		draw_bar(progress, done, total, now);
		progress->last_shown = now;
	} else if (!progress->bar && now - progress->last_shown >= LINE_SECONDS && done > 0) {
		format_seconds(took, (now - progress->started) / (double)done * (double)(total - done));
		fprintf(stderr, "%s: %lld of %lld, %s left\n", progress->stage, (long long)done, (long long)total, took);
		progress->last_shown = now;
	}
}

void fp_cli_progress_step(fp_cli_progress *progress, const char *stage, int64_t done, int64_t total)
{
	if (progress->shown)
		show_progress(progress, stage, done, total);
}

void fp_cli_progress_attach(fp_cli_progress *progress, fp_context *ctx, const fp_cli_options *options)
{
	const char *wanted = options->progress ? options->progress : "auto";
	memset(progress, 0, sizeof *progress);
	if (!options->quiet && strcmp(wanted, "never") != 0) {
		progress->shown = true;
		progress->bar = strcmp(wanted, "always") == 0 || isatty(STDERR_FILENO);
		progress->colour = wants_colour();
		fp_context_set_progress(ctx, show_progress, progress);
	}
	fp_context_set_log(ctx, show_log, progress,
					   options->quiet     ? FP_LOG_ERROR
					   : options->verbose ? FP_LOG_DEBUG
										  : FP_LOG_INFO);
}
