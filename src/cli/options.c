/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/options.h"

#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

typedef enum flag_kind { FLAG_SWITCH, FLAG_TEXT, FLAG_LIST, FLAG_TASK, FLAG_ASSIGNMENT } flag_kind;

/* The flags that are not settings. `commands` has letters as in the settings table: p prune, e eval, c compare,
 * i inspect, t tokenize, g generate, k pack, u unpack, b bench, s distill, d demo, h help. */
static const struct own_flag {
	const char *name;
	char letter;
	flag_kind kind;
	size_t field;
	const char *commands, *value, *help;
} own_flags[] = {
#define FIELD(name) offsetof(fp_cli_options, name)
	{"output", 'o', FLAG_TEXT, FIELD(output), "p", "DIR",
	 "directory for the pruned checkpoint; must not exist, or be empty"},
	{"output", 'o', FLAG_TEXT, FIELD(output), "kus", "DIR", "directory to write; must not exist, or be empty"},
	{"calibration", 0, FLAG_LIST, FIELD(calibration), "pc", "FILE",
	 "calibration text: plain text or JSON lines with a \"text\" key, also .gz and .zst; may be given several times; "
	 "the word self, or no text: the model writes it"},
	{"calibration", 0, FLAG_LIST, FIELD(calibration), "s", "FILE",
	 "the text to learn from: plain text or JSON lines with a \"text\" key, also .gz and .zst; may be given several "
	 "times; the word self, or no text: DENSE writes it; with both, DENSE writes the rest of --samples"},
	{"reference", 0, FLAG_TEXT, FIELD(reference), "s", "DENSE", "the dense model that MODEL was pruned from"},
	{"text", 0, FLAG_TEXT, FIELD(text), "ec", "FILE",
	 "the text to score: plain text or JSON lines with a \"text\" key, also .gz and .zst"},
	{"reference", 0, FLAG_TEXT, FIELD(reference), "e", "DENSE",
	 "with --text: the dense model that MODEL was pruned from; also print the KL divergence of MODEL's predictions "
	 "from its predictions, how often both rank the same token first, and the ratio of perplexities"},
	{"task", 0, FLAG_TASK, 0, "e", "NAME=FILE",
	 "zero-shot accuracy on a task's own file, as lm-evaluation-harness measures it: arc_easy, arc_challenge, "
	 "winogrande, boolq, rte, qnli, wnli, hellaswag, piqa, openbookqa, lambada_openai, or multiple_choice for JSON "
	 "lines with context, choices and label; may be given several times"},
	{"text", 0, FLAG_TEXT, FIELD(text), "t", "FILE",
	 "plain text or JSON lines with a \"text\" key, also .gz and .zst; without it standard input is read as plain "
	 "text"},
	{"prompt", 0, FLAG_TEXT, FIELD(prompt), "g", "TEXT",
	 "the text to continue; without it standard input is read, less the newline at its end"},
	{"batch", 0, FLAG_TEXT, FIELD(batch), "g", "FILE",
	 "continue several prompts: JSON lines with a \"prompt\" key, or \"text\"; prints one JSON line for each, in "
	 "order"},
	{"pattern", 0, FLAG_TEXT, FIELD(pattern), "i", "50%|2:4|N:M",
	 "check every linear operator of the decoder layers against this pattern; N:M means N kept of M consecutive "
	 "entries of a row"},
	{"metrics", 0, FLAG_TEXT, FIELD(metrics), "p", "FILE", "write one JSON line per operator as soon as it is pruned"},
	{"samples-file", 0, FLAG_TEXT, FIELD(metrics), "e", "FILE",
	 "with --task: write one JSON line per example: the choice made and the log-likelihood of each choice"},
	{"recipe", 0, FLAG_TEXT, FIELD(recipe), "c", "main|sparsity|correction|samples|seeds",
	 "a study of the paper: main: 50% and 2:4; sparsity: 10% to 70%; correction: error correction on and off; samples: "
	 "1 to 128 calibration windows; seeds: five seeds. The lists below replace the recipe's own [main]"},
	{"methods", 0, FLAG_TEXT, FIELD(methods), "c", "LIST", "methods, such as wanda,sparsegpt,fista"},
	{"presets", 0, FLAG_TEXT, FIELD(presets), "c", "LIST", "presets of the method fista, such as paper,fast"},
	{"corrections", 0, FLAG_TEXT, FIELD(corrections), "c", "LIST",
	 "corrections of the method fista, such as none,intra,cross"},
	{"patterns", 0, FLAG_TEXT, FIELD(patterns), "c", "LIST", "patterns, such as 50%,2:4; N:M means N kept of M"},
	{"samples-list", 0, FLAG_TEXT, FIELD(samples_list), "c", "LIST",
	 "numbers of calibration windows, such as 32,64,128"},
	{"seeds", 0, FLAG_TEXT, FIELD(seeds), "c", "LIST", "seeds of the calibration sample, such as 1,2,3"},
	{"work", 0, FLAG_TEXT, FIELD(work), "c", "DIR",
	 "directory that keeps the finished rows (compare.jsonl), so that a stopped run can be continued; without it they "
	 "are kept beside the report, or in ./fistapruner-compare.jsonl"},
	{"report", 0, FLAG_TEXT, FIELD(report), "pcd", "FILE.html",
	 "write the result as one HTML page with tables and charts"},
	{"set", 0, FLAG_ASSIGNMENT, 0, "pcs", "name=value", "set any setting by its name; may be given several times"},
	{"tensors", 0, FLAG_SWITCH, FIELD(tensors), "i", NULL, "print a line for every tensor, not one per kind"},
	{"resume", 0, FLAG_SWITCH, FIELD(resume), "p", NULL,
	 "continue a run that was stopped or failed: the same command with --resume gives the same bytes"},
	{"check", 0, FLAG_SWITCH, FIELD(check), "p", NULL,
	 "at the end measure perplexity and KL divergence from MODEL on windows of the calibration text that the run does "
	 "not use"},
	{"dry-run", 0, FLAG_SWITCH, FIELD(dry_run), "p", NULL,
	 "write nothing; print what would be done, and estimates of time and memory"},
	/* help prints these last (COMMON_FLAGS) */
	{"progress", 0, FLAG_TEXT, FIELD(progress), "pecdgkubs", "auto|always|never",
	 "progress bar on stderr; auto: on a terminal only, else a line per stage"},
	{"man", 0, FLAG_SWITCH, FIELD(man), "h", NULL, "print the manual page in roff"},
	{"completion", 0, FLAG_TEXT, FIELD(completion), "h", "bash|zsh|fish", "print a completion script for this shell"},
	{"json", 0, FLAG_SWITCH, FIELD(json), "pecitdgkubs", NULL, "print the result as one JSON document"},
	{"quiet", 'q', FLAG_SWITCH, FIELD(quiet), "pecitdgkubs", NULL, "print only errors on stderr"},
	{"verbose", 'v', FLAG_SWITCH, FIELD(verbose), "p", NULL, "print more on stderr, and every operator in the result"},
	{"verbose", 'v', FLAG_SWITCH, FIELD(verbose), "ecitdgkubs", NULL, "print more on stderr"},
	{"help", 'h', FLAG_SWITCH, FIELD(help), "pecitdhgkubs", NULL, "print this text"},
#undef FIELD
};
enum { OWN_FLAG_COUNT = sizeof own_flags / sizeof own_flags[0], COMMON_FLAGS = 8, MAX_FLAGS = 128 };

