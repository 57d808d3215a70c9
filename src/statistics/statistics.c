/* SPDX-License-Identifier: Apache-2.0 */
#include "statistics/statistics.h"

#include "base/numbers.h"
#include <string.h>

static fp_status new_zero(fp_backend *be, fp_matrix *out, int64_t rows, int64_t cols)
{
	fp_status status = fp_matrix_new(be, out, rows, cols, FP_F32);
	return status == FP_OK ? be->memory->fill(be, *out, 0.0F) : status;
}

/* The sums for the drift. */
static fp_status new_drift(fp_statistics *out, const fp_statistics_plan *plan)
{
	fp_backend *be = out->be;
	int64_t inputs = plan->inputs, residual = plan->residual_outputs;
	fp_status status;
	if (fp_statistics_by_outputs(plan)) {
		out->W = plan->only;
		out->drift.borrowed = true;
		return new_zero(be, &out->drift.product, out->W.rows, inputs);
	}
	FP_TRY(new_zero(be, &out->cross, inputs, inputs));
	FP_TRY(new_zero(be, &out->difference, inputs, inputs));
	if (residual > 0)
		FP_TRY(new_zero(be, &out->residual_delta, residual, inputs));
cleanup:
	return status;
}

static fp_status new_workspaces(fp_statistics *out, const fp_statistics_plan *plan)
{
	fp_backend *be = out->be;
	bool rounds = fp_backend_rounds(be, FP_USE_ACTIVATION);
	fp_status status = FP_OK;
	if (plan->two_streams) {
		if (fp_statistics_by_outputs(plan))
			FP_TRY(fp_matrix_new(be, &out->W_delta, plan->batch, plan->only.rows, FP_F32));
		FP_TRY(fp_matrix_new(be, &out->delta, plan->batch, plan->inputs, rounds ? FP_BF16 : FP_F32));
		if (rounds)
			FP_TRY(fp_matrix_new(be, &out->rounded, plan->batch, plan->inputs, FP_BF16));
	}
	if (plan->residual_outputs > 0)
		FP_TRY(fp_matrix_new(be, &out->residual_error, plan->batch, plan->residual_outputs, FP_F32));
cleanup:
	return status;
}

static void borrow_workspaces(fp_statistics *out, const fp_statistics *lender)
{
	out->delta = lender->delta;
	out->rounded = lender->rounded;
	out->W_delta = lender->W_delta;
	out->residual_error = lender->residual_error;
	out->shifted = lender->shifted;
	out->ones = lender->ones;
	out->borrows = true;
}

/* The allocated ones, unless they are lent. */
static void drop_workspaces(fp_statistics *statistics)
{
	fp_matrix *all[] = {&statistics->delta,          &statistics->rounded, &statistics->W_delta,
						&statistics->residual_error, &statistics->shifted, &statistics->ones};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		if (!statistics->borrows)
			fp_matrix_free(statistics->be, all[i]);
		*all[i] = (fp_matrix){0};
	}
}

static fp_status new_means(fp_statistics *out, const fp_statistics_plan *plan)
{
	fp_backend *be = out->be;
	fp_status status;
	out->centred = true;
	FP_TRY(new_zero(be, &out->mean, 1, plan->inputs));
	FP_TRY(new_zero(be, &out->shift, 1, plan->inputs));
	if (!plan->lender) {
		FP_TRY(fp_matrix_new(be, &out->shifted, plan->batch, plan->inputs, FP_F32));
		FP_TRY(fp_matrix_new(be, &out->ones, 1, plan->batch, FP_F32));
		FP_TRY(be->memory->fill(be, out->ones, 1.0F));
	}
	if (plan->two_streams)
		FP_TRY(new_zero(be, &out->mean_delta, 1, plan->inputs));
	if (!fp_matrix_is_absent(out->W))
		FP_TRY(new_zero(be, &out->mean_W_delta, 1, out->W.rows));
	if (plan->residual_outputs > 0)
		FP_TRY(new_zero(be, &out->mean_residual, 1, plan->residual_outputs));
cleanup:
	return status;
}

