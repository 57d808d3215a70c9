/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/completion.h"

#include <string.h>

/* What completes a value, by its placeholder in help. */
typedef enum value_kind { VALUE_NONE, VALUE_WORDS, VALUE_FILE, VALUE_DIRECTORY, VALUE_SETTING, VALUE_FREE } value_kind;

static value_kind kind_of(const char *value)
{
	if (!value)
		return VALUE_NONE;
	if (strchr(value, '|'))
		return VALUE_WORDS;
	if (strncmp(value, "FILE", 4) == 0)
		return VALUE_FILE;
	if (strcmp(value, "DIR") == 0 || strcmp(value, "DENSE") == 0)
		return VALUE_DIRECTORY;
	return strcmp(value, "name=value") == 0 ? VALUE_SETTING : VALUE_FREE;
}

/* The literal words of "auto|cpu|cuda[:N]": a word with capitals is a placeholder, and what is in brackets is optional.
 * With `escape`, colons get a backslash. */
static void print_words(FILE *out, const char *value, bool escape)
{
	const char *gap = "";
	for (; *value; value += *value == '|') {
		size_t length = strcspn(value, "|");
		size_t own = strcspn(value, "|[");
		if (strcspn(value, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") >= own) {
			fputs(gap, out);
			for (size_t i = 0; i < own; i++)
				fprintf(out, "%s%c", escape && value[i] == ':' ? "\\" : "", value[i]);
			gap = " ";
		}
		value += length;
	}
}

/* Prints `text` for use within single quotes: `quote` is what the shell needs for a quote in it. With `brackets`,
 * brackets and colons get a backslash, for zsh's _arguments. */
static void print_quoted(FILE *out, const char *text, const char *quote, bool brackets)
{
	for (; *text; text++) {
		if (*text == '\'')
			fputs(quote, out);
		else if (brackets && strchr("[]:", *text))
			fprintf(out, "\\%c", *text);
		else
			fputc(*text, out);
	}
}

static const char *const quote_sh = "'\\''";
static const char *const quote_fish = "\\'";

/* A row's name is "--text" or "-o, --output". */
static const char *long_name(const fp_cli_flag_help *row)
{
	const char *dashes = strstr(row->name, "--");
	return dashes ? dashes : row->name;
}

static char short_letter(const fp_cli_flag_help *row)
{
	return row->name[0] == '-' && row->name[1] != '-' ? row->name[1] : '\0';
}

static void print_setting_name(void *data, const fp_cli_flag_help *row)
{
	fprintf(data, " %s=", row->name);
}

static void print_commands(FILE *out)
{
	const fp_cli_command *command;
	for (size_t i = 0; (command = fp_cli_command_at(i)); i++)
		fprintf(out, "%s%s", i ? " " : "", command->name);
}

static void print_bash_flag(void *data, const fp_cli_flag_help *row)
{
	if (short_letter(row))
		fprintf(data, "-%c ", short_letter(row));
	fprintf(data, "%s ", long_name(row));
}

/* One branch of the case that completes a value; flags come with their dashes, settings without. */
static void print_bash_value(void *data, const fp_cli_flag_help *row)
{
	FILE *out = data;
	value_kind kind = kind_of(row->value);
	if (kind == VALUE_NONE)
		return;
	fputs("\t\t", out);
	if (short_letter(row))
		fprintf(out, "-%c|", short_letter(row));
	fprintf(out, "%s) ", long_name(row));
	switch (kind) {
	case VALUE_WORDS:
		fputs("_fistapruner_words \"", out);
		print_words(out, row->value, false);
		fputs("\"", out);
		break;
	case VALUE_FILE:
		fputs("_fistapruner_files -f", out);
		break;
	case VALUE_DIRECTORY:
		fputs("_fistapruner_files -d", out);
		break;
	case VALUE_SETTING:
		fputs("compopt -o nospace; _fistapruner_words \"", out);
		fp_cli_each_solver_setting(print_setting_name, out);
		fputs("\"", out);
		break;
	default:
		fputs(":", out);
	}
	fputs("; return ;;\n", out);
}

static void print_bash(FILE *out)
{
	fputs("# bash completion, made by 'fistapruner help --completion bash'; do not edit\n"
		  "_fistapruner_words() {\n\tmapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$current\")\n}\n"
		  "_fistapruner_files() {\n\tcompopt -o filenames\n\tmapfile -t COMPREPLY < <(compgen \"$1\" -- "
		  "\"$current\")\n}\n"
		  "_fistapruner() {\n"
		  "\tlocal current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
		  "\tCOMPREPLY=()\n"
		  "\tif [ \"$COMP_CWORD\" -eq 1 ]; then\n\t\t_fistapruner_words \"",
		  out);
	print_commands(out);
	/* bash splits words at '=': --flag=value is three words, and so is name=value after --set */
	fputs(" --help --version\"\n\t\treturn\n\tfi\n"
		  "\tif [ \"$current\" = = ]; then\n\t\tcurrent=\n"
		  "\telif [ \"$previous\" = = ]; then\n\t\tprevious=${COMP_WORDS[COMP_CWORD-2]}\n\tfi\n"
		  "\tcase ${COMP_WORDS[1]} in\n",
		  out);
	const fp_cli_command *command;
	for (size_t i = 0; (command = fp_cli_command_at(i)); i++) {
		fprintf(out, "\t%s)\n\t\tcase $previous in\n", command->name);
		fp_cli_each_flag(command, print_bash_value, out);
		if (fp_cli_takes_set(command))
			fp_cli_each_solver_setting(print_bash_value, out);
		fputs("\t\tesac\n\t\tcase $current in\n\t\t-*) _fistapruner_words \"", out);
		fp_cli_each_flag(command, print_bash_flag, out);
		fputs("\" ;;\n\t\t*) ", out);
		if (command->operands > 0) {
			fputs("_fistapruner_files -d", out);
		} else if (command->operands < 0) {
			fputs("_fistapruner_words \"", out);
			print_commands(out);
			fputs("\"", out);
		} else {
			fputs(":", out);
		}
		fputs(" ;;\n\t\tesac\n\t\t;;\n", out);
	}
	fputs("\tesac\n}\ncomplete -F _fistapruner fistapruner\n", out);
}

static void print_zsh_action(FILE *out, const char *value)
{
	switch (kind_of(value)) {
	case VALUE_WORDS:
		fputc('(', out);
		print_words(out, value, true);
		fputc(')', out);
		break;
	case VALUE_FILE:
		fputs("_files", out);
		break;
	case VALUE_DIRECTORY:
		fputs("_files -/", out);
		break;
	case VALUE_SETTING:
		fputs("{compadd -S \"\" --", out);
		fp_cli_each_solver_setting(print_setting_name, out);
		fputc('}', out);
		break;
	default:
		fputc(' ', out); /* no completion, only the message */
	}
}

static void print_zsh_spec(FILE *out, const char *name, const fp_cli_flag_help *row)
{
	fprintf(out, " \\\n\t\t'*%s[", name);
	print_quoted(out, row->help, quote_sh, true);
	fputc(']', out);
	if (row->value) {
		fputc(':', out);
		print_quoted(out, row->value, quote_sh, true);
		fputc(':', out);
		print_zsh_action(out, row->value);
	}
	fputc('\'', out);
}

static void print_zsh_row(void *data, const fp_cli_flag_help *row)
{
	if (short_letter(row)) {
		const char name[] = {'-', short_letter(row), '\0'};
		print_zsh_spec(data, name, row);
	}
	char name[sizeof row->name + 1];
	snprintf(name, sizeof name, "%s%s", long_name(row), row->value ? "=" : ""); /* "=": --flag=value is allowed */
	print_zsh_spec(data, name, row);
}

static void print_zsh(FILE *out)
{
	fputs("#compdef fistapruner\n# made by 'fistapruner help --completion zsh'; do not edit\n_fistapruner() {\n"
		  "\tlocal -a commands\n\tcommands=(\n",
		  out);
	const fp_cli_command *command;
	for (size_t i = 0; (command = fp_cli_command_at(i)); i++) {
		fprintf(out, "\t\t'%s:", command->name);
		print_quoted(out, command->summary, quote_sh, true);
		fputs("'\n", out);
	}
	fputs("\t)\n\tif (( CURRENT == 2 )); then\n\t\t_describe command commands\n\t\treturn\n\tfi\n"
		  "\tlocal command=$words[2]\n\tshift words\n\t(( CURRENT-- ))\n\tcase $command in\n",
		  out);
	for (size_t i = 0; (command = fp_cli_command_at(i)); i++) {
		fprintf(out, "\t%s) _arguments -s", command->name);
		fp_cli_each_flag(command, print_zsh_row, out);
		if (command->operands > 0)
			fputs(" \\\n\t\t'1:MODEL:_files -/'", out);
		else if (command->operands < 0)
			fputs(" \\\n\t\t'1:command:{_describe command commands}'", out);
		fputs(" ;;\n", out);
	}
	fputs("\tesac\n}\n_fistapruner \"$@\"\n", out);
}

typedef struct fish_rows {
	FILE *out;
	const fp_cli_command *command;
} fish_rows;

static void print_fish_row(void *data, const fp_cli_flag_help *row)
{
	const fish_rows *rows = data;
	FILE *out = rows->out;
	fprintf(out, "complete -c fistapruner -n '__fish_seen_subcommand_from %s' -l %s", rows->command->name,
			long_name(row) + 2);
	if (short_letter(row))
		fprintf(out, " -s %c", short_letter(row));
	switch (kind_of(row->value)) {
	case VALUE_NONE:
		break;
	case VALUE_WORDS:
		fputs(" -x -a '", out);
		print_words(out, row->value, false);
		fputc('\'', out);
		break;
	case VALUE_FILE:
		fputs(" -r -F", out);
		break;
	case VALUE_DIRECTORY:
		fputs(" -x -a '(__fish_complete_directories)'", out);
		break;
	case VALUE_SETTING:
		fputs(" -x -a '", out);
		fp_cli_each_solver_setting(print_setting_name, out);
		fputc('\'', out);
		break;
	default:
		fputs(" -x", out);
	}
	fputs(" -d '", out);
	print_quoted(out, row->help, quote_fish, false);
	fputs("'\n", out);
}

static void print_fish(FILE *out)
{
	fputs("# fish completion, made by 'fistapruner help --completion fish'; do not edit\ncomplete -c fistapruner -f\n",
		  out);
	const fp_cli_command *command;
	for (size_t i = 0; (command = fp_cli_command_at(i)); i++) {
		fprintf(out, "complete -c fistapruner -n __fish_use_subcommand -a %s -d '", command->name);
		print_quoted(out, command->summary, quote_fish, false);
		fputs("'\n", out);
	}
	for (size_t i = 0; (command = fp_cli_command_at(i)); i++) {
		fish_rows rows = {.out = out, .command = command};
		fp_cli_each_flag(command, print_fish_row, &rows);
		if (command->operands == 0)
			continue;
		fprintf(out, "complete -c fistapruner -n '__fish_seen_subcommand_from %s' -a '", command->name);
		if (command->operands > 0)
			fputs("(__fish_complete_directories)", out);
		else
			print_commands(out);
		fputs("'\n", out);
	}
}

fp_status fp_cli_completion(FILE *out, const char *shell)
{
	static const struct {
		const char *name;
		void (*print)(FILE *out);
	} shells[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};
	for (size_t i = 0; i < sizeof shells / sizeof shells[0]; i++)
		if (strcmp(shells[i].name, shell) == 0) {
			shells[i].print(out);
			return FP_OK;
		}
	return fp_cli_error(FP_ERROR_USAGE, "--completion '%s': must be one of bash|zsh|fish", shell);
}
