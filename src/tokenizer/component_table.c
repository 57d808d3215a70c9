/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer/component_table.h"

#include "base/name_list.h"
#include <string.h>

static const char *type_of(const json_t *json)
{
	const char *type = json_string_value(json_object_get(json, "type"));
	return type ? type : "";
}

static fp_status read_one(fp_context *ctx, const fp_component_table *table, void *target, const json_t *json)
{
	fp_name_list types = {0};
	for (const fp_component *row = table->rows; row->type; row++) {
		if (strcmp(type_of(json), row->type) == 0)
			return row->read(ctx, target, row->kind, json);
		fp_name_list_add(&types, row->type);
	}
	return fp_fail(ctx, FP_ERROR_INPUT, "%s '%.80s' is not supported; its type must be one of %s, Sequence",
				   table->name, type_of(json), types.text);
}

fp_status fp_components_read(fp_context *ctx, const fp_component_table *table, void *target, const json_t *json)
{
	if (!json || json_is_null(json))
		return FP_OK;
	if (strcmp(type_of(json), "Sequence") != 0)
		return read_one(ctx, table, target, json);
	const json_t *list = json_object_get(json, table->sequence);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *part = json_array_get(list, i);
		if (strcmp(type_of(part), "Sequence") == 0)
			return fp_fail(ctx, FP_ERROR_INPUT, "%s Sequence: a Sequence inside another is not supported", table->name);
		fp_status status = json_is_null(part) ? FP_OK : read_one(ctx, table, target, part);
		if (status != FP_OK)
			return status;
	}
	return FP_OK;
}
