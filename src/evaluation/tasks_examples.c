/* SPDX-License-Identifier: Apache-2.0 */
/* tasks_examples.c: functions for prompts: read and check parts of a record, add texts, pairs and examples. */
#include "evaluation/tasks_examples.h"

#include "base/memory.h"
#include "base/number_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

fp_status fp_task_fail(const fp_task_examples *examples, const char *format, ...)
{
	char message[FP_MESSAGE_SIZE / 2];
	va_list args;
	va_start(args, format);
	fp_format_arguments(message, sizeof message, format, args);
	va_end(args);
	return fp_fail(examples->ctx, FP_ERROR_INPUT, "%s: line %lld: %s", examples->path, (long long)examples->line,
				   message);
}

bool fp_is_python_space(uint32_t code)
{
	return fp_is_white_space(code) || (code >= 0x1C && code <= 0x1F);
}

fp_status fp_task_compose(fp_task_examples *examples, fp_task_text *text, const fp_piece *pieces, int count)
{
	fp_status status = FP_OK;
	text->first = examples->text.length;
	for (int i = 0; i < count; i++)
		FP_TRY(fp_text_append(examples->ctx, &examples->text, pieces[i].bytes, pieces[i].length));
	text->length = examples->text.length - text->first;
cleanup:
	return status;
}

int64_t fp_task_characters_in(fp_piece text)
{
	int64_t count = 0;
	for (int64_t i = 0; i < text.length; i++)
		count += ((unsigned char)text.bytes[i] & 0xC0) != 0x80;
	return count;
}

fp_status fp_task_add_pair(fp_task_examples *examples, fp_task_text context, fp_task_text continuation,
						   int64_t characters)
{
	fp_status status = FP_GROW(examples->ctx, &examples->pairs, &examples->pair_capacity, examples->pair_count + 1);
	if (status == FP_OK)
		examples->pairs[examples->pair_count++] = (fp_task_pair){context, continuation, characters};
	return status;
}

fp_status fp_task_add_example(fp_task_examples *examples, int64_t first_pair, int64_t gold)
{
	fp_status status = FP_GROW(examples->ctx, &examples->examples, &examples->capacity, examples->count + 1);
	if (status == FP_OK)
		examples->examples[examples->count++] = (fp_task_example){.line = examples->line,
																  .first_pair = first_pair,
																  .pair_count = examples->pair_count - first_pair,
																  .gold = gold};
	return status;
}

fp_status fp_task_check_label(const fp_task_examples *examples, int64_t choices, int64_t gold)
{
	if (choices < 2)
		return fp_task_fail(examples, "has %lld choices; there must be at least 2", (long long)choices);
	if (gold < 0 || gold >= choices)
		return fp_task_fail(examples, "the label is %lld, counted from 0, but there are %lld choices", (long long)gold,
							(long long)choices);
	return FP_OK;
}

fp_status fp_task_add_choices(fp_task_examples *examples, fp_task_text context, const fp_piece *choices, int64_t count,
							  int64_t gold)
{
	fp_status status;
	int64_t first = examples->pair_count;
	fp_task_text continuation;
	FP_TRY(fp_task_check_label(examples, count, gold));
	for (int64_t i = 0; i < count; i++) {
		FP_TRY(FP_COMPOSE(examples, &continuation, FP_PIECE(" "), choices[i]));
		FP_TRY(fp_task_add_pair(examples, context, continuation, fp_task_characters_in(choices[i])));
	}
	FP_TRY(fp_task_add_example(examples, first, gold));
cleanup:
	return status;
}

static fp_status piece_of(fp_task_examples *examples, const json_t *value, const char *key, fp_piece *out)
{
	if (!json_is_string(value))
		return fp_task_fail(examples, "\"%s\" must be a string", key);
	*out = (fp_piece){json_string_value(value), (int64_t)json_string_length(value)};
	return FP_OK;
}

fp_status fp_task_text_at(fp_task_examples *examples, const json_t *record, const char *key, fp_piece *out)
{
	const json_t *value = json_object_get(record, key);
	if (!value)
		return fp_task_fail(examples, "has no \"%s\"; is this a file of another task?", key);
	return piece_of(examples, value, key, out);
}

fp_status fp_task_texts_at(fp_task_examples *examples, const json_t *record, const char *key,
						   fp_piece out[static FP_MOST_CHOICES], int64_t *count)
{
	fp_status status = FP_OK;
	const json_t *list = json_object_get(record, key);
	if (!json_is_array(list) || json_array_size(list) > FP_MOST_CHOICES)
		return fp_task_fail(examples, "\"%s\" must be a list of at most %d strings", key, FP_MOST_CHOICES);
	*count = (int64_t)json_array_size(list);
	for (int64_t i = 0; i < *count; i++)
		FP_TRY(piece_of(examples, json_array_get(list, (size_t)i), key, &out[i]));
cleanup:
	return status;
}

fp_status fp_task_label_at(fp_task_examples *examples, const json_t *record, const char *key, const char *const *words,
						   int64_t *out)
{
	const json_t *value = json_object_get(record, key);
	if (json_is_integer(value) && json_integer_value(value) >= 0) {
		*out = json_integer_value(value);
		return FP_OK;
	}
	if (json_is_boolean(value)) {
		*out = json_is_true(value);
		return FP_OK;
	}
	const char *text = json_is_string(value) ? json_string_value(value) : "";
	for (int64_t i = 0; words && words[i]; i++)
		if (strcmp(text, words[i]) == 0) {
			*out = i;
			return FP_OK;
		}
	int used = 0;
	int number = -1;
	if (strlen(text) < 8 && sscanf(text, "%d %n", &number, &used) == 1 && !text[used] && number >= 0) {
		*out = number;
		return FP_OK;
	}
	return fp_task_fail(examples,
						"\"%s\" is not a label (%s%s%s); use a file with labels: the test split of many tasks has none",
						key, value ? "'" : "missing", value ? text : "", value ? "'" : "");
}

fp_piece fp_task_strip(fp_piece text)
{
	uint32_t code;
	while (text.length > 0) {
		int size = fp_utf8_decode(text.bytes, text.length, &code);
		if (!fp_is_python_space(code))
			break;
		text.bytes += size;
		text.length -= size;
	}
	while (text.length > 0) {
		int64_t at = text.length - 1;
		while (at > 0 && ((unsigned char)text.bytes[at] & 0xC0) == 0x80)
			at--;
		fp_utf8_decode(text.bytes + at, text.length - at, &code);
		if (!fp_is_python_space(code))
			break;
		text.length = at;
	}
	return text;
}

void fp_task_examples_free(fp_task_examples *examples)
{
	fp_free(examples->text.bytes);
	fp_free(examples->scratch.bytes);
	fp_free(examples->pairs);
	fp_free(examples->examples);
	*examples = (fp_task_examples){0};
}
