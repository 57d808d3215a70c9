/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/demo_table.h"

#include <string.h>

enum { NAME_SIZE = 64, MOST_COLUMNS = 8 };

static void set_title(json_t *row, const char *addition)
{
	const char *preset = json_string_value(json_object_get(row, "preset"));
	const char *title = fp_method_title(fp_cli_text_at(row, "method"), preset);
	char longer[NAME_SIZE];
	size_t length = strlen(title);
	if (preset && addition && length > 0 && title[length - 1] == ')') {
		snprintf(longer, sizeof longer, "%.*s, %s)", (int)length - 1, title, addition);
		title = longer;
	}
	json_object_set_new(row, "title", json_string(title));
}

void fp_cli_demo_add_titles(json_t *comparison, const char *addition)
{
	json_t *rows = json_object_get(comparison, "rows");
	for (size_t i = 0; i < json_array_size(rows); i++)
		set_title(json_array_get(rows, i), addition);
}

/* The last part of a path: "models/llama-demo" → "llama-demo". */
static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

void fp_cli_demo_add_rows(json_t *rows, const json_t *comparison)
{
	static const char *const copied[] = {"title", "method",         "preset",  "pattern", "perplexity",
										 "kl",    "relative_error", "seconds", "basis"};
	const json_t *from = json_object_get(comparison, "rows");
	for (size_t i = 0; i < json_array_size(from); i++) {
		json_t *row = json_pack("{s:s}", "model", base_name(fp_cli_text_at(comparison, "model")));
		for (size_t k = 0; k < sizeof copied / sizeof copied[0]; k++) {
			json_t *value = json_object_get(json_array_get(from, i), copied[k]);
			if (value && !json_is_null(value))
				json_object_set(row, copied[k], value);
		}
		json_array_append_new(rows, row);
	}
}

/* The line of the table with this title; a new one is appended where there is none. */
static json_t *find_line(json_t *table, const char *title)
{
	for (size_t i = 0; i < json_array_size(table); i++)
		if (strcmp(fp_cli_text_at(json_array_get(table, i), "title"), title) == 0)
			return json_array_get(table, i);
	json_array_append_new(table, json_pack("{s:s}", "title", title));
	return json_array_get(table, json_array_size(table) - 1);
}

static void add_column(char keys[][NAME_SIZE], size_t *count, const char *key)
{
	for (size_t i = 0; i < *count; i++)
		if (strcmp(keys[i], key) == 0)
			return;
	if (*count < MOST_COLUMNS)
		snprintf(keys[(*count)++], NAME_SIZE, "%s", key);
}

/* A figure: one line per title, one column per model and pattern; the dense row of a model fills all of its columns. */
static void print_table(const json_t *rows, const char *figure, const char *heading)
{
	char keys[MOST_COLUMNS][NAME_SIZE];
	fp_cli_column columns[MOST_COLUMNS + 1] = {{"title", heading, NULL, 0, false}};
	json_t *table = json_array();
	size_t count = 0;
	find_line(table, "dense");
	for (size_t i = 0; i < json_array_size(rows); i++) {
		const json_t *row = json_array_get(rows, i);
		char key[NAME_SIZE];
		if (!json_object_get(row, "pattern"))
			continue;
		snprintf(key, sizeof key, "%.40s %.16s", fp_cli_text_at(row, "model"), fp_cli_text_at(row, "pattern"));
		add_column(keys, &count, key);
		json_object_set(find_line(table, fp_cli_text_at(row, "title")), key, json_object_get(row, figure));
	}
	for (size_t i = 0; i < json_array_size(rows); i++) {
		const json_t *row = json_array_get(rows, i);
		const char *model = fp_cli_text_at(row, "model");
		for (size_t c = 0; c < count && !json_object_get(row, "pattern"); c++)
			if (strncmp(keys[c], model, strlen(model)) == 0)
				json_object_set(find_line(table, "dense"), keys[c], json_object_get(row, figure));
	}
	for (size_t c = 0; c < count; c++)
		columns[c + 1] = (fp_cli_column){keys[c], keys[c], "%.3f", 1, false};
	fp_cli_print_table(table, columns, count + 1);
	json_decref(table);
}

void fp_cli_demo_render(const json_t *result, const fp_cli_options *options)
{
	const char *report = json_string_value(json_object_get(result, "report"));
	const fp_preset_info *preset;
	(void)options;
	print_table(json_object_get(result, "rows"), "perplexity", "perplexity");
	putchar('\n');
	print_table(json_object_get(result, "rows"), "kl", "KL from dense");
	putchar('\n');
	fp_cli_print_wrapped(stdout, 0,
						 "Perplexity measures how well a model predicts text that it has not seen: lower is better, "
						 "and the dense model's is the goal. KL measures how far a model's predictions are from the "
						 "dense model's, per token: 0 means equal. At 50% half of the weights of every linear "
						 "operator are zero; 2:4 keeps 2 of every 4 consecutive weights.");
	fp_cli_print_wrapped(stdout, 0, fp_cli_text_at(result, "note"));
	putchar('\n');
	for (size_t i = 0; (preset = fp_preset_at(i)); i++)
		fp_cli_print_wrapped(stdout, printf("%-7s", preset->name), preset->description);
	putchar('\n');
	if (report)
		printf("Charts, errors by layer and times: %s\n\n", report);
	printf("On your own model (a directory, or a name in the Hugging Face cache):\n"
		   "  fistapruner prune MODEL -o DIR --pattern 2:4 --check\n"
		   "  fistapruner inspect DIR --pattern 2:4\n"
		   "  fistapruner eval DIR --text TEXT --reference MODEL\n");
}