fp_status fp_statistics_new(fp_statistics *out, fp_backend *be, const fp_statistics_plan *plan)
{
	memset(out, 0, sizeof *out);
	out->be = be;
	fp_status status;
	FP_TRY(new_zero(be, &out->A, plan->inputs, plan->inputs));
	if (plan->two_streams)
		FP_TRY(new_drift(out, plan));
	if (plan->residual_outputs > 0)
		FP_TRY(new_zero(be, &out->residual, plan->residual_outputs, plan->inputs));
	/* The sums come first, so that the heap can return the workspaces' memory while they are still in use. */
	if (plan->lender)
		borrow_workspaces(out, plan->lender);
	else
		FP_TRY(new_workspaces(out, plan));
	if (plan->centred)
		FP_TRY(new_means(out, plan));
cleanup:
	if (status != FP_OK)
		fp_statistics_free(out);
	return status;
}

fp_status fp_statistics_space(fp_statistics *out, fp_backend *be, const fp_statistics_plan *plan)
{
	memset(out, 0, sizeof *out);
	out->be = be;
	fp_status status = new_workspaces(out, plan);
	if (status != FP_OK)
		fp_statistics_free(out);
	return status;
}

void fp_statistics_free(fp_statistics *statistics)
{
	fp_backend *be = statistics->be;
	fp_matrix *all[] = {&statistics->A,
						&statistics->cross,
						&statistics->difference,
						&statistics->residual_delta,
						&statistics->residual,
						&statistics->drift.product,
						&statistics->mean,
						&statistics->mean_delta,
						&statistics->mean_W_delta,
						&statistics->mean_residual,
						&statistics->shift};
	if (!be)
		return;
	drop_workspaces(statistics);
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		fp_matrix_free(be, all[i]);
	memset(statistics, 0, sizeof *statistics);
}

void fp_statistics_forget_targets(fp_statistics *statistics)
{
	fp_matrix_free(statistics->be, &statistics->cross);
	fp_matrix_free(statistics->be, &statistics->difference);
	fp_matrix_free(statistics->be, &statistics->residual);
	fp_matrix_free(statistics->be, &statistics->residual_delta);
}

/* *out ← a − b, in the first rows of a workspace */
static fp_status subtract(fp_backend *be, fp_matrix *out, fp_matrix work, fp_matrix a, fp_matrix b)
{
	*out = fp_matrix_rows(work, 0, a.rows);
	if (work.dtype == FP_BF16)
		return be->gradients->difference(be, 1.0F, a, b, *out, NULL);
	return be->linear->combine(be, 1.0F, a, -1.0F, b, *out);
}

/* sum ← scale·(sum of X's rows) + β·sum */
static fp_status sum_rows(fp_statistics *statistics, float scale, fp_matrix X, float beta, fp_matrix sum)
{
	fp_backend *be = statistics->be;
	fp_matrix ones = statistics->ones;
	ones.cols = X.rows;
	FP_PRODUCTS_FOR(be, FP_USE_EXACT);
	fp_status status = be->linear->gemm(be, scale, ones, FP_PLAIN, X, FP_PLAIN, beta, sum);
	return status;
}

/* Rows of a wide matrix that several operations take one after the other. On a processor, they stay in its cache. */
static int64_t rows_at_once(const fp_backend *be, int64_t cols)
{
	const int64_t entries = (int64_t)1 << 18; /* 1 MiB */
	return be->asynchronous ? INT64_MAX : fp_larger(1, entries / cols);
}

/* Centred statistics subtract the mean of the first batch from X*. Otherwise, if a mean is large compared
 * with the deviations, its rounding error would swamp their squares. */