fp_status fp_cli_error(fp_status status, const char *format, ...)
{
	/* a progress bar may be on this line */
	fputs(isatty(STDERR_FILENO) ? "\r\033[Kfistapruner: " : "fistapruner: ", stderr);
	va_list args;
	va_start(args, format);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	return status;
}

fp_status fp_cli_failed(fp_context *ctx, fp_status status)
{
	const char *message = fp_context_message(ctx);
	return fp_cli_error(status, "%s", *message ? message : fp_status_text(status));
}

/* Edit distance of words of up to 63 letters; longer ones are never near. */
static int edit_distance(const char *a, const char *b)
{
	enum { LIMIT = 64 };
	int row[LIMIT];
	size_t m = strlen(a);
	size_t n = strlen(b);
	if (m >= LIMIT || n >= LIMIT)
		return LIMIT;
	for (size_t j = 0; j <= n; j++)
		row[j] = (int)j;
	for (size_t i = 1; i <= m; i++) {
		int diagonal = row[0];
		row[0] = (int)i;
		for (size_t j = 1; j <= n; j++) {
			int above = row[j];
			int best = diagonal + (a[i - 1] != b[j - 1]);
			if (above + 1 < best)
				best = above + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			diagonal = above;
			row[j] = best;
		}
	}
	return row[n];
}

