/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_gradients.c: gradients of the operations on rows and on single entries, and Adam's step.
 *
 * A norm maps a row x to y, with c the mean of x (layer norm) or 0 (RMS norm):
 *     y = (x − c)·s∘w
 *     s = 1/√(mean((x − c)²) + ε)
 * Its gradient, with g = w∘dy:
 *     dx = s·(g − a − b·(x − c))
 *     a = mean(g) (layer norm) or 0
 *     b = s²·mean(g∘(x − c))
 */
#include "backend/cpu/cpu_backend.h"

#include <math.h>
#include <string.h>

/* Σ w·dy and Σ w·dy·(x − centre) in double; w may be NULL. */
static void weighted_sums(const float *w, const float *dy, const float *x, double centre, int64_t n, double *plain,
						  double *centred)
{
	double a = 0, b = 0;
#pragma omp simd reduction(+ : a, b)
	for (int64_t i = 0; i < n; i++) {
		double g = (w ? (double)w[i] : 1.0) * (double)dy[i];
		a += g;
		b += g * ((double)x[i] - centre);
	}
	*plain = a;
	*centred = b;
}

fp_status fp_cpu_norm_backward(fp_backend *be, fp_norm_kind kind, fp_matrix X, fp_matrix weight, float epsilon,
							   fp_matrix dY, fp_matrix dX)
{
	FP_REQUIRE(be, fp_cpu_is_f32(X) && fp_cpu_is_f32(dY) && fp_cpu_is_f32(dX));
	FP_REQUIRE(be, fp_cpu_same_shape(X, dY) && fp_cpu_same_shape(X, dX));
	FP_REQUIRE(be, fp_matrix_is_absent(weight) || fp_cpu_is_vector(weight, X.cols));
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	const float *w = fp_matrix_is_absent(weight) ? NULL : fp_cpu_floats(weight);
	double count = (double)X.cols;
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(X) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < X.rows; i++) {
		const float *x = fp_cpu_floats(X) + i * X.stride;
		const float *dy = fp_cpu_floats(dY) + i * dY.stride;
		double mean = kind == FP_LAYER_NORM ? loops->sum(x, X.cols) / count : 0;
		double variance = loops->squares(x, X.cols, mean) / count;
		double square = 1 / (variance + (double)epsilon), a, b;
		weighted_sums(w, dy, x, mean, X.cols, &a, &b);
		a = kind == FP_LAYER_NORM ? a / count : 0;
		loops->normalise_backward(fp_cpu_floats(dX) + i * dX.stride, dy, x, X.cols, (float)mean, (float)sqrt(square),
								  (float)a, (float)(square * b / count), w);
	}
	return FP_OK;
}

fp_status fp_cpu_cross_entropy_backward(fp_backend *be, const int32_t *targets, fp_matrix logits)
{
	FP_REQUIRE(be, fp_cpu_is_f32(logits) && (logits.rows == 0 || (logits.cols > 0 && logits.cols <= INT32_MAX)));
	for (int64_t i = 0; i < logits.rows; i++)
		FP_REQUIRE(be, targets[i] >= -1 && targets[i] < logits.cols);
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(logits) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < logits.rows; i++) {
		float *x = fp_cpu_floats(logits) + i * logits.stride;
		if (targets[i] < 0) {
			memset(x, 0, (size_t)logits.cols * sizeof *x);
			continue;
		}
		double sum = loops->exp_store(x, logits.cols, loops->maximum(x, logits.cols));
		loops->scale(x, x, logits.cols, (float)(1 / sum));
		x[targets[i]] -= 1;
	}
	return FP_OK;
}

fp_status fp_cpu_soft_cap_backward(fp_backend *be, float cap, fp_matrix Y, fp_matrix dX)
{
	FP_REQUIRE(be, fp_cpu_is_f32(Y) && fp_cpu_is_f32(dX) && fp_cpu_same_shape(Y, dX) && cap > 0);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(Y) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < Y.rows; i++) {
		const float *y = fp_cpu_floats(Y) + i * Y.stride;
		float *dx = fp_cpu_floats(dX) + i * dX.stride;
		for (int64_t j = 0; j < Y.cols; j++) {
			float share = y[j] / cap;
			dx[j] *= 1.0f - share * share;
		}
	}
	return FP_OK;
}

