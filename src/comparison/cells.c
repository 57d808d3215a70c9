/* SPDX-License-Identifier: Apache-2.0 */
#include "comparison/cells.h"

#include "base/memory.h"
#include "solver/method.h"

#include <string.h>

enum { WORD_SIZE = 64, MAX_WORDS = 64 };

/* The experiments of the paper. "*" in a list is the value in the settings. */
static const struct recipe {
	const char *name;
	fp_cell_lists lists;
	const char *warm_start; /* for fista, unless the user sets it; NULL: the preset's */
} recipes[] = {
	{"main", {.methods = "magnitude,wanda,sparsegpt,fista", .presets = "paper,*", .patterns = "50%,2:4"}, NULL},
	{"sparsity",
	 {.methods = "wanda,sparsegpt,fista", .presets = "paper,*", .patterns = "10%,20%,30%,40%,50%,60%,70%"},
	 NULL},
	{"correction",
	 {.methods = "wanda,sparsegpt,fista", .presets = "paper", .corrections = "none,intra", .patterns = "50%"},
	 "wanda"},
	{"samples",
	 {.methods = "wanda,sparsegpt,fista", .presets = "paper", .patterns = "50%", .samples = "1,2,4,8,16,32,64,128"},
	 "wanda"},
	{"seeds", {.methods = "fista", .presets = "paper", .patterns = "50%", .seeds = "1,2,3,4,5"}, "wanda"},
};
enum { RECIPE_COUNT = sizeof recipes / sizeof recipes[0] };

typedef struct words {
	char word[MAX_WORDS][WORD_SIZE];
	int count;
} words;

static fp_status find_recipe(const struct recipe **out, fp_context *ctx, const char *name)
{
	for (size_t i = 0; i < RECIPE_COUNT; i++)
		if (fp_is(recipes[i].name, name ? name : "main")) {
			*out = &recipes[i];
			return FP_OK;
		}
	return fp_fail(ctx, FP_ERROR_USAGE, "recipe '%s': must be one of main|sparsity|correction|samples|seeds", name);
}

static bool has_word(const words *list, const char *word)
{
	for (int i = 0; i < list->count; i++)
		if (fp_is(list->word[i], word))
			return true;
	return false;
}

/* Drops duplicates. `own` replaces "*". */
static fp_status split(words *out, fp_context *ctx, const char *what, const char *text, const char *own)
{
	out->count = 0;
	for (const char *at = text;; at++) {
		size_t length = strcspn(at, ",");
		char word[WORD_SIZE];
		if (length == 0 || length >= WORD_SIZE || out->count == MAX_WORDS)
			return fp_fail(ctx, FP_ERROR_USAGE, "%s '%s': must be 1 to %d comma-separated values", what, text,
						   MAX_WORDS);
		memcpy(word, at, length);
		word[length] = '\0';
		const char *value = fp_is(word, "*") ? own : word;
		if (!has_word(out, value))
			strcpy(out->word[out->count++], value);
		at += length;
		if (!*at)
			return FP_OK;
	}
}

/* The entries of one list: the user's, else the recipe's, else the value in the settings. */
static fp_status choose(words *out, fp_context *ctx, const fp_settings *settings, const char *setting,
						const char *given, const char *from_recipe)
{
	char own[FP_SETTING_TEXT_SIZE];
	fp_status status = fp_settings_get(settings, ctx, setting, own, sizeof own);
	if (status != FP_OK)
		return status;
	own[WORD_SIZE - 1] = '\0';
	return split(out, ctx, setting, given ? given : from_recipe ? from_recipe : own, own);
}

typedef struct planning {
	fp_context *ctx;
	const struct recipe *recipe;
	const fp_settings *settings;
	const char *family;
	words methods, presets, corrections, patterns, samples, seeds;
	bool corrected; /* `corrections` replaces the preset's correction */
	fp_cell *cells;
	int64_t count, capacity;
} planning;

/* The recipe's warm start, unless the user set one. */
static fp_status set_warm_start(fp_settings *settings, fp_context *ctx, const struct recipe *recipe)
{
	if (!recipe->warm_start || settings->by_hand[FP_ID_warm_start])
		return FP_OK;
	return fp_settings_set(settings, ctx, "warm_start", recipe->warm_start);
}

