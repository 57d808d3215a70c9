/* SPDX-License-Identifier: Apache-2.0 */
/* config_reader.h: typed access to config.json. A value of the wrong type or out of range is an error
 * that names the file, key, rule and value. */
#ifndef FP_MODEL_CONFIG_READER_H
#define FP_MODEL_CONFIG_READER_H

#include "backend/backend.h"
#include <jansson.h>

typedef struct fp_config_reader {
	fp_context *ctx;
	const char *directory; /* borrowed; for messages */
	const char *section;   /* borrowed; the key of the nested object being read, else "" */
	const json_t *object;
} fp_config_reader;

/* The key is required and must be an integer from minimum to maximum. */
fp_status fp_config_integer(const fp_config_reader *reader, const char *key, int64_t minimum, int64_t maximum,
							int64_t *out);
/* The functions ending in _or return `fallback` if the key is absent or null. */
fp_status fp_config_integer_or(const fp_config_reader *reader, const char *key, int64_t minimum, int64_t maximum,
							   int64_t fallback, int64_t *out);
/* A number above 0. */
fp_status fp_config_positive_or(const fp_config_reader *reader, const char *key, double fallback, double *out);
/* A required list of `count` numbers above 0. */
fp_status fp_config_numbers(const fp_config_reader *reader, const char *key, int64_t count, float *out);
fp_status fp_config_flag_or(const fp_config_reader *reader, const char *key, bool fallback, bool *out);
fp_status fp_config_text_or(const fp_config_reader *reader, const char *key, const char *fallback, const char **out);
/* An activation by its name in transformers: "relu", "silu", "gelu", "gelu_new", … */
fp_status fp_config_activation_or(const fp_config_reader *reader, const char *key, fp_activation fallback,
								  fp_activation *out);
/* A nested object; out->object is NULL if the key is absent or null. */
fp_status fp_config_section(const fp_config_reader *reader, const char *key, fp_config_reader *out);
/* Whether the key is present and not null. */
bool fp_config_has(const fp_config_reader *reader, const char *key);
/* Whether the key is present and null, for keys whose absence means something else. */
bool fp_config_is_null(const fp_config_reader *reader, const char *key);
/* FP_ERROR_INPUT with the message "<directory>/config.json: 'section.key' <message>". */
fp_status fp_config_fail(const fp_config_reader *reader, const char *key, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
