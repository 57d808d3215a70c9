/* SPDX-License-Identifier: Apache-2.0 */
/* test_registry.c: opening backends by name, the messages for those that do not open, and the views of backend.c. */
#include "backend/backend.h"
#include "support.h"

#include <omp.h>
#include <string.h>

static void remember_log(void *data, fp_log_level level, const char *text)
{
	(void)level;
	strncat(data, text, 255);
}

static void test_names(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	fp_backend *be = (fp_backend *)ctx;
	assert_fails(ctx, FP_ERROR_DEVICE, "--device cpu", fp_backend_open(&be, ctx, "cuda", 0));
	assert_null(be);
	assert_fails(ctx, FP_ERROR_DEVICE, "cuda:1", fp_backend_open(&be, ctx, "cuda:1", 0));
	assert_fails(ctx, FP_ERROR_USAGE, "there are: auto, cpu, cuda", fp_backend_open(&be, ctx, "gpu", 0));
	assert_fails(ctx, FP_ERROR_USAGE, "there are", fp_backend_open(&be, ctx, "", 0));
	assert_fails(ctx, FP_ERROR_USAGE, "there are", fp_backend_open(&be, ctx, "cp", 0));
	assert_fails(ctx, FP_ERROR_USAGE, "use --device cpu", fp_backend_open(&be, ctx, "cpu:1", 0));
	assert_fails(ctx, FP_ERROR_USAGE, "threads", fp_backend_open(&be, ctx, "cpu", -1));
	fp_backend_close(NULL);
	fp_context_free(ctx);
}

static void test_auto_says_what_it_chose(void **state)
{
	(void)state;
	char log[1024] = "";
	fp_context *ctx = fp_context_new();
	fp_context_set_log(ctx, remember_log, log, FP_LOG_INFO);
	fp_backend *be;
	assert_ok(ctx, fp_backend_open(&be, ctx, "auto", 0));
	assert_string_equal(be->name, "cpu");
	assert_true(be->threads >= 1);
	assert_non_null(strstr(log, "auto"));
	assert_non_null(strstr(log, be->description));
	assert_null(strstr(log, "not its OpenMP form")); /* the program runs with the OpenBLAS of the build */
	fp_backend_close(be);
	fp_context_free(ctx);
}

/* Every operation of a table is set: callers check capabilities, not pointers. */
static void test_table_is_full(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	fp_backend *be;
	assert_ok(ctx, fp_backend_open(&be, ctx, "cpu", 1));
	const struct {
		const void *table;
		size_t size;
	} tables[] = {{be->memory, sizeof *be->memory},
				  {be->linear, sizeof *be->linear},
				  {be->transformer, sizeof *be->transformer},
				  {be->pruning, sizeof *be->pruning},
				  {be->grid, sizeof *be->grid},
				  {be->gradients, sizeof *be->gradients}};
	for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
		void *slots[64];
		assert_true(tables[t].size <= sizeof slots);
		memcpy(slots, tables[t].table, tables[t].size);
		for (size_t i = 0; i < tables[t].size / sizeof *slots; i++)
			assert_non_null(slots[i]);
	}
	/* the CPU's matrices are floats, and its results are already on the host; its products may be rounded */
	assert_int_equal(be->capabilities & ~(unsigned)(FP_CAN_ROUND | FP_CAN_SPLIT), FP_CAN_DIFFERENTIATE);
	assert_null(be->delta);
	assert_null(be->transfer);
	fp_backend_close(be);
	fp_context_free(ctx);
}

/* A precision that the processor lacks is replaced by float, and the log says so; `auto` says what it chose. */
static void test_precision(void **state)
{
	(void)state;
	char log[1024] = "";
	fp_context *ctx = fp_context_new();
	fp_backend *be;
	assert_ok(ctx, fp_backend_open(&be, ctx, "cpu", 1));
	fp_context_set_log(ctx, remember_log, log, FP_LOG_INFO);
	be->capabilities &= ~(unsigned)(FP_CAN_ROUND | FP_CAN_SPLIT);
	assert_ok(ctx, fp_backend_set_precision(be, "auto", 4096));
	assert_ok(ctx, fp_backend_set_precision(be, "fp32", 4096));
	assert_string_equal(log, "");
	assert_ok(ctx, fp_backend_set_precision(be, "bf16", 4096));
	assert_int_equal(be->precision, FP_PRECISION_FP32);
	assert_non_null(strstr(log, "precision bf16: "));
	assert_non_null(strstr(log, "computed in fp32"));
	be->capabilities |= FP_CAN_ROUND;
	log[0] = 0;
	assert_ok(ctx, fp_backend_set_precision(be, "bf16", 4096));
	assert_int_equal(be->precision, FP_PRECISION_BF16);
	assert_ok(ctx, fp_backend_set_precision(be, "auto", 4096));
	assert_string_equal(log, "");
	assert_ok(ctx, fp_backend_set_precision(be, "tf32", 4096)); /* no use where split operands are slower than float */
	assert_int_equal(be->precision, FP_PRECISION_FP32);
	assert_non_null(strstr(log, "precision tf32: "));
	be->capabilities |= FP_CAN_SPLIT;
	assert_ok(ctx, fp_backend_set_figure_precision(be, "auto", 4096));
	assert_non_null(strstr(log, "precision auto: chose tf32"));
	fp_backend_close(be);
	fp_context_free(ctx);
}