const char *fp_cli_nearest(const char *word, const char *const *words)
{
	const char *nearest = NULL;
	int limit = (int)strlen(word) / 3 + (strlen(word) > 3 ? 2 : 1); /* a typo or two, not another word */
	for (; *words; words++) {
		int distance = edit_distance(word, *words);
		/* an abbreviation is near, however long the rest of the word is */
		if (strlen(word) >= 3 && strncmp(word, *words, strlen(word)) == 0)
			distance = 1;
		if (distance < limit) {
			limit = distance;
			nearest = *words;
		}
	}
	return nearest;
}

static bool has_letter(const char *commands, char letter)
{
	return letter && strchr(commands, letter) != NULL;
}

/* sequence_length → sequence-length */
static void flag_name(char out[static 64], const char *setting)
{
	size_t i = 0;
	for (; i < 63 && setting[i]; i++)
		out[i] = setting[i];
	out[i] = '\0';
	for (; i > 0; i--)
		if (out[i - 1] == '_')
			out[i - 1] = '-';
}

static const struct own_flag *find_own_flag(char command, const char *name, size_t length)
{
	for (size_t i = 0; i < OWN_FLAG_COUNT; i++)
		if (has_letter(own_flags[i].commands, command) && strlen(own_flags[i].name) == length &&
			strncmp(own_flags[i].name, name, length) == 0)
			return &own_flags[i];
	return NULL;
}

static const struct own_flag *find_short_flag(char command, char letter)
{
	for (size_t i = 0; i < OWN_FLAG_COUNT; i++)
		if (letter && own_flags[i].letter == letter && has_letter(own_flags[i].commands, command))
			return &own_flags[i];
	return NULL;
}

static const fp_setting_info *find_setting_flag(const char *name, size_t length)
{
	const fp_setting_info *info;
	for (size_t i = 0; (info = fp_setting_at(i)); i++) {
		char flag[64];
		flag_name(flag, info->name);
		if (strlen(flag) == length && strncmp(flag, name, length) == 0)
			return info;
	}
	return NULL;
}

bool fp_cli_takes_set(const fp_cli_command *command)
{
	return find_own_flag(command->letter, "set", 3) != NULL;
}

/* The flag of compare that lists values of a setting; NULL: there is none. */
static const char *list_flag(const fp_cli_command *command, const char *setting)
{
	static const char *const lists[][2] = {{"method", "methods"},         {"preset", "presets"},
										   {"correction", "corrections"}, {"pattern", "patterns"},
										   {"samples", "samples-list"},   {"seed", "seeds"}};
	for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
		if (strcmp(lists[i][0], setting) == 0 && find_own_flag(command->letter, lists[i][1], strlen(lists[i][1])))
			return lists[i][1];
	return NULL;
}

