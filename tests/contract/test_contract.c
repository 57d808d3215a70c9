/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_contract.c: runs the contract suite on a backend.
 *   contract_test_contract [backend …]   or FP_CONTRACT_BACKEND=backend; without either: every backend that opens here.
 * For tools that make a program slow FP_CONTRACT_FILTER names one test ('*' for any text), and FP_CONTRACT_TOKENS makes
 * the long contexts shorter.
 * Each runs with one thread and with the default number, since a cut between threads is where mistakes are.
 */
#include "contract.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *open_name;
static int open_threads;

static int open_backend(void **state)
{
	static contract c;
	memset(&c, 0, sizeof c);
	c.seed = 20240807;
	c.ctx = fp_context_new();
	if (!c.ctx || fp_backend_open(&c.be, c.ctx, open_name, open_threads) != FP_OK) {
		fprintf(stderr, "%s: %s\n", open_name, c.ctx ? fp_context_message(c.ctx) : "no context");
		return -1;
	}
	*state = &c;
	return 0;
}

static int close_backend(void **state)
{
	contract *c = *state;
	fp_backend_close(c->be);
	fp_context_free(c->ctx);
	return 0;
}

static bool opens_here(const char *name)
{
	fp_context *ctx = fp_context_new();
	fp_backend *be = NULL;
	fp_status status = fp_backend_open(&be, ctx, name, 0);
	if (status == FP_OK)
		printf("%s: %s\n", name, be->description);
	else
		printf("%s: not checked: %s\n", name, fp_context_message(ctx));
	fflush(stdout);
	fp_backend_close(be);
	fp_context_free(ctx);
	return status == FP_OK;
}

static int run_group(const char *group, const struct CMUnitTest *tests, size_t count)
{
	char name[128];
	snprintf(name, sizeof name, "%s, %d threads: %s", open_name, open_threads, group);
	return _cmocka_run_group_tests(name, tests, count, open_backend, close_backend);
}

static int run_suite(const char *name)
{
	int failed = 0;
	open_name = name;
	for (open_threads = 0; open_threads <= 3; open_threads += open_threads ? 2 : 1) {
		failed += run_group("memory", contract_memory_tests, contract_memory_test_count);
		failed += run_group("linear", contract_linear_tests, contract_linear_test_count);
		failed += run_group("factor", contract_factor_tests, contract_factor_test_count);
		failed += run_group("transformer", contract_transformer_tests, contract_transformer_test_count);
		failed += run_group("attention", contract_attention_tests, contract_attention_test_count);
		failed += run_group("pruning", contract_pruning_tests, contract_pruning_test_count);
		failed += run_group("near", contract_delta_tests, contract_delta_test_count);
		failed += run_group("sweep", contract_sweep_tests, contract_sweep_test_count);
		failed += run_group("gradients", contract_gradients_tests, contract_gradients_test_count);
		failed += run_group("precision", contract_precision_tests, contract_precision_test_count);
		if (strncmp(name, "cpu", 3) != 0)
			break; /* a device does not care */
	}
	return failed;
}

int main(int argc, char **argv)
{
	int failed = 0;
	const char *wanted = getenv("FP_CONTRACT_BACKEND");
	const char *filter = getenv("FP_CONTRACT_FILTER");
	if (filter && *filter)
		cmocka_set_test_filter(filter);
	if (argc > 1) {
		for (int i = 1; i < argc; i++)
			failed += run_suite(argv[i]);
	} else if (wanted && *wanted) {
		failed += run_suite(wanted);
	} else {
		static const char *const names[] = {"cpu", "cuda"};
		for (size_t i = 0; i < sizeof names / sizeof *names; i++)
			failed += opens_here(names[i]) ? run_suite(names[i]) : 0;
	}
	return failed ? 1 : 0;
}
