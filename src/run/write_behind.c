/* SPDX-License-Identifier: Apache-2.0 */
#include "run/write_behind.h"

#include "base/memory.h"

#include <pthread.h>
#include <string.h>

/* Buffers, and jobs that wait for the thread: a job for each buffer and a few that need none. */
enum { MOST_BUFFERS = 8, MOST_JOBS = MOST_BUFFERS + 4, NONE = -1 };

/* A job of the thread: to write a tensor or to call `work`. */
typedef struct behind_job {
	const fp_tensor_info *tensor; /* NULL: calls `work` */
	int buffer;                   /* with its bytes; NONE for `work` */
	float *scales, *zeros;        /* of a quantised tensor; owned */
	fp_behind_work work;
	void (*release)(void *data); /* of work_data; NULL: nothing is to be freed */
	void *work_data;
} behind_job;

struct fp_write_behind {
	fp_backend *be;         /* borrowed */
	fp_context *ctx;        /* the caller's */
	fp_context *thread_ctx; /* the thread's: a context belongs to one thread at a time */
	fp_writer *writer;      /* borrowed, or NULL */
	char *space[MOST_BUFFERS];
	int64_t capacity[MOST_BUFFERS]; /* in bytes */
	int filling;                    /* the caller's buffer, or NONE */
	bool started;                   /* the thread exists */
	pthread_t thread;
	pthread_mutex_t lock;       /* protects what follows */
	pthread_cond_t changed;     /* something of it has changed */
	behind_job jobs[MOST_JOBS]; /* a ring; the thread works at the first one */
	int first, count;           /* of the ring */
	bool waiting[MOST_BUFFERS]; /* buffers that are not written yet */
	fp_status status;           /* of the first job that failed; its message is in thread_ctx */
	bool stop;
};

/* Frees what the job owns. */
static void free_job(const behind_job *job)
{
	fp_free(job->scales);
	fp_free(job->zeros);
	if (job->release)
		job->release(job->work_data);
}

static fp_status do_job(fp_write_behind *behind, const behind_job *job)
{
	fp_context *ctx = behind->thread_ctx;
	if (!job->tensor)
		return job->work(job->work_data, ctx);
	const char *bytes = behind->space[job->buffer];
	if (!job->scales)
		return fp_writer_replace(behind->writer, ctx, job->tensor, bytes);
	return fp_writer_quantise(behind->writer, ctx, job->tensor, bytes,
							  (fp_grid_numbers){.scales = job->scales, .zeros = job->zeros});
}

/* Removes the first job. The caller holds the lock. */
static void end_job(fp_write_behind *behind)
{
	const behind_job *job = &behind->jobs[behind->first];
	free_job(job);
	if (job->buffer != NONE)
		behind->waiting[job->buffer] = false;
	behind->first = (behind->first + 1) % MOST_JOBS;
	behind->count--;
	pthread_cond_broadcast(&behind->changed);
}

static void *run(void *data)
{
	fp_write_behind *behind = data;
	pthread_mutex_lock(&behind->lock);
	while (!behind->stop) {
		if (behind->count == 0) {
			pthread_cond_wait(&behind->changed, &behind->lock);
			continue;
		}
		if (behind->status == FP_OK) {
			const behind_job *job = &behind->jobs[behind->first]; /* does not change until end_job() */
			pthread_mutex_unlock(&behind->lock);
			fp_status status = do_job(behind, job);
			pthread_mutex_lock(&behind->lock);
			behind->status = status;
		}
		end_job(behind);
	}
	pthread_mutex_unlock(&behind->lock);
	return NULL;
}

/* Waits until at most `count` jobs are left and returns the thread's failure, if there was one. The caller holds the
 * lock. */
static fp_status wait_for(fp_write_behind *behind, int count)
{
	while (behind->count > count && behind->status == FP_OK)
		pthread_cond_wait(&behind->changed, &behind->lock);
	return behind->status == FP_OK ? FP_OK : fp_fail_from(behind->ctx, behind->status, behind->thread_ctx);
}

/* Gives the thread a job, and the caller's buffer with it if the job has one. After a failure it gets none. */
static fp_status hand_over(fp_write_behind *behind, behind_job job)
{
	pthread_mutex_lock(&behind->lock);
	fp_status status = wait_for(behind, MOST_JOBS - 1);
	if (status == FP_OK) {
		behind->jobs[(behind->first + behind->count) % MOST_JOBS] = job;
		behind->count++;
		if (job.buffer != NONE) {
			behind->waiting[job.buffer] = true;
			behind->filling = NONE;
		}
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
	behind->filling = NONE;
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
	while (behind->count > 0)
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
	for (int i = 0; i < MOST_BUFFERS; i++) {
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

/* Two buffers are enough while tensors are computed one by one. A layer fit on a device completes all of a layer at once,
 * which would then wait for the disk. */
static int buffers_of(const fp_backend *be)
{
	return be->asynchronous && !be->frugal ? MOST_BUFFERS : 2;
}

/* A buffer that is not waiting: one that exists, or else a new one; NONE if there are no more. The caller holds the lock. */
static int find_buffer(const fp_write_behind *behind)
{
	int found = NONE;
	for (int i = buffers_of(behind->be) - 1; i >= 0; i--)
		if (!behind->waiting[i] && (found == NONE || behind->space[i] || !behind->space[found]))
			found = i;
	return found;
}

/* behind->filling ← a buffer, after waiting for one if need be */
static fp_status take_buffer(fp_write_behind *behind)
{
	fp_status status = FP_OK;
	pthread_mutex_lock(&behind->lock);
	while (behind->filling == NONE && status == FP_OK) {
		behind->filling = find_buffer(behind);
		if (behind->filling == NONE)
			status = wait_for(behind, behind->count - 1);
	}
	pthread_mutex_unlock(&behind->lock);
	return status;
}

fp_status fp_write_behind_space(fp_write_behind *behind, int64_t bytes, char **out)
{
	int64_t wanted = bytes > 0 ? bytes : 1;
	fp_status status = take_buffer(behind);
	int which = behind->filling;
	if (status != FP_OK)
		return status;
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
	return hand_over(behind, (behind_job){.tensor = tensor, .buffer = behind->filling});
}

fp_status fp_write_behind_quantise(fp_write_behind *behind, const fp_tensor_info *tensor, fp_grid_numbers numbers,
								   int64_t groups)
{
	behind_job job = {.tensor = tensor, .buffer = behind->filling};
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
	job = (behind_job){0}; /* end_job() frees them */
cleanup:
	free_job(&job);
	return status;
}

fp_status fp_write_behind_call(fp_write_behind *behind, fp_behind_work work, void (*release)(void *data), void *data)
{
	const behind_job job = {.buffer = NONE, .work = work, .release = release, .work_data = data};
	fp_status status = behind->started ? hand_over(behind, job)
									   : fp_fail(behind->ctx, FP_ERROR_INTERNAL, "the writing thread needs a writer");
	if (status != FP_OK)
		free_job(&job);
	return status;
}

fp_status fp_write_behind_finish(fp_write_behind *behind)
{
	if (!behind->started)
		return FP_OK;
	pthread_mutex_lock(&behind->lock);
	fp_status status = wait_for(behind, 0);
	pthread_mutex_unlock(&behind->lock);
	return status;
}
