/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/preset_table.h"

#include <fistapruner/fistapruner.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MOST_COLUMNS = 8, WORD_SIZE = 32, NAME_WIDTH = 17, VALUE_WIDTH = 12 };

/* The model family for which a preset has values of its own. */
static const char family[] = "opt";

typedef struct column {
	const char *preset, *family;
	char title[WORD_SIZE];
} column;

/* Whether some setting of the preset depends on the family. */
static bool depends_on_family(fp_context *ctx, const char *preset)
{
	char any[WORD_SIZE], own[WORD_SIZE];
	const fp_setting_info *info;
	for (size_t i = 0; (info = fp_setting_at(i)); i++)
		if (fp_preset_value(ctx, preset, "", info->name, any, sizeof any) == FP_OK &&
			fp_preset_value(ctx, preset, family, info->name, own, sizeof own) == FP_OK && strcmp(any, own) != 0)
			return true;
	return false;
}

static int choose_columns(fp_context *ctx, column columns[static MOST_COLUMNS])
{
	int count = 0;
	const fp_preset_info *preset;
	for (size_t i = 0; (preset = fp_preset_at(i)) && count < MOST_COLUMNS - 1; i++) {
		columns[count] = (column){.preset = preset->name, .family = ""};
		snprintf(columns[count++].title, WORD_SIZE, "%s", preset->name);
		if (!depends_on_family(ctx, preset->name))
			continue;
		columns[count] = (column){.preset = preset->name, .family = family};
		snprintf(columns[count++].title, WORD_SIZE, "%s, OPT", preset->name);
	}
	return count;
}

void fp_cli_preset_table(void (*print)(void *data, const char *line), void *data)
{
	column columns[MOST_COLUMNS];
	char line[NAME_WIDTH + MOST_COLUMNS * WORD_SIZE];
	fp_context *ctx = fp_context_new();
	const fp_setting_info *info;
	if (!ctx)
		return;
	int count = choose_columns(ctx, columns);
	int used = snprintf(line, sizeof line, "%-*s", NAME_WIDTH, "setting");
	for (int c = 0; c < count; c++)
		used += snprintf(line + used, sizeof line - (size_t)used, "%-*s", c < count - 1 ? VALUE_WIDTH : 0,
						 columns[c].title);
	print(data, line);
	for (size_t i = 0; (info = fp_setting_at(i)); i++) {
		char first[WORD_SIZE] = "", value[WORD_SIZE] = "";
		bool differ = false;
		used = snprintf(line, sizeof line, "%-*s", NAME_WIDTH, info->name);
		for (int c = 0; c < count && strcmp(info->name, "preset") != 0; c++) {
			fp_preset_value(ctx, columns[c].preset, columns[c].family, info->name, value, sizeof value);
			if (c == 0)
				snprintf(first, sizeof first, "%s", value);
			differ = differ || strcmp(first, value) != 0;
			used += snprintf(line + used, sizeof line - (size_t)used, "%-*s", c < count - 1 ? VALUE_WIDTH : 0, value);
		}
		if (differ)
			print(data, line);
	}
	fp_context_free(ctx);
}
