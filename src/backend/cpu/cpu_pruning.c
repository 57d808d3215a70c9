/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_pruning.c: the steps of FISTA, of the support search and of conjugate gradients, and masks. */
#include "backend/cpu/cpu_backend.h"

#include "backend/cpu/cpu_select.h"

#include <math.h>

fp_status fp_cpu_fista_step(fp_backend *be, fp_momentum rule, float step, float threshold, float momentum, fp_matrix G,
							fp_matrix Y, fp_matrix P, double *change)
{
	FP_REQUIRE(be, fp_cpu_is_f32(G) && fp_cpu_is_f32(Y) && fp_cpu_is_f32(P));
	FP_REQUIRE(be, fp_cpu_same_shape(G, Y) && fp_cpu_same_shape(G, P));
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	const float *g = fp_cpu_floats(G);
	float *y = fp_cpu_floats(Y), *p = fp_cpu_floats(P);
	bool contiguous = fp_cpu_is_contiguous(G) && fp_cpu_is_contiguous(Y) && fp_cpu_is_contiguous(P);
	fp_cpu_tiles tiles = fp_cpu_cut(G.rows, G.cols, contiguous);
	double sums[FP_CPU_SUMS] = {0};
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(G) >= FP_CPU_PARALLEL_FROM)
	for (int64_t s = 0; s < FP_CPU_SUMS; s++) {
		double sum = 0;
		for (int64_t t = tiles.count * s / FP_CPU_SUMS; t < tiles.count * (s + 1) / FP_CPU_SUMS; t++) {
			fp_cpu_tile tile = fp_cpu_tile_at(&tiles, t);
			sum += loops->fista(rule, step, threshold, momentum, g + tile.row * G.stride + tile.col,
								y + tile.row * Y.stride + tile.col, p + tile.row * P.stride + tile.col, tile.size);
		}
		sums[s] = sum;
	}
	if (change) {
		*change = 0;
		for (int s = 0; s < FP_CPU_SUMS; s++)
			*change += sums[s];
	}
	return FP_OK;
}

fp_status fp_cpu_mask_smallest(fp_backend *be, fp_matrix score, const fp_pattern *pattern, fp_matrix mask)
{
	FP_REQUIRE(be, fp_cpu_is_f32(score) && fp_cpu_is_u8(mask) && fp_cpu_same_shape(score, mask));
	FP_REQUIRE(be, pattern->group >= 0 && pattern->kept >= 0 && pattern->kept <= pattern->group);
	if (fp_matrix_size(score) == 0)
		return FP_OK;
	if (pattern->group == 0) {
		fp_cpu_scores scores = {fp_cpu_floats(score), score.rows, score.cols, score.stride};
		return fp_cpu_prune_smallest(be->ctx, be->threads, scores, fp_pattern_zeros(pattern, fp_matrix_size(score)),
									 fp_cpu_bytes(mask), mask.stride);
	}
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(score) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < score.rows; i++)
		fp_cpu_prune_groups(fp_cpu_floats(score) + i * score.stride, score.cols, pattern->kept, pattern->group,
							fp_cpu_bytes(mask) + i * mask.stride);
	return FP_OK;
}

fp_status fp_cpu_mask_rows(fp_backend *be, fp_matrix score, const fp_pattern *pattern, fp_matrix mask)
{
	FP_REQUIRE(be, fp_cpu_is_f32(score) && fp_cpu_is_u8(mask) && fp_cpu_same_shape(score, mask));
	FP_REQUIRE(be, pattern->group == 0);
	int64_t zeros = fp_pattern_zeros(pattern, score.cols);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(score) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < score.rows; i++)
		fp_cpu_prune_row(fp_cpu_floats(score) + i * score.stride, score.cols, zeros,
						 fp_cpu_bytes(mask) + i * mask.stride);
	return FP_OK;
}

