/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prune_matrix.c: prunes one weight matrix, without a model or files.
 *
 *     cc prune_matrix.c $(pkg-config --cflags --libs fistapruner)
 *
 * The weights W and inputs X are random. As in language models, the inputs are correlated and differ
 * widely in size. The solver needs only the Gram matrix XXᵀ of the inputs.
 */
#include <fistapruner/fistapruner.h>

#include <stdio.h>
#include <stdlib.h>

enum { OUTPUTS = 96, INPUTS = 128, TOKENS = 1024, SOURCES = 24 };

static float random_number(void)
{
	static unsigned long long state = 1;
	double sum = 0;
	for (int i = 0; i < 4; i++) {
		state = state * 6364136223846793005ULL + 1442695040888963407ULL;
		sum += (double)(state >> 40) / 16777216.0 - 0.5;
	}
	return (float)(1.7 * sum);
}

/* gram ← XXᵀ; each input is a mix of a few common sources plus noise */
static void make_gram(float *gram)
{
	static float mixing[INPUTS][SOURCES];
	static float x[INPUTS];
	for (int i = 0; i < INPUTS; i++)
		for (int s = 0; s < SOURCES; s++)
			mixing[i][s] = random_number() * (i % 16 == 0 ? 4.0F : 0.5F);
	for (int t = 0; t < TOKENS; t++) {
		float source[SOURCES];
		for (int s = 0; s < SOURCES; s++)
			source[s] = random_number();
		for (int i = 0; i < INPUTS; i++) {
			x[i] = 0.5F * random_number();
			for (int s = 0; s < SOURCES; s++)
				x[i] += mixing[i][s] * source[s];
		}
		for (int i = 0; i < INPUTS; i++)
			for (int j = 0; j < INPUTS; j++)
				gram[i * INPUTS + j] += x[i] * x[j];
	}
}

/* Prunes with one method and prints a line. Returns the relative error, or −1 on failure. */
static double prune(fp_context *ctx, const fp_matrix_problem *problem, const char *method, const char *preset,
					const char *pattern)
{
	static float pruned[OUTPUTS * INPUTS];
	fp_settings *settings = NULL;
	fp_matrix_report report;
	double error = -1;
	if (fp_settings_new(&settings, ctx) == FP_OK && fp_settings_set(settings, ctx, "pattern", pattern) == FP_OK &&
		fp_settings_set(settings, ctx, "method", method) == FP_OK &&
		fp_settings_set(settings, ctx, "preset", preset) == FP_OK &&
		fp_settings_set(settings, ctx, "threads", "1") == FP_OK && /* enough for a small matrix */
		fp_prune_matrix(pruned, &report, ctx, problem, settings) == FP_OK) {
		error = report.relative_error;
		printf("%-8s %-10s %-6s %9.4f %9.4f\n", pattern, method, preset, report.relative_error, report.sparsity);
	} else {
		fprintf(stderr, "%s, %s: %s\n", pattern, method, fp_context_message(ctx));
	}
	fp_settings_free(settings);
	return error;
}

int main(void)
{
	static const char *const patterns[] = {"50%", "2:4", "70%"};
	static const char *const methods[][2] = {
		{"magnitude", "fast"}, {"wanda", "fast"}, {"sparsegpt", "fast"}, {"fista", "paper"}, {"fista", "fast"}};
	float *weights = malloc(sizeof(float) * OUTPUTS * INPUTS);
	float *gram = calloc((size_t)INPUTS * INPUTS, sizeof(float));
	fp_context *ctx = fp_context_new();
	int failures = !weights || !gram || !ctx;
	if (!failures) {
		for (int i = 0; i < OUTPUTS * INPUTS; i++)
			weights[i] = random_number();
		make_gram(gram);
		printf("%-8s %-10s %-6s %9s %9s\n", "pattern", "method", "preset", "error", "sparsity");
	}
	for (int p = 0; p < 3 && !failures; p++) {
		double wanda = 0;
		fp_matrix_problem problem = {
			.rows = OUTPUTS, .cols = INPUTS, .weights = weights, .gram = gram, .family = "llama"};
		for (int m = 0; m < 5; m++) {
			double error = prune(ctx, &problem, methods[m][0], methods[m][1], patterns[p]);
			if (m == 1)
				wanda = error;
			/* paper starts from Wanda here and never increases the error; fast is better than Wanda anyway */
			failures += error < 0 || (m >= 3 && error > wanda);
		}
	}
	free(weights);
	free(gram);
	fp_context_free(ctx);
	return failures != 0;
}
