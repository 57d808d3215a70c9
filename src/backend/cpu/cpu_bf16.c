/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_bf16.c: chooses how products are computed: in float, or rounded to BF16 by an engine. */
#include "backend/cpu/cpu_bf16.h"

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/cpu_blas.h"
#include "base/memory.h"

extern const fp_cpu_bf16_engine fp_cpu_amx, fp_cpu_avx512_bf16;

const fp_cpu_bf16_engine *const fp_cpu_bf16_engines[] = {
#if defined(__x86_64__) && defined(__linux__)
	&fp_cpu_amx,
	&fp_cpu_avx512_bf16,
#endif
	NULL,
};

void fp_cpu_bf16_open(fp_cpu_bf16 *out, fp_context *ctx)
{
	*out = (fp_cpu_bf16){0};
	for (int i = 0; fp_cpu_bf16_engines[i] && !out->engine; i++) {
		const fp_cpu_bf16_engine *engine = fp_cpu_bf16_engines[i];
		const char *missing = engine->missing();
		if (missing)
			fp_log(ctx, FP_LOG_DEBUG, "products in bf16: not by %s: %s", engine->name, missing);
		else
			out->engine = engine;
	}
}

void fp_cpu_bf16_close(fp_cpu_bf16 *bf16)
{
	fp_free(bf16->left);
	fp_free(bf16->right);
	fp_free(bf16->sums);
	*bf16 = (fp_cpu_bf16){0};
}

void fp_cpu_multiply_alone(const fp_cpu_bf16_engine *engine, const fp_cpu_product *p, void *space)
{
	if (engine)
		engine->multiply_alone(engine, p, space);
	else
		cblas_sgemm(CblasRowMajor, p->ta ? CblasTrans : CblasNoTrans, p->tb ? CblasTrans : CblasNoTrans, (int)p->m,
					(int)p->n, (int)p->k, p->alpha, p->A, (int)p->lda, p->B, (int)p->ldb, p->beta, p->C, (int)p->ldc);
}

/* Rows: be->use; columns: be->precision. Processors have no tf32; split operands have more bits, and
 * where an engine is not faster with them, float has more still. */
fp_cpu_arithmetic fp_cpu_arithmetic_wanted(const fp_backend *be)
{
	static const fp_cpu_arithmetic table[FP_USE_COUNT][FP_PRECISION_COUNT] = {
		/* exact      */ {FP_CPU_FLOAT, FP_CPU_FLOAT, FP_CPU_FLOAT, FP_CPU_FLOAT},
		/* refinement */ {FP_CPU_FLOAT, FP_CPU_SPLIT, FP_CPU_SPLIT, FP_CPU_SPLIT},
		/* activation */ {FP_CPU_FLOAT, FP_CPU_SPLIT, FP_CPU_SPLIT, FP_CPU_ROUNDED},
		/* iteration  */ {FP_CPU_FLOAT, FP_CPU_SPLIT, FP_CPU_SPLIT, FP_CPU_ROUNDED},
	};
	const fp_cpu_bf16_engine *engine = ((const fp_cpu_state *)be->state)->bf16.engine;
	fp_cpu_arithmetic wanted = table[be->use][be->precision];
	return engine && (engine->splits || wanted != FP_CPU_SPLIT) ? wanted : FP_CPU_FLOAT;
}

fp_cpu_arithmetic fp_cpu_arithmetic_of(const fp_backend *be, int64_t m, int64_t n, int64_t k)
{
	const double least = 4e6; /* operations; 25 µs in float */
	bool small = m < FP_CPU_NARROWEST || n < FP_CPU_NARROWEST || k < FP_CPU_NARROWEST ||
				 2.0 * (double)m * (double)n * (double)k < least;
	return small ? FP_CPU_FLOAT : fp_cpu_arithmetic_wanted(be);
}
