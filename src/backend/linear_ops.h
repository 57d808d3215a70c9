/* SPDX-License-Identifier: Apache-2.0 */
/* linear_ops.h: linear algebra on a device. Required. backend.h has the conventions. */
#ifndef FP_BACKEND_LINEAR_OPS_H
#define FP_BACKEND_LINEAR_OPS_H

#include "backend/matrix.h"

typedef enum fp_transpose { FP_PLAIN, FP_TRANSPOSED } fp_transpose;

/* Matrices at equal distances: `count` of them, each this many elements after the one before. */
typedef struct fp_blocks {
	int64_t count, a, b, c;
} fp_blocks;

typedef struct fp_linear_operations {
	/* C ← α op(A) op(B) + β C. With FP_CAN_MULTIPLY_NARROW, A, B or both may be BF16 or F16 for every use: two F16
	 * operands are multiplied as they are, and C may be F16; otherwise both are rounded to BF16, and C may be BF16. */
	fp_status (*gemm)(fp_backend *be, float alpha, fp_matrix A, fp_transpose ta, fp_matrix B, fp_transpose tb,
					  float beta, fp_matrix C);
	/* The same for `count` blocks at once: A, B and C are the first of each; all F32, and blocks of C must not overlap.
	 * Exact, or tf32 where gemm() would round to that or less. */
	fp_status (*gemm_blocks)(fp_backend *be, float alpha, fp_matrix A, fp_transpose ta, fp_matrix B, fp_transpose tb,
							 float beta, fp_matrix C, fp_blocks blocks);
	/* Upper triangle of A ← XᵀX + β A; the lower one is undefined until mirror(). X may be BF16 where gemm()'s
	 * operands may. */
	fp_status (*gram)(fp_backend *be, fp_matrix X, float beta, fp_matrix A);
	fp_status (*mirror)(fp_backend *be, fp_matrix A); /* lower triangle ← upper */
	/* Y ← α X + β Y; X may be Y */
	fp_status (*axpby)(fp_backend *be, float alpha, fp_matrix X, float beta, fp_matrix Y);
	/* Z ← α X + β Y; Z may be X or Y; Z may be F16 or BF16 where gemm()'s operands may, and is then rounded once */
	fp_status (*combine)(fp_backend *be, float alpha, fp_matrix X, float beta, fp_matrix Y, fp_matrix Z);
	fp_status (*dot)(fp_backend *be, fp_matrix X, fp_matrix Y, double *out); /* Σ X∘Y */
	/* out[i] ← Σⱼ X[i,j]·Y[i,j]; out is 1×rows; X and Y may both be BF16 where gemm()'s operands may */
	fp_status (*row_dot)(fp_backend *be, fp_matrix X, fp_matrix Y, fp_matrix out);
	/* Y[i,:] ← a[i]·X[i,:] + b[i]·Y[i,:]; a, b are 1×rows; X may be Y */
	fp_status (*row_axpby)(fp_backend *be, fp_matrix a, fp_matrix X, fp_matrix b, fp_matrix Y);
	/* Y[:,j] ← s[j]·X[:,j]; s is 1×cols; in place is allowed */
	fp_status (*scale_columns)(fp_backend *be, fp_matrix s, fp_matrix X, fp_matrix Y);
	/* Y[i,:] ← X[order[i],:]; order: X.rows numbers on the host, each row once. Y may not be X. */
	fp_status (*permute_rows)(fp_backend *be, const int32_t *order, fp_matrix X, fp_matrix Y);
	/* Y[:,j] ← X[:,order[j]]; the same for columns */
	fp_status (*permute_columns)(fp_backend *be, const int32_t *order, fp_matrix X, fp_matrix Y);
	fp_status (*diagonal)(fp_backend *be, fp_matrix A, fp_matrix out);   /* out[i] ← A[i,i]; 1×n */
	fp_status (*add_diagonal)(fp_backend *be, fp_matrix A, fp_matrix d); /* A[i,i] += d[i]; 1×n */
	/* A ← upper U with UᵀU = A⁻¹ (SparseGPT sweeps over it). *refused ← the order of the first leading minor that is
	 * not positive, 0 when all are; A is undefined unless *refused is 0. */
	fp_status (*inverse_factor)(fp_backend *be, fp_matrix A, int64_t *refused);
	/* A ← A⁻¹ for a symmetric positive definite A, both triangles; *refused as above */
	fp_status (*inverse)(fp_backend *be, fp_matrix A, int64_t *refused);
	/* A = Q diag(values) Qᵀ; A ← Q, eigenvectors in columns; values (1×n) ascending */
	fp_status (*eigen)(fp_backend *be, fp_matrix A, fp_matrix values);
	fp_status (*max_abs)(fp_backend *be, fp_matrix X, double *out); /* the largest |entry|; 0 for no entries */
	/* *out ← 1 if every entry is finite, else 0; X of any weight type */
	fp_status (*finite)(fp_backend *be, fp_matrix X, int *out);
} fp_linear_operations;

#endif
