/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_backend.h: shared by the files of the CPU backend: buffers, the state, views as pointers, tiles. */
#ifndef FP_BACKEND_CPU_BACKEND_H
#define FP_BACKEND_CPU_BACKEND_H

#include "backend/backend.h"
#include "backend/cpu/cpu_bf16.h"
#include "backend/cpu/cpu_decode.h"
#include "backend/cpu/cpu_simd.h"

struct fp_buffer {
	void *data;
	int64_t bytes;
};

typedef struct fp_cpu_state {
	const fp_cpu_loops *loops;         /* the inner loops for this processor */
	const fp_cpu_decode_loops *decode; /* those of products with held weights */
	fp_cpu_bf16 bf16;                  /* the engine of rounded products, if there is one */
	bool counts_rows;                  /* BLAS rounds a row by how many others it has (fp_cpu_blas_counts_rows()) */
} fp_cpu_state;

/* Opens the CPU backend; the caller closes it with fp_backend_close(). threads 0: one per usable processor. */
fp_status fp_cpu_open(fp_backend **out, fp_context *ctx, int threads);

static inline const fp_cpu_loops *fp_cpu_loops_of(const fp_backend *be)
{
	return ((const fp_cpu_state *)be->state)->loops;
}

/* The first element of a view; the view must be valid. */
static inline float *fp_cpu_floats(fp_matrix m)
{
	return (float *)m.buffer->data + m.offset;
}
static inline uint8_t *fp_cpu_bytes(fp_matrix m)
{
	return (uint8_t *)m.buffer->data + m.offset;
}
static inline uint16_t *fp_cpu_halves(fp_matrix m)
{
	return (uint16_t *)m.buffer->data + m.offset;
}

/* True when a view has this type and lies inside its buffer. */
static inline bool fp_cpu_is_view(fp_matrix m, fp_dtype dtype)
{
	return m.buffer && fp_matrix_lies_within(m, dtype, m.buffer->bytes);
}
static inline bool fp_cpu_is_f32(fp_matrix m)
{
	return fp_cpu_is_view(m, FP_F32);
}
static inline bool fp_cpu_is_u8(fp_matrix m)
{
	return fp_cpu_is_view(m, FP_U8);
}
static inline bool fp_cpu_same_shape(fp_matrix a, fp_matrix b)
{
	return a.rows == b.rows && a.cols == b.cols;
}
static inline bool fp_cpu_is_vector(fp_matrix m, int64_t length)
{
	return fp_cpu_is_f32(m) && m.rows == 1 && m.cols == length;
}

/*
 * Elementwise work is cut into tiles of at most FP_CPU_TILE elements of one row. If all views of an operation are
 * contiguous, the whole matrix counts as one row, so that a long vector and a matrix of many short rows both give tiles
 * of even size. The tiles depend on the shapes only, so sums over tiles are the same for every number of threads.
 */
enum { FP_CPU_TILE = 4096, FP_CPU_SUMS = 64, FP_CPU_PARALLEL_FROM = 32768 };

typedef struct fp_cpu_tiles {
	int64_t rows, cols;
	int64_t per_row, count;
} fp_cpu_tiles;

typedef struct fp_cpu_tile {
	int64_t row, col, size;
} fp_cpu_tile;

static inline bool fp_cpu_is_contiguous(fp_matrix m)
{
	return m.stride == m.cols || m.rows <= 1;
}

static inline fp_cpu_tiles fp_cpu_cut(int64_t rows, int64_t cols, bool contiguous)
{
	fp_cpu_tiles tiles = {.rows = contiguous ? 1 : rows, .cols = contiguous ? rows * cols : cols};
	tiles.per_row = (tiles.cols + FP_CPU_TILE - 1) / FP_CPU_TILE;
	tiles.count = tiles.rows * tiles.per_row;
	return tiles;
}

static inline fp_cpu_tile fp_cpu_tile_at(const fp_cpu_tiles *tiles, int64_t index)
{
	fp_cpu_tile tile = {.row = index / tiles->per_row, .col = index % tiles->per_row * FP_CPU_TILE};
	tile.size = tiles->cols - tile.col < FP_CPU_TILE ? tiles->cols - tile.col : FP_CPU_TILE;
	return tile;
}

/* Two views of one shape. */
static inline fp_cpu_tiles fp_cpu_cut_both(fp_matrix X, fp_matrix Y)
{
	return fp_cpu_cut(X.rows, X.cols, fp_cpu_is_contiguous(X) && fp_cpu_is_contiguous(Y));
}

static inline float *fp_cpu_tile_floats(fp_matrix m, fp_cpu_tile tile)
{
	return fp_cpu_floats(m) + tile.row * m.stride + tile.col;
}

