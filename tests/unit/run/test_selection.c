/* SPDX-License-Identifier: Apache-2.0 */
/* Operators are chosen by the names of their tensors, and what is not chosen keeps its bytes, also in a layer fit. */
#include "model_fixture.h"

#include "base/settings.h"
#include "run/prune_model.h"
#include "verify.h"

#include <stdlib.h>
#include <string.h>

static fp_selection *choose(model_fixture *f, const char *const *assignments, fp_status wanted)
{
	fp_selection *selection = NULL;
	fp_settings *settings = resolved_settings(f->ctx, "llama", assignments);
	assert_int_equal(fp_selection_new(&selection, f->model, settings), wanted);
	fp_settings_free(settings);
	return selection;
}

/* The roles of a layer that are pruned, as bits. */
static unsigned roles(const fp_selection *selection, int64_t layer)
{
	unsigned bits = 0;
	for (int role = 0; role < FP_ROLE_COUNT; role++)
		bits |= (unsigned)fp_selection_has(selection, layer, (fp_role)role) << role;
	return bits;
}

static void names_choose(void **unused)
{
	(void)unused;
	enum { DOWN = 1 << FP_DOWN, VALUE = 1 << FP_VALUE };
	enum { ALL = 1 << FP_QUERY | 1 << FP_KEY | VALUE | 1 << FP_OUTPUT | 1 << FP_GATE | 1 << FP_UP | DOWN };
	static const struct {
		const char *assignments[4];
		unsigned layer[2];
	} cases[] = {
		{{NULL}, {ALL, ALL}},
		{{"only=down_proj"}, {DOWN, DOWN}},
		{{"only=layers\\.1\\."}, {0, ALL}},
		{{"skip=down_proj|v_proj"},
		 {ALL & ~(unsigned)DOWN & ~(unsigned)VALUE, ALL & ~(unsigned)DOWN & ~(unsigned)VALUE}},
		{{"only=proj", "skip=^model\\.layers\\.0"}, {0, ALL}},
		{{"layers=0", "only=mlp.down"}, {DOWN, 0}},
	};
	model_fixture f;
	open_fixture(&f, "llama-gqa");
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		fp_selection *selection = choose(&f, cases[i].assignments, FP_OK);
		for (int layer = 0; layer < 2; layer++) {
			assert_int_equal(roles(selection, layer), cases[i].layer[layer]);
			assert_int_equal(fp_selection_has_layer(selection, layer), cases[i].layer[layer] != 0);
		}
		assert_int_equal(fp_selection_is_plain(selection), i == 0);
		fp_selection_free(selection);
	}
	close_fixture(&f);
}

static void the_first_rule_wins(void **unused)
{
	(void)unused;
	const char *const rules[] = {"pattern=60%", "pattern=down_proj=2:4", "pattern=mlp=1:4", "skip=q_proj", NULL};
	model_fixture f;
	open_fixture(&f, "llama-gqa");
	fp_selection *s = choose(&f, rules, FP_OK);
	fp_pattern base = {.sparsity = 0.6};
	assert_string_equal(fp_selection_text(s, 0, FP_DOWN), "2:4");
	assert_string_equal(fp_selection_text(s, 1, FP_UP), "1:4");
	assert_string_equal(fp_selection_text(s, 1, FP_OUTPUT), "60%");
	assert_int_equal(fp_selection_pattern(s, base, 0, FP_DOWN).kept, 2);
	assert_int_equal(fp_selection_pattern(s, base, 0, FP_GATE).kept, 1);
	assert_int_equal(fp_selection_pattern(s, base, 0, FP_KEY).group, 0);
	assert_true(fp_selection_has_rule(s, 0, FP_DOWN) && !fp_selection_has_rule(s, 0, FP_KEY));
	assert_true(fp_selection_has_unstructured(s));
	fp_selection_free(s);
	const char *const structured[] = {"pattern=60%", "pattern=proj=2:4", NULL};
	s = choose(&f, structured, FP_OK);
	assert_false(fp_selection_has_unstructured(s));
	fp_selection_free(s);
	close_fixture(&f);
}

