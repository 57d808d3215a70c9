/* SPDX-License-Identifier: Apache-2.0 */
#include "comparison/summary.h"

#include <math.h>
#include <stdbool.h>

static const char *const group_keys[] = {"method", "preset", "correction", "pattern", "samples"};
enum { GROUP_KEYS = sizeof group_keys / sizeof group_keys[0] };

static bool same_group(const json_t *a, const json_t *b)
{
	for (int i = 0; i < GROUP_KEYS; i++) {
		const json_t *x = json_object_get(a, group_keys[i]);
		const json_t *y = json_object_get(b, group_keys[i]);
		if (x != y && !(x && y && json_equal(x, y)))
			return false;
	}
	return true;
}

static bool is_first_of_group(const json_t *rows, size_t index)
{
	for (size_t i = 0; i < index; i++)
		if (same_group(json_array_get(rows, i), json_array_get(rows, index)))
			return false;
	return true;
}

static json_t *summarise(const json_t *rows, const json_t *of)
{
	double sum = 0;
	double squares = 0;
	int count = 0;
	for (size_t i = 0; i < json_array_size(rows); i++) {
		const json_t *perplexity = json_object_get(json_array_get(rows, i), "perplexity");
		if (!same_group(json_array_get(rows, i), of) || !json_is_number(perplexity))
			continue;
		sum += json_number_value(perplexity);
		count++;
	}
	if (count < 2)
		return NULL;
	double mean = sum / count;
	for (size_t i = 0; i < json_array_size(rows); i++) {
		const json_t *perplexity = json_object_get(json_array_get(rows, i), "perplexity");
		if (same_group(json_array_get(rows, i), of) && json_is_number(perplexity))
			squares += (json_number_value(perplexity) - mean) * (json_number_value(perplexity) - mean);
	}
	json_t *entry = json_object();
	for (int i = 0; entry && i < GROUP_KEYS; i++)
		if (json_object_get(of, group_keys[i]))
			json_object_set(entry, group_keys[i], json_object_get(of, group_keys[i]));
	json_object_set_new(entry, "seeds", json_integer(count));
	json_object_set_new(entry, "mean", json_real(mean));
	json_object_set_new(entry, "deviation", json_real(sqrt(squares / (count - 1))));
	return entry;
}

json_t *fp_comparison_summary(const json_t *rows)
{
	json_t *summary = json_array();
	for (size_t i = 0; summary && i < json_array_size(rows); i++) {
		if (!is_first_of_group(rows, i))
			continue;
		json_t *entry = summarise(rows, json_array_get(rows, i));
		if (entry)
			json_array_append_new(summary, entry);
	}
	return summary;
}
