/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_simd.h: the inner loops of the CPU backend on spans of floats, compiled once per instruction set and chosen when
 * the backend is opened. Spans may have any size, also 0, and any alignment. An output may be one of the inputs; they
 * must not overlap otherwise.
 */
#ifndef FP_BACKEND_CPU_SIMD_H
#define FP_BACKEND_CPU_SIMD_H

#include "backend/backend.h"

typedef struct fp_cpu_loops {
	const char *name; /* "scalar", "avx2", "avx512" */

	/* --- softmax */
	float (*maximum)(const float *x, int64_t n);               /* −inf if n is 0; may be NaN if x has one */
	double (*exp_sum)(const float *x, int64_t n, float shift); /* Σ exp(x − shift) */
	double (*exp_store)(float *x, int64_t n, float shift);     /* the same, and x ← exp(x − shift) */
	/* Σ exp(x − shift)·(x − y), and *sum ← Σ exp(x − shift); both added in double */
	double (*exp_dot)(const float *x, const float *y, int64_t n, float shift, double *sum);

	/* --- linear */
	void (*scale)(float *y, const float *x, int64_t n, float factor);            /* y ← factor·x */
	void (*axpby)(float *y, const float *x, int64_t n, float alpha, float beta); /* y ← α x + β y; β = 0 reads no y */
	void (*multiply)(float *y, const float *x, const float *s, int64_t n);       /* y ← s∘x */
	void (*add)(float *y, const float *x, int64_t n);                            /* y ← y + x */
	float (*max_abs)(const float *x, int64_t n);                                 /* 0 if n is 0 */
	double (*sum)(const float *x, int64_t n);
	double (*squares)(const float *x, int64_t n, double centre); /* Σ (x − centre)² */
	double (*dot)(const float *x, const float *y, int64_t n);
	void (*subtract)(float *d, const float *x, const float *y, int64_t n); /* d ← x − y */
	bool (*finite)(const float *x, int64_t n);

	/* --- transformer */
	/* y ← (x − centre)·factor ∘ weight + bias; weight and bias may be NULL */
	void (*normalise)(float *y, const float *x, int64_t n, float centre, float factor, const float *weight,
					  const float *bias);
	void (*activate)(fp_activation kind, float *y, const float *x, int64_t n);
	void (*activate_gated)(fp_activation kind, float *y, const float *g, const float *u, int64_t n);
	/* rotates (x[i], x[i + half]) by angle i, i < half */
	void (*rotate)(float *x, const float *cosine, const float *sine, int64_t half);

	/* --- pruning */
	/* fista_step() on one span; returns Σ (P₊ − P)² */
	double (*fista)(fp_momentum rule, float step, float threshold, float momentum, const float *g, float *y, float *p,
					int64_t n);
	void (*apply_mask)(float *x, const uint8_t *mask, int64_t n);
	/* The two parts of support_step(): s ← g + w + (mask ? 0 : s), then s and t by the new mask; r may be NULL */
	void (*support_sum)(const float *g, const float *w, const uint8_t *mask, float *s, int64_t n);
	void (*support_target)(float penalty, float shrink, const float *w, const float *r, const uint8_t *mask, float *s,
						   float *t, int64_t n);
	int64_t (*mask_distance)(const uint8_t *a, const uint8_t *b, int64_t n);

	/* --- gradients */
	/* dx ← factor·(w∘dy − a − b·(x − centre)); weight may be NULL */
	void (*normalise_backward)(float *dx, const float *dy, const float *x, int64_t n, float centre, float factor,
							   float a, float b, const float *weight);
	void (*activate_backward)(fp_activation kind, float *dx, const float *dy, const float *x, int64_t n);
	void (*activate_gated_backward)(fp_activation kind, float *dg, float *du, const float *dy, const float *g,
									const float *u, int64_t n);
	void (*softmax_backward)(float *ds, const float *p, int64_t n, float centre); /* ds ← p∘(ds − centre) */
	double (*difference)(float *d, const float *y, const float *t, int64_t n, float scale); /* returns Σ(y − t)² */
	void (*adam)(const fp_adam *rule, const float *g, float *m, float *v, float *w, int64_t n);
} fp_cpu_loops;

/* The best loops for this processor. Borrowed. */
const fp_cpu_loops *fp_cpu_loops_best(void);
/* The loops of one instruction set, or NULL if the processor or the build lacks it. Borrowed. For tests. */
const fp_cpu_loops *fp_cpu_loops_named(const char *name);

#endif