static void mistakes_are_named(void **unused)
{
	(void)unused;
	static const struct {
		const char *assignments[3], *message;
	} cases[] = {
		{{"only=self_attn.(q"}, "--only 'self_attn.(q': is not a regular expression: missing closing parenthesis"},
		{{"skip=fc1"}, "--skip 'fc1': matches no operator; their names are like model.layers.1.mlp.down_proj.weight"},
		{{"pattern=experts=2:4"}, "--pattern 'experts': matches no operator"},
		{{"only=q_proj", "skip=self_attn"}, "leave no operator to prune"},
	};
	model_fixture f;
	open_fixture(&f, "llama-gqa");
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		assert_null(choose(&f, cases[i].assignments, FP_ERROR_USAGE));
		if (!strstr(fp_context_message(f.ctx), cases[i].message))
			fail_msg("'%s' does not contain '%s'", fp_context_message(f.ctx), cases[i].message);
	}
	fp_settings *settings;
	assert_ok(f.ctx, fp_settings_new(&settings, f.ctx));
	assert_int_equal(fp_settings_set(settings, f.ctx, "pattern", "down=3:2"), FP_ERROR_USAGE);
	assert_int_equal(fp_settings_set(settings, f.ctx, "pattern", "=2:4"), FP_ERROR_USAGE);
	assert_string_equal(settings->pattern_rules, "");
	assert_ok(f.ctx, fp_settings_set(settings, f.ctx, "pattern", "a=b=2:4")); /* the last '=' counts */
	assert_ok(f.ctx, fp_settings_set(settings, f.ctx, "pattern", "70%"));
	assert_string_equal(settings->pattern_rules, "a=b=2:4");
	assert_string_equal(settings->pattern, "70%");
	fp_settings_free(settings);
	close_fixture(&f);
}

/* Only what is chosen is replaced, with its own pattern, for every kind of run. */
static void a_run_leaves_the_others_alone(void **unused)
{
	(void)unused;
	static const char *const models[] = {"llama-gqa", "opt-plain", "phi3-plain", "gpt_neox-plain"};
	static const char *const chosen[] = {"down_proj|k_proj", "fc2|k_proj", "down_proj|qkv_proj.weight:k",
										 "4h_to_h|query_key_value.weight:k"};
	static const char *const recipes[][3] = {{"preset=best", "search_steps=4", "fit_steps=4"},
											 {"preset=fast", "search_steps=4"},
											 {"preset=paper", "iterations=3"},
											 {"method=wanda"},
											 {"method=magnitude"}};
	for (int m = 0; m < 4; m++)
		for (int r = 0; r < 5; r++) {
			char only[128], rule[128];
			model_fixture f;
			fp_overlay *overlay;
			fp_prune_result result;
			open_fixture(&f, models[m]);
			fp_windows windows = read_windows(models[m]);
			snprintf(only, sizeof only, "only=%s", chosen[m]);
			snprintf(rule, sizeof rule, "pattern=%s=2:4", m == 1 ? "fc2" : m == 3 ? "4h_to_h" : "down_proj");
			const char *const assignments[] = {recipes[r][0],
											   only,
											   rule,
											   "pattern=50%",
											   "layers=1",
											   recipes[r][1] ? recipes[r][1] : "seed=0",
											   recipes[r][1] && recipes[r][2] ? recipes[r][2] : "seed=0",
											   NULL};
			fp_settings *settings = resolved_settings(f.ctx, "llama", assignments);
			assert_ok(f.ctx, fp_overlay_new(&overlay, f.ctx));
			assert_ok(f.ctx, fp_prune_model(&result, &(fp_prune_task){.be = f.be,
																	  .ctx = f.ctx,
																	  .model = f.model,
																	  .settings = settings,
																	  .windows = &windows,
																	  .overlay = overlay}));
			assert_int_equal(result.count, 2);
			assert_int_equal(result.operators[0].number, FP_KEY);
			assert_string_equal(result.operators[0].pattern, "");
			assert_string_equal(result.operators[1].pattern, "2:4");
			for (int64_t layer = 0; layer < 2; layer++) {
				fp_layer *dense, *pruned;
				assert_ok(f.ctx, fp_layer_load(&dense, f.model, layer));
				fp_model_set_overlay(f.model, overlay);
				assert_ok(f.ctx, fp_layer_load(&pruned, f.model, layer));
				fp_model_set_overlay(f.model, NULL);
				for (int role = 0; role < FP_ROLE_COUNT; role++) {
					fp_matrix before = dense->weight[role], after = pruned->weight[role];
					double squares = 0;
					if (fp_matrix_is_absent(before))
						continue;
					assert_ok(f.ctx, f.be->linear->axpby(f.be, -1, after, 1, before));
					assert_ok(f.ctx, f.be->linear->dot(f.be, before, before, &squares));
					assert_int_equal(squares > 0, layer == 1 && (role == FP_KEY || role == FP_DOWN));
				}
				fp_layer_free(dense);
				fp_layer_free(pruned);
			}
			fp_prune_result_free(&result);
			fp_overlay_free(overlay);
			fp_settings_free(settings);
			free(windows.ids);
			close_fixture(&f);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_choose),
		cmocka_unit_test(the_first_rule_wins),
		cmocka_unit_test(mistakes_are_named),
		cmocka_unit_test(a_run_leaves_the_others_alone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
