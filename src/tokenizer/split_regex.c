/* SPDX-License-Identifier: Apache-2.0 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/split_regex.h"

#include "base/memory.h"
#include "tokenizer/unicode_additions.h"
#include "tokenizer/unicode_text.h"
#include <pcre2.h>
#include <string.h>

/* A match takes a few steps of backtracking; an expression that takes this many would hardly ever end. */
enum { MATCH_LIMIT = 1000000, LONGEST_PATTERN = 8192 };

/* An expression is compiled twice: the plain form is for nearly all text; the full form, which is slower, also knows
 * the characters that are newer than PCRE2. */
enum { FORM_PLAIN, FORM_FULL, FORMS };

typedef struct compiled {
	pcre2_code *code;
	pcre2_match_data *match;
	bool jit;
} compiled;

struct fp_split_regex {
	compiled forms[FORMS]; /* without a full form if it would be the same */
	pcre2_match_context *context;
	pcre2_jit_stack *stack;
	const char *text; /* of the last search; `form` is the form that it needs */
	int64_t length;
	int form;
};

/* Oniguruma's \s is Unicode's White_Space; PCRE2's differs. */
#define WHITE_SPACE                                                                                                    \
	"\\x{09}-\\x{0D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define WORD                                                                                                           \
	"\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}"    \
	"\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}"
#define NEW_WORD WORD FP_NEW_LETTERS FP_NEW_MARKS FP_NEW_DIGITS

/* Oniguruma's classes in PCRE2's syntax, inside and outside brackets, in the plain and in the full form. NULL: not
 * possible. */
static const struct class_escape {
	const char *name, *inside[FORMS], *outside[FORMS];
} class_escapes[] = {
	{"\\s", {WHITE_SPACE, WHITE_SPACE}, {"[" WHITE_SPACE "]", "[" WHITE_SPACE "]"}},
	{"\\S", {"\\P{White_Space}", "\\P{White_Space}"}, {"[^" WHITE_SPACE "]", "[^" WHITE_SPACE "]"}},
	{"\\w", {WORD, NEW_WORD}, {"[" WORD "]", "[" NEW_WORD "]"}},
	{"\\W", {NULL, NULL}, {"[^" WORD "]", "[^" NEW_WORD "]"}},
	{"\\d", {"\\p{Nd}", "\\p{Nd}" FP_NEW_DIGITS}, {"\\p{Nd}", "[\\p{Nd}" FP_NEW_DIGITS "]"}},
	{"\\h", {"0-9A-Fa-f", "0-9A-Fa-f"}, {"[0-9A-Fa-f]", "[0-9A-Fa-f]"}}, /* Oniguruma: a hexadecimal digit */
	{"\\H", {NULL, NULL}, {"[^0-9A-Fa-f]", "[^0-9A-Fa-f]"}},
	{"\\p{L}", {"\\p{L}", "\\p{L}" FP_NEW_LETTERS}, {"\\p{L}", "[\\p{L}" FP_NEW_LETTERS "]"}},
	{"\\p{N}", {"\\p{N}", "\\p{N}" FP_NEW_NUMBERS}, {"\\p{N}", "[\\p{N}" FP_NEW_NUMBERS "]"}},
	{"\\p{Nd}", {"\\p{Nd}", "\\p{Nd}" FP_NEW_DIGITS}, {"\\p{Nd}", "[\\p{Nd}" FP_NEW_DIGITS "]"}},
	{"\\p{M}", {"\\p{M}", "\\p{M}" FP_NEW_MARKS}, {"\\p{M}", "[\\p{M}" FP_NEW_MARKS "]"}},
};

