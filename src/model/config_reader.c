/* SPDX-License-Identifier: Apache-2.0 */
#include "model/config_reader.h"

#include "base/number_text.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
	const char *name;
	fp_activation activation;
} activations[] = {
	{"relu", FP_RELU},           {"silu", FP_SILU},          {"swish", FP_SILU},
	{"gelu", FP_GELU},           {"gelu_new", FP_GELU_TANH}, {"gelu_pytorch_tanh", FP_GELU_TANH},
	{"gelu_fast", FP_GELU_TANH},
};

enum { ACTIVATION_COUNT = sizeof activations / sizeof activations[0], TEXT_SIZE = 1792, SPELLING_SIZE = 64 };

fp_status fp_config_fail(const fp_config_reader *reader, const char *key, const char *format, ...)
{
	char text[TEXT_SIZE];
	va_list args;
	va_start(args, format);
	fp_format_arguments(text, sizeof text, format, args);
	va_end(args);
	return fp_fail(reader->ctx, FP_ERROR_INPUT, "%s/config.json: '%s%s%s' %s", reader->directory, reader->section,
				   reader->section[0] ? "." : "", key, text);
}

/* NULL also for null, which transformers writes for "the default". */
static const json_t *value_of(const fp_config_reader *reader, const char *key)
{
	const json_t *value = json_object_get(reader->object, key);
	return json_is_null(value) ? NULL : value;
}

/* The value as text for messages, shortened if long. */
static const char *spell(const json_t *value, char text[SPELLING_SIZE])
{
	memset(text, 0, SPELLING_SIZE);
	if (json_is_object(value) || json_is_array(value))
		snprintf(text, SPELLING_SIZE, "%s", json_is_object(value) ? "an object" : "a list");
	else if (json_is_string(value))
		snprintf(text, SPELLING_SIZE, "\"%.*s\"%s", SPELLING_SIZE - 8, json_string_value(value),
				 json_string_length(value) > SPELLING_SIZE - 8 ? "..." : "");
	else
		json_dumpb(value, text, SPELLING_SIZE - 1, JSON_ENCODE_ANY | JSON_REAL_PRECISION(10));
	return text;
}

bool fp_config_has(const fp_config_reader *reader, const char *key)
{
	return value_of(reader, key) != NULL;
}

bool fp_config_is_null(const fp_config_reader *reader, const char *key)
{
	return json_is_null(json_object_get(reader->object, key));
}

fp_status fp_config_integer(const fp_config_reader *reader, const char *key, int64_t minimum, int64_t maximum,
							int64_t *out)
{
	const json_t *value = value_of(reader, key);
	if (!value)
		return fp_config_fail(reader, key, "is missing; it must be an integer of at least %lld", (long long)minimum);
	char text[SPELLING_SIZE];
	if (!json_is_integer(value))
		return fp_config_fail(reader, key, "must be an integer of at least %lld, but is %s", (long long)minimum,
							  spell(value, text));
	int64_t number = json_integer_value(value);
	if (number < minimum || number > maximum)
		return fp_config_fail(reader, key, "must be from %lld to %lld, but is %lld", (long long)minimum,
							  (long long)maximum, (long long)number);
	*out = number;
	return FP_OK;
}

fp_status fp_config_integer_or(const fp_config_reader *reader, const char *key, int64_t minimum, int64_t maximum,
							   int64_t fallback, int64_t *out)
{
	if (value_of(reader, key))
		return fp_config_integer(reader, key, minimum, maximum, out);
	*out = fallback;
	return FP_OK;
}

fp_status fp_config_positive_or(const fp_config_reader *reader, const char *key, double fallback, double *out)
{
	const json_t *value = value_of(reader, key);
	*out = fallback;
	if (!value)
		return FP_OK;
	char text[SPELLING_SIZE];
	double number = json_number_value(value);
	if (!json_is_number(value) || !(number > 0) || !isfinite(number))
		return fp_config_fail(reader, key, "must be a number above 0, such as %g, but is %s",
							  fallback > 0 ? fallback : 1.0, spell(value, text));
	*out = number;
	return FP_OK;
}

fp_status fp_config_numbers(const fp_config_reader *reader, const char *key, int64_t count, float *out)
{
	const json_t *list = value_of(reader, key);
	if (!json_is_array(list) || (int64_t)json_array_size(list) != count)
		return fp_config_fail(reader, key, "must be a list of %lld numbers, half the entries of a head that turn",
							  (long long)count);
	for (int64_t i = 0; i < count; i++) {
		const json_t *value = json_array_get(list, (size_t)i);
		char text[SPELLING_SIZE];
		double number = json_number_value(value);
		if (!json_is_number(value) || !(number > 0) || !isfinite(number))
			return fp_config_fail(reader, key, "must have numbers above 0, but has %s", spell(value, text));
		out[i] = (float)number;
	}
	return FP_OK;
}

fp_status fp_config_flag_or(const fp_config_reader *reader, const char *key, bool fallback, bool *out)
{
	const json_t *value = value_of(reader, key);
	*out = fallback;
	if (!value)
		return FP_OK;
	char text[SPELLING_SIZE];
	if (!json_is_boolean(value))
		return fp_config_fail(reader, key, "must be true or false, but is %s", spell(value, text));
	*out = json_is_true(value);
	return FP_OK;
}

fp_status fp_config_text_or(const fp_config_reader *reader, const char *key, const char *fallback, const char **out)
{
	const json_t *value = value_of(reader, key);
	*out = fallback;
	if (!value)
		return FP_OK;
	char text[SPELLING_SIZE];
	if (!json_is_string(value))
		return fp_config_fail(reader, key, "must be a string, but is %s", spell(value, text));
	*out = json_string_value(value);
	return FP_OK;
}

fp_status fp_config_activation_or(const fp_config_reader *reader, const char *key, fp_activation fallback,
								  fp_activation *out)
{
	const char *name;
	*out = fallback;
	fp_status status = fp_config_text_or(reader, key, NULL, &name);
	if (status != FP_OK || !name)
		return status;
	char supported[256] = "";
	for (int i = 0; i < ACTIVATION_COUNT; i++) {
		if (strcmp(name, activations[i].name) == 0) {
			*out = activations[i].activation;
			return FP_OK;
		}
		size_t used = strlen(supported);
		snprintf(supported + used, sizeof supported - used, "%s%s", i ? ", " : "", activations[i].name);
	}
	return fp_config_fail(reader, key, "is '%.60s', an activation that is not supported; supported are %s", name,
						  supported);
}

fp_status fp_config_section(const fp_config_reader *reader, const char *key, fp_config_reader *out)
{
	const json_t *value = value_of(reader, key);
	*out = *reader;
	out->section = key;
	out->object = value;
	if (!value)
		return FP_OK;
	char text[SPELLING_SIZE];
	if (!json_is_object(value))
		return fp_config_fail(reader, key, "must be an object or null, but is %s", spell(value, text));
	return FP_OK;
}