fp_status fp_cpu_mask_nonzero(fp_backend *be, fp_matrix X, fp_matrix mask)
{
	FP_REQUIRE(be, fp_cpu_is_f32(X) && fp_cpu_is_u8(mask) && fp_cpu_same_shape(X, mask));
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(X) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < X.rows; i++) {
		const float *x = fp_cpu_floats(X) + i * X.stride;
		uint8_t *m = fp_cpu_bytes(mask) + i * mask.stride;
		for (int64_t j = 0; j < X.cols; j++)
			m[j] = x[j] != 0.0F;
	}
	return FP_OK;
}

fp_status fp_cpu_apply_mask(fp_backend *be, fp_matrix mask, fp_matrix X)
{
	FP_REQUIRE(be, fp_cpu_is_f32(X) && fp_cpu_is_u8(mask) && fp_cpu_same_shape(X, mask));
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	fp_cpu_tiles tiles = fp_cpu_cut(X.rows, X.cols, fp_cpu_is_contiguous(X) && fp_cpu_is_contiguous(mask));
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(X) >= FP_CPU_PARALLEL_FROM)
	for (int64_t t = 0; t < tiles.count; t++) {
		fp_cpu_tile tile = fp_cpu_tile_at(&tiles, t);
		loops->apply_mask(fp_cpu_floats(X) + tile.row * X.stride + tile.col,
						  fp_cpu_bytes(mask) + tile.row * mask.stride + tile.col, tile.size);
	}
	return FP_OK;
}

fp_status fp_cpu_support_step(fp_backend *be, const fp_support_rule *rule, fp_matrix G, fp_matrix S, fp_matrix mask,
							  fp_matrix T)
{
	fp_matrix W = rule->W, R = rule->R;
	bool with_r = !fp_matrix_is_absent(R);
	FP_REQUIRE(be, fp_cpu_is_f32(G) && fp_cpu_is_f32(S) && fp_cpu_is_f32(T) && fp_cpu_is_f32(W) && fp_cpu_is_u8(mask));
	FP_REQUIRE(be, fp_cpu_same_shape(G, S) && fp_cpu_same_shape(G, T) && fp_cpu_same_shape(G, W));
	FP_REQUIRE(be, fp_cpu_same_shape(G, mask) && (!with_r || (fp_cpu_is_f32(R) && fp_cpu_same_shape(G, R))));
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	bool contiguous = fp_cpu_is_contiguous(G) && fp_cpu_is_contiguous(S) && fp_cpu_is_contiguous(T) &&
					  fp_cpu_is_contiguous(W) && fp_cpu_is_contiguous(mask) && (!with_r || fp_cpu_is_contiguous(R));
	fp_cpu_tiles tiles = fp_cpu_cut(G.rows, G.cols, contiguous);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(G) >= FP_CPU_PARALLEL_FROM)
	for (int64_t t = 0; t < tiles.count; t++) {
		fp_cpu_tile tile = fp_cpu_tile_at(&tiles, t);
		loops->support_sum(fp_cpu_floats(G) + tile.row * G.stride + tile.col,
						   fp_cpu_floats(W) + tile.row * W.stride + tile.col,
						   fp_cpu_bytes(mask) + tile.row * mask.stride + tile.col,
						   fp_cpu_floats(S) + tile.row * S.stride + tile.col, tile.size);
	}
	fp_status status = fp_cpu_mask_smallest(be, S, &rule->pattern, mask);
	if (status != FP_OK)
		return status;
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(G) >= FP_CPU_PARALLEL_FROM)
	for (int64_t t = 0; t < tiles.count; t++) {
		fp_cpu_tile tile = fp_cpu_tile_at(&tiles, t);
		loops->support_target(rule->penalty, rule->shrink, fp_cpu_floats(W) + tile.row * W.stride + tile.col,
							  with_r ? fp_cpu_floats(R) + tile.row * R.stride + tile.col : NULL,
							  fp_cpu_bytes(mask) + tile.row * mask.stride + tile.col,
							  fp_cpu_floats(S) + tile.row * S.stride + tile.col,
							  fp_cpu_floats(T) + tile.row * T.stride + tile.col, tile.size);
	}
	return FP_OK;
}

