/* SPDX-License-Identifier: Apache-2.0 */
/* test_blas_kernel.c: the kernel that is chosen for OpenBLAS on a processor it does not know. */
#include "backend/cpu/cpu_blas.h"
#include "support.h"

#include <fistapruner/fistapruner.h>
#include <stdlib.h>

static void test_choice(void **state)
{
	(void)state;
	assert_string_equal(fp_cpu_blas_kernel("Prescott", "avx512"), "SkylakeX");
	assert_string_equal(fp_cpu_blas_kernel("Prescott", "avx2"), "Haswell");
	assert_null(fp_cpu_blas_kernel("Prescott", "scalar")); /* the processor has nothing better */
	assert_null(fp_cpu_blas_kernel("Zen", "avx512"));      /* OpenBLAS has detected the processor */
	assert_null(fp_cpu_blas_kernel("Haswell", "avx2"));
}

static void test_the_users_choice_is_kept(void **state)
{
	(void)state;
	setenv("OPENBLAS_CORETYPE", "Prescott", 1);
	assert_null(fp_openblas_kernel());
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_choice), cmocka_unit_test(test_the_users_choice_is_kept)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
