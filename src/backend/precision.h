/* SPDX-License-Identifier: Apache-2.0 */
/*
 * precision.h: how exact the products (gemm, gram, attention) must be.
 *
 * Products are exact, as good as float arithmetic, unless a piece of code declares with FP_PRODUCTS_FOR() what its
 * products are for. The setting `precision` decides what a relaxed use gets. Without FP_CAN_ROUND, as on a CPU
 * without instructions for BF16, everything is computed in float.
 */
#ifndef FP_BACKEND_PRECISION_H
#define FP_BACKEND_PRECISION_H

#include "backend/matrix.h"

typedef enum fp_use {
	FP_USE_EXACT,      /* λ_max, factors, and all code that declares nothing */
	FP_USE_REFINEMENT, /* errors, targets, refits: small compared with what they are computed from; 16 bits are enough */
	FP_USE_ACTIVATION, /* forward pass and statistics: inputs that a 16-bit model rounds anyway */
	FP_USE_ITERATION,  /* steps of a solver that the next step corrects */
	FP_USE_COUNT
} fp_use;

/* X(identifier, word of the setting) */
#define FP_PRECISION_LIST(X)                                                                                           \
	X(FP_PRECISION_FP32, "fp32")     /* float everywhere */                                                            \
	X(FP_PRECISION_BF16X3, "bf16x3") /* relaxed uses: operands split into two bf16 numbers, 16 bits in all */          \
	X(FP_PRECISION_TF32, "tf32")     /* activations and iterations: operands of 11 bits; refinements as above */       \
	X(FP_PRECISION_BF16, "bf16")     /* as tf32, but activations and FISTA in bf16; search, refit: f16, CPU bf16 */
typedef enum fp_precision {
#define FP_PRECISION_ENUM(id, name) id,
	FP_PRECISION_LIST(FP_PRECISION_ENUM)
#undef FP_PRECISION_ENUM
		FP_PRECISION_COUNT
} fp_precision;

typedef struct fp_use_scope {
	fp_backend *be;
	fp_use before;
} fp_use_scope;
fp_use_scope fp_use_begin(fp_backend *be, fp_use use);
void fp_use_end(fp_use_scope *scope);

/*
 * Products are for `use` until the enclosing block ends, however it is left; then they are again for what they were for
 * before. It must stand before the first jump (FP_TRY, goto) of its block: tests/unit/base/test_layers.c checks that.
 */
#define FP_PRODUCTS_FOR(be, use) FP_PRODUCTS_FOR_AT(be, use, __LINE__)
#define FP_PRODUCTS_FOR_AT(be, use, line) FP_PRODUCTS_SCOPE(be, use, line)
#define FP_PRODUCTS_SCOPE(be, use, line)                                                                               \
	fp_use_scope use_scope_##line __attribute__((cleanup(fp_use_end), unused)) = fp_use_begin(be, use)

/* By the word of the setting. "auto" is the fastest precision that was measured to leave perplexity unchanged on this
 * backend, for a model with hidden states of `width` numbers. A backend that cannot round or split operands
 * (FP_CAN_ROUND, FP_CAN_SPLIT) gets fp32, and a warning if another one was asked for. */
fp_status fp_backend_set_precision(fp_backend *be, const char *word, int64_t width);
/* The same for measurements: "auto" leaves the first four digits of a perplexity unchanged. */
fp_status fp_backend_set_figure_precision(fp_backend *be, const char *word, int64_t width);

/* The word of be->precision. */
const char *fp_backend_precision_name(const fp_backend *be);

/* The type in which products for `use` take operands that a caller converts in advance: BF16, to which they would round
 * by themselves; F16, the bits of tf32 in half the space, only if the caller knows the value range; or F32. */
fp_dtype fp_backend_operand(const fp_backend *be, fp_use use);
/* True when that is BF16: an operand of several products is then better rounded once. */
bool fp_backend_rounds(const fp_backend *be, fp_use use);

#endif