/* --- the operations, by file ------------------------------------------------------------------------------------ */
/* cpu_memory.c */
fp_status fp_cpu_allocate(fp_backend *be, fp_buffer **out, int64_t bytes);
void fp_cpu_release(fp_backend *be, fp_buffer *buffer);
fp_status fp_cpu_upload(fp_backend *be, fp_matrix out, const void *host, fp_dtype dtype, int64_t stride);
fp_status fp_cpu_download(fp_backend *be, void *host, fp_dtype dtype, int64_t stride, fp_matrix in);
fp_status fp_cpu_copy(fp_backend *be, fp_matrix out, fp_matrix in);
fp_status fp_cpu_fill(fp_backend *be, fp_matrix out, float value);
fp_status fp_cpu_memory(fp_backend *be, int64_t *available, int64_t *total);
void *fp_cpu_address(fp_matrix m);
/* cpu_linear.c */
fp_status fp_cpu_gemm(fp_backend *be, float alpha, fp_matrix A, fp_transpose ta, fp_matrix B, fp_transpose tb,
					  float beta, fp_matrix C);
fp_status fp_cpu_gram(fp_backend *be, fp_matrix X, float beta, fp_matrix A);
fp_status fp_cpu_mirror(fp_backend *be, fp_matrix A);
fp_status fp_cpu_inverse_factor(fp_backend *be, fp_matrix A, int64_t *refused);
fp_status fp_cpu_inverse(fp_backend *be, fp_matrix A, int64_t *refused);
fp_status fp_cpu_eigen(fp_backend *be, fp_matrix A, fp_matrix values);
/* cpu_elementwise.c */
fp_status fp_cpu_axpby(fp_backend *be, float alpha, fp_matrix X, float beta, fp_matrix Y);
fp_status fp_cpu_combine(fp_backend *be, float alpha, fp_matrix X, float beta, fp_matrix Y, fp_matrix Z);
fp_status fp_cpu_dot(fp_backend *be, fp_matrix X, fp_matrix Y, double *out);
fp_status fp_cpu_row_dot(fp_backend *be, fp_matrix X, fp_matrix Y, fp_matrix out);
fp_status fp_cpu_row_axpby(fp_backend *be, fp_matrix a, fp_matrix X, fp_matrix b, fp_matrix Y);
fp_status fp_cpu_scale_columns(fp_backend *be, fp_matrix s, fp_matrix X, fp_matrix Y);
fp_status fp_cpu_gemm_blocks(fp_backend *be, float alpha, fp_matrix A, fp_transpose ta, fp_matrix B, fp_transpose tb,
							 float beta, fp_matrix C, fp_blocks blocks);
fp_status fp_cpu_permute_rows(fp_backend *be, const int32_t *order, fp_matrix X, fp_matrix Y);
fp_status fp_cpu_permute_columns(fp_backend *be, const int32_t *order, fp_matrix X, fp_matrix Y);
fp_status fp_cpu_diagonal(fp_backend *be, fp_matrix A, fp_matrix out);
fp_status fp_cpu_add_diagonal(fp_backend *be, fp_matrix A, fp_matrix d);
fp_status fp_cpu_max_abs(fp_backend *be, fp_matrix X, double *out);
fp_status fp_cpu_finite(fp_backend *be, fp_matrix X, int *out);
/* cpu_gather.c */
fp_status fp_cpu_gather_rows(fp_backend *be, const int32_t *rows, fp_matrix scale, fp_matrix X, fp_matrix Y);
fp_status fp_cpu_add_rows(fp_backend *be, const int32_t *rows, int64_t count, fp_matrix X, float beta, fp_matrix Y);
/* cpu_transformer.c */
fp_status fp_cpu_norm(fp_backend *be, fp_norm_kind kind, fp_matrix X, fp_matrix weight, fp_matrix bias, float epsilon,
					  fp_matrix Y);
fp_status fp_cpu_add_bias(fp_backend *be, fp_matrix bias, fp_matrix X);
fp_status fp_cpu_activate(fp_backend *be, fp_activation kind, fp_matrix X, fp_matrix Y);
fp_status fp_cpu_activate_gated(fp_backend *be, fp_activation kind, fp_matrix G, fp_matrix U, fp_matrix Y);
fp_status fp_cpu_rotate(fp_backend *be, fp_pairing pairing, fp_matrix cosine, fp_matrix sine, int64_t heads,
						fp_matrix X);
fp_status fp_cpu_soft_cap(fp_backend *be, float cap, fp_matrix X);
fp_status fp_cpu_soft_cap_backward(fp_backend *be, float cap, fp_matrix Y, fp_matrix dX);
/* Whether shape->key_bias is absent or as transformer_ops.h says. */
static inline bool fp_cpu_is_key_bias(const fp_attention_shape *shape)
{
	fp_matrix bias = shape->key_bias;
	return fp_matrix_is_absent(bias) ||
		   (fp_cpu_is_f32(bias) && bias.rows == shape->heads && bias.cols >= fp_attention_keys(shape));
}
/* scores ← c·tanh(scores/c) + bias for a row of attention scores; 0 or NULL: without. slopes ← the derivative of the
 * first, unless NULL. */
