/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.h: THE interface between the mathematics and a device. Read this first.
 *
 * A backend is a table of operations on matrices that live in its own memory. Nothing above this line may
 * assume that a buffer can be dereferenced: data goes in by upload() and comes out by download().
 *
 *   fp_buffer   owns device memory
 *   fp_matrix   a row-major view into a buffer, passed by value; owns nothing
 *
 * Conventions
 *   - Every operation returns a status and records a message in be->ctx on failure.
 *   - Matrices are FP_F32 unless the operation says otherwise. A vector is a 1×n matrix.
 *   - Activations are token-major: X[tokens × features]. Weights are W[outputs × inputs]. So Y = X Wᵀ, and the
 *     paper's X (features × tokens) is our Xᵀ: its Gram matrix XXᵀ is our XᵀX.
 *   - Reductions accumulate in double, in an order that depends only on shapes and the thread count.
 *   - Zeros that an operation writes on purpose are +0.0.
 *   - Input and output views may be the same view where an operation says "in place is allowed"; otherwise they must
 *     not overlap.
 *   - Operations that return a number to the host wait for it; all others may be asynchronous.
 *   - A backend with fista_step_near() multiplies matrices in BF16, and where an operation says "narrow is allowed" a
 *     result may be one, not in place; where it says "BF16 is allowed" all its matrices but weights, biases and tables
 *     may be.
 *   - Shapes are the caller's duty; backends check them with FP_REQUIRE, a defect of this program when it fails.
 */
#ifndef FP_BACKEND_BACKEND_H
#define FP_BACKEND_BACKEND_H

#include "base/clock.h"
#include "tensor/dtype.h"
#include <stddef.h>

typedef struct fp_buffer fp_buffer;
typedef struct fp_backend fp_backend;

typedef struct fp_matrix {
	fp_buffer *buffer;
	int64_t offset; /* of the first element, in elements */
	int64_t rows, cols;
	int64_t stride; /* elements from one row to the next, ≥ cols */
	fp_dtype dtype;
} fp_matrix;

typedef enum fp_transpose { FP_PLAIN, FP_TRANSPOSED } fp_transpose;
typedef enum fp_norm_kind { FP_LAYER_NORM, FP_RMS_NORM } fp_norm_kind;
typedef enum fp_activation { FP_RELU, FP_SILU, FP_GELU, FP_GELU_TANH } fp_activation;

typedef struct fp_attention_shape {
	int64_t sequences; /* rows of Q, K, V = sequences × length */
	int64_t length;
	int64_t heads;    /* of Q and of the output */
	int64_t kv_heads; /* divides heads */
	int64_t head_dim;
	int64_t window; /* a token sees this many tokens up to itself; 0: all before it */
	float scale;    /* on QKᵀ */
} fp_attention_shape;

/* How a FISTA step extrapolates: against the previous proximal point (Beck–Teboulle) or, as the paper prints it,
 * against the previous extrapolated point. */
typedef enum fp_momentum { FP_MOMENTUM_STANDARD, FP_MOMENTUM_LITERAL } fp_momentum;

/*
 * How exact the products (gemm, gram, attention) must be. A piece of code that bears rounding says so with
 * fp_backend_use() around its calls; everything else is exact, which means as good as float arithmetic. What a relaxed
 * use then gets is the setting `precision`. The CPU computes in float whatever is asked for.
 */
typedef enum fp_use {
	FP_USE_EXACT,      /* λ_max, factors, and whatever says nothing */
	FP_USE_REFINEMENT, /* errors, targets, refits: small beside what they are computed from; 16 bits are enough */
	FP_USE_ACTIVATION, /* forward pass and statistics: inputs that a 16-bit model rounds anyway */
	FP_USE_ITERATION,  /* steps of a solver that the next step corrects */
	FP_USE_COUNT
} fp_use;

/* X(identifier, word of the setting) */
#define FP_PRECISION_LIST(X)                                                                                           \
	X(FP_PRECISION_FP32, "fp32")     /* float everywhere */                                                            \
	X(FP_PRECISION_BF16X3, "bf16x3") /* relaxed uses: operands split into two bf16 numbers, 16 bits in all */          \
	X(FP_PRECISION_TF32, "tf32")     /* activations and iterations: operands of 11 bits; refinements as above */       \
	X(FP_PRECISION_BF16, "bf16")     /* as tf32, but activations and FISTA's steps in bf16, search and refit in f16 */