/* Appends the translation of the escape at `at` and gets its length in the pattern. */
static fp_status translate_escape(fp_context *ctx, fp_text_buffer *out, const char *pattern, const char *at,
								  bool in_class, int form, int64_t *taken)
{
	for (size_t i = 0; i < sizeof class_escapes / sizeof class_escapes[0]; i++) {
		const struct class_escape *escape = &class_escapes[i];
		*taken = (int64_t)strlen(escape->name);
		if (strncmp(at, escape->name, (size_t)*taken) != 0)
			continue;
		const char *text = in_class ? escape->inside[form] : escape->outside[form];
		if (!text)
			return fp_fail(ctx, FP_ERROR_INPUT, "regular expression '%.200s': %s inside brackets is not supported",
						   pattern, escape->name);
		return fp_text_append(ctx, out, text, (int64_t)strlen(text));
	}
	*taken = 2;
	return fp_text_append(ctx, out, at, 2);
}

/* False if what is at `at`, inside brackets, is more than a union: an intersection, a negated set, or an end of a set
 * beside a hyphen, which might become a range. */
static bool adds_characters(const char *pattern, const char *at, int depth)
{
	if (at[0] == '&' && at[1] == '&')
		return false;
	if (at[0] == '[' && at[1] != ':')
		return at[1] != '^' && at[1] != ']' && at[1] != '-' && (at == pattern || at[-1] != '-');
	return !(at[0] == ']' && depth > 1 && (at[1] == '-' || at[-1] == '-'));
}

static fp_status translate(fp_context *ctx, const char *pattern, int form, fp_text_buffer *out)
{
	fp_status status = FP_OK;
	int depth = 0; /* Oniguruma nests brackets, PCRE2 does not: a set inside brackets adds its characters */
	for (const char *at = pattern; *at;) {
		int64_t taken = 1;
		bool opens = at[0] == '[', closes = at[0] == ']' && depth > 0;
		if (at[0] == '\\' && at[1]) {
			FP_TRY(translate_escape(ctx, out, pattern, at, depth > 0, form, &taken));
			at += taken;
			continue;
		}
		if (depth > 0 && opens && at[1] == ':' && strstr(at, ":]")) {
			taken = strstr(at, ":]") + 2 - at; /* [:alpha:] */
			opens = false;
		}
		if (depth > 0 && !adds_characters(pattern, at, depth)) {
			status = fp_fail(ctx, FP_ERROR_INPUT,
							 "regular expression '%.200s': this kind of set inside brackets is not supported", pattern);
			goto cleanup;
		}
		depth += opens - closes;
		if (opens ? depth == 1 : !closes || depth == 0)
			FP_TRY(fp_text_append(ctx, out, at, taken));
		at += taken;
	}
cleanup:
	return status;
}

static fp_status compile_form(fp_context *ctx, compiled *out, const char *pattern, const fp_text_buffer *text,
							  uint32_t options)
{
	int error;
	PCRE2_SIZE offset;
	PCRE2_SPTR bytes = (PCRE2_SPTR)(text->bytes ? text->bytes : "");
	out->code = pcre2_compile(bytes, (PCRE2_SIZE)text->length, options, &error, &offset, NULL);
	if (!out->code) {
		char reason[256];
		pcre2_get_error_message(error, (PCRE2_UCHAR *)reason, sizeof reason);
		return fp_fail(ctx, FP_ERROR_INPUT, "regular expression '%.200s': %s", pattern, reason);
	}
	out->match = pcre2_match_data_create_from_pattern(out->code, NULL);
	if (!out->match)
		return fp_fail(ctx, FP_ERROR_MEMORY, "out of memory for a regular expression");
	out->jit =
		pcre2_jit_compile(out->code, PCRE2_JIT_COMPLETE) == 0; /* without JIT the interpreter gives the same result */
	return FP_OK;
}

