/* SPDX-License-Identifier: Apache-2.0 */
#include "run/write_behind.h"

#include "base/memory.h"

#include <pthread.h>
#include <string.h>

/* The thread's next job: to write a tensor or to call `work`. */
typedef struct behind_job {
	const fp_tensor_info *tensor; /* NULL: calls `work` */
	const char *bytes;
	float *scales, *zeros; /* of a quantised tensor; owned */
	fp_behind_work work;
	void *work_data;
} behind_job;

struct fp_write_behind {
	fp_backend *be;         /* borrowed */
	fp_context *ctx;        /* the caller's */
	fp_context *thread_ctx; /* the thread's: a context belongs to one thread at a time */
	fp_writer *writer;      /* borrowed, or NULL */
	char *space[2];         /* the two buffers */
	int64_t capacity[2];    /* their sizes */
	int filling;            /* index of the caller's buffer */
	bool started;           /* the thread exists */
	pthread_t thread;
	pthread_mutex_t lock;   /* protects what follows */
	pthread_cond_t changed; /* `busy` or `stop` has changed */
	bool busy;              /* `job` is not finished */
	behind_job job;
	fp_status status; /* of the first job that failed; its message is in thread_ctx */
	bool stop;
};

static void free_numbers(const behind_job *job)
{
	fp_free(job->scales);
	fp_free(job->zeros);
}

static fp_status do_job(fp_write_behind *behind)
{
	const behind_job *job = &behind->job; /* does not change while `busy` is set */
	fp_context *ctx = behind->thread_ctx;
	if (!job->tensor)
		return job->work(job->work_data, ctx);
	if (!job->scales)
		return fp_writer_replace(behind->writer, ctx, job->tensor, job->bytes);
	fp_status status = fp_writer_quantise(behind->writer, ctx, job->tensor, job->bytes,
										  (fp_grid_numbers){.scales = job->scales, .zeros = job->zeros});
	free_numbers(job);
	return status;
}

static void *run(void *data)
{
	fp_write_behind *behind = data;
	pthread_mutex_lock(&behind->lock);
	while (!behind->stop) {
		if (!behind->busy) {
			pthread_cond_wait(&behind->changed, &behind->lock);
			continue;
		}
		pthread_mutex_unlock(&behind->lock);
		fp_status status = do_job(behind);
		pthread_mutex_lock(&behind->lock);
		behind->status = status;
		behind->busy = false;
		pthread_cond_broadcast(&behind->changed);
	}
	pthread_mutex_unlock(&behind->lock);
	return NULL;
}

/* Waits for the thread and returns its failure, if there was one. The caller holds the lock. */
static fp_status wait_idle(fp_write_behind *behind)
{
	while (behind->busy)
		pthread_cond_wait(&behind->changed, &behind->lock);
	return behind->status == FP_OK ? FP_OK : fp_fail_from(behind->ctx, behind->status, behind->thread_ctx);
}

/* Gives the thread its next job. After a failure it gets none. */
static fp_status hand_over(fp_write_behind *behind, behind_job job)
{
	pthread_mutex_lock(&behind->lock);
	fp_status status = wait_idle(behind);
	if (status == FP_OK) {
		behind->job = job;
		behind->busy = true;
		pthread_cond_broadcast(&behind->changed);
	}
	pthread_mutex_unlock(&behind->lock);
	return status;
}

fp_status fp_write_behind_new(fp_write_behind **out, fp_backend *be, fp_writer *writer)
{
	fp_context *ctx = be->ctx;
	fp_status status;
	fp_write_behind *behind = NULL;
	*out = NULL;
	FP_TRY(FP_NEW(ctx, &behind, 1));
	behind->be = be;
	behind->ctx = ctx;
	behind->writer = writer;
	pthread_mutex_init(&behind->lock, NULL);
	pthread_cond_init(&behind->changed, NULL);
	if (writer) {
		behind->thread_ctx = fp_context_new();
		if (!behind->thread_ctx)
			FP_TRY(fp_fail(ctx, FP_ERROR_MEMORY, "out of memory for the thread that writes the checkpoint"));
		if (pthread_create(&behind->thread, NULL, run, behind) != 0)
			FP_TRY(fp_fail(ctx, FP_ERROR_MEMORY, "cannot start the thread that writes the checkpoint"));
		behind->started = true;
	}
	*out = behind;
	behind = NULL;
cleanup:
	fp_write_behind_free(behind);
	return status;
}

