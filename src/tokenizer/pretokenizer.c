/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer/pretokenizer.h"

#include "base/memory.h"
#include "tokenizer/bpe.h"
#include "tokenizer/component_table.h"
#include <string.h>

#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

void fp_pretokenizer_clear(fp_pretokenizer *pretokenizer)
{
	for (int64_t i = 0; i < pretokenizer->count; i++) {
		fp_split_regex_free(pretokenizer->steps[i].pattern);
		fp_free(pretokenizer->steps[i].mark);
		fp_free(pretokenizer->steps[i].buffer.bytes);
	}
	fp_free(pretokenizer->steps);
	fp_free(pretokenizer->letters.bytes);
	fp_free(pretokenizer->bytes.bytes);
	*pretokenizer = (fp_pretokenizer){0};
}

/* Steps from `step` on work on letters for bytes. */
static void spell_from(fp_pretokenizer *pretokenizer, int64_t step)
{
	pretokenizer->spelled_from = step;
	for (int i = 0; i < 512; i++)
		pretokenizer->byte_of[i] = -1;
	for (int i = 0; i < 256; i++) {
		uint32_t code;
		char *letter = pretokenizer->letter_of[i];
		fp_byte_letter((unsigned char)i, letter);
		fp_utf8_decode(letter, (int64_t)strnlen(letter, 3), &code);
		pretokenizer->byte_of[code] = (int16_t)i;
	}
}

static fp_status add_step(fp_context *ctx, fp_pretokenizer *pretokenizer, fp_pretokenizer_kind kind,
						  fp_pretokenizer_step **out)
{
	for (int64_t i = 0; i < pretokenizer->count; i++) {
		fp_pretokenizer_kind before = pretokenizer->steps[i].kind;
		if (before == FP_CUT_METASPACE || (before == FP_CUT_BYTE_LEVEL && kind != FP_CUT_SPLIT))
			return fp_fail(ctx, FP_ERROR_INPUT,
						   "pre_tokenizer Sequence: Metaspace is supported as the last part only, and after ByteLevel "
						   "only Split, Digits and Punctuation are");
		if (before == FP_CUT_BYTE_LEVEL && pretokenizer->spelled_from == 0)
			spell_from(pretokenizer, i + 1);
	}
	fp_status status = FP_GROW(ctx, &pretokenizer->steps, &pretokenizer->capacity, pretokenizer->count + 1);
	if (status != FP_OK)
		return status;
	*out = &pretokenizer->steps[pretokenizer->count++];
	**out = (fp_pretokenizer_step){.kind = kind};
	return FP_OK;
}

fp_status fp_pretokenizer_add_byte_level(fp_context *ctx, fp_pretokenizer *pretokenizer, bool add_prefix_space,
										 bool use_regex)
{
	fp_status status = FP_OK;
	fp_pretokenizer_step *step = NULL;
	FP_TRY(add_step(ctx, pretokenizer, FP_CUT_BYTE_LEVEL, &step));
	pretokenizer->byte_level = true;
	step->prepend = add_prefix_space ? FP_PREPEND_ALWAYS : FP_PREPEND_NEVER;
	FP_TRY(fp_copy_text(ctx, &step->mark, " "));
	if (use_regex)
		FP_TRY(fp_split_regex_compile(&step->pattern, ctx, GPT2_PATTERN, false));
cleanup:
	return status;
}

fp_status fp_pretokenizer_add_metaspace(fp_context *ctx, fp_pretokenizer *pretokenizer, const char *mark,
										fp_prepend_scheme prepend, bool split)
{
	fp_status status = FP_OK;
	fp_pretokenizer_step *step = NULL;
	FP_TRY(add_step(ctx, pretokenizer, FP_CUT_METASPACE, &step));
	step->prepend = prepend;
	step->behavior = FP_SPLIT_MERGED_WITH_NEXT;
	FP_TRY(fp_copy_text(ctx, &step->mark, mark));
	if (split)
		FP_TRY(fp_split_regex_compile(&step->pattern, ctx, mark, true));
cleanup:
	return status;
}

static fp_status read_flag(fp_context *ctx, const json_t *json, const char *component, const char *name, bool missing,
						   bool *out)
{
	const json_t *value = json_object_get(json, name);
	*out = value ? json_is_true(value) : missing;
	if (value && !json_is_boolean(value) && !json_is_null(value))
		return fp_fail(ctx, FP_ERROR_INPUT, "pre_tokenizer %s: \"%s\" must be true or false", component, name);
	return FP_OK;
}