static fp_status shift(fp_statistics *statistics, fp_matrix *Xstar)
{
	fp_backend *be = statistics->be;
	fp_status status = FP_OK;
	if (!statistics->centred)
		return FP_OK;
	fp_matrix shifted = fp_matrix_rows(statistics->shifted, 0, Xstar->rows);
	if (statistics->tokens == 0)
		FP_TRY(sum_rows(statistics, -1.0F / (float)Xstar->rows, *Xstar, 0.0F, statistics->shift));
	for (int64_t at = 0, rows; at < Xstar->rows; at += rows) {
		rows = fp_smaller(rows_at_once(be, Xstar->cols), Xstar->rows - at);
		fp_matrix part = fp_matrix_rows(shifted, at, rows);
		FP_TRY(be->memory->copy(be, part, fp_matrix_rows(*Xstar, at, rows)));
		FP_TRY(be->transformer->add_bias(be, statistics->shift, part));
		FP_TRY(sum_rows(statistics, 1.0F, part, 1.0F, statistics->mean));
	}
	*Xstar = shifted;
cleanup:
	return status;
}

/* Rounds X* once instead of once per product. */
static fp_status round_once(fp_statistics *statistics, fp_matrix *Xstar)
{
	fp_backend *be = statistics->be;
	if (fp_matrix_is_absent(statistics->rounded) || Xstar->dtype == FP_BF16)
		return FP_OK;
	fp_matrix rounded = fp_matrix_rows(statistics->rounded, 0, Xstar->rows);
	fp_status status = be->memory->copy(be, rounded, *Xstar);
	*Xstar = rounded;
	return status;
}

/* Xstar: shifted and rounded */
static fp_status fold_drift(fp_statistics *statistics, fp_matrix delta, fp_matrix Xstar)
{
	fp_backend *be = statistics->be;
	double energy;
	fp_status status;
	if (fp_matrix_is_absent(statistics->W)) {
		FP_TRY(be->linear->gemm(be, 1.0F, delta, FP_TRANSPOSED, Xstar, FP_PLAIN, 1.0F, statistics->cross));
		FP_TRY(be->linear->gram(be, delta, 1.0F, statistics->difference));
	} else {
		fp_matrix W_delta = fp_matrix_rows(statistics->W_delta, 0, delta.rows);
		FP_TRY(be->linear->gemm(be, 1.0F, delta, FP_PLAIN, statistics->W, FP_TRANSPOSED, 0.0F, W_delta));
		FP_TRY(be->linear->gemm(be, 1.0F, W_delta, FP_TRANSPOSED, Xstar, FP_PLAIN, 1.0F, statistics->drift.product));
		FP_TRY(be->linear->dot(be, W_delta, W_delta, &energy));
		statistics->drift.energy += energy;
		if (statistics->centred)
			FP_TRY(sum_rows(statistics, 1.0F, W_delta, 1.0F, statistics->mean_W_delta));
	}
	if (statistics->centred)
		FP_TRY(sum_rows(statistics, 1.0F, delta, 1.0F, statistics->mean_delta));
cleanup:
	return status;
}

fp_status fp_statistics_fold(fp_statistics *statistics, fp_matrix X, fp_matrix Xstar)
{
	fp_backend *be = statistics->be;
	fp_matrix unshifted = Xstar, delta;
	fp_status status;
	FP_TRY(shift(statistics, &Xstar));
	FP_TRY(round_once(statistics, &Xstar));
	FP_TRY(be->linear->gram(be, Xstar, 1.0F, statistics->A));
	if (!fp_matrix_is_absent(statistics->delta)) {
		FP_TRY(subtract(be, &delta, statistics->delta, X, unshifted));
		FP_TRY(fold_drift(statistics, delta, Xstar));
	}
	statistics->tokens += Xstar.rows;
cleanup:
	return status;
}

