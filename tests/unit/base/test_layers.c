/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of the house that a machine can keep: who may include whom (the table of src/README.md), unique file names,
 * file lengths, what the library must never call, and a comment on everything public.
 */
#include "support.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROOMS = 32, MAX_FILES = 1024, MAX_LINES = 800 };

static char rooms[MAX_ROOMS][32]; /* in the table's order: a room may include itself and those above it */
static int room_count;
static char *files[MAX_FILES];
static int file_count;
static int complaints;

#define complain(...)                                                                                                  \
	do {                                                                                                               \
		fprintf(stderr, __VA_ARGS__);                                                                                  \
		fputc('\n', stderr);                                                                                           \
		complaints++;                                                                                                  \
	} while (0)

static void read_rooms(void)
{
	FILE *file = fopen(source_path("src/README.md"), "r");
	assert_non_null(file);
	char line[1024];
	int layer;
	char name[32];
	while (room_count < MAX_ROOMS && fgets(line, sizeof line, file))
		if (sscanf(line, "| %d | `%31[a-z]/` |", &layer, name) == 2)
			snprintf(rooms[room_count++], sizeof rooms[0], "%s", name);
	fclose(file);
}

static int room_of(const char *path)
{
	for (int i = 0; i < room_count; i++) {
		size_t length = strlen(rooms[i]);
		if (strncmp(path, rooms[i], length) == 0 && path[length] == '/')
			return i;
	}
	return -1;
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

static void check_include(const char *path, int number, const char *line, int room)
{
	char target[256];
	if (sscanf(line, " # include \"%255[^\"]\"", target) != 1)
		return;
	int other = room_of(target);
	if (other < 0 && strchr(target, '/'))
		complain("%s:%d: %s is in no room of src/README.md", path, number, target);
	else if (other > room)
		complain("%s:%d: %s/ may not include %s", path, number, rooms[room], target);
	else if (other >= 0 && other != room && strcmp(rooms[room], "cli") == 0)
		complain("%s:%d: cli/ uses include/fistapruner/ only, not %s", path, number, target);
}

/* The library never allocates past its allocator, prints, exits or keeps a locale-dependent state. */
static void check_calls(const char *path, int number, const char *line, int room)
{
	static const char *const forbidden[] = {"printf", "puts", "putchar", "fprintf", "exit", "abort", "_exit", "strtok"};
	static const char *const allocators[] = {"malloc", "realloc", "aligned_alloc", "posix_memalign", "strdup"};
	if (strcmp(rooms[room], "cli") == 0)
		return;
	for (size_t i = 0; i < sizeof forbidden / sizeof forbidden[0]; i++)
		if (calls(line, forbidden[i]))
			complain("%s:%d: the library must not call %s()", path, number, forbidden[i]);
	if (strstr(path, "base/memory.c"))
		return;
	for (size_t i = 0; i < sizeof allocators / sizeof allocators[0]; i++)
		if (calls(line, allocators[i]))
			complain("%s:%d: memory comes from base/memory.h, not from %s()", path, number, allocators[i]);
}

static void check_file(const char *path)
{
	const char *name = inside_source(path);
	int room = room_of(name);
	if (room < 0) {
		complain("%s: is in no room of src/README.md", path);
		return;
	}
	FILE *file = fopen(path, "r");
	assert_non_null(file);
	char line[4096];
	int number = 0;
	while (fgets(line, sizeof line, file)) {
		number++;
		if (number == 1 && !strstr(line, "SPDX-License-Identifier: Apache-2.0"))
			complain("%s: the first line must name the licence", path);
		check_include(path, number, line, room);
		const char *text = line + strspn(line, " \t");
		if (*text != '*' && strncmp(text, "/*", 2) != 0)
			check_calls(path, number, line, room);
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

static void the_house_rules_hold(void **state)
{
	(void)state;
	read_rooms();
	assert_true(room_count >= 10);
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

/* The checks above must be able to fail. */
static void the_checks_see_what_they_should(void **state)
{
	(void)state;
	int before = complaints;
	int base = room_of("base/x.c");
	int cli = room_of("cli/x.c");
	fputs("(seven complaints follow on purpose)\n", stderr);
	check_include("example", 1, "#include \"solver/fista.h\"\n", base);
	check_include("example", 2, "#include \"base/memory.h\"\n", cli);
	check_include("example", 3, "#include \"nowhere/x.h\"\n", base);
	check_calls("example", 4, "	printf(\"x\");\n", base);
	check_calls("example", 5, "	p = malloc(3);\n", base);
	check_calls("example", 6, "	if (x) exit(1);\n", base);
	check_public("example", 7, "int x;\n", "FP_API int fp_x(void);\n");
	assert_int_equal(complaints, before + 7);
	check_public("example", 7, " * why */\n", "FP_API int fp_x(void);\n");
	check_include("example", 7, "#include \"base/memory.h\"\n", room_of("solver/x.c"));
	check_include("example", 8, "#include <jansson.h>\n", base);
	check_calls("example", 9, "	snprintf(a, b, c); be->exit(1); fp_free(x); printf(\"\");\n", cli);
	check_calls("example", 10, "	snprintf(a, b, c);\n", base);
	assert_int_equal(complaints, before + 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_house_rules_hold),
		cmocka_unit_test(the_checks_see_what_they_should),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