typedef enum fp_precision {
#define FP_PRECISION_ENUM(id, name) id,
	FP_PRECISION_LIST(FP_PRECISION_ENUM)
#undef FP_PRECISION_ENUM
		FP_PRECISION_COUNT
} fp_precision;

/* Which entries of a matrix are zero. */
typedef struct fp_pattern {
	int64_t kept, group; /* N:M = kept of group consecutive entries of a row; group == 0: unstructured */
	double sparsity;     /* unstructured: ⌊sparsity · entries⌋ zeros; for N:M it is 1 − N/M */
} fp_pattern;

/* One step of Adam. The moments start at zero; `step` counts from 1 and corrects for that. */
typedef struct fp_adam {
	float rate, beta1, beta2, epsilon;
	int64_t step;
	bool keep_zeros;  /* entries of W that are zero stay +0.0, bit for bit, and their moments are left alone */
	fp_matrix narrow; /* BF16, ← W rounded, on a backend that multiplies such; absent: not wanted */
} fp_adam;

/* What fista_step_near() takes besides the gradient. */
typedef struct fp_fista_near {
	fp_momentum rule;
	float step, threshold, momentum;
	fp_matrix W;    /* F32, BF16 or F16 */
	fp_matrix R;    /* BF16; absent: zero */
	fp_matrix D;    /* Y − W in halves; written */
	fp_matrix from; /* where it is read, in halves too; absent: D itself */
	fp_matrix P;    /* with FP_MOMENTUM_LITERAL it may be absent, or undefined where no change is asked for */
} fp_fista_near;

enum { FP_NEAR_GROUP = 8 };

/* What support_step() takes besides the matrices it changes. */
typedef struct fp_support_rule {
	fp_pattern pattern;
	float penalty;  /* ρ of the product that comes next */
	float shrink;   /* the last ρ over it: what keeps ρu as it was */
	float scale;    /* where G and T are F16 they hold so many times their numbers */
	fp_matrix W, R; /* R may be absent: zero */
} fp_support_rule;

/* What cg_step() takes: conjugate gradients on all rows of a matrix at once, each with step lengths of its own. */
typedef struct fp_cg {
	fp_matrix mask;       /* U8: r, p and q are zero elsewhere */
	fp_matrix inverse;    /* 1 × n: one over the preconditioner's diagonal */
	fp_matrix r, p, V;    /* m × n: the residual, the direction, the solution */
	fp_matrix rz, enough; /* 1 × m: ⟨r,z⟩, and at what a row is solved; infinite for one that has stopped */
	float longest;        /* a row whose step would be longer has met a direction without curvature, and stops */
	/* F16, where gemm()'s operands may be such: ← p times a power of two for each row, and those (1 × m). Then q is as
	 * many times what it says. Both absent: not wanted. */
	fp_matrix narrow, factor;
} fp_cg;

/* How many of `entries` an unstructured pattern prunes: ⌊sparsity · entries⌋, the product taken in double. */
int64_t fp_pattern_zeros(const fp_pattern *pattern, int64_t entries);