/* Adds EΔᵀ or ⟨E, WΔ⟩ of the batch that was added last. */
static fp_status fold_residual_delta(fp_statistics *statistics, fp_matrix E)
{
	fp_backend *be = statistics->be;
	double sum;
	fp_status status;
	if (fp_matrix_is_absent(statistics->W)) {
		fp_matrix delta = fp_matrix_rows(statistics->delta, 0, E.rows);
		return be->linear->gemm(be, 1.0F, E, FP_TRANSPOSED, delta, FP_PLAIN, 1.0F, statistics->residual_delta);
	}
	FP_TRY(be->linear->dot(be, E, fp_matrix_rows(statistics->W_delta, 0, E.rows), &sum));
	statistics->drift.residual += sum;
cleanup:
	return status;
}

fp_status fp_statistics_fold_residual(fp_statistics *statistics, fp_matrix hidden, fp_matrix hidden_star,
									  fp_matrix Xstar)
{
	fp_matrix E;
	fp_status status;
	FP_TRY(subtract(statistics->be, &E, statistics->residual_error, hidden, hidden_star));
	FP_TRY(fp_statistics_fold_error(statistics, E, Xstar));
cleanup:
	return status;
}

fp_status fp_statistics_fold_error(fp_statistics *statistics, fp_matrix E, fp_matrix Xstar)
{
	fp_backend *be = statistics->be;
	double energy;
	fp_status status;
	if (statistics->centred) {
		Xstar = fp_matrix_rows(statistics->shifted, 0, Xstar.rows); /* by fp_statistics_fold() */
		FP_TRY(sum_rows(statistics, 1.0F, E, 1.0F, statistics->mean_residual));
	}
	if (!fp_matrix_is_absent(statistics->rounded) && Xstar.dtype == FP_F32)
		Xstar = fp_matrix_rows(statistics->rounded, 0, Xstar.rows); /* likewise */
	FP_TRY(be->linear->gemm(be, 1.0F, E, FP_TRANSPOSED, Xstar, FP_PLAIN, 1.0F, statistics->residual));
	if (!fp_matrix_is_absent(statistics->delta))
		FP_TRY(fold_residual_delta(statistics, E));
	FP_TRY(be->linear->dot(be, E, E, &energy));
	statistics->residual_energy += energy;
cleanup:
	return status;
}

fp_status fp_statistics_identity(fp_statistics *statistics)
{
	fp_backend *be = statistics->be;
	fp_matrix ones = {0};
	fp_status status;
	FP_TRY(fp_matrix_new(be, &ones, 1, statistics->A.rows, FP_F32));
	FP_TRY(be->memory->fill(be, ones, 1.0F));
	FP_TRY(be->linear->add_diagonal(be, statistics->A, ones));
cleanup:
	fp_matrix_free(be, &ones);
	return status;
}

/* *sum −= p⟨a, b⟩ for means a and b, unless one is absent */
static fp_status subtract_product(const fp_statistics *statistics, fp_matrix a, fp_matrix b, double *sum)
{
	fp_backend *be = statistics->be;
	double product;
	if (fp_matrix_is_absent(a) || fp_matrix_is_absent(b))
		return FP_OK;
	fp_status status = be->linear->dot(be, a, b, &product);
	if (status == FP_OK)
		*sum -= (double)statistics->tokens * product;
	return status;
}

/* Turns the sums into means and centres each matrix:
 *
 *     Σ(a − ā)(b − b̄)ᵀ = Σabᵀ − ΣaΣbᵀ/p
 *
 * This precedes the mirroring of the triangles, because the products are not exactly symmetric. */