/* Flags of SparseGPT's, Wanda's and other tools' scripts, and what they are here. */
static const char *other_tools_flag(const fp_cli_command *command, const char *flag)
{
	static const char *const known[][3] = {
		/* theirs, the flag here, what to write */
		{"model", "device", "the model without a flag: MODEL"},
		{"sparsity", "pattern", "--pattern 50%"},
		{"sparsity", "patterns", "--patterns LIST"},
		{"sparsity-ratio", "pattern", "--pattern 50%"},
		{"sparsity-type", "pattern", "--pattern 2:4"},
		{"prunen", "pattern", "--pattern 2:4"},
		{"prunem", "pattern", "--pattern 2:4"},
		{"prune-method", "method", "--method"},
		{"dataset", "calibration", "--calibration FILE"},
		{"dataset", "text", "--text FILE"},
		{"seqlen", "sequence-length", "--sequence-length"},
		{"max-seq-length", "sequence-length", "--sequence-length"},
		{"percdamp", "set", "--set damping=0.01"},
		{"blocksize", "set", "--set block=128"},
		{"minlayer", "layers", "--layers A-B"},
		{"maxlayer", "layers", "--layers A-B"},
		{"wbits", "quantize", "--quantize int4"},
		{"save", "output", "-o DIR"},
		{"save-model", "output", "-o DIR"},
		{"cuda", "device", "--device cuda"},
		{"gpu", "device", "--device cuda"},
	};
	for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
		const char *ours = known[i][1];
		const fp_setting_info *setting = find_setting_flag(ours, strlen(ours));
		if (strcmp(known[i][0], flag) == 0 && (find_own_flag(command->letter, ours, strlen(ours)) ||
											   (setting && has_letter(setting->commands, command->letter))))
			return known[i][2];
	}
	return NULL;
}

static fp_status unknown_flag(const fp_cli_command *command, const char *word, size_t length)
{
	const char *words[MAX_FLAGS];
	char names[MAX_FLAGS][64];
	size_t count = 0;
	for (size_t i = 0; i < OWN_FLAG_COUNT; i++)
		if (has_letter(own_flags[i].commands, command->letter))
			words[count++] = own_flags[i].name;
	const fp_setting_info *info;
	for (size_t i = 0; (info = fp_setting_at(i)) && count < MAX_FLAGS - 1; i++)
		if (has_letter(info->commands, command->letter)) {
			flag_name(names[count], info->name);
			words[count] = names[count];
			count++;
		}
	words[count] = NULL;

	char typed[64];
	snprintf(typed, sizeof typed, "%.*s", (int)(length < 63 ? length : 63), word);
	info = find_setting_flag(typed, strlen(typed));
	const char *list = info ? list_flag(command, info->name) : NULL;
	if (list)
		return fp_cli_error(FP_ERROR_USAGE, "%s has no flag --%s: it compares several, --%s LIST", command->name, typed,
							list);
	if (info && fp_cli_takes_set(command) && (!*info->commands || has_letter(info->commands, 'p')))
		return fp_cli_error(FP_ERROR_USAGE, "%s is a solver setting: use --set %s=%s", typed, info->name,
							info->initial);
	char dashes[64];
	flag_name(dashes, typed);
	const char *theirs = other_tools_flag(command, dashes);
	if (theirs)
		return fp_cli_error(FP_ERROR_USAGE, "%s has no flag --%s; here it is %s", command->name, typed, theirs);
	const char *nearest = fp_cli_nearest(dashes, words);
	if (nearest)
		return fp_cli_error(FP_ERROR_USAGE, "%s has no flag --%s; did you mean --%s?", command->name, typed, nearest);
	return fp_cli_error(FP_ERROR_USAGE, "%s has no flag --%s; 'fistapruner %s --help' lists them", command->name, typed,
						command->name);
}

/* True for files that may be standard input, written as "-". */
static bool is_text(const struct own_flag *flag)
{
	return strcmp(flag->name, "calibration") == 0 || strcmp(flag->name, "text") == 0 ||
		   strcmp(flag->name, "batch") == 0;
}

