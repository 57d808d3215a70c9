/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.h: the interface between the mathematics and a device. Read this first.
 *
 * A backend is a set of tables of operations on matrices in its own memory:
 *
 *     be->memory       memory_ops.h       allocate, upload, download, copy
 *     be->linear       linear_ops.h       products, factors, sums
 *     be->transformer  transformer_ops.h  norms, activations, attention
 *     be->pruning      pruning_ops.h      masks, steps of the solvers
 *     be->grid         grid_ops.h         quantised weights
 *     be->decode       decode_ops.h       products of a few rows with dense or compressed weights
 *     be->delta        pruning_ops.h      optional: FISTA on V − W in 16-bit halves
 *     be->transfer     memory_ops.h       optional: transfers that overlap with computation
 *     be->gradients    gradient_ops.h     optional: what the layer fit needs
 *
 * fp_backend_can() says what is optional and there.
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
 *   - With FP_CAN_MULTIPLY_NARROW: where an operation says "narrow is allowed" its result may be BF16, not in place;
 *     where it says "BF16 is allowed" all its matrices except weights, biases and tables may be.
 *   - Callers must pass matching shapes. Backends check them with FP_REQUIRE; a failure is a defect of this program.
 */
#ifndef FP_BACKEND_BACKEND_H
#define FP_BACKEND_BACKEND_H

#include "backend/decode_ops.h"
#include "backend/gradient_ops.h"
#include "backend/grid_ops.h"
#include "backend/linear_ops.h"
#include "backend/memory_ops.h"
#include "backend/precision.h"
#include "backend/pruning_ops.h"
#include "backend/transformer_ops.h"
#include "base/clock.h"
#include <stddef.h>

/* What a backend can do besides what is required. */
typedef enum fp_capability {
	FP_CAN_MULTIPLY_NARROW = 1 << 0, /* products take BF16 and F16 operands */
	FP_CAN_STEP_DELTA = 1 << 1,      /* be->delta */
	FP_CAN_UPLOAD_ASYNC = 1 << 2,    /* be->transfer->upload_async */
	FP_CAN_DOWNLOAD_ASYNC = 1 << 3,  /* the rest of be->transfer */
	FP_CAN_DIFFERENTIATE = 1 << 4,   /* be->gradients */
	FP_CAN_ROUND = 1 << 5,           /* products in bf16 are faster than in float: `precision` may be bf16 */
	FP_CAN_SPLIT = 1 << 6,           /* so are those of operands with 11 to 16 bits: bf16x3 and tf32 */
} fp_capability;

struct fp_backend {
	const char *name; /* "cpu", "cuda" */
	void (*close)(fp_backend *be);
	const fp_memory_operations *memory;
	const fp_linear_operations *linear;
	const fp_transformer_operations *transformer;
	const fp_pruning_operations *pruning;
	const fp_grid_operations *grid;
	const fp_decode_operations *decode;
	const fp_delta_operations *delta;
	const fp_transfer_operations *transfer;
	const fp_gradient_operations *gradients;
	unsigned capabilities; /* of fp_capability */
	fp_context *ctx;       /* borrowed */
	void *state;           /* the backend's own */
	int threads;
	/* Some rows of A, if they are whole strips of so many, two at least, have the bits in AB that they have in the product of
	 * all rows, unless B is small. 0: a product of some rows may have other bits. */
	int64_t strip_rows;
	bool frugal;                         /* memory is short: results that can be recomputed are not kept */
	bool asynchronous;                   /* returning a number to the host costs a wait: ask for it rarely */
	fp_use use;                          /* of products now; changed by FP_PRODUCTS_FOR() only */
	fp_precision precision;              /* of relaxed uses; set by fp_backend_set_precision() */
	int64_t peak_bytes;                  /* the most device memory held at once; 0: it is the host's */
	int64_t stage_bytes[FP_STAGE_COUNT]; /* the same for each stage of the stopwatch */
	char description[128];               /* "cpu: 2 threads, OpenBLAS 0.3.21 SkylakeX" */
};

/* Opens a backend by name: "cpu", "cuda", "cuda:1", or "auto" (the best there is; the log says which).
 * threads 0: as many as the process may use. The caller closes it with fp_backend_close(). */
fp_status fp_backend_open(fp_backend **out, fp_context *ctx, const char *name, int threads);
void fp_backend_close(fp_backend *be); /* NULL is allowed */

static inline bool fp_backend_can(const fp_backend *be, fp_capability capability)
{
	return (be->capabilities & (unsigned)capability) != 0;
}

/* True when weights can be uploaded during other work: the device can, and memory is not short. */
bool fp_backend_uploads_async(const fp_backend *be);

/* *out ← the mean of a vector, 1 × n; 0 if it is empty */
fp_status fp_mean(fp_backend *be, fp_matrix vector, double *out);

/* Measured floating-point operations a second of a GEMM of moderate size, for estimates. */
fp_status fp_backend_gemm_rate(fp_backend *be, double *out);

/* A broken rule between caller and backend: a defect, reported and never undefined behaviour. */
#define FP_REQUIRE(be, condition)                                                                                      \
	do {                                                                                                               \
		if (!(condition))                                                                                              \
			return fp_fail((be)->ctx, FP_ERROR_INTERNAL, "%s: %s does not hold", __func__, #condition);                \
	} while (0)

#endif
