/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_transformer.c: norms, activations, rotary positions, cross-entropy and divergence, row by row. */
#include "backend/cpu/cpu_backend.h"

#include <math.h>

fp_status fp_cpu_norm(fp_backend *be, fp_norm_kind kind, fp_matrix X, fp_matrix weight, fp_matrix bias, float epsilon,
					  fp_matrix Y)
{
	FP_REQUIRE(be, fp_cpu_is_f32(X) && fp_cpu_is_f32(Y) && fp_cpu_same_shape(X, Y));
	FP_REQUIRE(be, fp_matrix_is_absent(weight) || fp_cpu_is_vector(weight, X.cols));
	FP_REQUIRE(be, fp_matrix_is_absent(bias) || fp_cpu_is_vector(bias, X.cols));
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	const float *w = fp_matrix_is_absent(weight) ? NULL : fp_cpu_floats(weight);
	const float *b = fp_matrix_is_absent(bias) || kind == FP_RMS_NORM ? NULL : fp_cpu_floats(bias);
	double count = (double)X.cols;
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(X) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < X.rows; i++) {
		const float *x = fp_cpu_floats(X) + i * X.stride;
		double mean = kind == FP_LAYER_NORM ? loops->sum(x, X.cols) / count : 0;
		double variance = loops->squares(x, X.cols, mean) / count;
		loops->normalise(fp_cpu_floats(Y) + i * Y.stride, x, X.cols, (float)mean,
						 (float)(1 / sqrt(variance + (double)epsilon)), w, b);
	}
	return FP_OK;
}

fp_status fp_cpu_add_bias(fp_backend *be, fp_matrix bias, fp_matrix X)
{
	FP_REQUIRE(be, fp_cpu_is_f32(X) && fp_cpu_is_vector(bias, X.cols));
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	const float *b = fp_cpu_floats(bias);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(X) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < X.rows; i++)
		loops->add(fp_cpu_floats(X) + i * X.stride, b, X.cols);
	return FP_OK;
}

fp_status fp_cpu_activate(fp_backend *be, fp_activation kind, fp_matrix X, fp_matrix Y)
{
	FP_REQUIRE(be, fp_cpu_is_f32(X) && fp_cpu_is_f32(Y) && fp_cpu_same_shape(X, Y));
	const fp_cpu_tiles tiles = fp_cpu_cut_both(X, Y);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(X) >= FP_CPU_PARALLEL_FROM)
	for (int64_t t = 0; t < tiles.count; t++) {
		fp_cpu_tile tile = fp_cpu_tile_at(&tiles, t);
		fp_cpu_loops_of(be)->activate(kind, fp_cpu_tile_floats(Y, tile), fp_cpu_tile_floats(X, tile), tile.size);
	}
	return FP_OK;
}

fp_status fp_cpu_activate_gated(fp_backend *be, fp_activation kind, fp_matrix G, fp_matrix U, fp_matrix Y)
{
	FP_REQUIRE(be, fp_cpu_is_f32(G) && fp_cpu_is_f32(U) && fp_cpu_is_f32(Y));
	FP_REQUIRE(be, fp_cpu_same_shape(G, U) && fp_cpu_same_shape(G, Y));
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	const float *g = fp_cpu_floats(G), *u = fp_cpu_floats(U);
	float *y = fp_cpu_floats(Y);
	bool contiguous = fp_cpu_is_contiguous(G) && fp_cpu_is_contiguous(U) && fp_cpu_is_contiguous(Y);
	fp_cpu_tiles tiles = fp_cpu_cut(G.rows, G.cols, contiguous);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(G) >= FP_CPU_PARALLEL_FROM)
	for (int64_t t = 0; t < tiles.count; t++) {
		fp_cpu_tile tile = fp_cpu_tile_at(&tiles, t);
		loops->activate_gated(kind, y + tile.row * Y.stride + tile.col, g + tile.row * G.stride + tile.col,
							  u + tile.row * U.stride + tile.col, tile.size);
	}
	return FP_OK;
}

static void rotate_neighbours(float *x, const float *cosine, const float *sine, int64_t pairs)
{
	for (int64_t i = 0; i < pairs; i++) {
		float a = x[2 * i], b = x[2 * i + 1];
		x[2 * i] = a * cosine[i] - b * sine[i];
		x[2 * i + 1] = b * cosine[i] + a * sine[i];
	}
}