static fp_status read_behavior(fp_context *ctx, const char *component, const char *name, fp_split_behavior *out)
{
	static const char *const behaviors[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
											"MergedWithNext"};
	for (int i = 0; name && i < 5; i++)
		if (strcmp(name, behaviors[i]) == 0) {
			*out = (fp_split_behavior)i;
			return FP_OK;
		}
	return fp_fail(ctx, FP_ERROR_INPUT,
				   "pre_tokenizer %s: needs a behavior: Isolated, Removed, Contiguous, MergedWithPrevious or "
				   "MergedWithNext",
				   component);
}

static fp_status read_split(fp_context *ctx, void *target, int kind, const json_t *json)
{
	(void)kind;
	fp_status status = FP_OK;
	const json_t *pattern = json_object_get(json, "pattern");
	const char *literal = json_string_value(json_object_get(pattern, "String"));
	const char *regex = json_string_value(json_object_get(pattern, "Regex"));
	const char *behavior = json_string_value(json_object_get(json, "behavior"));
	if (!literal && !regex)
		return fp_fail(ctx, FP_ERROR_INPUT,
					   "pre_tokenizer Split: needs a pattern {\"Regex\": …} or {\"String\": …} and a behavior such as "
					   "\"Isolated\"");
	fp_pretokenizer_step *step = NULL;
	FP_TRY(add_step(ctx, target, FP_CUT_SPLIT, &step));
	FP_TRY(read_behavior(ctx, "Split", behavior, &step->behavior));
	FP_TRY(read_flag(ctx, json, "Split", "invert", false, &step->invert));
	FP_TRY(fp_split_regex_compile(&step->pattern, ctx, literal ? literal : regex, literal != NULL));
cleanup:
	return status;
}

static fp_status read_digits(fp_context *ctx, void *target, int kind, const json_t *json)
{
	(void)kind;
	fp_status status = FP_OK;
	bool single;
	fp_pretokenizer_step *step = NULL;
	FP_TRY(add_step(ctx, target, FP_CUT_SPLIT, &step));
	FP_TRY(read_flag(ctx, json, "Digits", "individual_digits", false, &single));
	step->behavior = single ? FP_SPLIT_ISOLATED : FP_SPLIT_CONTIGUOUS;
	FP_TRY(fp_split_regex_compile(&step->pattern, ctx, "\\p{N}", false)); /* Rust's char::is_numeric() */
cleanup:
	return status;
}

static fp_status read_punctuation(fp_context *ctx, void *target, int kind, const json_t *json)
{
	(void)kind;
	fp_status status = FP_OK;
	fp_pretokenizer_step *step = NULL;
	const char *behavior = json_string_value(json_object_get(json, "behavior"));
	FP_TRY(add_step(ctx, target, FP_CUT_SPLIT, &step));
	FP_TRY(read_behavior(ctx, "Punctuation", behavior ? behavior : "Isolated", &step->behavior));
	/* Rust's char::is_ascii_punctuation(), and the category */
	FP_TRY(fp_split_regex_compile(&step->pattern, ctx, "[\\p{P}$+<=>^`|~]", false));
cleanup:
	return status;
}

static fp_status read_whitespace_split(fp_context *ctx, void *target, int kind, const json_t *json)
{
	(void)kind;
	(void)json;
	fp_status status = FP_OK;
	fp_pretokenizer_step *step = NULL;
	FP_TRY(add_step(ctx, target, FP_CUT_SPLIT, &step));
	step->behavior = FP_SPLIT_REMOVED;
	FP_TRY(fp_split_regex_compile(&step->pattern, ctx, "\\s+", false));
cleanup:
	return status;
}

