/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules for the source files: which folder may include which (the table of src/README.md), unique file names, file
 * lengths, functions that the library must not call, and a comment on every public function.
 */
#include "support.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FOLDERS = 32, MAX_FILES = 1024, MAX_LINES = 800 };

/* A row of the table. */
static struct {
	char name[32];
	bool may_include[MAX_FOLDERS];
} folders[MAX_FOLDERS];
static int folder_count;
static char *files[MAX_FILES];
static int file_count;
static int complaints;

#define complain(...)                                                                                                  \
	do {                                                                                                               \
		fprintf(stderr, __VA_ARGS__);                                                                                  \
		fputc('\n', stderr);                                                                                           \
		complaints++;                                                                                                  \
	} while (0)

static int folder_named(const char *name, size_t length)
{
	for (int i = 0; i < folder_count; i++)
		if (strlen(folders[i].name) == length && strncmp(folders[i].name, name, length) == 0)
			return i;
	return -1;
}

/* The folder that a path below src/ or an #include begins with; -1: none of the table. */
static int folder_of(const char *path)
{
	return folder_named(path, strcspn(path, "/"));
}

/* "| `folder/` | folder, folder | what it does |" */
static void read_row(char *line)
{
	char *name = strtok(line, "|");
	char *list = strtok(NULL, "|");
	int row = folder_count;
	if (!name || !list || sscanf(name, " `%31[a-z]/`", folders[row].name) != 1)
		return;
	for (const char *word = strtok(list, ", "); word; word = strtok(NULL, ", ")) {
		int other = folder_named(word, strlen(word));
		if (other < 0)
			complain("src/README.md: %s/ may include '%s', which is no folder above it", folders[row].name, word);
		else
			folders[row].may_include[other] = true;
	}
	folders[row].may_include[row] = true;
	folder_count++;
}

static void read_table(void)
{
	FILE *file = fopen(source_path("src/README.md"), "r");
	assert_non_null(file);
	char line[1024];
	while (folder_count < MAX_FOLDERS && fgets(line, sizeof line, file))
		read_row(line);
	fclose(file);
}

static int collect(const char *path, const struct stat *info, int type, struct FTW *walk)
{
	(void)info;
	(void)walk;
	const char *dot = strrchr(path, '.');
	if (type == FTW_F && dot &&
		(!strcmp(dot, ".c") || !strcmp(dot, ".h") || !strcmp(dot, ".cu") || !strcmp(dot, ".cuh")))
		if (file_count < MAX_FILES)
			files[file_count++] = strdup(path);
	return 0;
}

/* "src/…" → "…" */
static const char *inside_source(const char *path)
{
	return path + strlen(source_path("src/"));
}

static bool is_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static bool calls(const char *line, const char *function)
{
	size_t length = strlen(function);
	for (const char *at = strstr(line, function); at; at = strstr(at + 1, function))
		if ((at == line || (!is_word(at[-1]) && at[-1] != '>' && at[-1] != '.')) && at[length] == '(')
			return true;
	return false;
}

static void check_include(const char *path, int number, const char *line, int folder)
{
	char target[256];
	if (sscanf(line, " # include \"%255[^\"]\"", target) != 1)
		return;
	int other = folder_of(target);
	if (other < 0)
		complain("%s:%d: %s is in no folder of the table in src/README.md", path, number, target);
	else if (!folders[folder].may_include[other])
		complain("%s:%d: %s/ may not include %s; src/README.md says which folders it may include", path, number,
				 folders[folder].name, target);
}

/* "%.4g" and the like; "%.0f" has no decimal point. */
static bool formats_real(const char *line)
{
	for (const char *at = strchr(line, '%'); at; at = strchr(at + 1, '%')) {
		const char *kind = at + 1 + strspn(at + 1, "-+ #.0123456789*");
		if (*kind && strchr("aAeEfFgG", *kind) && strncmp(kind - 2, ".0f", 3) != 0)
			return true;
	}
	return false;
}

/* Calls that follow the host program's locale. */
static void check_numbers(const char *path, int number, const char *line)
{
	static const char *const readers[] = {"strtod", "strtof", "strtold", "atof", "vsnprintf"};
	if (strstr(path, "base/number_text.c"))
		return;
	for (size_t i = 0; i < sizeof readers / sizeof readers[0]; i++)
		if (calls(line, readers[i]))
			complain("%s:%d: %s() follows the locale; base/number_text.h does not", path, number, readers[i]);
	if (calls(line, "snprintf") && formats_real(line))
		complain("%s:%d: snprintf() of a real follows the locale; use fp_format()", path, number);
}