fp_status fp_cpu_rotate(fp_backend *be, fp_pairing pairing, fp_matrix cosine, fp_matrix sine, int64_t heads,
						fp_matrix X)
{
	FP_REQUIRE(be, fp_cpu_is_f32(X) && fp_cpu_is_f32(cosine) && fp_cpu_is_f32(sine) && fp_cpu_same_shape(cosine, sine));
	FP_REQUIRE(be, heads > 0 && X.cols % heads == 0 && 2 * cosine.cols <= X.cols / heads);
	FP_REQUIRE(be, X.rows == 0 || cosine.rows > 0);
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	int64_t half = cosine.cols, width = X.cols / heads;
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(X) >= FP_CPU_PARALLEL_FROM)
	for (int64_t t = 0; t < X.rows; t++) {
		int64_t position = t % cosine.rows;
		const float *c = fp_cpu_floats(cosine) + position * cosine.stride;
		const float *s = fp_cpu_floats(sine) + position * sine.stride;
		float *x = fp_cpu_floats(X) + t * X.stride;
		for (int64_t h = 0; h < heads; h++) {
			if (pairing == FP_PAIR_HALVES)
				loops->rotate(x + h * width, c, s, half);
			else
				rotate_neighbours(x + h * width, c, s, half);
		}
	}
	return FP_OK;
}

fp_status fp_cpu_soft_cap(fp_backend *be, float cap, fp_matrix X)
{
	FP_REQUIRE(be, fp_cpu_is_f32(X) && cap > 0);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(X) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < X.rows; i++)
		fp_cpu_shape_scores(fp_cpu_floats(X) + i * X.stride, X.cols, cap, NULL, NULL);
	return FP_OK;
}

static int32_t first_index_of(const float *x, int64_t n, float value)
{
	for (int64_t i = 0; i < n; i++) {
		if (x[i] == value)
			return (int32_t)i;
	}
	return 0; /* only if all entries are NaN */
}

fp_status fp_cpu_cross_entropy(fp_backend *be, fp_matrix logits, const int32_t *targets, fp_matrix out, int32_t *argmax)
{
	FP_REQUIRE(be, fp_cpu_is_f32(logits) && fp_cpu_is_vector(out, logits.rows));
	FP_REQUIRE(be, logits.rows == 0 || (logits.cols > 0 && logits.cols <= INT32_MAX));
	for (int64_t i = 0; i < logits.rows; i++)
		FP_REQUIRE(be, targets[i] >= -1 && targets[i] < logits.cols);
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	float *loss = fp_cpu_floats(out);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(logits) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < logits.rows; i++) {
		const float *x = fp_cpu_floats(logits) + i * logits.stride;
		loss[i] = 0.0f;
		if (targets[i] < 0 && !argmax)
			continue;
		float largest = loops->maximum(x, logits.cols);
		if (argmax)
			argmax[i] = first_index_of(x, logits.cols, largest);
		if (targets[i] >= 0)
			loss[i] = (float)(log(loops->exp_sum(x, logits.cols, largest)) + (double)largest - (double)x[targets[i]]);
	}
	return FP_OK;
}

/* With the largest entries a and b of the rows x and y:
 *
 *     Σ p (log p − log q) = Σ e^(x−a) (x − y) / Σ e^(x−a)  −  (a + log Σ e^(x−a))  +  (b + log Σ e^(y−b))
 *
 * Equal rows give equal sums and thus exactly 0. Rounding may leave a small negative number, which becomes 0. */
fp_status fp_cpu_divergence(fp_backend *be, fp_matrix P, fp_matrix Q, fp_matrix out)
{
	FP_REQUIRE(be, fp_cpu_is_f32(P) && fp_cpu_is_f32(Q) && fp_cpu_same_shape(P, Q) && fp_cpu_is_vector(out, P.rows));
	FP_REQUIRE(be, P.rows == 0 || P.cols > 0);
	const fp_cpu_loops *loops = fp_cpu_loops_of(be);
	float *kl = fp_cpu_floats(out);
#pragma omp parallel for num_threads(be->threads) if (fp_matrix_size(P) >= FP_CPU_PARALLEL_FROM)
	for (int64_t i = 0; i < P.rows; i++) {
		const float *x = fp_cpu_floats(P) + i * P.stride, *y = fp_cpu_floats(Q) + i * Q.stride;
		float a = loops->maximum(x, P.cols), b = loops->maximum(y, P.cols);
		double sum_p, sum_q;
		double product = loops->exp_dot(x, y, P.cols, a, &sum_p);
		loops->exp_dot(y, y, P.cols, b, &sum_q);
		double value = product / sum_p - ((double)a + log(sum_p)) + ((double)b + log(sum_q));
		kl[i] = value < 0 ? 0.0f : (float)value; /* NaN stays */
	}
	return FP_OK;
}