static fp_status read_metaspace(fp_context *ctx, void *target, int kind, const json_t *json)
{
	(void)kind;
	fp_status status = FP_OK;
	bool add_prefix_space, split;
	const char *mark = json_string_value(json_object_get(json, "replacement"));
	const char *scheme = json_string_value(json_object_get(json, "prepend_scheme"));
	FP_TRY(read_flag(ctx, json, "Metaspace", "add_prefix_space", true, &add_prefix_space));
	FP_TRY(read_flag(ctx, json, "Metaspace", "split", true, &split));
	fp_prepend_scheme prepend = add_prefix_space ? FP_PREPEND_ALWAYS : FP_PREPEND_NEVER;
	if (scheme && strcmp(scheme, "first") == 0)
		prepend = FP_PREPEND_FIRST;
	else if (scheme && strcmp(scheme, "never") == 0)
		prepend = FP_PREPEND_NEVER;
	else if (scheme && strcmp(scheme, "always") != 0)
		return fp_fail(ctx, FP_ERROR_INPUT,
					   "pre_tokenizer Metaspace: prepend_scheme '%.80s': must be always, first or never", scheme);
	FP_TRY(fp_pretokenizer_add_metaspace(ctx, target, mark ? mark : FP_SPACE_MARK, prepend, split));
cleanup:
	return status;
}

static fp_status read_byte_level(fp_context *ctx, void *target, int kind, const json_t *json)
{
	(void)kind;
	fp_status status = FP_OK;
	bool add_prefix_space, use_regex;
	FP_TRY(read_flag(ctx, json, "ByteLevel", "add_prefix_space", true, &add_prefix_space));
	FP_TRY(read_flag(ctx, json, "ByteLevel", "use_regex", true, &use_regex));
	FP_TRY(fp_pretokenizer_add_byte_level(ctx, target, add_prefix_space, use_regex));
cleanup:
	return status;
}

static const fp_component components[] = {
	{"Split", read_split, 0},
	{"Digits", read_digits, 0},
	{"Punctuation", read_punctuation, 0},
	{"ByteLevel", read_byte_level, 0},
	{"Metaspace", read_metaspace, 0},
	{"WhitespaceSplit", read_whitespace_split, 0},
	{0},
};

fp_status fp_pretokenizer_read(fp_context *ctx, fp_pretokenizer *pretokenizer, const json_t *json)
{
	static const fp_component_table table = {"pre_tokenizer", "pretokenizers", components};
	return fp_components_read(ctx, &table, pretokenizer, json);
}

typedef struct cutting {
	fp_context *ctx;
	fp_pretokenizer *pretokenizer;
	fp_piece_function piece;
	void *data;
} cutting;

typedef struct span {
	int64_t start, end;
	bool match;
} span;

static fp_status cut(const cutting *job, int64_t step, const char *text, int64_t length, bool first);

static fp_status emit(const cutting *job, int64_t step, const char *text, const span *what, bool first)
{
	if (what->end == what->start)
		return FP_OK;
	return cut(job, step + 1, text + what->start, what->end - what->start, first && what->start == 0);
}

/* Gets the spans of the text in order, matches and the text between them, and emits pieces according to the behaviour.
 * A span that may be joined with the next one is kept in *held. */
static fp_status take_span(const cutting *job, int64_t step, const char *text, span next, span *held, bool *holding,
						   bool first)
{
	const fp_pretokenizer_step *cutter = &job->pretokenizer->steps[step];
	fp_status status = FP_OK;
	bool joins = false;
	next.match ^= cutter->invert;
	switch (cutter->behavior) {
	case FP_SPLIT_ISOLATED:
		return emit(job, step, text, &next, first);
	case FP_SPLIT_REMOVED:
		return next.match ? FP_OK : emit(job, step, text, &next, first);
	case FP_SPLIT_CONTIGUOUS:
		joins = next.match == held->match;
		break;
	case FP_SPLIT_MERGED_WITH_PREVIOUS:
		joins = next.match && !held->match;
		break;
	case FP_SPLIT_MERGED_WITH_NEXT:
		joins = !next.match && held->match;
		break;
	}
	if (*holding && joins) {
		held->end = next.end;
		held->match = next.match;
		return FP_OK;
	}
	if (*holding)
		FP_TRY(emit(job, step, text, held, first));
	*held = next;
	*holding = true;
cleanup:
	return status;
}

static fp_status cut_by_pattern(const cutting *job, int64_t step, const char *text, int64_t length, bool first)
{
	fp_status status = FP_OK;
	span held = {0};
	bool holding = false, found = true;
	int64_t done = 0, from = 0, start = 0, end = 0;
	while (from < length) {
		FP_TRY(fp_split_regex_find(job->pretokenizer->steps[step].pattern, job->ctx, text, length, from, &found, &start,
								   &end));
		if (!found)
			break;
		if (end == start) { /* ignore an empty match and continue after the next character */
			uint32_t code;
			from = start < length ? start + fp_utf8_decode(text + start, length - start, &code) : length;
			continue;
		}
		if (start > done)
			FP_TRY(take_span(job, step, text, (span){done, start, false}, &held, &holding, first));
		FP_TRY(take_span(job, step, text, (span){start, end, true}, &held, &holding, first));
		done = from = end;
	}
	if (done < length)
		FP_TRY(take_span(job, step, text, (span){done, length, false}, &held, &holding, first));
	if (holding)
		FP_TRY(emit(job, step, text, &held, first));
cleanup:
	return status;
}

