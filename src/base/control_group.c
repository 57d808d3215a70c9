/* SPDX-License-Identifier: Apache-2.0 */
#include "base/control_group.h"

#include <stdio.h>
#include <string.h>

enum { PATH_SIZE = 4096 };

/* The names of the files in one version. */
typedef struct group_files {
	const char *limit, *used, *droppable; /* droppable: a key of memory.stat */
} group_files;

static const group_files version_2 = {"memory.max", "memory.current", "inactive_file"};
static const group_files version_1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};

/* The number that a file holds; −1 if it has none ("max") or does not exist. */
static int64_t number_in_file(const char *folder, const char *name)
{
	char path[3 * PATH_SIZE];
	long long number = -1;
	snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *file = fopen(path, "r");
	if (!file)
		return -1;
	if (fscanf(file, "%lld", &number) != 1)
		number = -1;
	fclose(file);
	return number;
}

static int64_t number_at_key(const char *folder, const char *name, const char *key)
{
	char path[3 * PATH_SIZE], line[256], word[128];
	long long number;
	int64_t found = 0;
	snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *file = fopen(path, "r");
	if (!file)
		return 0;
	while (fgets(line, sizeof line, file))
		if (sscanf(line, "%127s %lld", word, &number) == 2 && strcmp(word, key) == 0)
			found = number;
	fclose(file);
	return found;
}

/* Visits the folder and its parents, up to the root of the hierarchy, whose path has `top` characters. */
static bool walk_up(char *folder, size_t top, const group_files *files, int64_t *limit, int64_t *left)
{
	bool limited = false;
	for (;;) {
		int64_t most = number_in_file(folder, files->limit), used = number_in_file(folder, files->used);
		/* version 1 writes "no limit" as a number near 2⁶³ */
		if (most >= 0 && used >= 0 && most < INT64_MAX / 2) {
			used -= number_at_key(folder, "memory.stat", files->droppable);
			int64_t rest = used < 0 ? most : used < most ? most - used : 0;
			if (!limited || rest < *left) {
				*limit = most;
				*left = rest;
			}
			limited = true;
		}
		char *slash = strrchr(folder, '/');
		if (!slash || (size_t)(slash - folder) < top)
			return limited;
		*slash = '\0';
	}
}

/* Whether a comma-separated list contains "memory". */
static bool names_memory(const char *controllers)
{
	static const char word[] = "memory";
	for (const char *at = controllers; *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ',')) {
		size_t length = strcspn(at, ",");
		if (length == sizeof word - 1 && strncmp(at, word, length) == 0)
			return true;
	}
	return false;
}

bool fp_control_group_memory(const char *root, int64_t *limit, int64_t *left)
{
	char path[PATH_SIZE], line[PATH_SIZE], folder[2 * PATH_SIZE];
	bool limited = false;
	snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
	FILE *file = fopen(path, "r");
	if (!file)
		return false;
	while (fgets(line, sizeof line, file)) {
		/* "number:controllers:/path"; version 2 has no controllers there */
		char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
		int64_t most = 0, rest = 0;
		if (!group)
			continue;
		*group++ = '\0';
		group[strcspn(group, "\n")] = '\0';
		bool is_version_2 = *++controllers == '\0';
		if (!is_version_2 && !names_memory(controllers))
			continue;
		int top = snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s", root, is_version_2 ? "" : "/memory");
		if (strcmp(group, "/") != 0)
			snprintf(folder + top, sizeof folder - (size_t)top, "%s", group);
		if (walk_up(folder, (size_t)top, is_version_2 ? &version_2 : &version_1, &most, &rest) &&
			(!limited || rest < *left)) {
			*limit = most;
			*left = rest;
			limited = true;
		}
	}
	fclose(file);
	return limited;
}