static fp_status store(fp_cli_options *options, fp_context *ctx, const struct own_flag *flag, const char *value)
{
	void *field = (char *)options + flag->field;
	switch (flag->kind) {
	case FLAG_SWITCH:
		*(bool *)field = true;
		break;
	case FLAG_TEXT:
		*(const char **)field = value;
		break;
	case FLAG_LIST:
		if (options->calibration_count == FP_CLI_MAX_FILES)
			return fp_cli_error(FP_ERROR_USAGE, "--%s: at most %d files", flag->name, FP_CLI_MAX_FILES);
		options->calibration[options->calibration_count++] = value;
		break;
	case FLAG_TASK:
		if (options->task_count == FP_CLI_MAX_FILES)
			return fp_cli_error(FP_ERROR_USAGE, "--%s: at most %d of them", flag->name, FP_CLI_MAX_FILES);
		options->tasks[options->task_count++] = value;
		break;
	case FLAG_ASSIGNMENT: {
		char name[64];
		snprintf(name, sizeof name, "%.*s", (int)strcspn(value, "="), value);
		const char *list = list_flag(options->command, name);
		if (list)
			return fp_cli_error(FP_ERROR_USAGE, "--set %s: would not count here; use --%s LIST", value, list);
		fp_status status = fp_settings_assign(options->settings, ctx, value);
		if (status != FP_OK)
			return fp_cli_error(status, "--set: %s", fp_context_message(ctx));
		break;
	}
	}
	return FP_OK;
}

/* True for "--dry-run" and other long flags of the command. */
static bool is_known_flag(const fp_cli_command *command, const char *word)
{
	if (strncmp(word, "--", 2) != 0 || word[2] == '\0')
		return false;
	size_t length = strcspn(word + 2, "=");
	const fp_setting_info *setting = find_setting_flag(word + 2, length);
	return find_own_flag(command->letter, word + 2, length) ||
		   (setting && has_letter(setting->commands, command->letter));
}

/* Parses the flag at words[*at], and the next word too if that is its value. */
static fp_status parse_flag(fp_cli_options *options, fp_context *ctx, int count, char **words, int *at)
{
	const char *word = words[*at];
	const fp_cli_command *command = options->command;
	const struct own_flag *flag = NULL;
	const fp_setting_info *setting = NULL;
	const char *value = NULL;
	if (word[1] == '-') {
		const char *name = word + 2;
		size_t length = strcspn(name, "=");
		value = name[length] == '=' ? name + length + 1 : NULL;
		flag = find_own_flag(command->letter, name, length);
		if (!flag)
			setting = find_setting_flag(name, length);
		if (!flag && (!setting || !has_letter(setting->commands, command->letter)))
			return unknown_flag(command, name, length);
	} else {
		flag = find_short_flag(command->letter, word[1]);
		if (!flag)
			return fp_cli_error(FP_ERROR_USAGE, "%s has no flag %.2s; 'fistapruner %s --help' lists them",
								command->name, word, command->name);
		value = word[2] ? word + 2 : NULL;
	}
	if (flag && flag->kind == FLAG_SWITCH) {
		if (value)
			return fp_cli_error(FP_ERROR_USAGE, "%s: --%s takes no value", word, flag->name);
		return store(options, ctx, flag, NULL);
	}
	const char *value_word = flag ? flag->value : setting->choices;
	if (!value && *at + 1 < count) {
		value = words[++*at];
		if (is_known_flag(command, value))
			return fp_cli_error(FP_ERROR_USAGE,
								"%s needs a value: %s %s; the next word is the flag %s (a file of that name: "
								"./%s)",
								word, word, value_word, value, value);
	}
	if (!value)
		return fp_cli_error(
			FP_ERROR_USAGE, "%s needs a value: %s %s%s", word, word, value_word,
			flag && flag->kind == FLAG_TASK ? "; 'fistapruner eval --help' says where the files come from" : "");
	if (flag)
		return store(options, ctx, flag, strcmp(value, "-") == 0 && is_text(flag) ? "/dev/stdin" : value);
	fp_status status = fp_settings_set(options->settings, ctx, setting->name, value);
	if (status != FP_OK)
		return fp_cli_error(status, "--%.*s: %s", (int)strcspn(word + 2, "="), word + 2, fp_context_message(ctx));
	return FP_OK;
}

