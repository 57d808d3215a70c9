/* SPDX-License-Identifier: Apache-2.0 */
/* config_reader.h: typed access to config.json. A value of the wrong kind or size is an error that names file, key,
 * rule and value. */
#ifndef FP_MODEL_CONFIG_READER_H
#define FP_MODEL_CONFIG_READER_H

#include "backend/backend.h"
#include <jansson.h>

typedef struct fp_config_reader {
	fp_context *ctx;
	const char *directory; /* borrowed; for messages */
	const char *section;   /* borrowed; "" or the key of the object inside the config that is read */
	const json_t *object;
} fp_config_reader;

/* The key must be there and hold an integer from minimum to maximum. */
fp_status fp_config_integer(const fp_config_reader *reader, const char *key, int64_t minimum, int64_t maximum,
							int64_t *out);
/* The others take `fallback` where the key is absent or null. */
fp_status fp_config_integer_or(const fp_config_reader *reader, const char *key, int64_t minimum, int64_t maximum,
							   int64_t fallback, int64_t *out);
/* A number above 0. Booleans are not numbers. */
fp_status fp_config_positive_or(const fp_config_reader *reader, const char *key, double fallback, double *out);
fp_status fp_config_flag_or(const fp_config_reader *reader, const char *key, bool fallback, bool *out);
fp_status fp_config_text_or(const fp_config_reader *reader, const char *key, const char *fallback, const char **out);
/* The name of an activation as transformers spells it: "relu", "silu", "gelu", "gelu_new", … */
fp_status fp_config_activation_or(const fp_config_reader *reader, const char *key, fp_activation fallback,
								  fp_activation *out);
/* An object inside the config; out->object is NULL where the key is absent or null. */
fp_status fp_config_section(const fp_config_reader *reader, const char *key, fp_config_reader *out);
/* Whether the key is there and not null. */
bool fp_config_has(const fp_config_reader *reader, const char *key);
/* Whether the key is there and null, where that means something else than its absence. */
bool fp_config_is_null(const fp_config_reader *reader, const char *key);
/* "<directory>/config.json: 'section.key' <message>", as an error of the input. */
fp_status fp_config_fail(const fp_config_reader *reader, const char *key, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
