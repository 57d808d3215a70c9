/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_contract.c: runs the contract suite on one backend.
 *
 *     contract_test_contract BACKEND      "cpu", "cuda", "cuda:1"
 *
 * Ends with 77, which CTest shows as skipped, if the backend does not open on this machine. The CPU backend runs with
 * the default number of threads, with one and with three, because mistakes happen where work is divided between threads.
 * For tools that make a program slow, FP_CONTRACT_FILTER selects tests by name ('*' matches any text),
 * FP_CONTRACT_THREADS is the only number of threads, and FP_CONTRACT_TOKENS shortens the long contexts.
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

enum { GROUP_COUNT = 16 };
static const struct {
	const contract_group *group;
	unsigned needs; /* capabilities; 0: required of every backend */
} groups[GROUP_COUNT] = {
	{&contract_memory, 0},
	{&contract_upload, FP_CAN_UPLOAD_ASYNC},
	{&contract_linear, 0},
	{&contract_factor, 0},
	{&contract_transformer, 0},
	{&contract_attention, 0},
	{&contract_pruning, 0},
	{&contract_delta, FP_CAN_STEP_DELTA},
	{&contract_output, FP_CAN_DOWNLOAD_ASYNC},
	{&contract_sweep, 0},
	{&contract_grid, 0},
	{&contract_decode, 0},
	{&contract_gradients, FP_CAN_DIFFERENTIATE},
	{&contract_precision, 0},
	{&contract_relaxed_gradients, FP_CAN_DIFFERENTIATE},
	{&contract_bf16, FP_CAN_MULTIPLY_NARROW | FP_CAN_DIFFERENTIATE},
};

/* Which groups apply to the backend; false if it does not open. */
static bool choose_groups(bool chosen[GROUP_COUNT])
{
	fp_context *ctx = fp_context_new();
	fp_backend *be = NULL;
	bool opened = fp_backend_open(&be, ctx, open_name, 0) == FP_OK;
	if (!opened)
		record_skip("%s: %s", open_name, fp_context_message(ctx));
	else
		printf("%s: %s\n", open_name, be->description);
	for (int i = 0; opened && i < GROUP_COUNT; i++) {
		chosen[i] = (be->capabilities & groups[i].needs) == groups[i].needs;
		if (!chosen[i])
			printf("%s does not offer the optional operations of the group '%s'\n", open_name, groups[i].group->name);
	}
	fflush(stdout);
	fp_backend_close(be);
	fp_context_free(ctx);
	return opened;
}

static int run_group(const contract_group *group)
{
	char name[128];
	snprintf(name, sizeof name, "%s, %d threads: %s", open_name, open_threads, group->name);
	return _cmocka_run_group_tests(name, group->tests, group->count, open_backend, close_backend);
}

int main(int argc, char **argv)
{
	int threads[] = {0, 1, 3};
	const char *filter = getenv("FP_CONTRACT_FILTER"), *only = getenv("FP_CONTRACT_THREADS");
	bool chosen[GROUP_COUNT];
	int failed = 0;
	if (argc != 2) {
		fprintf(stderr, "usage: %s BACKEND, such as cpu or cuda\n", argv[0]);
		return 2;
	}
	open_name = argv[1];
	if (filter && *filter)
		cmocka_set_test_filter(filter);
	int runs = strncmp(open_name, "cpu", 3) == 0 && !only ? 3 : 1;
	threads[0] = only ? atoi(only) : 0;
	if (!choose_groups(chosen))
		runs = 0;
	for (int run = 0; run < runs; run++) {
		open_threads = threads[run];
		for (int i = 0; i < GROUP_COUNT; i++)
			failed += chosen[i] ? run_group(groups[i].group) : 0;
	}
	return finish_tests(failed);
}