static fp_status check_operands(const fp_cli_options *options)
{
	const fp_cli_command *command = options->command;
	if (options->help || command->operands < 0)
		return FP_OK;
	if (options->operand_count < command->operands)
		return fp_cli_error(FP_ERROR_USAGE, "%s needs a model: fistapruner %s %s", command->name, command->name,
							command->usage);
	if (options->operand_count > command->operands)
		return fp_cli_error(FP_ERROR_USAGE, "unexpected argument '%s': fistapruner %s %s",
							options->operands[command->operands], command->name, command->usage);
	return FP_OK;
}

fp_status fp_cli_parse(fp_cli_options *options, fp_context *ctx, int count, char **words)
{
	bool flags_over = false;
	for (int i = 0; i < count; i++) {
		const char *word = words[i];
		if (!flags_over && strcmp(word, "--") == 0) {
			flags_over = true;
			continue;
		}
		if (!flags_over && word[0] == '-' && word[1] != '\0') {
			fp_status status = parse_flag(options, ctx, count, words, &i);
			if (status != FP_OK)
				return status;
			continue;
		}
		if (options->operand_count == FP_CLI_MAX_OPERANDS)
			return fp_cli_error(FP_ERROR_USAGE, "unexpected argument '%s': fistapruner %s %s", word,
								options->command->name, options->command->usage);
		options->operands[options->operand_count++] = word;
	}
	const char *progress = options->progress;
	if (progress && strcmp(progress, "auto") != 0 && strcmp(progress, "always") != 0 && strcmp(progress, "never") != 0)
		return fp_cli_error(FP_ERROR_USAGE, "--progress '%s': must be one of auto|always|never", progress);
	if (options->quiet && options->verbose)
		return fp_cli_error(FP_ERROR_USAGE, "-q and -v exclude each other: give one of them");
	return check_operands(options);
}

typedef void (*flag_visitor)(void *data, const fp_cli_flag_help *row);

static void visit_own_flags(const fp_cli_command *command, size_t first, size_t end, flag_visitor visit, void *data)
{
	for (size_t i = first; i < end; i++) {
		const struct own_flag *flag = &own_flags[i];
		if (!has_letter(flag->commands, command->letter))
			continue;
		fp_cli_flag_help row = {.value = flag->value, .help = flag->help};
		if (flag->letter)
			snprintf(row.name, sizeof row.name, "-%c, --%s", flag->letter, flag->name);
		else
			snprintf(row.name, sizeof row.name, "--%s", flag->name);
		visit(data, &row);
	}
}

/* What the default preset uses, which is not always the settings table's default. */
static void default_value(char *out, size_t size, const fp_setting_info *info)
{
	fp_context *ctx = fp_context_new();
	snprintf(out, size, "%s", info->initial);
	if (ctx)
		fp_preset_value(ctx, fp_preset_at(0)->name, "", info->name, out, size);
	fp_context_free(ctx);
}

void fp_cli_each_flag(const fp_cli_command *command, flag_visitor visit, void *data)
{
	visit_own_flags(command, 0, OWN_FLAG_COUNT - COMMON_FLAGS, visit, data);
	const fp_setting_info *info;
	for (size_t i = 0; (info = fp_setting_at(i)); i++) {
		if (!has_letter(info->commands, command->letter))
			continue;
		char name[64];
		flag_name(name, info->name);
		fp_cli_flag_help row = {.value = info->choices, .help = info->help};
		default_value(row.initial, sizeof row.initial, info);
		snprintf(row.name, sizeof row.name, "--%.61s", name);
		visit(data, &row);
	}
	visit_own_flags(command, OWN_FLAG_COUNT - COMMON_FLAGS, OWN_FLAG_COUNT, visit, data);
}

void fp_cli_each_solver_setting(flag_visitor visit, void *data)
{
	const fp_setting_info *info;
	for (size_t i = 0; (info = fp_setting_at(i)); i++) {
		if (*info->commands)
			continue;
		fp_cli_flag_help row = {.value = info->kind == FP_SETTING_FLAG ? "0|1" : info->choices, .help = info->help};
		default_value(row.initial, sizeof row.initial, info);
		snprintf(row.name, sizeof row.name, "%.63s", info->name);
		visit(data, &row);
	}
}