static void test_threads(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	fp_backend *be;
	int before = omp_get_max_threads();
	assert_ok(ctx, fp_backend_open(&be, ctx, "cpu", 3));
	assert_int_equal(be->threads, 3);
	fp_matrix m;
	assert_ok(ctx, fp_matrix_new(be, &m, 64, 64, FP_F32));
	assert_ok(ctx, be->memory->fill(be, m, 1));
	fp_matrix out;
	assert_ok(ctx, fp_matrix_new(be, &out, 64, 64, FP_F32));
	assert_ok(ctx, be->linear->gemm(be, 1, m, FP_PLAIN, m, FP_PLAIN, 0, out));
	assert_int_equal(omp_get_max_threads(), before); /* the caller's setting is unchanged */
	fp_matrix_free(be, &m);
	fp_matrix_free(be, &out);
	fp_backend_close(be);
	fp_context_free(ctx);
}

static void test_views(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	fp_backend *be;
	assert_ok(ctx, fp_backend_open(&be, ctx, "cpu", 1));
	fp_matrix m;
	assert_ok(ctx, fp_matrix_new(be, &m, 4, 6, FP_F32));
	float numbers[24], got[4];
	for (int i = 0; i < 24; i++)
		numbers[i] = (float)i;
	assert_ok(ctx, be->memory->upload(be, m, numbers, FP_F32, 6));
	fp_matrix part = fp_matrix_cols(fp_matrix_rows(m, 1, 2), 3, 2);
	assert_ok(ctx, be->memory->download(be, got, FP_F32, 2, part));
	assert_true(got[0] == 9 && got[1] == 10 && got[2] == 15 && got[3] == 16);
	fp_matrix flat = fp_matrix_reshape(m, 2, 2);
	assert_ok(ctx, be->memory->download(be, got, FP_F32, 2, flat));
	assert_true(got[0] == 0 && got[1] == 1 && got[2] == 2 && got[3] == 3);
	fp_matrix_free(be, &m);
	assert_true(fp_matrix_is_absent(m));
	fp_matrix_free(be, &m);
	assert_fails(ctx, FP_ERROR_MEMORY, "out of range", fp_matrix_new(be, &m, INT64_MAX / 2, 3, FP_F32));
	assert_fails(ctx, FP_ERROR_INTERNAL, "does not hold", fp_matrix_new(be, &m, -1, 3, FP_F32));
	assert_true(fp_matrix_is_absent(m));
	fp_backend_close(be);
	fp_context_free(ctx);
}

static void test_pattern_zeros(void **state)
{
	(void)state;
	assert_int_equal(fp_pattern_zeros(&(fp_pattern){.sparsity = 0.5}, 7), 3);
	assert_int_equal(fp_pattern_zeros(&(fp_pattern){.sparsity = 0}, 7), 0);
	assert_int_equal(fp_pattern_zeros(&(fp_pattern){.sparsity = 1}, 7), 7);
	assert_int_equal(fp_pattern_zeros(&(fp_pattern){.sparsity = 0.7}, 288 * 768), 154828);
	assert_int_equal(fp_pattern_zeros(&(fp_pattern){.sparsity = 0.5}, INT64_C(10000000000)), INT64_C(5000000000));
}

/* Every allocation fails once: each must give an error without a crash or a leak. */
static void test_out_of_memory(void **state)
{
	(void)state;
	for (int64_t n = 1; n < 40; n++) {
		fp_context *ctx = fp_context_new();
		fp_backend *be = NULL;
		fp_matrix A = {0}, v = {0}, mask = {0};
		fp_attention_shape shape = {.sequences = 1, .length = 8, .heads = 1, .kv_heads = 1, .head_dim = 8, .scale = 1};
		fp_pattern pattern = {.sparsity = 0.5};
		ctx->fail_allocation_at = n;
		fp_status status = fp_backend_open(&be, ctx, "cpu", 1);
		status = status ? status : fp_matrix_new(be, &A, 8, 8, FP_F32);
		status = status ? status : fp_matrix_new(be, &v, 1, 8, FP_F32);
		status = status ? status : fp_matrix_new(be, &mask, 8, 8, FP_U8);
		status = status ? status : be->memory->fill(be, A, 1);
		status = status ? status : be->pruning->mask_smallest(be, A, &pattern, mask);
		status = status ? status : be->transformer->attention(be, &shape, A, A, A, A);
		status = status ? status : be->pruning->sparsegpt_sweep(be, A, &pattern, NULL, 4, A, mask);
		status = status ? status : be->memory->fill(be, A, 1);
		status = status ? status : be->linear->eigen(be, A, v);
		bool reached = ctx->allocations >= n;
		assert_int_equal(status, reached ? FP_ERROR_MEMORY : FP_OK);
		if (be) {
			fp_matrix_free(be, &A);
			fp_matrix_free(be, &v);
			fp_matrix_free(be, &mask);
		}
		fp_backend_close(be);
		fp_context_free(ctx);
		if (!reached)
			return;
	}
	fail_msg("more allocations than expected");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),         cmocka_unit_test(test_auto_says_what_it_chose),
		cmocka_unit_test(test_table_is_full), cmocka_unit_test(test_precision),
		cmocka_unit_test(test_threads),       cmocka_unit_test(test_views),
		cmocka_unit_test(test_pattern_zeros), cmocka_unit_test(test_out_of_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
