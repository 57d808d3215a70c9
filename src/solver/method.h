/* SPDX-License-Identifier: Apache-2.0 */
/*
 * method.h: what the rest of the program knows of a pruning method. Each method's own file defines its row; the list in
 * fistapruner/methods.h makes the table.
 */
#ifndef FP_SOLVER_METHOD_H
#define FP_SOLVER_METHOD_H

#include "solver/grid.h"
#include <fistapruner/methods.h>

/* How the inputs X of the dense model and X* of the pruned one reach a layer. */
typedef enum fp_feed {
	FP_FEED_NONE,       /* X* = X from the dense model: no correction */
	FP_FEED_INTRA,      /* X* through this layer's pruned operators; the layer's input is the dense model's */
	FP_FEED_CROSS,      /* X* through all pruned operators before */
	FP_FEED_SEQUENTIAL, /* X* = X through the pruned layers before and this layer's dense weights, as the scripts of
						   SparseGPT and Wanda do it */
} fp_feed;

/* For estimates: the largest operator, m × n, of those that share a Gram matrix. */
typedef struct fp_solve_size {
	int64_t inputs;  /* n */
	int64_t entries; /* mn */
	int operators;   /* that share the Gram matrix */
	bool has_R;      /* the target's R is not zero */
	bool frugal;     /* as be->frugal will be */
} fp_solve_size;

/* Floats that a solve holds besides W, V, C, R, A and the mask. */
typedef struct fp_solve_memory {
	double kept; /* with the Gram matrix, until all of its operators are solved */
	double peak; /* besides that, at most at any time */
} fp_solve_memory;

/* Products that a solve makes besides WA and the error of the result. */
typedef struct fp_solve_products {
	double operators; /* (m × n)·(n × n), for each operator */
	double gram;      /* (n × n)·(n × n), for each Gram matrix */
} fp_solve_products;

typedef struct fp_method {
	bool needs_text;
	bool has_presets;       /* and heeds the settings that presets set */
	fp_quantiser quantiser; /* what its authors, or we, put weights on a grid with */
	fp_feed (*feed)(const fp_settings *settings);
	/* Whether members of an fp_solve_team can solve some rows each, with what they tell each other; NULL: no */
	bool (*solves_rows)(const fp_settings *settings, const fp_pattern *pattern);
	/* V ← the pruned operator, mask ← its pattern */
	fp_status (*solve)(const fp_problem *problem, const fp_settings *settings, fp_matrix V, fp_matrix mask,
					   fp_solution *solution);
	fp_solve_memory (*memory)(const fp_backend *be, const fp_settings *settings, const fp_solve_size *size);
	fp_solve_products (*products)(const fp_backend *be, const fp_settings *settings);
} fp_method;

#define FP_METHOD_ROW(name, ...) extern const fp_method fp_method_##name;
FP_METHOD_LIST(FP_METHOD_ROW)
#undef FP_METHOD_ROW

/* The row of settings->method; by name, NULL where there is none. */
const fp_method *fp_method_of(const fp_settings *settings);
const fp_method *fp_method_named(const char *name);

/* Floats of a whole solve of the group's largest operator: what the method says, the mask, and what measuring the
 * result takes. */
double fp_solve_floats(const fp_backend *be, const fp_settings *settings, const fp_solve_size *size);
/* Floats that a product of an operator and its Gram matrix takes for rounded operands. */
double fp_product_floats(const fp_backend *be, fp_use use, const fp_solve_size *size);

/* The feed of published methods that run layer by layer. */
fp_feed fp_feed_sequential(const fp_settings *settings);
/* For a method that holds nothing, or next to nothing. */
fp_solve_memory fp_no_memory(const fp_backend *be, const fp_settings *settings, const fp_solve_size *size);
fp_solve_products fp_no_products(const fp_backend *be, const fp_settings *settings);

#endif
