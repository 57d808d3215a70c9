/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/help.h"

#include "cli/preset_table.h"
#include "cli/result.h"

#include <string.h>

enum { INDENT = 30 };

/* Several statuses share an exit code, so that the codes have a table of their own. */
static const struct {
	int code;
	const char *meaning;
} exit_codes[] = {
	{0, "done"},
	{1, "the run failed"},
	{2, "the command line or a request is not valid"},
	{3, "an input file is missing or damaged"},
	{4, "no such device, or not enough memory"},
	{5, "a check failed"},
	{130, "interrupted"},
};
enum { EXIT_CODE_COUNT = sizeof exit_codes / sizeof exit_codes[0] };

/* What the program reads of its environment, in the man page. */
static const struct {
	const char *names, *meaning;
} variables[] = {
	{"HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME, XDG_CACHE_HOME", "where the Hugging Face cache is"},
	{"FISTAPRUNER_CUDA_MODULE, FISTAPRUNER_MPI_MODULE",
	 "the CUDA and the MPI module, if they are not beside the program"},
	{"CUDA_VISIBLE_DEVICES", "the GPUs to use; several ranks on a machine share them"},
	{"OPENBLAS_CORETYPE, GOMP_SPINCOUNT, GLIBC_TUNABLES",
	 "how OpenBLAS, OpenMP and the C library work; the program sets those that are not set (GOMP_SPINCOUNT unless "
	 "OMP_WAIT_POLICY is set), and starts itself again"},
	{"TMPDIR", "the folder for the temporary files of compare and demo"},
	{"NO_COLOR", "if it is set, the progress bar has no colours"},
};
enum { VARIABLE_COUNT = sizeof variables / sizeof variables[0] };

static void print_row(void *data, const fp_cli_flag_help *row)
{
	FILE *out = data;
	bool setting = row->name[0] != '-';
	int column =
		fprintf(out, "  %s%s%s", row->name, row->value ? setting ? "=" : " " : "", row->value ? row->value : "");
	if (column > INDENT - 2) {
		fputc('\n', out);
		column = 0;
	}
	fprintf(out, "%*s", INDENT - column, "");
	char text[1024];
	if (*row->initial)
		snprintf(text, sizeof text, "%s [%s]", row->help, row->initial);
	else
		snprintf(text, sizeof text, "%s", row->help);
	fp_cli_print_wrapped(out, INDENT, text);
}

/* One line per method and per preset: what it runs. */
static void print_methods(FILE *out)
{
	const fp_method_info *method;
	const fp_preset_info *preset;
	fputs("\nMethods:\n", out);
	for (size_t i = 0; (method = fp_method_at(i)); i++) {
		int column = fprintf(out, "  %-11s", method->name);
		fp_cli_print_wrapped(out, column, method->description);
	}
	fprintf(out, "\nPresets of the method fista (default: %s):\n", fp_preset_at(0)->name);
	for (size_t i = 0; (preset = fp_preset_at(i)); i++) {
		int column = fprintf(out, "  %-11s", preset->name);
		fp_cli_print_wrapped(out, column, preset->description);
	}
}

/* A command that evaluates tasks: where their files come from. */
static bool takes_tasks(const fp_cli_command *command)
{
	return strcmp(command->name, "eval") == 0;
}

static void print_tasks(FILE *out)
{
	const fp_task_info *task;
	fputs("\nTasks and their files:\n", out);
	for (size_t i = 0; (task = fp_task_at(i)); i++) {
		fprintf(out, "  %s=%s\n%6s", task->name, task->file, "");
		fp_cli_print_wrapped(out, 6, task->source);
	}
}

static void print_line(void *data, const char *line)
{
	fprintf(data, "  %s\n", line);
}

static void print_exit_codes(FILE *out, const fp_cli_command *command)
{
	fputs("\nExit codes:\n", out);
	for (size_t i = 0; i < EXIT_CODE_COUNT; i++) {
		const char *meaning = exit_codes[i].meaning;
		if (command && exit_codes[i].code == 5)
			meaning = command->exit_note;
		if (meaning)
			fprintf(out, "  %-4d %s\n", exit_codes[i].code, meaning);
	}
}

void fp_cli_help(FILE *out, const fp_cli_command *command)
{
	if (command) {
		fprintf(out, "usage: fistapruner %s %s\n\n", command->name, command->usage);
		fp_cli_print_wrapped(out, 0, command->detail ? command->detail : command->summary);
		fputs("\nFlags (defaults in brackets):\n", out);
		fp_cli_each_flag(command, print_row, out);
		if (fp_cli_takes_set(command)) {
			fprintf(out, "\nSolver settings for --set (in brackets: what the default preset, %s, uses):\n",
					fp_preset_at(0)->name);
			fp_cli_each_solver_setting(print_row, out);
			print_methods(out);
			fputs("\nSettings in which the presets differ:\n", out);
			fp_cli_preset_table(print_line, out);
		}
		if (takes_tasks(command))
			print_tasks(out);
		print_exit_codes(out, command);
		return;
	}
	fputs("usage: fistapruner COMMAND ...\n\nPrunes large language models after training: sets weights to zero and "
		  "adjusts the remaining ones\non calibration text. N:M always means N kept of M.\n\nCommands:\n",
		  out);
	const fp_cli_command *row;
	for (size_t i = 0; (row = fp_cli_command_at(i)); i++)
		fprintf(out, "  %-10s %s\n", row->name, row->summary);
	print_methods(out);
	fputs("\nMODEL is a directory in the Hugging Face layout, or org/name[@revision] in the Hugging Face cache.\n"
		  "Results go to stdout, log and progress to stderr. 'fistapruner COMMAND --help' lists a command's flags;\n"
		  "'fistapruner --version' prints the version.\n",
		  out);
	print_exit_codes(out, NULL);
}

