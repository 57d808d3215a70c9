/* SPDX-License-Identifier: Apache-2.0 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "pruning/selection.h"

#include "base/memory.h"

#include <pcre2.h>
#include <stdio.h>
#include <string.h>

enum { MOST_RULES = 64, NO_RULE = -1, NOT_PRUNED = -2 };

/* A pattern for the operators that match an expression. */
typedef struct pattern_rule {
	char text[FP_SETTING_TEXT_SIZE]; /* "REGEX\0PATTERN" */
	const char *pattern;
	fp_pattern parsed;
} pattern_rule;

struct fp_selection {
	fp_context *ctx;
	const fp_model *model; /* borrowed */
	int64_t first, end;
	int operators; /* of a layer */
	fp_pattern pattern;
	char pattern_text[FP_SETTING_TEXT_SIZE];
	pattern_rule rules[MOST_RULES];
	int rule_count;
	int8_t *choice; /* by layer and operator: the rule, NO_RULE or NOT_PRUNED */
};

void fp_selection_free(fp_selection *selection)
{
	if (selection)
		fp_free(selection->choice);
	fp_free(selection);
}

static int8_t *choice_at(const fp_selection *s, int64_t layer, int number)
{
	return &s->choice[(layer - s->first) * s->operators + number];
}

typedef void (*match_action)(fp_selection *s, int8_t *choice, int value);

static void set_rule(fp_selection *s, int8_t *choice, int rule)
{
	(void)s;
	if (*choice == NO_RULE) /* the first rule that matches wins */
		*choice = (int8_t)rule;
}

static void leave_out(fp_selection *s, int8_t *choice, int value)
{
	(void)s;
	(void)value;
	*choice = NOT_PRUNED;
}

/* Calls action() for all operators that match the expression, or with `others` for those that do not. */
static fp_status match_all(fp_selection *s, const char *flag, const char *expression, bool others, match_action action,
						   int value)
{
	int error;
	PCRE2_SIZE at;
	int64_t matched = 0;
	const char *example = "";
	fp_status status = FP_OK;
	pcre2_match_data *match = NULL;
	pcre2_code *code = pcre2_compile((PCRE2_SPTR)expression, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &at, NULL);
	if (!code) {
		PCRE2_UCHAR reason[128] = "";
		pcre2_get_error_message(error, reason, sizeof reason);
		return fp_fail(s->ctx, FP_ERROR_USAGE, "%s '%.200s': is not a regular expression: %s at character %lld", flag,
					   expression, (const char *)reason, (long long)at + 1);
	}
	match = pcre2_match_data_create_from_pattern(code, NULL);
	if (!match)
		FP_TRY(fp_fail(s->ctx, FP_ERROR_MEMORY, "out of memory for a regular expression"));
	for (int64_t layer = s->first; layer < s->end; layer++)
		for (int number = 0; number < s->operators; number++) {
			const fp_tensor_info *tensor = fp_model_operator(s->model, layer, number);
			if (!tensor)
				continue;
			int found = pcre2_match(code, (PCRE2_SPTR)tensor->name, strlen(tensor->name), 0, 0, match, NULL);
			if (found < 0 && found != PCRE2_ERROR_NOMATCH)
				FP_TRY(fp_fail(s->ctx, FP_ERROR_USAGE, "%s '%.200s': cannot be matched with '%s'", flag, expression,
							   tensor->name));
			example = tensor->name;
			matched += found >= 0;
			if ((found >= 0) != others)
				action(s, choice_at(s, layer, number), value);
		}
	if (matched == 0)
		status = fp_fail(s->ctx, FP_ERROR_USAGE, "%s '%.200s': matches no operator; their names are like %s", flag,
						 expression, example);
cleanup:
	pcre2_match_data_free(match);
	pcre2_code_free(code);
	return status;
}

/* The rules, one on each line: REGEX=PATTERN. */
static fp_status read_rules(fp_selection *s, const char *lines)
{
	fp_status status = FP_OK;
	while (*lines) {
		size_t length = strcspn(lines, "\n");
		if (s->rule_count == MOST_RULES)
			FP_TRY(fp_fail(s->ctx, FP_ERROR_USAGE, "pattern: at most %d rules", MOST_RULES));
		pattern_rule *rule = &s->rules[s->rule_count];
		memcpy(rule->text, lines, length);
		rule->text[length] = '\0';
		char *equals = strrchr(rule->text, '='); /* checked when the setting was set */
		*equals = '\0';
		rule->pattern = equals + 1;
		FP_TRY(
			fp_parse_sparsity(s->ctx, rule->pattern, &rule->parsed.sparsity, &rule->parsed.kept, &rule->parsed.group));
		FP_TRY(match_all(s, "--pattern", rule->text, false, set_rule, s->rule_count));
		s->rule_count++;
		lines += length + (lines[length] == '\n');
	}
cleanup:
	return status;
}

