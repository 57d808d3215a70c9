/* SPDX-License-Identifier: Apache-2.0 */
#include "run/write_behind.h"
#include "support.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fill(char *space, const fp_tensor_info *tensor, int seed)
{
	for (int64_t i = 0; i < tensor->bytes; i++)
		space[i] = (char)(seed + 31 * i);
}

static fp_status wait_at_gate(void *data, fp_context *ctx)
{
	(void)ctx;
	sem_wait(data);
	return FP_OK;
}

/* Every tensor goes through one of the buffers and must be complete in the output. A device has buffers for a layer: the
 * caller does not wait for the thread before they are full. */
static void check_written(bool device)
{
	enum { LAYER = 7 };
	sem_t gate;
	sem_init(&gate, 0, 0);
	fp_context *ctx = fp_context_new();
	fp_backend *be;
	fp_checkpoint *source;
	fp_checkpoint *copy;
	fp_writer *writer;
	fp_write_behind *behind;
	char target[512];
	char *folder = temporary_folder();
	snprintf(target, sizeof target, "%s/out", folder);
	assert_ok(ctx, fp_backend_open(&be, ctx, "cpu", 1));
	assert_ok(ctx, fp_checkpoint_open(&source, ctx, source_path("tests/fixtures/model/llama-plain")));
	assert_ok(ctx, fp_writer_open(&writer, ctx, source, target, NULL));
	be->asynchronous = device;
	assert_ok(ctx, fp_write_behind_new(&behind, be, writer));
	int64_t count = fp_checkpoint_tensor_count(source);
	assert_true(count > LAYER);
	assert_ok(ctx, fp_write_behind_call(behind, wait_at_gate, NULL, &gate));
	for (int64_t i = 0; i < count; i++) {
		if (i == (device ? LAYER : 1))
			sem_post(&gate);
		const fp_tensor_info *tensor = fp_checkpoint_tensor(source, i);
		char *space;
		assert_ok(ctx, fp_write_behind_space(behind, tensor->bytes, &space));
		fill(space, tensor, (int)i);
		assert_ok(ctx, fp_write_behind_put(behind, tensor));
	}
	assert_ok(ctx, fp_write_behind_finish(behind));
	fp_write_behind_free(behind);
	assert_ok(ctx, fp_writer_commit(writer));
	fp_writer_close(writer);
	assert_ok(ctx, fp_checkpoint_open(&copy, ctx, target));
	for (int64_t i = 0; i < count; i++) {
		const fp_tensor_info *tensor = fp_checkpoint_tensor(source, i);
		const fp_tensor_info *written = fp_checkpoint_find(copy, tensor->name);
		char *want = malloc((size_t)tensor->bytes);
		fill(want, tensor, (int)i);
		assert_memory_equal(fp_checkpoint_data(copy, written), want, (size_t)tensor->bytes);
		free(want);
	}
	fp_checkpoint_close(copy);
	fp_checkpoint_close(source);
	fp_backend_close(be);
	fp_context_free(ctx);
	remove_folder(folder);
	free(folder);
	sem_destroy(&gate);
}

static void everything_is_written(void **state)
{
	(void)state;
	check_written(false);
	check_written(true);
}

static fp_status failing_work(void *data, fp_context *ctx)
{
	(void)data;
	return fp_fail(ctx, FP_ERROR_IO, "disk: is full");
}

static void count_release(void *data)
{
	++*(int *)data;
}

/* The message in the caller's context is that of the failure, not an earlier one. What waits behind the failure is
 * released, but not called. */
