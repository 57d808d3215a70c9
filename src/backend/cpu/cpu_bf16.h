/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_bf16.h: products of float matrices whose operands are rounded to BF16 while they are packed, with sums in float.
 *
 * An engine is one way to compute them. Those of x86 differ in the instructions that multiply; packing and the division
 * into tasks are the same (cpu_bf16_multiply.c). The backend takes the first engine of the table that the processor can
 * use. It does not measure: every rank and every later run must choose the same.
 */
#ifndef FP_BACKEND_CPU_BF16_H
#define FP_BACKEND_CPU_BF16_H

#include "backend/backend.h"

/* C ← α op(A) op(B) + β C on row-major floats: C is m × n, op(A) m × k, op(B) k × n; none of them is 0. */
typedef struct fp_cpu_product {
	int64_t m, n, k;
	const float *A, *B;
	float *C;
	int64_t lda, ldb, ldc; /* from one row to the next */
	bool ta, tb;           /* A is stored as k × m, B as n × k */
	float alpha, beta;     /* with β = 0, C is not read */
	bool split;            /* an operand is the sum of two BF16 numbers, high and low; low·low is dropped */
	bool upper;            /* only entries of C with column ≥ row are wanted; others may be written */
	int threads;
	/* For attention's masks. Only multiply_alone() uses them, to leave out work. */
	bool lower_C; /* only entries of C with column ≤ row + reach are wanted; others may be written */
	bool lower_A; /* entries of A with column > row + reach are zero */
	int64_t reach;
} fp_cpu_product;

typedef struct fp_cpu_bf16 fp_cpu_bf16;
typedef struct fp_cpu_bf16_engine fp_cpu_bf16_engine;

struct fp_cpu_bf16_engine {
	const char *name; /* "AMX" */
	/* What the processor or the system lacks for it; NULL: nothing. */
	const char *(*missing)(void);
	double speed; /* of products of rounded operands, in times of float's */
	bool splits;  /* it multiplies split operands too, faster than float */
	fp_status (*multiply)(fp_cpu_bf16 *opened, fp_context *ctx, const fp_cpu_product *product);
	/* The same by the calling thread alone, which may be one of a parallel region, for small products. space: space()
	 * bytes, aligned to 64. */
	void (*multiply_alone)(const fp_cpu_bf16_engine *engine, const fp_cpu_product *product, void *space);
	int64_t (*space)(const fp_cpu_bf16_engine *engine, const fp_cpu_product *product);
	const struct fp_bf16_kernel *kernel; /* of those three (cpu_bf16_tiles.h) */
};

/* All engines of this build, the best first; ends with NULL. */
extern const fp_cpu_bf16_engine *const fp_cpu_bf16_engines[];

/* An engine that was opened, and the memory that it keeps between products; all zero: there is none. */
struct fp_cpu_bf16 {
	const fp_cpu_bf16_engine *engine;
	uint16_t *left, *right; /* packed operands */
	int64_t left_size, right_size;
	float *sums; /* of a task, for each thread */
	int threads; /* that there are sums for */
};

/* Opens the first engine that this processor can use, if any; the log says why others are not used. */
void fp_cpu_bf16_open(fp_cpu_bf16 *out, fp_context *ctx);
void fp_cpu_bf16_close(fp_cpu_bf16 *bf16);

/* A product by the calling thread alone, by the engine or, if that is NULL, by sgemm. space: as for multiply_alone(). */
void fp_cpu_multiply_alone(const fp_cpu_bf16_engine *engine, const fp_cpu_product *product, void *space);

enum { FP_CPU_NARROWEST = 16 }; /* rounding would cost more than a product with fewer rows or columns */

/* How a product is computed. */
typedef enum fp_cpu_arithmetic { FP_CPU_FLOAT, FP_CPU_SPLIT, FP_CPU_ROUNDED } fp_cpu_arithmetic;

/* The arithmetic that be->use and be->precision ask for, where there is an engine. */
fp_cpu_arithmetic fp_cpu_arithmetic_wanted(const fp_backend *be);
/* The arithmetic of a product of this shape, by be->use and be->precision. */
fp_cpu_arithmetic fp_cpu_arithmetic_of(const fp_backend *be, int64_t m, int64_t n, int64_t k);

#endif