static fp_status choose(fp_selection *s, const fp_settings *settings)
{
	fp_status status;
	for (int64_t layer = s->first; layer < s->end; layer++)
		for (int number = 0; number < s->operators; number++)
			*choice_at(s, layer, number) = fp_model_operator(s->model, layer, number) ? NO_RULE : NOT_PRUNED;
	FP_TRY(read_rules(s, settings->pattern_rules));
	if (settings->only[0])
		FP_TRY(match_all(s, "--only", settings->only, true, leave_out, 0));
	if (settings->skip[0])
		FP_TRY(match_all(s, "--skip", settings->skip, false, leave_out, 0));
	for (int64_t layer = s->first; layer < s->end; layer++)
		if (fp_selection_has_layer(s, layer))
			goto cleanup;
	status = fp_fail(s->ctx, FP_ERROR_USAGE, "--only '%.100s' and --skip '%.100s' leave no operator to prune",
					 settings->only, settings->skip);
cleanup:
	return status;
}

fp_status fp_selection_new(fp_selection **out, const fp_model *model, const fp_settings *settings)
{
	fp_context *ctx = fp_model_backend(model)->ctx;
	fp_selection *s = NULL;
	fp_status status;
	*out = NULL;
	FP_TRY(FP_NEW(ctx, &s, 1));
	s->ctx = ctx;
	s->model = model;
	s->operators = fp_model_operators(model);
	FP_TRY(fp_parse_range(ctx, settings->layers, fp_model_get_config(model)->layers, &s->first, &s->end));
	FP_TRY(fp_parse_sparsity(ctx, settings->pattern, &s->pattern.sparsity, &s->pattern.kept, &s->pattern.group));
	snprintf(s->pattern_text, sizeof s->pattern_text, "%s", settings->pattern);
	FP_TRY(FP_NEW(ctx, &s->choice, (s->end - s->first) * s->operators));
	FP_TRY(choose(s, settings));
	*out = s;
	s = NULL;
cleanup:
	fp_selection_free(s);
	return status;
}

bool fp_selection_has(const fp_selection *selection, int64_t layer, int number)
{
	return layer >= selection->first && layer < selection->end && *choice_at(selection, layer, number) != NOT_PRUNED;
}

bool fp_selection_has_layer(const fp_selection *selection, int64_t layer)
{
	for (int number = 0; number < selection->operators; number++)
		if (fp_selection_has(selection, layer, number))
			return true;
	return false;
}

/* The rule of an operator that is pruned, or NULL. */
static const pattern_rule *rule_of(const fp_selection *s, int64_t layer, int number)
{
	int choice = fp_selection_has(s, layer, number) ? *choice_at(s, layer, number) : NO_RULE;
	return choice >= 0 ? &s->rules[choice] : NULL;
}

bool fp_selection_is_plain(const fp_selection *selection)
{
	for (int64_t layer = selection->first; layer < selection->end; layer++)
		for (int number = 0; number < selection->operators; number++)
			if (fp_model_operator(selection->model, layer, number) && *choice_at(selection, layer, number) != NO_RULE)
				return false;
	return true;
}

bool fp_selection_has_rule(const fp_selection *selection, int64_t layer, int number)
{
	return rule_of(selection, layer, number) != NULL;
}

const char *fp_selection_text(const fp_selection *selection, int64_t layer, int number)
{
	const pattern_rule *rule = rule_of(selection, layer, number);
	return rule ? rule->pattern : selection->pattern_text;
}

fp_pattern fp_selection_pattern(const fp_selection *selection, fp_pattern pattern, int64_t layer, int number)
{
	const pattern_rule *rule = rule_of(selection, layer, number);
	return rule ? rule->parsed : pattern;
}

bool fp_selection_has_unstructured(const fp_selection *selection)
{
	for (int64_t layer = selection->first; layer < selection->end; layer++)
		for (int number = 0; number < selection->operators; number++)
			if (fp_selection_has(selection, layer, number) &&
				fp_selection_pattern(selection, selection->pattern, layer, number).group == 0)
				return true;
	return false;
}