static void a_failure_of_work_is_returned(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	fp_backend *be;
	fp_checkpoint *source;
	fp_writer *writer;
	fp_write_behind *behind;
	sem_t gate;
	int released = 0;
	char target[512];
	char *folder = temporary_folder();
	snprintf(target, sizeof target, "%s/out", folder);
	assert_ok(ctx, fp_backend_open(&be, ctx, "cpu", 1));
	assert_ok(ctx, fp_checkpoint_open(&source, ctx, source_path("tests/fixtures/model/llama-plain")));
	assert_ok(ctx, fp_writer_open(&writer, ctx, source, target, NULL));
	assert_ok(ctx, fp_write_behind_new(&behind, be, writer));
	sem_init(&gate, 0, 0);
	assert_ok(ctx, fp_write_behind_call(behind, wait_at_gate, NULL, &gate));
	assert_ok(ctx, fp_write_behind_call(behind, failing_work, count_release, &released));
	assert_ok(ctx, fp_write_behind_call(behind, wait_at_gate, count_release, &released)); /* not called: no semaphore */
	sem_post(&gate);
	fp_fail(ctx, FP_ERROR_DEVICE, "an older failure");
	assert_fails(ctx, FP_ERROR_IO, "disk: is full", fp_write_behind_finish(behind));
	assert_fails(ctx, FP_ERROR_IO, "disk: is full",
				 fp_write_behind_call(behind, failing_work, count_release, &released));
	fp_write_behind_free(behind);
	assert_int_equal(released, 3);
	sem_destroy(&gate);
	fp_writer_close(writer);
	fp_checkpoint_close(source);
	fp_backend_close(be);
	fp_context_free(ctx);
	remove_folder(folder);
	free(folder);
}

/* A failure of the thread is returned by the next call, with its message. */
static void a_failure_is_returned(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	fp_backend *be;
	fp_checkpoint *source;
	fp_writer *writer;
	fp_write_behind *behind;
	char target[512];
	char *space;
	char *folder = temporary_folder();
	snprintf(target, sizeof target, "%s/out", folder);
	assert_ok(ctx, fp_backend_open(&be, ctx, "cpu", 1));
	assert_ok(ctx, fp_checkpoint_open(&source, ctx, source_path("tests/fixtures/model/llama-plain")));
	assert_ok(ctx, fp_writer_open(&writer, ctx, source, target, NULL));
	assert_ok(ctx, fp_write_behind_new(&behind, be, writer));
	fp_tensor_info stranger = *fp_checkpoint_tensor(source, 0);
	stranger.bytes += 1;
	assert_ok(ctx, fp_write_behind_space(behind, stranger.bytes, &space));
	assert_ok(ctx, fp_write_behind_put(behind, &stranger));
	assert_fails(ctx, FP_ERROR_INTERNAL, "is not one of", fp_write_behind_finish(behind));
	assert_ok(ctx, fp_write_behind_space(behind, 8, &space));
	assert_fails(ctx, FP_ERROR_INTERNAL, "is not one of", fp_write_behind_put(behind, fp_checkpoint_tensor(source, 0)));
	fp_write_behind_free(behind);
	fp_writer_close(writer);
	fp_checkpoint_close(source);
	fp_backend_close(be);
	fp_context_free(ctx);
	remove_folder(folder);
	free(folder);
}

static void nothing_is_written_without_a_writer(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	fp_backend *be;
	fp_write_behind *behind;
	char *space;
	int released = 0;
	assert_ok(ctx, fp_backend_open(&be, ctx, "cpu", 1));
	assert_ok(ctx, fp_write_behind_new(&behind, be, NULL));
	assert_ok(ctx, fp_write_behind_space(behind, 100, &space));
	memset(space, 1, 100);
	assert_ok(ctx, fp_write_behind_put(behind, NULL));
	assert_ok(ctx, fp_write_behind_finish(behind));
	assert_fails(ctx, FP_ERROR_INTERNAL, "needs a writer",
				 fp_write_behind_call(behind, failing_work, count_release, &released));
	assert_int_equal(released, 1);
	fp_write_behind_free(behind);
	fp_write_behind_free(NULL);
	fp_backend_close(be);
	fp_context_free(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(everything_is_written),
		cmocka_unit_test(a_failure_is_returned),
		cmocka_unit_test(a_failure_of_work_is_returned),
		cmocka_unit_test(nothing_is_written_without_a_writer),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
