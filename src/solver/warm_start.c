/* SPDX-License-Identifier: Apache-2.0 */
/* warm_start.c: the table of warm starts for FISTAPruner, and the methods that consist of one of them. */
#include "base/clock.h"
#include "base/memory.h"
#include "solver/steps.h"

#include <math.h>

/* V ← W without the smallest |W| of the matrix */
static fp_status start_magnitude(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_matrix mask)
{
	(void)settings;
	fp_backend *be = problem->gram->be;
	fp_status status = be->memory->copy(be, V, problem->W);
	return status == FP_OK ? fp_round(problem, V, mask) : status;
}

/*
 * Wanda (Sun et al. 2023): prunes the smallest |Wᵢⱼ|·‖xⱼ‖ within each output row; kept weights do not change. With an
 * unstructured pattern its authors prune ⌊s·n⌋ entries of each row. As a warm start, the matrix's smallest remaining
 * scores are pruned too until the count for the whole matrix is exact.
 */
static fp_status start_wanda(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_matrix mask)
{
	bool by_rows = problem->pattern.group == 0;
	bool alone = fp_method_of(settings) == &fp_method_wanda;
	fp_backend *be = problem->gram->be;
	int64_t n = V.cols;
	float *norms = NULL;
	fp_matrix scale = {0};
	fp_matrix score = {0};
	fp_status status;
	FP_TRY(FP_NEW(be->ctx, &norms, n));
	FP_TRY(fp_matrix_new(be, &scale, 1, n, FP_F32));
	FP_TRY(fp_matrix_new(be, &score, V.rows, n, FP_F32));
	FP_TRY(be->memory->download(be, norms, FP_F32, n, problem->gram->diagonal));
	for (int64_t i = 0; i < n; i++)
		norms[i] = sqrtf(fmaxf(norms[i], 0.0F));
	FP_TRY(be->memory->upload(be, scale, norms, FP_F32, n));
	FP_TRY(be->linear->scale_columns(be, scale, problem->W, score));
	if (by_rows) {
		FP_TRY(be->pruning->mask_rows(be, score, &problem->pattern, mask));
		FP_TRY(be->pruning->apply_mask(be, mask, score));
	}
	if (!by_rows || !alone)
		FP_TRY(be->pruning->mask_smallest(be, score, &problem->pattern, mask));
	FP_TRY(be->memory->copy(be, V, problem->W));
	FP_TRY(be->pruning->apply_mask(be, mask, V));
cleanup:
	fp_free(norms);
	fp_matrix_free(be, &scale);
	fp_matrix_free(be, &score);
	return status;
}

static fp_status start_dense(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_matrix mask)
{
	(void)settings;
	fp_backend *be = problem->gram->be;
	fp_status status = be->memory->fill(be, mask, 1.0F);
	return status == FP_OK ? be->memory->copy(be, V, problem->W) : status;
}

static const struct {
	const char *name;
	fp_status (*start)(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_matrix mask);
} start_table[] = {
	{"magnitude", start_magnitude},
	{"wanda", start_wanda},
	{"sparsegpt", fp_sparsegpt},
	{"dense", start_dense},
};

fp_status fp_warm_start(const fp_problem *problem, const char *name, const fp_settings *settings, fp_matrix V,
						fp_matrix mask)
{
	fp_context *ctx = problem->gram->be->ctx;
	for (size_t i = 0; i < sizeof start_table / sizeof start_table[0]; i++) {
		if (!fp_is(start_table[i].name, name))
			continue;
		fp_stage stage = fp_stage_enter(ctx, FP_STAGE_WARM_START);
		fp_status status = start_table[i].start(problem, settings, V, mask);
		fp_stage_enter(ctx, stage);
		return status;
	}
	return fp_fail(ctx, FP_ERROR_USAGE, "warm start '%s': must be wanda, sparsegpt, magnitude or dense", name);
}

static fp_status solve_magnitude(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_matrix mask,
								 fp_solution *solution)
{
	(void)solution;
	return fp_warm_start(problem, "magnitude", settings, V, mask);
}

/* The method reads no inputs. Its error is reported for the dense model's inputs, which takes one stream; a fit takes
 * both. */
static fp_feed feed_magnitude(const fp_settings *settings)
{
	return settings->fit_steps > 0 ? FP_FEED_SEQUENTIAL : FP_FEED_NONE;
}

const fp_method fp_method_magnitude = {
	.feed = feed_magnitude,
	.solve = solve_magnitude,
	.memory = fp_no_memory,
	.products = fp_no_products,
};

static fp_status solve_wanda(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_matrix mask,
							 fp_solution *solution)
{
	(void)solution;
	return fp_warm_start(problem, "wanda", settings, V, mask);
}

static fp_solve_memory memory_wanda(const fp_backend *be, const fp_settings *settings, const fp_solve_size *size)
{
	(void)be, (void)settings;
	return (fp_solve_memory){.peak = (double)size->entries}; /* the scores */
}

const fp_method fp_method_wanda = {
	.needs_text = true,
	.feed = fp_feed_sequential,
	.solve = solve_wanda,
	.memory = memory_wanda,
	.products = fp_no_products,
};