void fp_cpu_shape_scores(float *scores, int64_t count, float cap, const float *bias, float *slopes);
fp_status fp_cpu_cross_entropy(fp_backend *be, fp_matrix logits, const int32_t *targets, fp_matrix out,
							   int32_t *argmax);
fp_status fp_cpu_divergence(fp_backend *be, fp_matrix P, fp_matrix Q, fp_matrix out);
/* cpu_attention.c */
fp_status fp_cpu_attention(fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K, fp_matrix V,
						   fp_matrix out);
/* cpu_pruning.c */
fp_status fp_cpu_fista_step(fp_backend *be, fp_momentum rule, float step, float threshold, float momentum, fp_matrix G,
							fp_matrix Y, fp_matrix P, double *change);
fp_status fp_cpu_mask_smallest(fp_backend *be, fp_matrix score, const fp_pattern *pattern, fp_matrix mask);
fp_status fp_cpu_mask_rows(fp_backend *be, fp_matrix score, const fp_pattern *pattern, fp_matrix mask);
fp_status fp_cpu_mask_nonzero(fp_backend *be, fp_matrix X, fp_matrix mask);
fp_status fp_cpu_apply_mask(fp_backend *be, fp_matrix mask, fp_matrix X);
fp_status fp_cpu_cg_step(fp_backend *be, const fp_cg *cg, fp_matrix q);
fp_status fp_cpu_support_step(fp_backend *be, const fp_support_rule *rule, fp_matrix G, fp_matrix S, fp_matrix mask,
							  fp_matrix T);
fp_status fp_cpu_mask_distance(fp_backend *be, fp_matrix a, fp_matrix b, int64_t *out);
/* cpu_grid.c */
fp_status fp_cpu_grid_fit(fp_backend *be, fp_matrix weight, int count, float step, fp_matrix V, const fp_grid *grid);
fp_status fp_cpu_grid_round(fp_backend *be, const fp_grid *grid, fp_matrix X, fp_matrix V);
fp_status fp_cpu_grid_descend(fp_backend *be, const fp_grid *grid, fp_matrix A, fp_matrix X, fp_matrix G, fp_matrix V,
							  fp_matrix D);
fp_status fp_cpu_grid_rescale(fp_backend *be, const fp_grid *grid, fp_matrix P, fp_matrix G, fp_matrix V, fp_matrix D);
/* cpu_sparsegpt.c */
fp_status fp_cpu_sparsegpt_sweep(fp_backend *be, fp_matrix U, const fp_pattern *pattern, const fp_grid *grid,
								 int64_t block, fp_matrix W, fp_matrix mask);
/* cpu_decode_pack.c */
fp_status fp_cpu_hold(fp_backend *be, fp_held *out, fp_matrix W, fp_dtype dtype, fp_held_form form);
fp_status fp_cpu_expand(fp_backend *be, const fp_held *W, fp_matrix out);
/* cpu_decode.c */
fp_status fp_cpu_multiply_held(fp_backend *be, fp_matrix X, int count, const fp_held *const *W, bool add,
							   const fp_matrix *Y);
fp_status fp_cpu_read_time(fp_backend *be, int64_t bytes, double *seconds);
/* cpu_gradients.c */
fp_status fp_cpu_cross_entropy_backward(fp_backend *be, const int32_t *targets, fp_matrix logits);
fp_status fp_cpu_norm_backward(fp_backend *be, fp_norm_kind kind, fp_matrix X, fp_matrix weight, float epsilon,
							   fp_matrix dY, fp_matrix dX);
fp_status fp_cpu_activate_backward(fp_backend *be, fp_activation kind, fp_matrix X, fp_matrix dY, fp_matrix dX);
fp_status fp_cpu_activate_gated_backward(fp_backend *be, fp_activation kind, fp_matrix G, fp_matrix U, fp_matrix dY,
										 fp_matrix dG, fp_matrix dU);
fp_status fp_cpu_column_sums(fp_backend *be, fp_matrix X, float beta, fp_matrix out);
fp_status fp_cpu_column_squares(fp_backend *be, fp_matrix X, float beta, fp_matrix out);
fp_status fp_cpu_difference(fp_backend *be, float scale, fp_matrix Y, fp_matrix T, fp_matrix D, double *squares);
fp_status fp_cpu_adam_step(fp_backend *be, const fp_adam *rule, fp_matrix G, fp_matrix M, fp_matrix V, fp_matrix W);
/* cpu_attention_backward.c */
fp_status fp_cpu_attention_backward(fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K,
									fp_matrix V, fp_matrix out, fp_matrix dout, fp_matrix dQ, fp_matrix dK,
									fp_matrix dV);

#endif