static fp_status subtract_means(fp_statistics *statistics)
{
	fp_backend *be = statistics->be;
	float share = statistics->tokens > 0 ? 1.0F / (float)statistics->tokens : 0.0F;
	fp_matrix mean = statistics->mean, delta = statistics->mean_delta, E = statistics->mean_residual,
			  W_delta = statistics->mean_W_delta;
	const struct {
		fp_matrix out, left, right;
	} products[] = {{statistics->A, mean, mean},
					{statistics->cross, delta, mean},
					{statistics->difference, delta, delta},
					{statistics->residual_delta, E, delta},
					{statistics->drift.product, W_delta, mean},
					{statistics->residual, E, mean}};
	fp_matrix *sums[] = {&mean, &delta, &E, &W_delta};
	fp_status status = FP_OK;
	FP_PRODUCTS_FOR(be, FP_USE_EXACT);
	for (size_t i = 0; i < sizeof products / sizeof products[0]; i++)
		if (!fp_matrix_is_absent(products[i].out))
			FP_TRY(be->linear->gemm(be, -share, products[i].left, FP_TRANSPOSED, products[i].right, FP_PLAIN, 1.0F,
									products[i].out));
	for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++)
		if (!fp_matrix_is_absent(*sums[i]))
			FP_TRY(be->linear->axpby(be, 0.0F, *sums[i], share, *sums[i]));
	FP_TRY(be->linear->axpby(be, -1.0F, statistics->shift, 1.0F, mean));
	FP_TRY(subtract_product(statistics, E, E, &statistics->residual_energy));
	FP_TRY(subtract_product(statistics, W_delta, W_delta, &statistics->drift.energy));
	FP_TRY(subtract_product(statistics, E, W_delta, &statistics->drift.residual));
cleanup:
	return status;
}

fp_status fp_statistics_clear(fp_statistics *statistics)
{
	fp_backend *be = statistics->be;
	fp_matrix all[] = {statistics->A,
					   statistics->cross,
					   statistics->difference,
					   statistics->residual_delta,
					   statistics->residual,
					   statistics->drift.product,
					   statistics->mean,
					   statistics->mean_delta,
					   statistics->mean_W_delta,
					   statistics->mean_residual};
	fp_status status = FP_OK;
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		if (!fp_matrix_is_absent(all[i]))
			FP_TRY(be->memory->fill(be, all[i], 0.0F));
	statistics->drift.energy = statistics->drift.residual = statistics->residual_energy = 0;
	statistics->tokens = 0;
cleanup:
	return status;
}

fp_status fp_statistics_end_part(fp_statistics *statistics)
{
	statistics->divided = true;
	statistics->added_tokens = (double)statistics->tokens;
	return statistics->centred ? subtract_means(statistics) : FP_OK;
}

fp_status fp_statistics_list(fp_statistics *statistics, fp_addends *out)
{
	fp_context *ctx = statistics->be->ctx;
	fp_matrix matrices[] = {statistics->A,          statistics->cross,
							statistics->difference, statistics->residual_delta,
							statistics->residual,   statistics->drift.product};
	double *numbers[] = {&statistics->added_tokens, &statistics->drift.energy, &statistics->drift.residual,
						 &statistics->residual_energy};
	fp_status status = FP_OK;
	for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
		FP_TRY(fp_addends_matrix(out, ctx, matrices[i]));
	for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
		FP_TRY(fp_addends_number(out, ctx, numbers[i]));
cleanup:
	return status;
}

void fp_statistics_added(fp_statistics *statistics)
{
	statistics->divided = true;
	statistics->tokens = (int64_t)statistics->added_tokens;
}

fp_status fp_statistics_finish(fp_statistics *statistics)
{
	fp_backend *be = statistics->be;
	int finite;
	fp_status status;
	if (statistics->centred && !statistics->divided)
		FP_TRY(subtract_means(statistics));
	FP_TRY(be->linear->mirror(be, statistics->A));
	if (!fp_matrix_is_absent(statistics->difference))
		FP_TRY(be->linear->mirror(be, statistics->difference));
	FP_TRY(be->linear->finite(be, statistics->A, &finite));
	if (!finite)
		status = fp_fail(be->ctx, FP_ERROR_NUMERIC,
						 "the inputs of these operators contain NaN or infinity on the calibration text");
	/* The solver needs the memory. */
	drop_workspaces(statistics);
cleanup:
	return status;
}