typedef struct fp_backend_operations {
	const char *name; /* "cpu", "cuda" */

	/* --- life and memory: all required -------------------------------------------------------------------- */
	void (*close)(fp_backend *be);
	fp_status (*allocate)(fp_backend *be, fp_buffer **out, int64_t bytes); /* content is undefined */
	void (*release)(fp_backend *be, fp_buffer *buffer);                    /* NULL is allowed */
	/* Host → device and back, converting between weight types. stride in elements of the host type. */
	fp_status (*upload)(fp_backend *be, fp_matrix out, const void *host, fp_dtype dtype, int64_t stride);
	fp_status (*download)(fp_backend *be, void *host, fp_dtype dtype, int64_t stride, fp_matrix in);
	fp_status (*copy)(fp_backend *be, fp_matrix out, fp_matrix in); /* same shape; converts between weight types */
	fp_status (*fill)(fp_backend *be, fp_matrix out, float value);  /* F32 or U8 */
	fp_status (*synchronize)(fp_backend *be);
	/* Free and total bytes of the device's memory. */
	fp_status (*memory)(fp_backend *be, int64_t *available, int64_t *total);

	/* --- linear algebra: required ------------------------------------------------------------------------- */
	/* C ← α op(A) op(B) + β C. A, B or both may be BF16 or F16 on a backend with fista_step_near(), whatever the use:
	 * two F16 are multiplied as they are, and C may be F16 with them; else both are rounded to BF16, and C may be
	 * BF16. */
	fp_status (*gemm)(fp_backend *be, float alpha, fp_matrix A, fp_transpose ta, fp_matrix B, fp_transpose tb,
					  float beta, fp_matrix C);
	/* upper triangle of A ← XᵀX + β A; the lower one is left undefined until mirror(). X may be BF16 where gemm()'s
	 * operands may. */
	fp_status (*gram)(fp_backend *be, fp_matrix X, float beta, fp_matrix A);
	fp_status (*mirror)(fp_backend *be, fp_matrix A); /* lower triangle ← upper */
	/* Y ← α X + β Y; X may be Y */
	fp_status (*axpby)(fp_backend *be, float alpha, fp_matrix X, float beta, fp_matrix Y);
	fp_status (*dot)(fp_backend *be, fp_matrix X, fp_matrix Y, double *out); /* Σ X∘Y */
	/* out[i] ← Σⱼ X[i,j]·Y[i,j]; out is 1×rows */
	fp_status (*row_dot)(fp_backend *be, fp_matrix X, fp_matrix Y, fp_matrix out);
	/* Y[i,:] ← a[i]·X[i,:] + b[i]·Y[i,:]; a, b are 1×rows; X may be Y */
	fp_status (*row_axpby)(fp_backend *be, fp_matrix a, fp_matrix X, fp_matrix b, fp_matrix Y);
	/* Y[:,j] ← s[j]·X[:,j]; s is 1×cols; in place is allowed */
	fp_status (*scale_columns)(fp_backend *be, fp_matrix s, fp_matrix X, fp_matrix Y);
	fp_status (*diagonal)(fp_backend *be, fp_matrix A, fp_matrix out);   /* out[i] ← A[i,i]; 1×n */
	fp_status (*add_diagonal)(fp_backend *be, fp_matrix A, fp_matrix d); /* A[i,i] += d[i]; 1×n */
	/* A ← upper U with UᵀU = A⁻¹ (what SparseGPT sweeps over); *refused ← the order of the first leading minor that is
	 * not positive, 0 when all are. When refused A is undefined. */
	fp_status (*inverse_factor)(fp_backend *be, fp_matrix A, int64_t *refused);
	/* A ← A⁻¹ for a symmetric positive definite A, both triangles; *refused as above */
	fp_status (*inverse)(fp_backend *be, fp_matrix A, int64_t *refused);
	/* A = Q diag(values) Qᵀ; A ← Q, eigenvectors in columns; values (1×n) ascending */
	fp_status (*eigen)(fp_backend *be, fp_matrix A, fp_matrix values);
	fp_status (*max_abs)(fp_backend *be, fp_matrix X, double *out); /* the largest |entry|; 0 for no entries */
	/* *out ← 1 if every entry is finite, else 0; X of any weight type */
	fp_status (*finite)(fp_backend *be, fp_matrix X, int *out);

	/* --- transformer: required ---------------------------------------------------------------------------- */
	/* Y ← normalised rows of X, times weight, plus bias; weight, bias 1×cols, absent where buffer == NULL.
	 * In place is allowed, narrow is allowed, BF16 is allowed. FP_RMS_NORM ignores bias. */
	fp_status (*norm)(fp_backend *be, fp_norm_kind kind, fp_matrix X, fp_matrix weight, fp_matrix bias, float epsilon,
					  fp_matrix Y);
	fp_status (*add_bias)(fp_backend *be, fp_matrix bias, fp_matrix X); /* X[i,:] += bias; BF16 is allowed */
	/* in place is allowed, narrow is allowed, BF16 is allowed */
	fp_status (*activate)(fp_backend *be, fp_activation kind, fp_matrix X, fp_matrix Y);
	/* Y ← f(G)∘U; Y may be G or U; narrow is allowed, BF16 is allowed */
	fp_status (*activate_gated)(fp_backend *be, fp_activation kind, fp_matrix G, fp_matrix U, fp_matrix Y);
	/* Rotary positions in place, halves convention: X[t, h·d + i], X[t, h·d + i + d/2] for i < d/2 turn by the angle of
	 * row (t mod cosine.rows). cosine, sine are length × d/2. BF16 is allowed. */
	fp_status (*rotate)(fp_backend *be, fp_matrix cosine, fp_matrix sine, int64_t heads, fp_matrix X);
	/* out ← causal softmax attention; never holds more than one block of scores. BF16 is allowed, whatever the use. */
	fp_status (*attention)(fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K, fp_matrix V,
						   fp_matrix out);
	/* out[i] ← −log softmax(logits[i,:])[targets[i]]; targets on the host, −1 gives 0; out 1×rows. argmax may be NULL,
	 * else argmax[i] (host) ← the smallest index of the largest logit */
	fp_status (*cross_entropy)(fp_backend *be, fp_matrix logits, const int32_t *targets, fp_matrix out,
							   int32_t *argmax);

	/* --- pruning: required -------------------------------------------------------------------------------- */
	/* One FISTA step on P, Y with the gradient G at Y:
	 *     P₊ = soft(Y − step·G, threshold)
	 *     Y ← P₊ + momentum·(P₊ − P)     FP_MOMENTUM_STANDARD
	 *     Y ← P₊ + momentum·(P₊ − Y)     FP_MOMENTUM_LITERAL
	 *     P ← P₊
	 * change, when not NULL, ← ‖P₊ − P‖²_F */
	fp_status (*fista_step)(fp_backend *be, fp_momentum rule, float step, float threshold, float momentum, fp_matrix G,
							fp_matrix Y, fp_matrix P, double *change);
	/* mask (U8) ← 0 at the entries of smallest |score| that the pattern prunes, 1 elsewhere. Unstructured: exactly
	 * ⌊sparsity·rows·cols⌋ zeros in the matrix; ties: the entry that comes first in memory order is pruned first. N:M:
	 * of each group of M in a row the N largest stay (ties: the first stays); a last group of M' < M entries keeps
	 * ⌈N·M'/M⌉. */
	fp_status (*mask_smallest)(fp_backend *be, fp_matrix score, const fp_pattern *pattern, fp_matrix mask);
	/* The same for an unstructured pattern with ⌊sparsity·cols⌋ zeros in each row. */
	fp_status (*mask_rows)(fp_backend *be, fp_matrix score, const fp_pattern *pattern, fp_matrix mask);
	fp_status (*apply_mask)(fp_backend *be, fp_matrix mask, fp_matrix X); /* X ← X where mask, else +0.0 */
	/* count of entries where two masks differ */
	fp_status (*mask_distance)(fp_backend *be, fp_matrix a, fp_matrix b, int64_t *out);
	/* One step of the search for the support (solver/support_admm.c) except its product, which gives G = V − W. S holds
	 * Z where the mask is 1 and the multiplier u elsewhere:
	 *     S ← G + W + u
	 *     mask ← the pattern of S, as mask_smallest() chooses it
	 *     S ← shrink·S where the mask is 0
	 *     T ← penalty·(Z − u − W) + R
	 * G and T may be F16 where gemm()'s operands may; values beyond its range are written as its largest number. */
	fp_status (*support_step)(fp_backend *be, const fp_support_rule *rule, fp_matrix G, fp_matrix S, fp_matrix mask,
							  fp_matrix T);
	/* One step of conjugate gradients except its product q = pA, or narrow·A, which is overwritten:
	 *     q ← q∘mask
	 *     α = ⟨r,z⟩/⟨p,q⟩
	 *     V ← V + αp
	 *     r₊ = r − αq
	 *     z₊ = r₊∘inverse
	 *     p ← z₊ + p·⟨r₊,z₊⟩/⟨r,z⟩
	 *     r ← r₊
	 * A row stops for good where ⟨r,z⟩ ≤ enough, ⟨p,q⟩ ≤ 0 or α > longest. q absent: the first direction, p ← z. */
	fp_status (*cg_step)(fp_backend *be, const fp_cg *cg, fp_matrix q);
	/* SparseGPT's sweep: W (in place) and its mask, from U of inverse_factor(), in blocks of `block` columns; a group
	 * of N:M may not cross a block. mask is written. */
	fp_status (*sparsegpt_sweep)(fp_backend *be, fp_matrix U, const fp_pattern *pattern, int64_t block, fp_matrix W,
								 fp_matrix mask);

	/* --- pruning: optional, all or none; NULL: the solver does without ------------------------------------ */
	/* For a solver that has its gradient from D = V − W in bf16, which rounds the small difference and not the
	 * weights. D (BF16, 2m × n) holds an m × n matrix of floats in halves: the upper one rounded to the nearest, an
	 * operand of gemm(), in the first m rows, and what that left, as bits, in the others. Nothing is lost. */
	/* D ← V − W; W F32, BF16 or F16 */
	fp_status (*halve)(fp_backend *be, fp_matrix V, fp_matrix W, fp_matrix D);
	/* V ← W + D */
	fp_status (*rejoin)(fp_backend *be, fp_matrix W, fp_matrix D, fp_matrix V);
	/* fista_step() with the gradient G − R (G F32 or BF16) at Y = W + D. bound, when not NULL (then change is), ←
	 * Σ 2H₊∘(G − R) − H∘G for the upper halves of D before and after: what the quadratic form that has this gradient
	 * is at H₊ at least, by the tangent at H */
	fp_status (*fista_step_near)(fp_backend *be, const fp_fista_near *near, fp_matrix G, double *change, double *bound);
	/* out ← D of W + D rounded to a pattern of groups (N:M), as mask_smallest() chooses; M up to FP_NEAR_GROUP; out may
	 * be D */
	fp_status (*near_round)(fp_backend *be, const fp_pattern *pattern, fp_matrix W, fp_matrix D, fp_matrix out);
	/* *out ← Σ H∘(G − 2R) for the upper half H of D; R (BF16) may be absent: zero */
	fp_status (*near_sum)(fp_backend *be, fp_matrix D, fp_matrix G, fp_matrix R, double *out);

	/* --- the way in: optional; NULL: fp_matrix_new() and upload() ------------------------------------------ */
	/* *out ← a new matrix of a weight type from contiguous host memory, beside what was asked for before: it need not
	 * wait for that. Takes memory that work under way still holds twice, so it is not for a device that is full. */
	fp_status (*upload_beside)(fp_backend *be, fp_matrix *out, int64_t rows, int64_t cols, fp_dtype type,
							   const void *host, fp_dtype dtype);

	/* --- the way out: optional, all or none; NULL: the host does it ---------------------------------------- */
	/* X and out (a weight type, contiguous) ← X rounded to out's type, −0.0 made +0.0; *zeros ← how many zeros there
	 * are, *finite ← whether all are finite. X F32. */
	fp_status (*settle_weights)(fp_backend *be, fp_matrix X, fp_matrix out, int64_t *zeros, int *finite);
	/* Host memory that the device reaches by itself; its content is undefined. */
	fp_status (*allocate_host)(fp_backend *be, void **out, int64_t bytes);
	void (*release_host)(fp_backend *be, void *host); /* NULL is allowed */
	/* Sends a contiguous matrix as it is to such memory, beside what else is asked for. The bytes are there after
	 * end_download(); until then the matrix stays and nobody writes to it. One at a time. */
	fp_status (*begin_download)(fp_backend *be, void *host, fp_matrix in);
	fp_status (*end_download)(fp_backend *be);

	/* --- gradients: optional, all or none (fp_backend_has_gradients); for the layer fit ------------------- */
	/* A loss's gradient by an operation's inputs from that by its output. A linear operator needs gemm() only, a
	 * rotation is undone by rotate() with the sines negated, and a bias's gradient is column_sums(). */
	/* dX ← gradient by X of norm(); dX may be dY */
	fp_status (*norm_backward)(fp_backend *be, fp_norm_kind kind, fp_matrix X, fp_matrix weight, float epsilon,
							   fp_matrix dY, fp_matrix dX);
	/* logits ← the gradient by them of Σ cross_entropy(): softmax(logits[i,:]) less one at targets[i]; a target of −1
	 * gives a row of zeros; targets on the host */
	fp_status (*cross_entropy_backward)(fp_backend *be, const int32_t *targets, fp_matrix logits);
	/* dX ← dY∘f'(X); dX may be dY or X; narrow is allowed. The derivative of FP_RELU at 0 is 0. */
	fp_status (*activate_backward)(fp_backend *be, fp_activation kind, fp_matrix X, fp_matrix dY, fp_matrix dX);
	/* dG ← dY∘U∘f'(G), dU ← dY∘f(G); dG may be G and dU may be U; narrow is allowed, for both */
	fp_status (*activate_gated_backward)(fp_backend *be, fp_activation kind, fp_matrix G, fp_matrix U, fp_matrix dY,
										 fp_matrix dG, fp_matrix dU);
	/* Gradients of attention() with its output `out`; never holds more than one block of scores */
	fp_status (*attention_backward)(fp_backend *be, const fp_attention_shape *shape, fp_matrix Q, fp_matrix K,
									fp_matrix V, fp_matrix out, fp_matrix dout, fp_matrix dQ, fp_matrix dK,
									fp_matrix dV);
	/* out[j] ← Σᵢ X[i,j] + β out[j]; out is 1×cols; X may be BF16 where gemm()'s operands may */
	fp_status (*column_sums)(fp_backend *be, fp_matrix X, float beta, fp_matrix out);
	/* out[j] ← Σᵢ X[i,j]² + β out[j], likewise */
	fp_status (*column_squares)(fp_backend *be, fp_matrix X, float beta, fp_matrix out);
	/* D ← scale·(Y − T); squares, when not NULL, ← ‖Y − T‖²; D may be Y. Where gemm()'s operands may be BF16, so may
	 * all three, or D alone. */
	fp_status (*difference)(fp_backend *be, float scale, fp_matrix Y, fp_matrix T, fp_matrix D, double *squares);
	/* One step of Adam, the t-th:
	 *     M ← β₁M + (1−β₁)G
	 *     V ← β₂V + (1−β₂)G²
	 *     M̂ = M/(1−β₁ᵗ)
	 *     V̂ = V/(1−β₂ᵗ)
	 *     W ← W − rate·M̂/(√V̂ + ε) */
	fp_status (*adam_step)(fp_backend *be, const fp_adam *rule, fp_matrix G, fp_matrix M, fp_matrix V, fp_matrix W);
} fp_backend_operations;

