/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_inspect.c: fistapruner inspect MODEL [--pattern P] [--tensors] */
#include "cli/commands.h"
#include "cli/result.h"

#include <string.h>

enum { NAME_SIZE = 128, WORST_TENSORS = 5 };

static const fp_cli_column tensor_columns[] = {
	{"name", "tensor", NULL, 0, false},
	{"shape", "shape", NULL, 0, false},
	{"dtype", "type", NULL, 0, false},
	{"bits", "bits", "%.0f", 1, false},
	{"group", "group", "%.0f", 1, false},
	{"sparsity", "zeros", "%.2f%%", 100, false},
	{"negative_zeros", "-0.0", "%.0f", 1, false},
	{"violations", "violations", "%.0f", 1, false},
};
enum { TENSOR_COLUMNS = sizeof tensor_columns / sizeof tensor_columns[0] };

/* The entry of this kind; a new one with the tensor's shape and type is appended if there is none. */
static json_t *find_kind(json_t *kinds, const char *name, const json_t *tensor)
{
	for (size_t i = 0; i < json_array_size(kinds); i++)
		if (strcmp(fp_cli_text_at(json_array_get(kinds, i), "name"), name) == 0)
			return json_array_get(kinds, i);
	json_array_append_new(kinds,
						  json_pack("{s:s, s:i, s:O?, s:O?, s:O*, s:O*}", "name", name, "tensors", 0, "shape",
									json_object_get(tensor, "shape"), "dtype", json_object_get(tensor, "dtype"), "bits",
									json_object_get(tensor, "bits"), "group", json_object_get(tensor, "group")));
	return json_array_get(kinds, json_array_size(kinds) - 1);
}

/* Adds the tensor's number to the kind's; a key that no tensor has stays away. */
static void add_number(json_t *kind, const json_t *tensor, const char *key, const char *total)
{
	const json_t *value = json_object_get(tensor, key);
	if (json_is_number(value))
		json_object_set_new(kind, total,
							json_real(json_number_value(value) + json_number_value(json_object_get(kind, total))));
}

static double element_count(const json_t *tensor)
{
	const json_t *shape = json_object_get(tensor, "shape");
	double count = 1;
	for (size_t i = 0; i < json_array_size(shape); i++)
		count *= json_number_value(json_array_get(shape, i));
	return count;
}

/* One row per kind: tensors whose names differ in numbers only. */
static json_t *group_by_kind(const json_t *tensors)
{
	static const char *const same[] = {"shape", "dtype"};
	json_t *kinds = json_array();
	for (size_t i = 0; i < json_array_size(tensors); i++) {
		const json_t *tensor = json_array_get(tensors, i);
		char name[NAME_SIZE];
		fp_cli_name_kind(name, sizeof name, fp_cli_text_at(tensor, "name"));
		json_t *kind = find_kind(kinds, name, tensor);
		json_object_set_new(kind, "tensors", json_integer(json_integer_value(json_object_get(kind, "tensors")) + 1));
		for (size_t k = 0; k < sizeof same / sizeof same[0]; k++)
			if (!json_equal(json_object_get(kind, same[k]), json_object_get(tensor, same[k])))
				json_object_set_new(kind, same[k], json_string("several"));
		add_number(kind, tensor, "zeros", "zeros");
		add_number(kind, tensor, "negative_zeros", "negative_zeros");
		add_number(kind, tensor, "violations", "violations");
		double counted = json_number_value(json_object_get(kind, "counted"));
		if (json_object_get(tensor, "zeros"))
			json_object_set_new(kind, "counted", json_real(counted + element_count(tensor)));
	}
	for (size_t i = 0; i < json_array_size(kinds); i++) {
		json_t *kind = json_array_get(kinds, i);
		double counted = json_number_value(json_object_get(kind, "counted"));
		if (counted > 0)
			json_object_set_new(kind, "sparsity", json_real(fp_cli_number_at(kind, "zeros") / counted));
	}
	return kinds;
}

static void print_kinds(const json_t *tensors)
{
	static const fp_cli_column columns[] = {
		{"name", "kind", NULL, 0, false},
		{"tensors", "tensors", "%.0f", 1, false},
		{"shape", "shape", NULL, 0, false},
		{"dtype", "type", NULL, 0, false},
		{"bits", "bits", "%.0f", 1, false},
		{"group", "group", "%.0f", 1, false},
		{"sparsity", "zeros", "%.2f%%", 100, false},
		{"negative_zeros", "-0.0", "%.0f", 1, true},
		{"violations", "violations", "%.0f", 1, false},
	};
	json_t *kinds = group_by_kind(tensors);
	json_t *broken = fp_cli_largest_rows(tensors, "violations", WORST_TENSORS);
	fp_cli_print_table(kinds, columns, sizeof columns / sizeof columns[0]);
	if (json_array_size(broken) > 0) {
		puts("\nmost violations:");
		fp_cli_print_table(broken, tensor_columns, TENSOR_COLUMNS);
	}
	json_decref(kinds);
	json_decref(broken);
}

static void render(const json_t *result, const fp_cli_options *options)
{
	char count[32];
	const json_t *tensors = json_object_get(result, "tensors");
	if (options->tensors)
		fp_cli_print_table(tensors, tensor_columns, TENSOR_COLUMNS);
	else
		print_kinds(tensors);
	fp_cli_format_count(count, fp_cli_number_at(result, "parameters"));
	printf("\nmodel         %s\n", fp_cli_text_at(result, "model"));
	printf("architecture  %s", fp_cli_text_at(result, "architecture"));
	if (json_object_get(result, "layers")) {
		double layers = fp_cli_number_at(result, "layers");
		printf(", %.0f layer%s", layers, layers == 1 ? "" : "s");
	}
	printf("\nparameters    %s, %s\n", count, fp_cli_text_at(result, "dtype"));
	if (json_object_get(result, "stored_as"))
		printf("stored as     %s\n", fp_cli_text_at(result, "stored_as"));
	printf("sparsity      %.4f%% of the linear operators, %.4f%% of all\n", 100 * fp_cli_number_at(result, "sparsity"),
		   100 * fp_cli_number_at(result, "total_sparsity"));
	if (json_object_get(result, "note"))
		printf("note          %s\n", fp_cli_text_at(result, "note"));
	if (json_is_string(json_object_get(result, "pattern"))) {
		double violations = fp_cli_number_at(result, "violations");
		printf("pattern       %s %s", fp_cli_text_at(result, "pattern"), violations > 0 ? "is broken" : "holds");
		if (violations > 0)
			printf(" %.0f time%s", violations, violations == 1 ? "" : "s");
		putchar('\n');
	}
}

fp_status fp_cli_inspect(fp_context *ctx, const fp_cli_options *options)
{
	char *json = NULL;
	fp_status status = fp_inspect(&json, ctx, options->operands[0], options->pattern);
	/* a failed check has a document too */
	if (json) {
		fp_status printed = fp_cli_print_result(options, json, render);
		if (status == FP_OK)
			status = printed;
		else
			fp_cli_failed(ctx, status);
	} else if (status != FP_OK) {
		fp_cli_failed(ctx, status);
	}
	fp_text_free(json);
	return status;
}
