/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.h: parses a command line. Settings come from the library's table; other flags (files, output, verbosity) from
 * a table in options.c. Help, man page and completion are generated from the same two tables.
 */
#ifndef FP_CLI_OPTIONS_H
#define FP_CLI_OPTIONS_H

#include <fistapruner/fistapruner.h>
#include <stdbool.h>
#include <stdio.h>

enum { FP_CLI_MAX_FILES = 256, FP_CLI_MAX_OPERANDS = 2 };

typedef struct fp_cli_options fp_cli_options;

typedef struct fp_cli_command {
	const char *name;
	char letter;           /* in the tables' `commands` column */
	int operands;          /* how many it must have; -1: up to FP_CLI_MAX_OPERANDS */
	const char *usage;     /* what follows the name on the command line */
	const char *summary;   /* one line */
	const char *detail;    /* a paragraph for --help; may be NULL */
	const char *exit_note; /* what exit code 5 means here; may be NULL */
	fp_status (*run)(fp_context *ctx, const fp_cli_options *options);
} fp_cli_command;

struct fp_cli_options {
	const fp_cli_command *command;
	const char *operands[FP_CLI_MAX_OPERANDS];
	int operand_count;
	const char *output, *text, *reference, *pattern, *metrics, *progress, *report, *work, *completion;
	const char *prompt, *batch;                                                             /* of generate */
	const char *recipe, *methods, *presets, *corrections, *patterns, *samples_list, *seeds; /* of compare */
	const char *calibration[FP_CLI_MAX_FILES];
	int calibration_count;
	const char *tasks[FP_CLI_MAX_FILES]; /* NAME=FILE */
	int task_count;
	bool dry_run, resume, check, tensors, json, quiet, verbose, help, man;
	fp_settings *settings; /* owned by main */
	char *const *words;    /* the whole command line, NULL at the end */
};

/* The commands, in the order of the help text; NULL past the end. Borrowed. */
const fp_cli_command *fp_cli_command_at(size_t index);
/* NULL: no such command. */
const fp_cli_command *fp_cli_command_find(const char *name);

/* Parses what follows the command's name into `options` (all zero but command and settings). Prints a message and
 * returns FP_ERROR_USAGE if the words are not valid. */
fp_status fp_cli_parse(fp_cli_options *options, fp_context *ctx, int count, char **words);

/* One row of help, from either table. */
typedef struct fp_cli_flag_help {
	char name[64];     /* "--text", "-o, --output", or for solver settings "iterations" */
	const char *value; /* placeholder for the value; NULL: a switch */
	const char *help;  /* what it does */
	char initial[64];  /* the value that the default preset uses; "": none to show */
} fp_cli_flag_help;
/* Calls visit() for every flag of the command: its own, the settings, then those that all commands share. */
void fp_cli_each_flag(const fp_cli_command *command, void (*visit)(void *data, const fp_cli_flag_help *row),
					  void *data);
/* Calls visit() for the settings that have no flag of their own (--set name=value). */
void fp_cli_each_solver_setting(void (*visit)(void *data, const fp_cli_flag_help *row), void *data);
/* Whether the command takes --set. */
bool fp_cli_takes_set(const fp_cli_command *command);

/* The word nearest to `word` by edit distance, or NULL if none is near. NULL ends the list. Borrowed. */
const char *fp_cli_nearest(const char *word, const char *const *words);

/* Prints "fistapruner: …" on stderr and returns `status`. */
fp_status fp_cli_error(fp_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same for the context's message. */
fp_status fp_cli_failed(fp_context *ctx, fp_status status);

#endif