/* One row of cg_step(). */
static void cg_row(const fp_cpu_loops *loops, const fp_cg *cg, fp_matrix Q, int64_t i)
{
	int64_t n = cg->r.cols;
	const float *inverse = fp_cpu_floats(cg->inverse);
	float *r = fp_cpu_floats(cg->r) + i * cg->r.stride, *p = fp_cpu_floats(cg->p) + i * cg->p.stride;
	float *rz = fp_cpu_floats(cg->rz) + i, *enough = fp_cpu_floats(cg->enough) + i;
	if (fp_matrix_is_absent(Q)) {
		loops->multiply(p, r, inverse, n);
		*rz = (float)loops->dot(r, p, n);
		return;
	}
	if (isinf(*enough))
		return;
	float *q = fp_cpu_floats(Q) + i * Q.stride;
	loops->apply_mask(q, fp_cpu_bytes(cg->mask) + i * cg->mask.stride, n);
	float curvature = (float)loops->dot(p, q, n);
	float step = curvature > 0 && *rz > *enough ? *rz / curvature : 0.0f;
	if (step == 0.0f || step > cg->longest) {
		*enough = INFINITY;
		return;
	}
	loops->axpby(fp_cpu_floats(cg->V) + i * cg->V.stride, p, n, step, 1.0f);
	loops->axpby(r, q, n, -step, 1.0f);
	float *z = q; /* q is no longer needed */
	loops->multiply(z, r, inverse, n);
	float next = (float)loops->dot(r, z, n);
	loops->axpby(p, z, n, 1.0f, *rz > 0 ? next / *rz : 0.0f);
	*rz = next;
}

fp_status fp_cpu_cg_step(fp_backend *be, const fp_cg *cg, fp_matrix q)
{
	fp_matrix r = cg->r, p = cg->p, V = cg->V;
	FP_REQUIRE(be, fp_cpu_is_f32(r) && fp_cpu_is_f32(p) && fp_cpu_is_f32(V) && fp_cpu_is_u8(cg->mask));
	FP_REQUIRE(be, fp_cpu_same_shape(r, p) && fp_cpu_same_shape(r, V) && fp_cpu_same_shape(r, cg->mask));
	FP_REQUIRE(be, fp_matrix_is_absent(q) || (fp_cpu_is_f32(q) && fp_cpu_same_shape(r, q)));
	FP_REQUIRE(be, fp_cpu_is_vector(cg->inverse, r.cols) && fp_cpu_is_vector(cg->rz, r.rows));
	FP_REQUIRE(be, fp_cpu_is_vector(cg->enough, r.rows) && fp_matrix_is_absent(cg->narrow));
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(r) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < r.rows; i++)
		cg_row(loops, cg, q, i);
	return FP_OK;
}

fp_status fp_cpu_mask_distance(fp_backend *be, fp_matrix a, fp_matrix b, int64_t *out)
{
	FP_REQUIRE(be, fp_cpu_is_u8(a) && fp_cpu_is_u8(b) && fp_cpu_same_shape(a, b));
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	fp_cpu_tiles tiles = fp_cpu_cut(a.rows, a.cols, fp_cpu_is_contiguous(a) && fp_cpu_is_contiguous(b));
	int64_t count = 0;
#pragma omp parallel for num_threads(be->threads) reduction(+ : count) if (fp_matrix_size(a) >= FP_CPU_PARALLEL_FROM)
	for (int64_t t = 0; t < tiles.count; t++) {
		fp_cpu_tile tile = fp_cpu_tile_at(&tiles, t);
		count += loops->mask_distance(fp_cpu_bytes(a) + tile.row * a.stride + tile.col,
									  fp_cpu_bytes(b) + tile.row * b.stride + tile.col, tile.size);
	}
	*out = count;
	return FP_OK;
}