struct fp_backend {
	const fp_backend_operations *ops;
	fp_context *ctx; /* borrowed */
	void *state;     /* the backend's own */
	int threads;
	bool frugal;                         /* memory is short: what can be made again is not kept */
	bool asynchronous;                   /* a number for the host costs a wait: ask for it rarely */
	fp_use use;                          /* of the products from now on; set by fp_backend_use() */
	fp_precision precision;              /* of relaxed uses; set by fp_backend_set_precision() */
	int64_t peak_bytes;                  /* the most device memory held at once; 0: it is the host's */
	int64_t stage_bytes[FP_STAGE_COUNT]; /* the same, by the stage that time counted for */
	char description[128];               /* "cpu: 2 threads, OpenBLAS 0.3.21 SkylakeX" */
};

/* Opens a backend by name: "cpu", "cuda", "cuda:1", or "auto" (the best there is; the log says which).
 * threads 0: as many as the process may use. The caller closes it with fp_backend_close(). */
fp_status fp_backend_open(fp_backend **out, fp_context *ctx, const char *name, int threads);
void fp_backend_close(fp_backend *be); /* NULL is allowed */

/* From now on products are for `use`; returns what they were for before, to go back to. */
static inline fp_use fp_backend_use(fp_backend *be, fp_use use)
{
	fp_use before = be->use;
	be->use = use;
	return before;
}
/* By the word of the setting; "auto" is what was measured to leave perplexity alone on this backend, for a model whose
 * hidden states have so many numbers. */
