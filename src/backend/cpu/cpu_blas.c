/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_blas.c: what is particular to OpenBLAS; everywhere else its calls are those of any CBLAS. */
#include "backend/cpu/cpu_blas.h"

#include "backend/cpu/cpu_simd.h"
#include <fistapruner/fistapruner.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>

enum { OPENBLAS_ON_OPENMP = 2 };

/*
 * OpenBLAS recognises processors by their model numbers. One that is newer than the library gets "Prescott", the kernel
 * for SSE3, which is about ten times slower than the processor allows. CPUID says what the processor can do, and both
 * names below have been in OpenBLAS for years.
 */
const char *fp_cpu_blas_kernel(const char *chosen, const char *loops)
{
	if (strcmp(chosen, "Prescott") != 0)
		return NULL;
	if (strcmp(loops, "avx512") == 0)
		return "SkylakeX";
	return strcmp(loops, "avx2") == 0 ? "Haswell" : NULL;
}

const char *fp_openblas_kernel(void)
{
	if (getenv("OPENBLAS_CORETYPE"))
		return NULL;
	return fp_cpu_blas_kernel(openblas_get_corename(), fp_cpu_loops_best()->name);
}

#ifdef FP_OWN_BLAS
/*
 * Where OpenBLAS is linked into this library, nobody else uses it, so that its choice can be made again when the library
 * is loaded. OpenBLAS takes a kernel by name only from the environment; the variable is removed afterwards because
 * other libraries of the process may have an OpenBLAS of their own.
 */
void gotoblas_dynamic_init(void);
void gotoblas_dynamic_quit(void);

__attribute__((constructor)) static void choose_kernel(void)
{
	__builtin_cpu_init();
	gotoblas_dynamic_init(); /* OpenBLAS's own constructor, which does this too, may not have run yet */
	const char *kernel = fp_openblas_kernel();
	if (!kernel || setenv("OPENBLAS_CORETYPE", kernel, 1) != 0)
		return;
	gotoblas_dynamic_quit();
	gotoblas_dynamic_init();
	unsetenv("OPENBLAS_CORETYPE");
}
#endif

/* OpenBLAS allocates a buffer in its first product and retries for ever if that fails. Check that the memory is there
 * and make OpenBLAS allocate it now, so that a limit on memory gives an error message. */
static fp_status allocate_blas_buffer(fp_context *ctx)
{
	const size_t size = (size_t)160 << 20; /* OpenBLAS asks for 128 MiB */
	const float one = 1;
	float product = 0;
	void *trial = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (trial == MAP_FAILED)
		return fp_fail(ctx, FP_ERROR_MEMORY, "out of memory: OpenBLAS needs 128 MiB of address space; see ulimit -v");
	munmap(trial, size);
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1, 1, 1, 1, &one, 1, &one, 1, 0, &product, 1);
	return FP_OK;
}

bool fp_cpu_blas_counts_rows(void)
{
	static const char *const avx512[] = {"SkylakeX", "Cooperlake", "SapphireRapids"};
	for (size_t i = 0; i < sizeof avx512 / sizeof avx512[0]; i++)
		if (strcasecmp(openblas_get_corename(), avx512[i]) == 0)
			return false;
	return true;
}

void fp_cpu_blas_describe(char *out, size_t size)
{
	snprintf(out, size, "OpenBLAS %s", openblas_get_corename());
}

fp_status fp_cpu_blas_start(fp_context *ctx)
{
	fp_status status = allocate_blas_buffer(ctx);
	if (status != FP_OK)
		return status;
	if (openblas_get_parallel() != OPENBLAS_ON_OPENMP)
		fp_log(ctx, FP_LOG_WARNING,
			   "the OpenBLAS that was loaded is not its OpenMP form: it is slower and ignores --threads; install "
			   "libopenblas0-openmp and put its folder first in LD_LIBRARY_PATH");
	if (fp_openblas_kernel()) /* never in the program, which sets the variable itself */
		fp_log(ctx, FP_LOG_WARNING,
			   "OpenBLAS does not know this processor and uses its slowest kernel (%s), about ten times slower than "
			   "necessary; set OPENBLAS_CORETYPE=%s in the environment before the process starts",
			   openblas_get_corename(), fp_openblas_kernel());
	return FP_OK;
}
