/* SPDX-License-Identifier: Apache-2.0 */
#include "model/architecture.h"

#include <stdio.h>
#include <string.h>

#define ADDRESS(name) &fp_architecture_##name,
static const fp_architecture *const architectures[] = {FP_ARCHITECTURES(ADDRESS)};

enum { ARCHITECTURE_COUNT = sizeof architectures / sizeof architectures[0], LIST_SIZE = 1536 };

static void list_names(char text[LIST_SIZE])
{
	text[0] = '\0';
	for (int i = 0; i < ARCHITECTURE_COUNT; i++) {
		size_t used = strlen(text);
		snprintf(text + used, LIST_SIZE - used, "%s%s", i ? ", " : "", architectures[i]->name);
	}
}

static const fp_architecture *find_by_name(const char *name)
{
	for (int i = 0; i < ARCHITECTURE_COUNT; i++)
		if (strcmp(architectures[i]->name, name) == 0)
			return architectures[i];
	return NULL;
}

static const fp_architecture *find_by_type(const char *type)
{
	for (int i = 0; i < ARCHITECTURE_COUNT; i++)
		if (strcmp(architectures[i]->model_type, type) == 0)
			return architectures[i];
	return NULL;
}

fp_status fp_architecture_find(const fp_architecture **out, const fp_config_reader *reader)
{
	*out = NULL;
	char supported[LIST_SIZE];
	list_names(supported);
	const char *type;
	fp_status status = fp_config_text_or(reader, "model_type", NULL, &type);
	if (status != FP_OK)
		return status;

	const json_t *names = json_object_get(reader->object, "architectures");
	if (!names || json_is_null(names)) {
		if (!type)
			return fp_config_fail(reader, "architectures", "is missing; supported are %s", supported);
		*out = find_by_type(type);
		return *out ? FP_OK
					: fp_config_fail(reader, "model_type", "is '%.100s', which is not supported; supported are %s",
									 type, supported);
	}
	const char *name = json_string_value(json_array_get(names, 0));
	if (!name)
		return fp_config_fail(reader, "architectures", "must be a list of names, such as [\"LlamaForCausalLM\"]");
	*out = find_by_name(name);
	if (!*out)
		return fp_config_fail(reader, "architectures", "names '%.100s', which is not supported; supported are %s", name,
							  supported);
	return FP_OK;
}
