/* SPDX-License-Identifier: Apache-2.0 */
#include "run/write_behind.h"

#include "base/memory.h"

#include <pthread.h>

struct fp_write_behind {
	fp_backend *be;    /* borrowed */
	fp_context *ctx;   /* the caller's */
	fp_context *own;   /* the thread's: a context belongs to one thread at a time */
	fp_writer *writer; /* borrowed, or NULL */
	char *space[2];
	int64_t capacity[2];
	int free; /* which space is filled next */
	bool started;
	pthread_t thread;
	/* the rest under the lock */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool busy;                    /* with the tensor, or with the work where there is no tensor */
	const fp_tensor_info *tensor; /* being written */
	const char *bytes;
	fp_behind_work work;
	void *work_data;
	fp_status status;
	bool stop;
};

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
		fp_status status = behind->tensor
							   ? fp_writer_replace(behind->writer, behind->own, behind->tensor, behind->bytes)
							   : behind->work(behind->work_data, behind->own);
		pthread_mutex_lock(&behind->lock);
		if (behind->status == FP_OK)
			behind->status = status;
		behind->busy = false;
		pthread_cond_broadcast(&behind->changed);
	}
	pthread_mutex_unlock(&behind->lock);
	return NULL;
}

/* Waits for the thread; with the lock held. */
static fp_status wait_idle(fp_write_behind *behind)
{
	while (behind->busy)
		pthread_cond_wait(&behind->changed, &behind->lock);
	if (behind->status == FP_OK)
		return FP_OK;
	return fp_fail_from(behind->ctx, behind->status, behind->own);
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
		behind->own = fp_context_new();
		if (!behind->own)
			FP_TRY(fp_fail(ctx, FP_ERROR_MEMORY, "out of memory for the thread that writes"));
		if (pthread_create(&behind->thread, NULL, run, behind) != 0)
			FP_TRY(fp_fail(ctx, FP_ERROR_MEMORY, "no thread could be started to write the checkpoint"));
		behind->started = true;
	}
	*out = behind;
	behind = NULL;
cleanup:
	fp_write_behind_free(behind);
	return status;
}

void fp_write_behind_free(fp_write_behind *behind)
{
	if (!behind)
		return;
	if (behind->started) {
		pthread_mutex_lock(&behind->lock);
		while (behind->busy)
			pthread_cond_wait(&behind->changed, &behind->lock);
		behind->stop = true;
		pthread_cond_broadcast(&behind->changed);
		pthread_mutex_unlock(&behind->lock);
		pthread_join(behind->thread, NULL);
	}
	pthread_cond_destroy(&behind->changed);
	pthread_mutex_destroy(&behind->lock);
	fp_context_free(behind->own);
	for (int i = 0; i < 2; i++) {
		if (fp_backend_can(behind->be, FP_CAN_DOWNLOAD_ASYNC))
			behind->be->transfer->release_host(behind->be, behind->space[i]);
		else
			fp_free(behind->space[i]);
	}
	fp_free(behind);
}

/* Anew, since what a space held is of no use any more. */
static fp_status take_host(fp_write_behind *behind, int which, int64_t bytes)
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
	int which = behind->free;
	fp_status status = FP_OK;
	if (!fp_backend_can(behind->be, FP_CAN_DOWNLOAD_ASYNC))
		status = FP_GROW(behind->ctx, &behind->space[which], &behind->capacity[which], bytes > 0 ? bytes : 1);
	else if (bytes > behind->capacity[which] || !behind->space[which])
		status = take_host(behind, which, bytes > 0 ? bytes : 1);
	*out = behind->space[which];
	return status;
}

fp_status fp_write_behind_put(fp_write_behind *behind, const fp_tensor_info *tensor)
{
	if (!behind->started)
		return FP_OK;
	pthread_mutex_lock(&behind->lock);
	fp_status status = wait_idle(behind);
	if (status == FP_OK) {
		behind->busy = true;
		behind->tensor = tensor;
		behind->bytes = behind->space[behind->free];
		behind->free ^= 1;
		pthread_cond_broadcast(&behind->changed);
	}
	pthread_mutex_unlock(&behind->lock);
	return status;
}

fp_status fp_write_behind_call(fp_write_behind *behind, fp_behind_work work, void *data)
{
	if (!behind->started)
		return work(data, behind->ctx);
	pthread_mutex_lock(&behind->lock);
	fp_status status = wait_idle(behind);
	if (status == FP_OK) {
		behind->busy = true;
		behind->tensor = NULL;
		behind->work = work;
		behind->work_data = data;
		pthread_cond_broadcast(&behind->changed);
	}
	pthread_mutex_unlock(&behind->lock);
	return status;
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