fp_status fp_statistics_add_ridge(fp_statistics *statistics, double ridge)
{
	fp_backend *be = statistics->be;
	fp_matrix diagonal = {0};
	double mean;
	fp_status status;
	FP_TRY(fp_matrix_new(be, &diagonal, 1, statistics->A.rows, FP_F32));
	FP_TRY(be->linear->diagonal(be, statistics->A, diagonal));
	FP_TRY(fp_mean(be, diagonal, &mean));
	FP_TRY(be->memory->fill(be, diagonal, (float)(ridge * mean)));
	FP_TRY(be->linear->add_diagonal(be, statistics->A, diagonal));
cleanup:
	fp_matrix_free(be, &diagonal);
	return status;
}

fp_status fp_statistics_drift(const fp_statistics *statistics, fp_matrix W, fp_drift *out)
{
	fp_backend *be = statistics->be;
	fp_matrix work = {0};
	fp_status status = FP_OK;
	*out = statistics->drift;
	if (fp_matrix_is_absent(statistics->cross))
		return FP_OK;
	FP_TRY(fp_matrix_new(be, &out->product, W.rows, W.cols, FP_F32));
	FP_TRY(be->linear->gemm(be, 1.0F, W, FP_PLAIN, statistics->cross, FP_PLAIN, 0.0F, out->product));
	FP_TRY(fp_matrix_new(be, &work, W.rows, W.cols, FP_F32));
	FP_TRY(be->linear->gemm(be, 1.0F, W, FP_PLAIN, statistics->difference, FP_TRANSPOSED, 0.0F, work));
	FP_TRY(be->linear->dot(be, W, work, &out->energy));
	if (!fp_matrix_is_absent(statistics->residual_delta))
		FP_TRY(be->linear->dot(be, W, statistics->residual_delta, &out->residual));
cleanup:
	fp_matrix_free(be, &work);
	return status;
}

void fp_drift_free(fp_backend *be, fp_drift *drift)
{
	if (!drift->borrowed)
		fp_matrix_free(be, &drift->product);
	memset(drift, 0, sizeof *drift);
}

bool fp_statistics_by_outputs(const fp_statistics_plan *plan)
{
	return plan->two_streams && plan->only.rows > 0 &&
		   fp_drift_by_outputs(plan->only.rows, plan->inputs, plan->residual_outputs > 0);
}

fp_statistics_memory fp_statistics_floats(const fp_statistics_plan *plan)
{
	double n = (double)plan->inputs, batch = (double)plan->batch, residual = (double)plan->residual_outputs;
	fp_statistics_memory memory = {.kept = n * n,           /* A */
								   .targets = residual * n, /* EX*ᵀ */
								   .workspace = batch * residual};
	if (plan->two_streams)
		memory.workspace += batch * n; /* Δ; in BF16, Δ and X* */
	if (fp_statistics_by_outputs(plan)) {
		double m = (double)plan->only.rows;
		memory.kept += m * n; /* WΔX*ᵀ */
		memory.workspace += batch * m;
	} else if (plan->two_streams) {
		memory.targets += 2 * n * n + residual * n; /* ΔX*ᵀ, ΔΔᵀ and EΔᵀ */
	}
	if (plan->centred)
		memory.workspace += batch * n; /* X* shifted */
	if (plan->registers > 1)
		memory.registers = (plan->registers - 1) * (memory.kept + memory.targets);
	return memory;
}

double fp_statistics_flops(const fp_statistics_plan *plan)
{
	double n = (double)plan->inputs, m = (double)plan->only.rows, residual = (double)plan->residual_outputs;
	double flops = n * n + 2 * residual * n; /* A and EX*ᵀ */
	if (fp_statistics_by_outputs(plan))
		flops += 4 * m * n; /* WΔ and WΔX*ᵀ */
	else if (plan->two_streams)
		flops += 3 * n * n + 2 * residual * n; /* ΔX*ᵀ, ΔΔᵀ and EΔᵀ */
	return flops;
}