fp_status fp_cpu_activate_backward(fp_backend *be, fp_activation kind, fp_matrix X, fp_matrix dY, fp_matrix dX)
{
	FP_REQUIRE(be, fp_cpu_is_f32(X) && fp_cpu_is_f32(dY) && fp_cpu_is_f32(dX));
	FP_REQUIRE(be, fp_cpu_same_shape(X, dY) && fp_cpu_same_shape(X, dX));
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	bool contiguous = fp_cpu_is_contiguous(X) && fp_cpu_is_contiguous(dY) && fp_cpu_is_contiguous(dX);
	fp_cpu_tiles tiles = fp_cpu_cut(X.rows, X.cols, contiguous);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(X) >= FP_CPU_PARALLEL_FROM)
	for (int64_t t = 0; t < tiles.count; t++) {
		fp_cpu_tile tile = fp_cpu_tile_at(&tiles, t);
		loops->activate_backward(kind, fp_cpu_floats(dX) + tile.row * dX.stride + tile.col,
								 fp_cpu_floats(dY) + tile.row * dY.stride + tile.col,
								 fp_cpu_floats(X) + tile.row * X.stride + tile.col, tile.size);
	}
	return FP_OK;
}

fp_status fp_cpu_activate_gated_backward(fp_backend *be, fp_activation kind, fp_matrix G, fp_matrix U, fp_matrix dY,
										 fp_matrix dG, fp_matrix dU)
{
	FP_REQUIRE(be, fp_cpu_is_f32(G) && fp_cpu_is_f32(U) && fp_cpu_is_f32(dY) && fp_cpu_is_f32(dG) && fp_cpu_is_f32(dU));
	FP_REQUIRE(be, fp_cpu_same_shape(G, U) && fp_cpu_same_shape(G, dY) && fp_cpu_same_shape(G, dG) &&
					   fp_cpu_same_shape(G, dU));
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	bool contiguous = fp_cpu_is_contiguous(G) && fp_cpu_is_contiguous(U) && fp_cpu_is_contiguous(dY) &&
					  fp_cpu_is_contiguous(dG) && fp_cpu_is_contiguous(dU);
	fp_cpu_tiles tiles = fp_cpu_cut(G.rows, G.cols, contiguous);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(G) >= FP_CPU_PARALLEL_FROM)
	for (int64_t t = 0; t < tiles.count; t++) {
		fp_cpu_tile tile = fp_cpu_tile_at(&tiles, t);
		loops->activate_gated_backward(kind, fp_cpu_floats(dG) + tile.row * dG.stride + tile.col,
									   fp_cpu_floats(dU) + tile.row * dU.stride + tile.col,
									   fp_cpu_floats(dY) + tile.row * dY.stride + tile.col,
									   fp_cpu_floats(G) + tile.row * G.stride + tile.col,
									   fp_cpu_floats(U) + tile.row * U.stride + tile.col, tile.size);
	}
	return FP_OK;
}

/* Each thread sums a strip of columns from the first row to the last. */
static fp_status sum_columns(fp_backend *be, bool squared, fp_matrix X, float beta, fp_matrix out)
{
	enum { STRIP = 64 };
	FP_REQUIRE(be, fp_cpu_is_f32(X) && fp_cpu_is_vector(out, X.cols));
	const float *x = fp_cpu_floats(X);
	float *y = fp_cpu_floats(out);
	int64_t strips = (X.cols + STRIP - 1) / STRIP;
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(X) >= FP_CPU_PARALLEL_FROM)
	for (int64_t s = 0; s < strips; s++) {
		double sums[STRIP] = {0};
		int64_t first = s * STRIP, width = X.cols - first < STRIP ? X.cols - first : STRIP;
		for (int64_t i = 0; i < X.rows; i++)
			for (int64_t j = 0; j < width; j++) {
				double entry = x[i * X.stride + first + j];
				sums[j] += squared ? entry * entry : entry;
			}
		for (int64_t j = 0; j < width; j++)
			y[first + j] = (float)(sums[j] + (beta == 0.0f ? 0.0 : (double)beta * (double)y[first + j]));
	}
	return FP_OK;
}