/* The library never allocates memory except through base/memory.h, prints, exits or keeps hidden state. */
static void check_calls(const char *path, int number, const char *line, int folder)
{
	static const char *const forbidden[] = {"printf", "puts", "putchar", "fprintf", "exit", "abort", "_exit", "strtok"};
	static const char *const allocators[] = {"malloc", "realloc", "aligned_alloc", "posix_memalign", "strdup"};
	if (strcmp(folders[folder].name, "cli") == 0)
		return;
	check_numbers(path, number, line);
	for (size_t i = 0; i < sizeof forbidden / sizeof forbidden[0]; i++)
		if (calls(line, forbidden[i]))
			complain("%s:%d: the library must not call %s()", path, number, forbidden[i]);
	if (strstr(path, "base/memory.c"))
		return;
	for (size_t i = 0; i < sizeof allocators / sizeof allocators[0]; i++)
		if (calls(line, allocators[i]))
			complain("%s:%d: memory comes from base/memory.h, not from %s()", path, number, allocators[i]);
}

/* Blocks that are open in a function, from the outermost on, and whether one was left by a jump already. */
typedef struct open_blocks {
	bool jumped[32];
	int depth;
} open_blocks;

/* FP_PRODUCTS_FOR() before the first jump of its block: a jump over it would restore what was never saved. */
static void check_scope(const char *path, int number, const char *line, open_blocks *blocks)
{
	if (strstr(line, "FP_PRODUCTS_FOR(") && line[0] != '#' && blocks->jumped[blocks->depth])
		complain("%s:%d: FP_PRODUCTS_FOR() must stand before the first jump of its block", path, number);
	for (int i = 0; (strstr(line, "FP_TRY(") || strstr(line, "goto ")) && i <= blocks->depth; i++)
		blocks->jumped[i] = true;
	for (const char *at = line; *at; at++) {
		if (*at == '{' && blocks->depth < 31)
			blocks->jumped[++blocks->depth] = false;
		else if (*at == '}' && blocks->depth > 0)
			blocks->depth--;
	}
	if (line[0] == '}') /* the end of a function */
		*blocks = (open_blocks){0};
}

static void check_file(const char *path)
{
	const char *name = inside_source(path);
	int folder = folder_of(name);
	if (folder < 0) {
		complain("%s: is in no folder of the table in src/README.md", path);
		return;
	}
	FILE *file = fopen(path, "r");
	assert_non_null(file);
	char line[4096];
	int number = 0;
	open_blocks blocks = {0};
	while (fgets(line, sizeof line, file)) {
		number++;
		check_scope(path, number, line, &blocks);
		if (number == 1 && !strstr(line, "SPDX-License-Identifier: Apache-2.0"))
			complain("%s: the first line must name the licence", path);
		check_include(path, number, line, folder);
		const char *text = line + strspn(line, " \t");
		if (*text != '*' && strncmp(text, "/*", 2) != 0)
			check_calls(path, number, line, folder);
	}
	fclose(file);
	if (number > MAX_LINES)
		complain("%s: %d lines; %d at most, about 400 as a rule", path, number, MAX_LINES);
}

/* A declaration has a comment of its own on the line before it. */
static void check_public(const char *path, int number, const char *before, const char *line)
{
	if (strncmp(line, "FP_API ", 7) == 0 && !strstr(before, "*/"))
		complain("%s:%d: a public function has no comment", path, number);
}

static int check_public_header(const char *path, const struct stat *info, int type, struct FTW *walk)
{
	(void)info;
	(void)walk;
	if (type != FTW_F)
		return 0;
	FILE *file = fopen(path, "r");
	assert_non_null(file);
	char line[2][4096] = {"", ""};
	for (int number = 1; fgets(line[number % 2], sizeof line[0], file); number++)
		check_public(path, number, line[1 - number % 2], line[number % 2]);
	fclose(file);
	return 0;
}

