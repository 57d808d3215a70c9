/* SPDX-License-Identifier: Apache-2.0 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/split_regex.h"

#include "base/memory.h"
#include "tokenizer/unicode_text.h"
#include <pcre2.h>
#include <string.h>

/* Splitting backtracks a few steps a match; an expression that needs so many would never come to an end. */
enum { MATCH_LIMIT = 1000000 };

struct fp_split_regex {
	pcre2_code *code;
	pcre2_match_data *match;
	pcre2_match_context *context;
	pcre2_jit_stack *stack;
	bool jit;
};

/* PCRE2's own \s has U+180E and, without the full list, lacks others: Oniguruma's is Unicode's White_Space. */
#define WHITE_SPACE                                                                                                    \
	"\\x{09}-\\x{0D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define WORD "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}"

/* How a class escape is written for PCRE2, inside and outside brackets. NULL: it cannot be. */
static const struct class_escape {
	char letter;
	const char *inside, *outside;
} class_escapes[] = {
	{'s', WHITE_SPACE, "[" WHITE_SPACE "]"},
	{'S', "\\P{White_Space}", "[^" WHITE_SPACE "]"},
	{'w', WORD, "[" WORD "]"},
	{'W', NULL, "[^" WORD "]"},
	{'h', "0-9A-Fa-f", "[0-9A-Fa-f]"}, /* Oniguruma: a hexadecimal digit */
	{'H', NULL, "[^0-9A-Fa-f]"},
	{'R', NULL, "\\R"},
	{'X', NULL, "\\X"},
};

static fp_status translate_escape(fp_context *ctx, fp_text_buffer *out, const char *pattern, const char *at,
								  bool in_class)
{
	for (size_t i = 0; i < sizeof class_escapes / sizeof class_escapes[0]; i++) {
		if (class_escapes[i].letter != at[1])
			continue;
		const char *text = in_class ? class_escapes[i].inside : class_escapes[i].outside;
		if (!text)
			return fp_fail(ctx, FP_ERROR_INPUT, "regular expression '%.200s': \\%c inside brackets is not supported",
						   pattern, at[1]);
		return fp_text_append(ctx, out, text, (int64_t)strlen(text));
	}
	return fp_text_append(ctx, out, at, 2);
}

static fp_status translate(fp_context *ctx, const char *pattern, fp_text_buffer *out)
{
	fp_status status = FP_OK;
	int depth = 0; /* of brackets; Oniguruma nests them, PCRE2 does not */
	for (const char *at = pattern; *at;) {
		if (at[0] == '\\' && at[1]) {
			FP_TRY(translate_escape(ctx, out, pattern, at, depth > 0));
			at += 2;
			continue;
		}
		if ((depth > 0 && at[0] == '[' && at[1] != ':') || (depth > 0 && at[0] == '&' && at[1] == '&')) {
			status = fp_fail(ctx, FP_ERROR_INPUT, "regular expression '%.200s': sets inside brackets are not supported",
							 pattern);
			goto cleanup;
		}
		if (at[0] == '[' && depth == 0)
			depth = 1;
		else if (at[0] == ']' && depth > 0)
			depth = 0;
		FP_TRY(fp_text_append(ctx, out, at, 1));
		at++;
	}
cleanup:
	return status;
}

fp_status fp_split_regex_compile(fp_split_regex **out, fp_context *ctx, const char *pattern, bool literal)
{
	fp_status status = FP_OK;
	fp_split_regex *regex = NULL;
	fp_text_buffer text = {0};
	*out = NULL;
	FP_TRY(FP_NEW(ctx, &regex, 1));
	if (literal)
		FP_TRY(fp_text_append(ctx, &text, pattern, (int64_t)strlen(pattern)));
	else
		FP_TRY(translate(ctx, pattern, &text));
	/* Ruby's dialect: ^ and $ match at every line. */
	uint32_t options = PCRE2_UTF | PCRE2_NO_UTF_CHECK | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE);
	if (fp_utf8_valid_prefix(pattern, (int64_t)strlen(pattern)) != (int64_t)strlen(pattern)) {
		status = fp_fail(ctx, FP_ERROR_INPUT, "regular expression '%.200s': not UTF-8", pattern);
		goto cleanup;
	}
	int error;
	PCRE2_SIZE offset;
	regex->code = pcre2_compile((PCRE2_SPTR)(text.bytes ? text.bytes : ""), (PCRE2_SIZE)text.length, options, &error,
								&offset, NULL);
	if (!regex->code) {
		char reason[256];
		pcre2_get_error_message(error, (PCRE2_UCHAR *)reason, sizeof reason);
		status = fp_fail(ctx, FP_ERROR_INPUT, "regular expression '%.200s': %s", pattern, reason);
		goto cleanup;
	}
	regex->match = pcre2_match_data_create_from_pattern(regex->code, NULL);
	regex->context = pcre2_match_context_create(NULL);
	regex->stack = pcre2_jit_stack_create(32 << 10, 16 << 20, NULL);
	if (!regex->match || !regex->context || !regex->stack) {
		status = fp_fail(ctx, FP_ERROR_MEMORY, "out of memory for a regular expression");
		goto cleanup;
	}
	pcre2_jit_stack_assign(regex->context, NULL, regex->stack);
	pcre2_set_match_limit(regex->context, MATCH_LIMIT);
	regex->jit =
		pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE) == 0; /* without it the interpreter gives the same */
	*out = regex;
	regex = NULL;
cleanup:
	fp_free(text.bytes);
	fp_split_regex_free(regex);
	return status;
}

void fp_split_regex_free(fp_split_regex *regex)
{
	if (!regex)
		return;
	pcre2_code_free(regex->code);
	pcre2_match_data_free(regex->match);
	pcre2_match_context_free(regex->context);
	pcre2_jit_stack_free(regex->stack);
	fp_free(regex);
}

fp_status fp_split_regex_find(fp_split_regex *regex, fp_context *ctx, const char *text, int64_t length, int64_t from,
							  bool *found, int64_t *start, int64_t *end)
{
	PCRE2_SPTR subject = (PCRE2_SPTR)(text ? text : "");
	int result;
	if (regex->jit)
		result = pcre2_jit_match(regex->code, subject, (PCRE2_SIZE)length, (PCRE2_SIZE)from, PCRE2_NO_UTF_CHECK,
								 regex->match, regex->context);
	else
		result = pcre2_match(regex->code, subject, (PCRE2_SIZE)length, (PCRE2_SIZE)from, PCRE2_NO_UTF_CHECK,
							 regex->match, regex->context);
	*found = result > 0;
	if (result == PCRE2_ERROR_NOMATCH)
		return FP_OK;
	if (result < 0) {
		char reason[256];
		pcre2_get_error_message(result, (PCRE2_UCHAR *)reason, sizeof reason);
		return fp_fail(ctx, FP_ERROR_RUN, "splitting text for the tokenizer at byte %lld: %s", (long long)from, reason);
	}
	const PCRE2_SIZE *places = pcre2_get_ovector_pointer(regex->match);
	*start = (int64_t)places[0];
	*end = (int64_t)places[1];
	return FP_OK;
}