static fp_status add_cell(planning *p, const char *method, const char *preset, const char *correction,
						  const char *pattern, const char *samples, const char *seed)
{
	fp_context *ctx = p->ctx;
	fp_status status;
	FP_TRY(FP_GROW(ctx, &p->cells, &p->capacity, p->count + 1));
	fp_cell *cell = &p->cells[p->count];
	cell->settings = *p->settings;
	FP_TRY(fp_settings_set(&cell->settings, ctx, "method", method));
	if (strchr(pattern, '='))
		FP_TRY(fp_fail(
			ctx, FP_ERROR_USAGE,
			"--patterns '%s': a pattern of some operators only cannot be compared; give patterns of all, such as "
			"50%%,2:4",
			pattern));
	FP_TRY(fp_settings_set(&cell->settings, ctx, "pattern", pattern));
	FP_TRY(fp_settings_set(&cell->settings, ctx, "samples", samples));
	FP_TRY(fp_settings_set(&cell->settings, ctx, "seed", seed));
	cell->has_presets = fp_method_of(&cell->settings)->has_presets;
	if (cell->has_presets) {
		FP_TRY(fp_settings_set(&cell->settings, ctx, "preset", preset));
		FP_TRY(set_warm_start(&cell->settings, ctx, p->recipe));
		if (correction)
			FP_TRY(fp_settings_set(&cell->settings, ctx, "correction", correction));
	}
	FP_TRY(fp_settings_resolve(&cell->settings, ctx, p->family));
	p->count++;
cleanup:
	return status;
}

static fp_status add_method(planning *p, const char *method, const char *pattern, const char *samples, const char *seed)
{
	const fp_method *row = fp_method_named(method);
	fp_status status = FP_OK;
	if (!row || !row->has_presets) /* an unknown one fails there, with a message */
		return add_cell(p, method, NULL, NULL, pattern, samples, seed);
	for (int i = 0; i < p->presets.count; i++)
		for (int j = 0; j < (p->corrected ? p->corrections.count : 1); j++)
			FP_TRY(add_cell(p, method, p->presets.word[i], p->corrected ? p->corrections.word[j] : NULL, pattern,
							samples, seed));
cleanup:
	return status;
}

fp_status fp_cells_plan(fp_cell **out, int64_t *count, fp_context *ctx, const fp_cell_lists *lists,
						const fp_settings *settings, const char *family)
{
	planning p = {.ctx = ctx, .settings = settings, .family = family};
	fp_status status;
	*out = NULL;
	*count = 0;
	FP_TRY(find_recipe(&p.recipe, ctx, lists->recipe));
	const fp_cell_lists *from_recipe = &p.recipe->lists;
	p.corrected = lists->corrections || from_recipe->corrections;
	FP_TRY(choose(&p.methods, ctx, settings, "method", lists->methods, from_recipe->methods));
	FP_TRY(choose(&p.presets, ctx, settings, "preset", lists->presets,
				  settings->by_hand[FP_ID_preset] ? NULL : from_recipe->presets));
	FP_TRY(choose(&p.corrections, ctx, settings, "correction", lists->corrections, from_recipe->corrections));
	FP_TRY(choose(&p.patterns, ctx, settings, "pattern", lists->patterns, from_recipe->patterns));
	FP_TRY(choose(&p.samples, ctx, settings, "samples", lists->samples,
				  settings->by_hand[FP_ID_samples] ? NULL : from_recipe->samples));
	FP_TRY(choose(&p.seeds, ctx, settings, "seed", lists->seeds,
				  settings->by_hand[FP_ID_seed] ? NULL : from_recipe->seeds));
	for (int n = 0; n < p.samples.count; n++)
		for (int seed = 0; seed < p.seeds.count; seed++)
			for (int pattern = 0; pattern < p.patterns.count; pattern++)
				for (int method = 0; method < p.methods.count; method++)
					FP_TRY(add_method(&p, p.methods.word[method], p.patterns.word[pattern], p.samples.word[n],
									  p.seeds.word[seed]));
cleanup:
	if (status == FP_OK) {
		*out = p.cells;
		*count = p.count;
	} else {
		fp_free(p.cells);
	}
	return status;
}