fp_status fp_backend_set_precision(fp_backend *be, const char *word, int64_t width);
/* The same for figures that are compared with others': "auto" leaves their first four digits alone. */
fp_status fp_backend_set_figure_precision(fp_backend *be, const char *word, int64_t width);

/* --- conveniences over the table (backend.c) ------------------------------------------------------------------ */

/* Allocates a buffer for rows × cols and views it. The caller releases it with fp_matrix_free(). */
fp_status fp_matrix_new(fp_backend *be, fp_matrix *out, int64_t rows, int64_t cols, fp_dtype dtype);
void fp_matrix_free(fp_backend *be, fp_matrix *matrix); /* an all-zero view is allowed; leaves one */
/* *out ← m as F32: itself, or *own, which the caller frees in any case. */
fp_status fp_matrix_widen(fp_backend *be, fp_matrix m, fp_matrix *own, fp_matrix *out);
static inline int64_t fp_matrix_size(fp_matrix m)
{
	return m.rows * m.cols;
}
static inline bool fp_matrix_is_absent(fp_matrix m)
{
	return m.buffer == NULL;
}
/* For backends: true when a view has this type and lies within a buffer of so many bytes. */
static inline bool fp_matrix_lies_within(fp_matrix m, fp_dtype dtype, int64_t bytes)
{
	if (m.dtype != dtype || m.rows < 0 || m.cols < 0 || m.offset < 0)
		return false;
	if (m.rows == 0 || m.cols == 0)
		return true;
	if (m.rows > 1 && m.stride < m.cols)
		return false;
	int64_t last = 0;
	int64_t room = bytes / fp_dtype_size(dtype);
	return !__builtin_mul_overflow(m.rows - 1, m.stride, &last) && !__builtin_add_overflow(last, m.offset, &last) &&
		   !__builtin_add_overflow(last, m.cols, &last) && last <= room;
}
/* For backends: true when sparsegpt_sweep() may be asked for this; groups up to `longest`. */
static inline bool fp_sweep_fits(fp_matrix U, fp_matrix W, const fp_pattern *pattern, int64_t block, int64_t longest)
{
	return U.rows == W.cols && U.cols == W.cols && block > 0 && pattern->group >= 0 && pattern->group <= longest &&
		   pattern->kept <= pattern->group && (pattern->group == 0 || block % pattern->group == 0);
}
/* Rows [first, first + rows) and columns likewise. */
fp_matrix fp_matrix_rows(fp_matrix m, int64_t first, int64_t rows);
fp_matrix fp_matrix_cols(fp_matrix m, int64_t first, int64_t cols);
/* The first rows × cols elements of a contiguous matrix's buffer seen as another shape. */
fp_matrix fp_matrix_reshape(fp_matrix m, int64_t rows, int64_t cols);

/* The type in which products for `use` take operands that a caller holds for them: BF16, which they would round to
 * themselves; F16, the bits of tf32 in half the room, for who knows the range of his numbers; or F32. */
fp_dtype fp_backend_operand(const fp_backend *be, fp_use use);
/* True when that is BF16: what is multiplied twice is better rounded once. */
bool fp_backend_rounds(const fp_backend *be, fp_use use);
/* True when weights come in beside the device's work: it can, and there is the memory for it. */
bool fp_backend_brings_beside(const fp_backend *be);
/* True when the backend has the operations of a layer fit. */
bool fp_backend_has_gradients(const fp_backend *be);

/* Measured floating-point operations a second of a GEMM of moderate size, for estimates. */
fp_status fp_backend_gemm_rate(fp_backend *be, double *out);

/* A broken rule between caller and backend: a defect, reported and never undefined behaviour. */
#define FP_REQUIRE(be, condition)                                                                                      \
	do {                                                                                                               \
		if (!(condition))                                                                                              \
			return fp_fail((be)->ctx, FP_ERROR_INTERNAL, "%s: %s does not hold", __func__, #condition);                \
	} while (0)

#endif