static void the_source_keeps_the_rules(void **state)
{
	(void)state;
	read_table();
	assert_true(folder_count >= 10 && folder_count < MAX_FOLDERS);
	nftw(source_path("src"), collect, 16, FTW_PHYS);
	assert_true(file_count >= 10 && file_count < MAX_FILES);
	for (int i = 0; i < file_count; i++)
		check_file(files[i]);
	for (int i = 0; i < file_count; i++)
		for (int j = 0; j < i; j++)
			if (strcmp(strrchr(files[i], '/'), strrchr(files[j], '/')) == 0)
				complain("%s and %s have the same name", files[j], files[i]);
	nftw(source_path("include"), check_public_header, 16, FTW_PHYS);
	assert_int_equal(complaints, 0);
	for (int i = 0; i < file_count; i++)
		free(files[i]);
}

static bool refuses(const char *folder, const char *include)
{
	char line[256];
	int before = complaints;
	int row = folder_of(folder);
	assert_true(row >= 0);
	snprintf(line, sizeof line, "#include \"%s\"\n", include);
	check_include(folder, 1, line, row);
	return complaints > before;
}

/* The checks must be able to fail. */
static void wrong_includes_are_refused(void **state)
{
	(void)state;
	fputs("(the following complaints are expected)\n", stderr);
	assert_true(refuses("solver/x.c", "checkpoint/safetensors.h")); /* though it stands above */
	assert_true(refuses("solver/x.c", "text/corpus.h"));
	assert_true(refuses("solver/x.c", "model/model.h"));
	assert_true(refuses("base/x.c", "solver/problem.h"));
	assert_true(refuses("cli/x.c", "base/memory.h"));
	assert_true(refuses("base/x.c", "nowhere/x.h"));
	assert_true(refuses("base/x.c", "memory.h"));
	assert_false(refuses("solver/x.c", "solver/problem.h"));
	assert_false(refuses("solver/x.c", "backend/backend.h"));
	assert_false(refuses("model/x.c", "checkpoint/checkpoint.h"));
	assert_false(refuses("cli/x.c", "cli/options.h"));
	int before = complaints;
	check_include("example", 1, "#include <jansson.h>\n", folder_of("base/x.c"));
	assert_int_equal(complaints, before);
	read_row((char[]){"| `upside/` | base, down | includes a folder below itself |"});
	assert_int_equal(complaints, before + 1);
}

static void jumps_over_a_scope_are_refused(void **state)
{
	(void)state;
	static const char *const good[] = {"{\n",     "	FP_PRODUCTS_FOR(be, use);\n",     "	FP_TRY(x);\n",
									   "	{\n", "		FP_PRODUCTS_FOR(be, use);\n", "	}\n",
									   "}\n"};
	static const char *const wrong[] = {
		"{\n", "	if (x) {\n", "		FP_TRY(x);\n", "	}\n", "	FP_PRODUCTS_FOR(be, use);\n", "}\n"};
	open_blocks blocks = {0};
	int before = complaints;
	for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
		check_scope("example", (int)i, good[i], &blocks);
	assert_int_equal(complaints, before);
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
		check_scope("example", (int)i, wrong[i], &blocks);
	assert_int_equal(complaints, before + 1);
}

static void wrong_calls_are_refused(void **state)
{
	(void)state;
	int before = complaints;
	int base = folder_of("base/x.c");
	int cli = folder_of("cli/x.c");
	check_calls("example", 1, "	printf(\"x\");\n", base);
	check_calls("example", 2, "	p = malloc(3);\n", base);
	check_calls("example", 3, "	if (x) exit(1);\n", base);
	check_calls("example", 4, "	x = strtod(text, &end);\n", base);
	check_calls("example", 4, "	snprintf(a, b, \"%d %-8.2f\", c, d);\n", base);
	check_public("example", 4, "int x;\n", "FP_API int fp_x(void);\n");
	assert_int_equal(complaints, before + 6);
	check_public("example", 5, " * why */\n", "FP_API int fp_x(void);\n");
	check_calls("example", 6, "	snprintf(a, b, c); be->exit(1); fp_free(x); printf(\"\");\n", cli);
	check_calls("example", 7, "	snprintf(a, b, \"%.0f%%\", c);\n", base);
	assert_int_equal(complaints, before + 6);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_source_keeps_the_rules),
		cmocka_unit_test(wrong_includes_are_refused),
		cmocka_unit_test(wrong_calls_are_refused),
		cmocka_unit_test(jumps_over_a_scope_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
