/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/help.h"

#include <string.h>

enum { WIDTH = 100, INDENT = 30 };

/* The statuses share exit codes; people need the codes. */
static const struct {
	int code;
	const char *meaning;
} exit_codes[] = {
	{0, "done"},
	{1, "the run failed"},
	{2, "the command line or a request is not valid"},
	{3, "an input file is missing or damaged"},
	{4, "no such device, or not enough memory"},
	{5, "a check did not hold"},
	{130, "interrupted"},
};
enum { EXIT_CODE_COUNT = sizeof exit_codes / sizeof exit_codes[0] };

/* Prints words from column `column` on, wrapped at WIDTH with a hanging indent. */
static void print_wrapped(FILE *out, int column, int indent, const char *text)
{
	while (*text) {
		size_t length = strcspn(text, " ");
		bool first = column == indent;
		if (!first && column + 1 + (int)length > WIDTH) {
			fprintf(out, "\n%*s", indent, "");
			column = indent;
			first = true;
		}
		column += fprintf(out, "%s%.*s", first ? "" : " ", (int)length, text);
		text += length;
		text += *text == ' ';
	}
	fputc('\n', out);
}

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
	if (row->initial && *row->initial)
		snprintf(text, sizeof text, "%s [%s]", row->help, row->initial);
	else
		snprintf(text, sizeof text, "%s", row->help);
	print_wrapped(out, INDENT, INDENT, text);
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
		print_wrapped(out, 0, 0, command->detail ? command->detail : command->summary);
		fputs("\nFlags (defaults in brackets):\n", out);
		fp_cli_each_flag(command, print_row, out);
		if (fp_cli_takes_set(command)) {
			fputs("\nSolver settings for --set (a preset may change the defaults):\n", out);
			fp_cli_each_solver_setting(print_row, out);
		}
		print_exit_codes(out, command);
		return;
	}
	fputs("usage: fistapruner COMMAND ...\n\nMakes large language models sparse by convex optimisation, without "
		  "retraining.\n\nCommands:\n",
		  out);
	const fp_cli_command *row;
	for (size_t i = 0; (row = fp_cli_command_at(i)); i++)
		fprintf(out, "  %-10s %s\n", row->name, row->summary);
	fputs("\nMODEL is a directory in the Hugging Face layout, or org/name[@revision] to be found in the Hugging Face "
		  "cache.\nResults go to stdout, log and progress to stderr. 'fistapruner COMMAND --help' tells more;\n"
		  "'fistapruner --version' prints the version.\n",
		  out);
	print_exit_codes(out, NULL);
}

/* Text with roff's own characters made harmless. */
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
	if (row->initial && *row->initial) {
		fputs(" [", out);
		print_roff(out, row->initial);
		fputc(']', out);
	}
	fputc('\n', out);
}

void fp_cli_manual(FILE *out)
{
	fprintf(out,
			".\\\" made by 'fistapruner help --man'; do not edit\n"
			".TH FISTAPRUNER 1 \"\" \"fistapruner %s\" \"User Commands\"\n"
			".SH NAME\nfistapruner \\- make large language models sparse by convex optimisation\n.SH SYNOPSIS\n",
			fp_version());
	const fp_cli_command *row;
	for (size_t i = 0; (row = fp_cli_command_at(i)); i++) {
		fprintf(out, "%s.B fistapruner %s\n", i ? ".br\n" : "", row->name);
		print_roff(out, row->usage);
		fputc('\n', out);
	}
	fputs(".SH DESCRIPTION\n"
		  "\\fIMODEL\\fR is a directory in the Hugging Face layout, or org/name[@revision] to be found in the Hugging "
		  "Face cache.\nResults go to stdout, log and progress to stderr.\n",
		  out);
	for (size_t i = 0; (row = fp_cli_command_at(i)); i++) {
		fprintf(out, ".SH FISTAPRUNER %s\n", row->name);
		print_roff(out, row->detail ? row->detail : row->summary);
		fputc('\n', out);
		fp_cli_each_flag(row, print_roff_row, out);
		if (fp_cli_takes_set(row)) {
			fputs(".SS Solver settings for \\-\\-set\n", out);
			fp_cli_each_solver_setting(print_roff_row, out);
		}
	}
	fputs(".SH EXIT STATUS\n", out);
	for (size_t i = 0; i < EXIT_CODE_COUNT; i++)
		fprintf(out, ".TP\n%d\n%s\n", exit_codes[i].code, exit_codes[i].meaning);
	fputs(".SH ENVIRONMENT\n.TP\nHF_HUB_CACHE, HF_HOME\nwhere the Hugging Face cache is\n", out);
}