fp_status fp_split_regex_compile(fp_split_regex **out, fp_context *ctx, const char *pattern, bool literal)
{
	fp_status status = FP_OK;
	fp_split_regex *regex = NULL;
	fp_text_buffer text[FORMS] = {0};
	int64_t length = (int64_t)strlen(pattern);
	*out = NULL;
	if (length > LONGEST_PATTERN || fp_utf8_valid_prefix(pattern, length) != length)
		return fp_fail(ctx, FP_ERROR_INPUT, "regular expression '%.200s': must be UTF-8 of at most %d bytes", pattern,
					   LONGEST_PATTERN);
	FP_TRY(FP_NEW(ctx, &regex, 1));
	regex->context = pcre2_match_context_create(NULL);
	regex->stack = pcre2_jit_stack_create(32 << 10, 16 << 20, NULL);
	if (!regex->context || !regex->stack) {
		status = fp_fail(ctx, FP_ERROR_MEMORY, "out of memory for a regular expression");
		goto cleanup;
	}
	pcre2_jit_stack_assign(regex->context, NULL, regex->stack);
	pcre2_set_match_limit(regex->context, MATCH_LIMIT);
	/* as in Ruby, ^ and $ match at every line */
	uint32_t options = PCRE2_UTF | PCRE2_NO_UTF_CHECK | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE);
	for (int form = 0; form < FORMS; form++) {
		if (literal)
			FP_TRY(fp_text_append(ctx, &text[form], pattern, length));
		else
			FP_TRY(translate(ctx, pattern, form, &text[form]));
		if (form == FORM_PLAIN || text[FORM_FULL].length != text[FORM_PLAIN].length)
			FP_TRY(compile_form(ctx, &regex->forms[form], pattern, &text[form], options));
	}
	*out = regex;
	regex = NULL;
cleanup:
	for (int form = 0; form < FORMS; form++)
		fp_free(text[form].bytes);
	fp_split_regex_free(regex);
	return status;
}

void fp_split_regex_free(fp_split_regex *regex)
{
	if (!regex)
		return;
	for (int form = 0; form < FORMS; form++) {
		pcre2_code_free(regex->forms[form].code);
		pcre2_match_data_free(regex->forms[form].match);
	}
	pcre2_match_context_free(regex->context);
	pcre2_jit_stack_free(regex->stack);
	fp_free(regex);
}

static int choose_form(const fp_split_regex *regex, const char *text, int64_t length)
{
	if (!regex->forms[FORM_FULL].code || !text)
		return FORM_PLAIN;
	for (int64_t i = 0; i < length; i++)
		if (fp_may_begin_addition((unsigned char)text[i]))
			return FORM_FULL;
	return FORM_PLAIN;
}

fp_status fp_split_regex_find(fp_split_regex *regex, fp_context *ctx, const char *text, int64_t length, int64_t from,
							  bool *found, int64_t *start, int64_t *end)
{
	PCRE2_SPTR subject = (PCRE2_SPTR)text;
	if (from == 0 || text != regex->text || length != regex->length) {
		regex->form = choose_form(regex, text, length);
		regex->text = text;
		regex->length = length;
	}
	const compiled *form = &regex->forms[regex->form];
	int result;
	if (form->jit)
		result = pcre2_jit_match(form->code, subject, (PCRE2_SIZE)length, (PCRE2_SIZE)from, PCRE2_NO_UTF_CHECK,
								 form->match, regex->context);
	else
		result = pcre2_match(form->code, subject, (PCRE2_SIZE)length, (PCRE2_SIZE)from, PCRE2_NO_UTF_CHECK, form->match,
							 regex->context);
	*found = result > 0;
	if (result == PCRE2_ERROR_NOMATCH)
		return FP_OK;
	if (result < 0) {
		char reason[256];
		pcre2_get_error_message(result, (PCRE2_UCHAR *)reason, sizeof reason);
		return fp_fail(ctx, FP_ERROR_INPUT, "the tokenizer's regular expression fails at byte %lld of the text: %s",
					   (long long)from, reason);
	}
	const PCRE2_SIZE *places = pcre2_get_ovector_pointer(form->match);
	*start = (int64_t)places[0];
	*end = (int64_t)places[1];
	return FP_OK;
}
