/* SPDX-License-Identifier: Apache-2.0 */
#include "base/settings.h"

#include "base/memory.h"
#include "base/number_text.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_OF(x) #x
#define INITIAL_INT(value) TEXT_OF(value)
#define INITIAL_REAL(value) TEXT_OF(value)
#define INITIAL_FLAG(value) TEXT_OF(value)
#define INITIAL_TEXT(value) value
#define INITIAL_CHOICE(value) value

static const fp_setting_info setting_table[FP_SETTING_COUNT] = {
#define SETTING_ROW(kind, name, initial, minimum, maximum, choices, commands, help)                                    \
	[FP_ID_##name] = {FP_SETTING_##kind, #name, INITIAL_##kind(initial), minimum, maximum, choices, commands, help},
	FP_SETTINGS_TABLE(SETTING_ROW)
#undef SETTING_ROW
};

static const size_t field_offset[FP_SETTING_COUNT] = {
#define FIELD_OFFSET(kind, name, ...) [FP_ID_##name] = offsetof(struct fp_settings, name),
	FP_SETTINGS_TABLE(FIELD_OFFSET)
#undef FIELD_OFFSET
};

#define FAST_SETTINGS                                                                                                  \
	"warm_start=dense iterations=0 scaling=1 support_search=admm search_steps=300 refit_steps=6 ridge=0.04 "           \
	"correction=cross mix=0.7 residual=1 residual_output=0.5 bias_update=1 "                                           \
	"row_importance=1 basis=auto"

/*
 * The presets: what differs from the table's defaults for a family and a warm start ("": any). Rows are applied in
 * order, so that a later row wins and can depend on the warm start that an earlier one has set.
 */
static const struct {
	const char *preset, *method, *family, *start, *assignments;
} preset_table[] = {
	{"paper", "fista", "", "",
	 "warm_start=wanda tolerance=1e-3 iterations=20 patience=3 rounding_share=0.3 lambda_start=1e-5 "
	 "lambda_low=0 lambda_high=1e6 lambda_search=bisection momentum=literal reset_patience=0 correction=intra"},
	{"paper", "fista", "opt", "", "warm_start=sparsegpt"},
	{"paper", "fista", "", "sparsegpt", "tolerance=1e-6"}, /* the paper's other pair of warm start and ε */
	{"fast", "fista", "", "", FAST_SETTINGS},
	{"best", "fista", "", "", FAST_SETTINGS " fit_steps=200"},
};

bool fp_is(const char *choice, const char *word)
{
	return strcmp(choice, word) == 0;
}

const fp_setting_info *fp_setting_at(size_t index)
{
	return index < FP_SETTING_COUNT ? &setting_table[index] : NULL;
}

static int find_setting(const char *name)
{
	for (int id = 0; id < FP_SETTING_COUNT; id++) {
		const char *a = setting_table[id].name;
		const char *b = name;
		while (*a && (*a == *b || (*a == '_' && *b == '-'))) {
			a++;
			b++;
		}
		if (!*a && !*b)
			return id;
	}
	return -1;
}

static bool is_choice(const char *choices, const char *word)
{
	size_t length = strlen(word);
	if (strchr(word, '|'))
		return false; /* "a|b" is not a choice */
	for (const char *at = choices; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
		if (length > 0 && strncmp(at, word, length) == 0 && (at[length] == '|' || at[length] == '\0'))
			return true;
	return false;
}

/* Methods and presets are easily taken for each other. */
static const char *other_choice(int id, const char *value)
{
	if (id == FP_ID_method && is_choice(setting_table[FP_ID_preset].choices, value))
		return "; that is a preset (of the method fista)";
	if (id == FP_ID_preset && is_choice(setting_table[FP_ID_method].choices, value))
		return "; that is a method";
	return "";
}

static fp_status set_number(fp_context *ctx, const fp_setting_info *info, void *field, const char *value)
{
	char *end;
	errno = 0;
	double number = fp_parse_real(value, &end);
	if (end == value || *end || errno || !isfinite(number) || number < info->minimum || number > info->maximum ||
		(info->kind == FP_SETTING_INT && number != floor(number)))
		return fp_fail(ctx, FP_ERROR_USAGE, "%s '%s': must be %s from %.16g to %.16g, such as %s", info->name, value,
					   info->kind == FP_SETTING_INT ? "a whole number" : "a number", info->minimum, info->maximum,
					   info->initial);
	if (info->kind == FP_SETTING_INT)
		*(int64_t *)field = (int64_t)number;
	else
		*(double *)field = number;
	return FP_OK;
}

static fp_status set_by_id(fp_settings *settings, fp_context *ctx, int id, const char *value)
{
	const fp_setting_info *info = &setting_table[id];
	void *field = (char *)settings + field_offset[id];
	switch (info->kind) {
	case FP_SETTING_INT:
	case FP_SETTING_REAL:
		return set_number(ctx, info, field, value);
	case FP_SETTING_FLAG:
		if (!fp_is(value, "0") && !fp_is(value, "1"))
			return fp_fail(ctx, FP_ERROR_USAGE, "%s '%s': must be 0 or 1", info->name, value);
		*(bool *)field = value[0] == '1';
		return FP_OK;
	case FP_SETTING_TEXT:
		if (strlen(value) >= FP_SETTING_TEXT_SIZE)
			return fp_fail(ctx, FP_ERROR_USAGE, "%s: at most %d characters", info->name, FP_SETTING_TEXT_SIZE - 1);
		strcpy(field, value);
		return FP_OK;
	case FP_SETTING_CHOICE:
		if (!is_choice(info->choices, value) || strlen(value) >= FP_SETTING_TEXT_SIZE)
			return fp_fail(ctx, FP_ERROR_USAGE, "%s '%s': must be one of %s%s", info->name, value, info->choices,
						   other_choice(id, value));
		strcpy(field, value);
		return FP_OK;
	}
	return fp_fail(ctx, FP_ERROR_INTERNAL, "setting %s has no kind", info->name);
}

fp_status fp_settings_new(fp_settings **out, fp_context *ctx)
{
	fp_status status = FP_NEW(ctx, out, 1);
	for (int id = 0; status == FP_OK && id < FP_SETTING_COUNT; id++)
		status = set_by_id(*out, ctx, id, setting_table[id].initial);
	return status;
}

void fp_settings_free(fp_settings *settings)
{
	fp_free(settings);
}

/* Each line is REGEX=PATTERN. */
static fp_status check_rules(fp_context *ctx, const char *lines)
{
	while (*lines) {
		char line[FP_SETTING_TEXT_SIZE];
		size_t length = strcspn(lines, "\n");
		double sparsity;
		int64_t kept, group;
		if (length >= sizeof line)
			return fp_fail(ctx, FP_ERROR_USAGE, "pattern: at most %d characters", FP_SETTING_TEXT_SIZE - 1);
		memcpy(line, lines, length);
		line[length] = '\0';
		const char *equals = strrchr(line, '=');
		if (!equals || equals == line)
			return fp_fail(ctx, FP_ERROR_USAGE, "pattern '%s': must be REGEX=PATTERN, such as down_proj=2:4", line);
		fp_status status = fp_parse_sparsity(ctx, equals + 1, &sparsity, &kept, &group);
		if (status != FP_OK)
			return status;
		lines += length + (lines[length] == '\n');
	}
	return FP_OK;
}

/* Adds a line. */
static fp_status add_rule(fp_settings *settings, fp_context *ctx, const char *rule)
{
	size_t used = strlen(settings->pattern_rules), size = sizeof settings->pattern_rules;
	fp_status status = check_rules(ctx, rule);
	if (status != FP_OK)
		return status;
	int added = snprintf(settings->pattern_rules + used, size - used, "%s%s", used > 0 ? "\n" : "", rule);
	if (added < 0 || used + (size_t)added >= size) {
		settings->pattern_rules[used] = '\0';
		return fp_fail(ctx, FP_ERROR_USAGE, "pattern: at most %d characters in all rules together",
					   FP_SETTING_TEXT_SIZE - 1);
	}
	settings->by_hand[FP_ID_pattern_rules] = true;
	return FP_OK;
}

/* Checks the spelling at once, so that the message belongs to the flag. */
static fp_status check_spelling(fp_context *ctx, int id, const char *value)
{
	double sparsity;
	int64_t a;
	int64_t b;
	if (id == FP_ID_pattern_rules)
		return check_rules(ctx, value);
	if (id == FP_ID_pattern)
		return fp_parse_sparsity(ctx, value, &sparsity, &a, &b);
	if (id == FP_ID_memory)
		return fp_parse_size(ctx, value, &a);
	return FP_OK;
}

fp_status fp_settings_set(fp_settings *settings, fp_context *ctx, const char *name, const char *value)
{
	int id = find_setting(name);
	if (id < 0)
		return fp_fail(ctx, FP_ERROR_USAGE, "'%s' is not a setting; 'fistapruner prune --help' lists them", name);
	if (id == FP_ID_pattern && strchr(value, '='))
		return add_rule(settings, ctx, value);
	fp_status status = check_spelling(ctx, id, value);
	if (status == FP_OK)
		status = set_by_id(settings, ctx, id, value);
	if (status == FP_OK)
		settings->by_hand[id] = true;
	return status;
}

fp_status fp_settings_assign(fp_settings *settings, fp_context *ctx, const char *assignment)
{
	const char *equals = strchr(assignment, '=');
	char name[64];
	if (!equals || equals == assignment || equals - assignment >= (ptrdiff_t)sizeof name)
		return fp_fail(ctx, FP_ERROR_USAGE, "'%s': must be name=value, such as iterations=20", assignment);
	memcpy(name, assignment, (size_t)(equals - assignment));
	name[equals - assignment] = '\0';
	return fp_settings_set(settings, ctx, name, equals + 1);
}

fp_status fp_settings_get(const fp_settings *settings, fp_context *ctx, const char *name, char *out, size_t size)
{
	int id = name ? find_setting(name) : -1;
	if (id < 0)
		return fp_fail(ctx, FP_ERROR_USAGE, "'%s' is not a setting", name ? name : "");
	const void *field = (const char *)settings + field_offset[id];
	switch (setting_table[id].kind) {
	case FP_SETTING_INT:
		snprintf(out, size, "%lld", (long long)*(const int64_t *)field);
		break;
	case FP_SETTING_REAL:
		fp_format(out, size, "%.9g", *(const double *)field);
		break;
	case FP_SETTING_FLAG:
		snprintf(out, size, "%d", *(const bool *)field);
		break;
	case FP_SETTING_TEXT:
	case FP_SETTING_CHOICE:
		snprintf(out, size, "%s", (const char *)field);
		break;
	}
	return FP_OK;
}

/* Applies "name=value name=value …" to the settings that the user did not set. */
static fp_status apply_row(fp_settings *settings, fp_context *ctx, const char *assignments)
{
	char copy[512];
	snprintf(copy, sizeof copy, "%s", assignments);
	char *rest = copy;
	for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
		char *equals = strchr(word, '=');
		*equals = '\0';
		int id = find_setting(word);
		if (id < 0)
			return fp_fail(ctx, FP_ERROR_INTERNAL, "preset names the unknown setting %s", word);
		if (settings->by_hand[id])
			continue;
		fp_status status = set_by_id(settings, ctx, id, equals + 1);
		if (status != FP_OK)
			return status;
	}
	return FP_OK;
}

fp_status fp_settings_resolve(fp_settings *settings, fp_context *ctx, const char *family)
{
	for (size_t row = 0; row < sizeof preset_table / sizeof preset_table[0]; row++) {
		if (!fp_is(preset_table[row].method, settings->method) ||
			(*preset_table[row].preset && !fp_is(preset_table[row].preset, settings->preset)) ||
			(*preset_table[row].family && !fp_is(preset_table[row].family, family)) ||
			(*preset_table[row].start && !fp_is(preset_table[row].start, settings->warm_start)))
			continue;
		fp_status status = apply_row(settings, ctx, preset_table[row].assignments);
		if (status != FP_OK)
			return status;
	}
	return FP_OK;
}

fp_status fp_parse_sparsity(fp_context *ctx, const char *text, double *sparsity, int64_t *kept, int64_t *group)
{
	char *end;
	errno = 0;
	if (strchr(text, ':')) {
		long n = strtol(text, &end, 10);
		long m = *end == ':' && end != text ? strtol(end + 1, &end, 10) : 0;
		if (*end || errno || n < 0 || m < 1 || n > m || m > 65536)
			return fp_fail(ctx, FP_ERROR_USAGE,
						   "pattern '%s': N:M keeps N of every M entries, 0 <= N <= M, such as 2:4", text);
		*kept = n;
		*group = m;
		*sparsity = 1.0 - (double)n / (double)m;
		return FP_OK;
	}
	double value = fp_parse_real(text, &end);
	bool percent = *end == '%';
	if (percent) {
		value /= 100.0;
		end++;
	}
	if (end == text || *end || errno || !(value >= 0.0 && value < 1.0))
		return fp_fail(
			ctx, FP_ERROR_USAGE,
			"pattern '%s': must be a share of zeros from 0%% to below 100%%, such as 50%%, or N:M, such as 2:4", text);
	*kept = 0;
	*group = 0;
	*sparsity = value;
	return FP_OK;
}

fp_status fp_parse_size(fp_context *ctx, const char *text, int64_t *bytes)
{
	*bytes = 0;
	if (!*text)
		return FP_OK;
	char *end;
	errno = 0;
	double value = fp_parse_real(text, &end);
	static const char units[] = "KMGT";
	const char *unit = *end ? strchr(units, *end >= 'a' ? *end - 'a' + 'A' : *end) : NULL;
	double scale = 1;
	if (unit) {
		for (const char *u = units; u <= unit; u++)
			scale *= 1024;
		end++;
		if (end[0] == 'i' && end[1] == 'B')
			end += 2;
		else if (end[0] == 'B')
			end++;
	}
	value *= scale;
	if (end == text || *end || errno || !(value >= 1 && value < 9e15))
		return fp_fail(ctx, FP_ERROR_USAGE, "memory '%s': must be a size such as 2G or 512M", text);
	*bytes = (int64_t)value;
	return FP_OK;
}

fp_status fp_parse_range(fp_context *ctx, const char *text, int64_t count, int64_t *first, int64_t *end)
{
	*first = 0;
	*end = count;
	if (!*text)
		return FP_OK;
	char *at;
	long long a = strtoll(text, &at, 10);
	long long b = a;
	bool good = at != text;
	if (good && *at == '-') {
		const char *second = at + 1;
		b = strtoll(second, &at, 10);
		good = at != second;
	}
	if (!good || *at || a < 0 || b < a || b >= count)
		return fp_fail(ctx, FP_ERROR_USAGE, "--layers '%s': must be A or A-B with 0 <= A <= B <= %lld", text,
					   (long long)count - 1);
	*first = a;
	*end = b + 1;
	return FP_OK;
}