/* Escapes roff's special characters. */
static void print_roff(FILE *out, const char *text)
{
	for (; *text; text++) {
		if (*text == '\\')
			fputs("\\e", out);
		else if (*text == '-')
			fputs("\\-", out);
		else
			fputc(*text, out);
	}
}

static void print_roff_row(void *data, const fp_cli_flag_help *row)
{
	FILE *out = data;
	bool setting = row->name[0] != '-';
	fputs(".TP\n\\fB", out);
	print_roff(out, row->name);
	fputs("\\fR", out);
	if (row->value) {
		fputs(setting ? "=\\fI" : " \\fI", out);
		print_roff(out, row->value);
		fputs("\\fR", out);
	}
	fputc('\n', out);
	print_roff(out, row->help);
	if (*row->initial) {
		fputs(" [", out);
		print_roff(out, row->initial);
		fputc(']', out);
	}
	fputc('\n', out);
}

static void print_roff_line(void *data, const char *line)
{
	print_roff(data, line);
	fputc('\n', data);
}

static void print_roff_tasks(FILE *out)
{
	const fp_task_info *task;
	fputs(".SS Tasks and their files\n", out);
	for (size_t i = 0; (task = fp_task_at(i)); i++) {
		fprintf(out, ".TP\n\\fB%s\\fR=\\fI", task->name);
		print_roff(out, task->file);
		fputs("\\fR\n", out);
		print_roff_line(out, task->source);
	}
}

static void print_roff_methods(FILE *out)
{
	const fp_method_info *method;
	const fp_preset_info *preset;
	fputs(".SH METHODS\n", out);
	for (size_t i = 0; (method = fp_method_at(i)); i++) {
		fprintf(out, ".TP\n\\fB%s\\fR\n", method->name);
		print_roff_line(out, method->description);
	}
	fputs(".SH PRESETS\nWhat \\fB\\-\\-preset\\fR makes the method fista run. A flag overrides its preset.\n", out);
	for (size_t i = 0; (preset = fp_preset_at(i)); i++) {
		fprintf(out, ".TP\n\\fB%s\\fR%s\n", preset->name, i == 0 ? " (the default)" : "");
		print_roff_line(out, preset->description);
	}
	fputs(".PP\nSettings in which they differ:\n.PP\n.nf\n.ft CW\n", out);
	fp_cli_preset_table(print_roff_line, out);
	fputs(".ft\n.fi\n", out);
}

void fp_cli_manual(FILE *out)
{
	fprintf(out,
			".\\\" made by 'fistapruner help --man'; do not edit\n"
			".TH FISTAPRUNER 1 \"\" \"fistapruner %s\" \"User Commands\"\n"
			".SH NAME\nfistapruner \\- make large language models sparse after training\n.SH SYNOPSIS\n",
			fp_version());
	const fp_cli_command *row;
	for (size_t i = 0; (row = fp_cli_command_at(i)); i++) {
		fprintf(out, "%s.B fistapruner %s\n", i ? ".br\n" : "", row->name);
		print_roff(out, row->usage);
		fputc('\n', out);
	}
	fputs(".SH DESCRIPTION\n"
		  "Prunes large language models after training: sets weights to zero and adjusts the remaining ones on "
		  "calibration text.\nN:M always means N kept of M consecutive entries of a row.\n"
		  "\\fIMODEL\\fR is a directory in the Hugging Face layout, or org/name[@revision] in the Hugging Face cache.\n"
		  "Results go to stdout, log and progress to stderr.\n"
		  "Values in brackets are defaults: those that the first of the presets below uses.\n",
		  out);
	print_roff_methods(out);
	for (size_t i = 0; (row = fp_cli_command_at(i)); i++) {
		fprintf(out, ".SH FISTAPRUNER %s\n", row->name);
		print_roff(out, row->detail ? row->detail : row->summary);
		fputc('\n', out);
		fp_cli_each_flag(row, print_roff_row, out);
		if (fp_cli_takes_set(row)) {
			fputs(".SS Solver settings for \\-\\-set\n", out);
			fp_cli_each_solver_setting(print_roff_row, out);
		}
		if (takes_tasks(row))
			print_roff_tasks(out);
	}
	fputs(".SH EXIT STATUS\n", out);
	for (size_t i = 0; i < EXIT_CODE_COUNT; i++)
		fprintf(out, ".TP\n%d\n%s\n", exit_codes[i].code, exit_codes[i].meaning);
	fputs(".SH ENVIRONMENT\n", out);
	for (size_t i = 0; i < VARIABLE_COUNT; i++)
		fprintf(out, ".TP\n%s\n%s\n", variables[i].names, variables[i].meaning);
}