static void stop_thread(fp_write_behind *behind)
{
	pthread_mutex_lock(&behind->lock);
	while (behind->busy)
		pthread_cond_wait(&behind->changed, &behind->lock);
	behind->stop = true;
	pthread_cond_broadcast(&behind->changed);
	pthread_mutex_unlock(&behind->lock);
	pthread_join(behind->thread, NULL);
}

void fp_write_behind_free(fp_write_behind *behind)
{
	if (!behind)
		return;
	if (behind->started)
		stop_thread(behind);
	pthread_cond_destroy(&behind->changed);
	pthread_mutex_destroy(&behind->lock);
	fp_context_free(behind->thread_ctx);
	for (int i = 0; i < 2; i++) {
		if (fp_backend_can(behind->be, FP_CAN_DOWNLOAD_ASYNC))
			behind->be->transfer->release_host(behind->be, behind->space[i]);
		else
			fp_free(behind->space[i]);
	}
	fp_free(behind);
}

/* Allocates a larger buffer of pinned memory. The old contents are lost. */
static fp_status replace_host_buffer(fp_write_behind *behind, int which, int64_t bytes)
{
	fp_backend *be = behind->be;
	void *space = NULL;
	be->transfer->release_host(be, behind->space[which]);
	behind->space[which] = NULL;
	behind->capacity[which] = 0;
	fp_status status = be->transfer->allocate_host(be, &space, bytes);
	if (status == FP_OK) {
		behind->space[which] = space;
		behind->capacity[which] = bytes;
	}
	return status;
}

fp_status fp_write_behind_space(fp_write_behind *behind, int64_t bytes, char **out)
{
	int which = behind->filling;
	int64_t wanted = bytes > 0 ? bytes : 1;
	fp_status status = FP_OK;
	if (!fp_backend_can(behind->be, FP_CAN_DOWNLOAD_ASYNC))
		status = FP_GROW(behind->ctx, &behind->space[which], &behind->capacity[which], wanted);
	else if (wanted > behind->capacity[which])
		status = replace_host_buffer(behind, which, wanted);
	*out = behind->space[which];
	return status;
}

fp_status fp_write_behind_put(fp_write_behind *behind, const fp_tensor_info *tensor)
{
	if (!behind->started)
		return FP_OK;
	fp_status status = hand_over(behind, (behind_job){.tensor = tensor, .bytes = behind->space[behind->filling]});
	if (status == FP_OK)
		behind->filling ^= 1;
	return status;
}

fp_status fp_write_behind_quantise(fp_write_behind *behind, const fp_tensor_info *tensor, fp_grid_numbers numbers,
								   int64_t groups)
{
	behind_job job = {.tensor = tensor, .bytes = behind->space[behind->filling]};
	fp_status status = FP_OK;
	if (!behind->started)
		return FP_OK;
	FP_TRY(FP_NEW(behind->ctx, &job.scales, groups));
	memcpy(job.scales, numbers.scales, (size_t)groups * sizeof *job.scales);
	if (numbers.zeros) {
		FP_TRY(FP_NEW(behind->ctx, &job.zeros, groups));
		memcpy(job.zeros, numbers.zeros, (size_t)groups * sizeof *job.zeros);
	}
	FP_TRY(hand_over(behind, job));
	job = (behind_job){0}; /* do_job() frees them */
	behind->filling ^= 1;
cleanup:
	free_numbers(&job);
	return status;
}

fp_status fp_write_behind_call(fp_write_behind *behind, fp_behind_work work, void *data)
{
	if (!behind->started)
		return fp_fail(behind->ctx, FP_ERROR_INTERNAL, "the writing thread needs a writer");
	return hand_over(behind, (behind_job){.work = work, .work_data = data});
}

fp_status fp_write_behind_finish(fp_write_behind *behind)
{
	if (!behind->started)
		return FP_OK;
	pthread_mutex_lock(&behind->lock);
	fp_status status = wait_idle(behind);
	pthread_mutex_unlock(&behind->lock);
	return status;
}
