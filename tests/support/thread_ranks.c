/* SPDX-License-Identifier: Apache-2.0 */
#include "thread_ranks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct message {
	struct message *next;
	int from, to;
	int64_t size;
	char bytes[];
} message;

typedef struct post_office {
	pthread_mutex_t lock;
	pthread_cond_t arrived;
	message *first; /* oldest */
	int ranks;
	rank_function function;
	void *data;
} post_office;

typedef struct rank_thread {
	post_office *office;
	pthread_t thread;
	int rank;
} rank_thread;

static fp_status thread_send(fp_comm *comm, int to, const void *bytes, int64_t size)
{
	post_office *office = comm->state;
	message *m = malloc(sizeof *m + (size_t)size), **at;
	*m = (message){.from = comm->rank, .to = to, .size = size};
	if (size > 0)
		memcpy(m->bytes, bytes, (size_t)size);
	pthread_mutex_lock(&office->lock);
	for (at = &office->first; *at;)
		at = &(*at)->next;
	*at = m;
	pthread_cond_broadcast(&office->arrived);
	pthread_mutex_unlock(&office->lock);
	return FP_OK;
}

static fp_status thread_receive(fp_comm *comm, int from, void *bytes, int64_t size)
{
	post_office *office = comm->state;
	message **at, *m;
	pthread_mutex_lock(&office->lock);
	for (at = &office->first;;) {
		if (*at && (*at)->from == from && (*at)->to == comm->rank)
			break;
		if (*at) {
			at = &(*at)->next;
			continue;
		}
		pthread_cond_wait(&office->arrived, &office->lock);
		at = &office->first;
	}
	m = *at;
	*at = m->next;
	pthread_mutex_unlock(&office->lock);
	bool fits = m->size == size;
	if (fits && size > 0)
		memcpy(bytes, m->bytes, (size_t)size);
	free(m);
	return fits ? FP_OK : fp_fail(comm->ctx, FP_ERROR_INTERNAL, "a message of another size");
}

static fp_status thread_exchange(fp_comm *comm, const fp_parcel *out, const fp_parcel *in)
{
	fp_status status = FP_OK;
	for (int rank = 0; rank < comm->size && status == FP_OK; rank++)
		if (rank != comm->rank && out[rank].size > 0)
			status = thread_send(comm, rank, out[rank].bytes, out[rank].size);
	for (int rank = 0; rank < comm->size && status == FP_OK; rank++)
		if (rank != comm->rank && in[rank].size > 0)
			status = thread_receive(comm, rank, in[rank].bytes, in[rank].size);
	return status;
}

static fp_status thread_broadcast(fp_comm *comm, int from, void *bytes, int64_t size)
{
	fp_status status = FP_OK;
	if (comm->rank != from)
		return thread_receive(comm, from, bytes, size);
	for (int to = 0; to < comm->size && status == FP_OK; to++)
		if (to != from)
			status = thread_send(comm, to, bytes, size);
	return status;
}

static fp_status thread_reduce(fp_comm *comm, int64_t *value, bool sums)
{
	fp_status status = FP_OK;
	int64_t least = *value, sum = 0;
	for (int rank = 0; rank < comm->size && status == FP_OK; rank++) {
		int64_t other = *value;
		status = thread_broadcast(comm, rank, &other, sizeof other);
		least = other < least ? other : least;
		sum += other;
	}
	*value = sums ? sum : least;
	return status;
}

static fp_status thread_minimum(fp_comm *comm, int64_t *value)
{
	return thread_reduce(comm, value, false);
}

static fp_status thread_sum(fp_comm *comm, int64_t *value)
{
	return thread_reduce(comm, value, true);
}

static const fp_comm_operations operations = {
	.send = thread_send,
	.receive = thread_receive,
	.exchange = thread_exchange,
	.broadcast = thread_broadcast,
	.minimum = thread_minimum,
	.sum = thread_sum,
};

static void *run_rank(void *argument)
{
	rank_thread *own = argument;
	fp_comm comm = {.ops = &operations,
					.ctx = fp_context_new(),
					.state = own->office,
					.rank = own->rank,
					.size = own->office->ranks};
	own->office->function(&comm, own->office->data);
	fp_context_free(comm.ctx);
	return NULL;
}

void run_thread_ranks(int ranks, rank_function function, void *data)
{
	post_office office = {.ranks = ranks, .function = function, .data = data};
	rank_thread *threads = calloc((size_t)ranks, sizeof *threads);
	pthread_mutex_init(&office.lock, NULL);
	pthread_cond_init(&office.arrived, NULL);
	for (int rank = 0; rank < ranks; rank++) {
		threads[rank] = (rank_thread){.office = &office, .rank = rank};
		pthread_create(&threads[rank].thread, NULL, run_rank, &threads[rank]);
	}
	for (int rank = 0; rank < ranks; rank++)
		pthread_join(threads[rank].thread, NULL);
	pthread_cond_destroy(&office.arrived);
	pthread_mutex_destroy(&office.lock);
	free(threads);
}
