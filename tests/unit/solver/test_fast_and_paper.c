/* SPDX-License-Identifier: Apache-2.0 */
/*
 * On the same problem (A and C) the preset `fast` is never worse than `paper` from either of its warm starts: on
 * operators of trained models and on synthetic ones, easy and hard.
 *
 * `fast` solves with a ridge, which `paper` does not have. With the ridge on, errors are still measured without it, but
 * only on real operators: with about as many tokens as kept weights the ridge keeps `fast` from fitting the tokens
 * exactly, as intended.
 */
#include "real_layer.h"
#include "solver_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct tally {
	int count;
	double sum, worst; /* of error(fast) / error(paper) */
} tally;

/* ‖VX* − WX‖ by one preset, from the activations. */
static double error_by(const solver_fixture *original, const char *pattern, const char *preset, const char *change)
{
	solver_fixture f;
	fp_solution solution;
	make_fixture_from(&f, original->m, original->n, original->p, original->W, original->X, original->Xstar, pattern);
	f.problem.gram = &f.gram;
	fixture_set(&f, preset);
	fixture_set(&f, change);
	assert_ok(f.ctx, fp_settings_resolve(f.settings, f.ctx, "llama"));
	assert_ok(f.ctx, fp_solve(&f.problem, f.settings, f.V, &solution));
	double error = fixture_residual(&f, f.V);
	free_fixture(&f);
	return error;
}

static void compare(const solver_fixture *f, const char *pattern, const char *ridge, const char *name, tally *t)
{
	static const char *const starts[] = {"warm_start=wanda", "warm_start=sparsegpt"};
	double fast = error_by(f, pattern, "preset=fast", ridge);
	double rounding = 1e-5 * sqrt(f->energy); /* smaller errors are rounding errors of the output */
	for (int s = 0; s < 2; s++) {
		double paper = error_by(f, pattern, "preset=paper", starts[s]);
		double ratio = (fast + rounding) / (paper + rounding);
		if (!(fast <= paper + rounding))
			fail_msg("%s at %s, %s: error %.6g by fast, %.6g by paper from %s; output %.4g", name, pattern, ridge, fast,
					 paper, starts[s], sqrt(f->energy));
		t->count++;
		t->sum += ratio;
		t->worst = fmax(t->worst, ratio);
	}
}

static void tell(const char *name, const tally *t)
{
	print_message("%s: %d pairs, error of fast over that of paper %.3f on average, %.3f at worst\n", name, t->count,
				  t->sum / (t->count > 0 ? t->count : 1), t->worst);
}

typedef void (*spoil_function)(double *X, int64_t n, int64_t p);

static void leave(double *X, int64_t n, int64_t p)
{
	(void)X;
	(void)n;
	(void)p;
}

static void outliers(double *X, int64_t n, int64_t p) /* two outlier channels, as in trained models */
{
	for (int64_t t = 0; t < p; t++) {
		X[t * n + 3] *= 1000;
		X[t * n + n / 2] *= 300;
	}
}

static void twins(double *X, int64_t n, int64_t p) /* pairs of nearly equal inputs */
{
	for (int64_t t = 0; t < p; t++)
		for (int64_t j = 0; j + 1 < n; j += 2)
			X[t * n + j + 1] = X[t * n + j] * (1 + 1e-3 * X[t * n + j + 1]);
}

static void low_rank(double *X, int64_t n, int64_t p)
{
	for (int64_t t = 0; t < p; t++)
		for (int64_t j = 6; j < n; j++)
			X[t * n + j] = X[t * n + j % 6] + 0.5 * X[t * n + (j / 6) % 6];
}

static void dead(double *X, int64_t n, int64_t p)
{
	for (int64_t t = 0; t < p; t++)
		for (int64_t j = 0; j < n; j += 3)
			X[t * n + j] = 0;
}

/* A sanitized build is many times slower: it takes the shorter texts only. */
#ifdef __SANITIZE_ADDRESS__
enum { SHORT_TEXTS = 1 };
#else
enum { SHORT_TEXTS = 0 };
#endif

static void synthetic_operators(void **unused)
{
	(void)unused;
	static const struct {
		const char *name;
		spoil_function spoil;
		bool structured_only;
	} kinds[] = {{"plain", leave, false},
				 {"outliers", outliers, false},
				 {"twins", twins, true},
				 {"low rank", low_rank, false},
				 {"dead", dead, false}};
	static const char *const patterns[] = {"50%", "2:4", "70%", "20%", "90%", "1:4"};
	static const int64_t tokens[] = {400, 64, 40, 10};
	tally t = {0};
	for (int kind = 0; kind < 5; kind++)
		for (int p = 2 * SHORT_TEXTS; p < 4; p++)
			for (int drift = 0; drift < 2; drift++)
				for (int k = 0; k < 6; k++) {
					solver_fixture plain, f;
					char name[64];
					if (kinds[kind].structured_only && !strchr(patterns[k], ':'))
						continue;
					snprintf(name, sizeof name, "%s, %d tokens%s", kinds[kind].name, (int)tokens[p],
							 drift ? ", drifting" : "");
					make_fixture(&plain, 12, 48, tokens[p], drift ? 0.3 : 0, (uint64_t)(100 + 7 * p), patterns[k]);
					kinds[kind].spoil(plain.X, plain.n, plain.p);
					kinds[kind].spoil(plain.Xstar, plain.n, plain.p);
					make_fixture_from(&f, plain.m, plain.n, plain.p, plain.W, plain.X, plain.Xstar, patterns[k]);
					compare(&f, patterns[k], "ridge=0", name, &t);
					free_fixture(&f);
					free_fixture(&plain);
				}
	tell("made up", &t);
}

static void check_real_operators(const real_source *sources, int count)
{
	static const char *const patterns[] = {"50%", "2:4", "70%"};
	static const char *const ridges[] = {"ridge=0", "ridge=0.02"};
	enum { ROWS = 24 };
	for (int i = 0; i < count; i++)
		for (int few = SHORT_TEXTS; few < 2; few++) {
			model_fixture model = {0};
			fp_windows windows;
			tally t = {0};
			open_real(&model, &windows, &sources[i], few ? 1 : 4, few ? 48 : 128);
			for (int role = 0; role < FP_ROLE_COUNT; role++) {
				real_operator o;
				char name[64];
				if (!fp_model_operator(model.model, 1, (fp_role)role))
					continue;
				capture_real(&o, &model, &windows, 1, (fp_role)role);
				snprintf(name, sizeof name, "%s %s, %d tokens", sources[i].name, fp_role_name((fp_role)role), (int)o.p);
				for (int k = 0; k < 6; k++) {
					solver_fixture f;
					make_fixture_from(&f, o.m < ROWS ? o.m : ROWS, o.n, o.p, o.W, o.X, o.X, patterns[k % 3]);
					compare(&f, patterns[k % 3], ridges[k / 3], name, &t);
					free_fixture(&f);
				}
				free(o.W);
				free(o.X);
			}
			tell(sources[i].name, &t);
			fp_windows_free(&windows);
			close_fixture(&model);
		}
}

static void real_operators(void **unused)
{
	(void)unused;
	check_real_operators(real_sources, real_source_count);
}

static void operators_of_a_shared_model(void **unused)
{
	(void)unused;
	check_real_operators(&shared_source, 1);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(synthetic_operators),
		cmocka_unit_test(real_operators),
	};
	const struct CMUnitTest shared_model[] = {cmocka_unit_test(operators_of_a_shared_model)};
	TEST_PART(shared_model);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