fp_status fp_cpu_column_sums(fp_backend *be, fp_matrix X, float beta, fp_matrix out)
{
	return sum_columns(be, false, X, beta, out);
}

fp_status fp_cpu_column_squares(fp_backend *be, fp_matrix X, float beta, fp_matrix out)
{
	return sum_columns(be, true, X, beta, out);
}

fp_status fp_cpu_difference(fp_backend *be, float scale, fp_matrix Y, fp_matrix T, fp_matrix D, double *squares)
{
	FP_REQUIRE(be, fp_cpu_is_f32(Y) && fp_cpu_is_f32(T) && fp_cpu_is_f32(D));
	FP_REQUIRE(be, fp_cpu_same_shape(Y, T) && fp_cpu_same_shape(Y, D));
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	bool contiguous = fp_cpu_is_contiguous(Y) && fp_cpu_is_contiguous(T) && fp_cpu_is_contiguous(D);
	fp_cpu_tiles tiles = fp_cpu_cut(Y.rows, Y.cols, contiguous);
	double sums[FP_CPU_SUMS] = {0};
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(Y) >= FP_CPU_PARALLEL_FROM)
	for (int64_t s = 0; s < FP_CPU_SUMS; s++) {
		for (int64_t t = tiles.count * s / FP_CPU_SUMS; t < tiles.count * (s + 1) / FP_CPU_SUMS; t++) {
			fp_cpu_tile tile = fp_cpu_tile_at(&tiles, t);
			const float *y = fp_cpu_tile_floats(Y, tile), *target = fp_cpu_tile_floats(T, tile);
			if (!squares && scale == 1.0f)
				loops->subtract(fp_cpu_tile_floats(D, tile), y, target, tile.size);
			else
				sums[s] += loops->difference(fp_cpu_tile_floats(D, tile), y, target, tile.size, scale);
		}
	}
	if (squares) {
		*squares = 0;
		for (int s = 0; s < FP_CPU_SUMS; s++)
			*squares += sums[s];
	}
	return FP_OK;
}

fp_status fp_cpu_adam_step(fp_backend *be, const fp_adam *rule, fp_matrix G, fp_matrix M, fp_matrix V, fp_matrix W)
{
	FP_REQUIRE(be, fp_cpu_is_f32(G) && fp_cpu_is_f32(M) && fp_cpu_is_f32(V) && fp_cpu_is_f32(W));
	FP_REQUIRE(be, fp_cpu_same_shape(G, M) && fp_cpu_same_shape(G, V) && fp_cpu_same_shape(G, W));
	FP_REQUIRE(be, rule->step >= 1);
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	bool contiguous =
		fp_cpu_is_contiguous(G) && fp_cpu_is_contiguous(M) && fp_cpu_is_contiguous(V) && fp_cpu_is_contiguous(W);
	fp_cpu_tiles tiles = fp_cpu_cut(G.rows, G.cols, contiguous);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(G) >= FP_CPU_PARALLEL_FROM)
	for (int64_t t = 0; t < tiles.count; t++) {
		fp_cpu_tile tile = fp_cpu_tile_at(&tiles, t);
		loops->adam(rule, fp_cpu_floats(G) + tile.row * G.stride + tile.col,
					fp_cpu_floats(M) + tile.row * M.stride + tile.col,
					fp_cpu_floats(V) + tile.row * V.stride + tile.col,
					fp_cpu_floats(W) + tile.row * W.stride + tile.col, tile.size);
	}
	return FP_OK;
}