/* Replaces spaces (Metaspace) and adds the mark before the text if the scheme says so. */
static fp_status mark_text(fp_context *ctx, fp_pretokenizer_step *step, const char **text, int64_t *length, bool first)
{
	fp_status status = FP_OK;
	int64_t size = (int64_t)strlen(step->mark);
	bool prepend = (step->prepend == FP_PREPEND_ALWAYS || (step->prepend == FP_PREPEND_FIRST && first)) &&
				   !(*length >= size && memcmp(*text, step->mark, (size_t)size) == 0) &&
				   !(step->kind == FP_CUT_METASPACE && (*text)[0] == ' ');
	if (step->kind == FP_CUT_BYTE_LEVEL && !prepend)
		return FP_OK;
	step->buffer.length = 0;
	if (prepend)
		FP_TRY(fp_text_append(ctx, &step->buffer, step->mark, size));
	const char *rest = *text, *end = *text + *length;
	while (step->kind == FP_CUT_METASPACE) {
		const char *space = memchr(rest, ' ', (size_t)(end - rest));
		if (!space)
			break;
		FP_TRY(fp_text_append(ctx, &step->buffer, rest, space - rest));
		FP_TRY(fp_text_append(ctx, &step->buffer, step->mark, size));
		rest = space + 1;
	}
	FP_TRY(fp_text_append(ctx, &step->buffer, rest, end - rest));
	*text = step->buffer.bytes;
	*length = step->buffer.length;
cleanup:
	return status;
}

/* *text ← the letters of its bytes */
static fp_status spell(const cutting *job, const char **text, int64_t *length)
{
	fp_pretokenizer *p = job->pretokenizer;
	fp_status status = FP_OK;
	p->letters.length = 0;
	for (int64_t i = 0; i < *length; i++) {
		const char *letter = p->letter_of[(unsigned char)(*text)[i]];
		FP_TRY(fp_text_append(job->ctx, &p->letters, letter, (int64_t)strnlen(letter, 3)));
	}
	*text = p->letters.bytes;
	*length = p->letters.length;
cleanup:
	return status;
}

static fp_status finish_piece(const cutting *job, const char *text, int64_t length)
{
	fp_pretokenizer *p = job->pretokenizer;
	fp_status status = FP_OK;
	if (p->spelled_from == 0)
		return job->piece(job->data, text, length);
	p->bytes.length = 0;
	for (int64_t i = 0; i < length;) {
		uint32_t code;
		i += fp_utf8_decode(text + i, length - i, &code);
		char byte = (char)p->byte_of[code]; /* spell() wrote nothing else */
		FP_TRY(fp_text_append(job->ctx, &p->bytes, &byte, 1));
	}
	FP_TRY(job->piece(job->data, p->bytes.bytes, p->bytes.length));
cleanup:
	return status;
}

static fp_status cut(const cutting *job, int64_t step, const char *text, int64_t length, bool first)
{
	if (step == job->pretokenizer->spelled_from && step > 0) {
		fp_status status = spell(job, &text, &length);
		if (status != FP_OK)
			return status;
	}
	if (step == job->pretokenizer->count)
		return finish_piece(job, text, length);
	fp_pretokenizer_step *cutter = &job->pretokenizer->steps[step];
	if (cutter->kind != FP_CUT_SPLIT) {
		fp_status status = mark_text(job->ctx, cutter, &text, &length, first);
		if (status != FP_OK)
			return status;
	}
	if (!cutter->pattern)
		return cut(job, step + 1, text, length, first);
	return cut_by_pattern(job, step, text, length, first);
}

fp_status fp_pretokenizer_run(fp_context *ctx, fp_pretokenizer *pretokenizer, const char *text, int64_t length,
							  bool first, fp_piece_function piece, void *data)
{
	const cutting job = {.ctx = ctx, .pretokenizer = pretokenizer, .piece = piece, .data = data};
	return length > 0 ? cut(&job, 0, text, length, first) : FP_OK;
}
