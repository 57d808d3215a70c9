/* SPDX-License-Identifier: Apache-2.0 */
/* test_module_file.c: a module is loaded only when it belongs to this build; every refusal says what to do. */
#include "base/module_file.h"
#include "comm/comm.h"
#include "support.h"

#include <dlfcn.h>
#include <fistapruner/fistapruner.h>
#include <stdlib.h>
#include <string.h>

#define VARIABLE "FP_TEST_MODULE"

static const fp_module_file stub = {
	.name = "libfp_stub.so",
	.variable = VARIABLE,
	.entry = "fp_stub_entry",
	.if_missing = "build it",
	.if_unloadable = "; build it again",
	.scope = RTLD_LOCAL,
};

static void test_identity(void **state)
{
	(void)state;
	assert_int_equal(strlen(fp_build_id()), 16);
	assert_int_equal(strspn(fp_build_id(), "0123456789abcdef"), 16);
}

static void test_own_module(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	void *entry;
	int (*function)(void);
	setenv(VARIABLE, FP_STUB_OWN, 1);
	assert_ok(ctx, fp_module_load(&entry, ctx, &stub));
	memcpy(&function, &entry, sizeof function);
	assert_int_equal(function(), 42);
	fp_module_file other = stub;
	other.entry = "fp_other_entry";
	assert_fails(ctx, FP_ERROR_DEVICE, "fp_other_entry()", fp_module_load(&entry, ctx, &other));
	fp_context_free(ctx);
}

static void test_another_build(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	void *entry = ctx;
	setenv(VARIABLE, FP_STUB_STALE, 1);
	assert_fails(ctx, FP_ERROR_INPUT, "build 0123456789abcdef", fp_module_load(&entry, ctx, &stub));
	assert_null(entry);
	assert_non_null(strstr(fp_context_message(ctx), FP_STUB_STALE));
	assert_non_null(strstr(fp_context_message(ctx), fp_build_id()));
	assert_non_null(strstr(fp_context_message(ctx), VARIABLE));
	setenv(VARIABLE, FP_STUB_SILENT, 1); /* from before modules had an identity */
	assert_fails(ctx, FP_ERROR_INPUT, "build unknown", fp_module_load(&entry, ctx, &stub));
	fp_context_free(ctx);
}

static void test_no_module(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	void *entry;
	unsetenv(VARIABLE);
	assert_fails(ctx, FP_ERROR_DEVICE, "build it", fp_module_load(&entry, ctx, &stub));
	setenv(VARIABLE, "/nowhere/libfp_stub.so", 1);
	assert_fails(ctx, FP_ERROR_DEVICE, "cannot be read; unset it", fp_module_load(&entry, ctx, &stub));
	setenv(VARIABLE, source_path("README.md"), 1);
	assert_fails(ctx, FP_ERROR_DEVICE, "build it again", fp_module_load(&entry, ctx, &stub));
	fp_context_free(ctx);
}

static void test_mpi_module_of_another_build(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	fp_comm *comm;
	setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
	setenv("FISTAPRUNER_MPI_MODULE", FP_STUB_STALE, 1);
	assert_fails(ctx, FP_ERROR_INPUT, "another build", fp_comm_open(&comm, ctx, true));
	assert_null(comm);
	fp_context_free(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_identity),
		cmocka_unit_test(test_own_module),
		cmocka_unit_test(test_another_build),
		cmocka_unit_test(test_no_module),
		cmocka_unit_test(test_mpi_module_of_another_build),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
