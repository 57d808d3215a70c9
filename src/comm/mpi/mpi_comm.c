/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_comm.c: comm.h by MPI, as a module. The only file that uses MPI. */
#include "comm/comm.h"

#include "base/memory.h"

#include <mpi.h>
#include <sched.h>
#include <time.h>

enum { BLOCK = 1 << 30, LONG = 1 << 16, SHORTEST_SLEEP = 20000, LONGEST_SLEEP = 500000 }; /* bytes; nanoseconds */
enum { PAUSES = 64 };
enum { DATA_TAG = 1, SENDER_TAG, RECEIVER_TAG };
/* How long a waiting rank polls before it sleeps: most waits are short, and waking up takes time. If there are more ranks than
 * processors, a waiting rank soon leaves its processor to the others. */
static const double EAGER_SECONDS = 1, EAGER_SECONDS_SHARED = 0.005;

typedef struct mpi_state {
	bool initialised; /* MPI, by this module */
	double eager_seconds;
} mpi_state;

static fp_status check(fp_comm *comm, int code, const char *what)
{
	char text[MPI_MAX_ERROR_STRING] = "";
	int length = 0;
	if (code == MPI_SUCCESS)
		return FP_OK;
	MPI_Error_string(code, text, &length);
	return fp_fail(comm->ctx, FP_ERROR_RUN, "rank %d of %d: %s failed: %s", comm->rank, comm->size, what, text);
}

typedef enum waiting {
	FOR_A_RANK, /* may take hours: sleeps after a moment */
	FOR_DATA,   /* of a rank that is there: a transfer may move on only while MPI is called, so never sleeps */
} waiting;

/* Between two polls: leaves the core, for some microseconds, to the processor that shares it, and then the processor to
 * other processes. Where two processors share a core, a rank that polls all the time slows down one that works. */
static void stand_aside(void)
{
#if defined(__x86_64__)
	for (int i = 0; i < PAUSES; i++)
		__builtin_ia32_pause();
#endif
	sched_yield();
}

static fp_status finish(fp_comm *comm, MPI_Request *request, waiting waits, const char *what)
{
	const mpi_state *state = comm->state;
	long delay = SHORTEST_SLEEP;
	double started = MPI_Wtime();
	for (;;) {
		int done = 0;
		fp_status status = check(comm, MPI_Test(request, &done, MPI_STATUS_IGNORE), what);
		if (status != FP_OK || done)
			return status;
		status = fp_check_interrupt(comm->ctx);
		if (status != FP_OK)
			return status; /* the request stays open: the process is about to end */
		if (waits == FOR_DATA || MPI_Wtime() - started < state->eager_seconds) {
			stand_aside();
			continue;
		}
		const struct timespec pause = {.tv_nsec = delay};
		nanosleep(&pause, NULL);
		delay = delay * 2 < LONGEST_SLEEP ? delay * 2 : LONGEST_SLEEP;
	}
}

/* Tells `other` that this rank has come to their transfer, and asks it to tell that too; the tags say who sends. */
static fp_status announce(fp_comm *comm, int other, int own, int its, MPI_Request requests[2])
{
	fp_status status;
	FP_TRY(check(comm, MPI_Irecv(NULL, 0, MPI_BYTE, other, its, MPI_COMM_WORLD, &requests[0]), "receiving"));
	FP_TRY(check(comm, MPI_Isend(NULL, 0, MPI_BYTE, other, own, MPI_COMM_WORLD, &requests[1]), "sending"));
cleanup:
	return status;
}

static int block_at(int64_t size, int64_t done)
{
	return size - done < BLOCK ? (int)(size - done) : BLOCK;
}

/* Sends to `other`, or receives from it. Short messages travel without waiting for the other rank, long ones after both
 * ranks have come. */
static fp_status transfer(fp_comm *comm, int other, bool sends, void *bytes, int64_t size)
{
	/* of a request that is null MPI_Test() says that it is done */
	MPI_Request request = MPI_REQUEST_NULL, here[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
	const char *what = sends ? "sending" : "receiving";
	fp_status status = FP_OK;
	if (size > LONG)
		FP_TRY(announce(comm, other, sends ? SENDER_TAG : RECEIVER_TAG, sends ? RECEIVER_TAG : SENDER_TAG, here));
	for (int i = 0; i < 2; i++)
		FP_TRY(finish(comm, &here[i], FOR_A_RANK, "waiting for a rank"));
	for (int64_t done = 0; done < size; done += BLOCK) {
		char *at = (char *)bytes + done;
		int count = block_at(size, done);
		FP_TRY(check(comm,
					 sends ? MPI_Isend(at, count, MPI_BYTE, other, DATA_TAG, MPI_COMM_WORLD, &request)
						   : MPI_Irecv(at, count, MPI_BYTE, other, DATA_TAG, MPI_COMM_WORLD, &request),
					 what));
		FP_TRY(finish(comm, &request, size > LONG ? FOR_DATA : FOR_A_RANK, what));
	}
cleanup:
	return status;
}

static fp_status mpi_send(fp_comm *comm, int to, const void *bytes, int64_t size)
{
	return transfer(comm, to, true, (void *)bytes, size);
}

static fp_status mpi_receive(fp_comm *comm, int from, void *bytes, int64_t size)
{
	return transfer(comm, from, false, bytes, size);
}

/* Returns when all ranks have come. */
static fp_status meet(fp_comm *comm, const char *what)
{
	MPI_Request request;
	fp_status status = check(comm, MPI_Ibarrier(MPI_COMM_WORLD, &request), what);
	return status == FP_OK ? finish(comm, &request, FOR_A_RANK, what) : status;
}

static fp_status mpi_exchange(fp_comm *comm, const fp_parcel *out, const fp_parcel *in)
{
	MPI_Request *requests = NULL;
	int count = 0;
	fp_status status;
	FP_TRY(FP_NEW(comm->ctx, &requests, 2 * comm->size));
	FP_TRY(meet(comm, "an exchange"));
	for (int way = 1; way < comm->size; way++) { /* not all to the same rank first */
		int to = (comm->rank + way) % comm->size, from = (comm->rank + comm->size - way) % comm->size;
		if (in[from].size > 0)
			FP_TRY(check(comm,
						 MPI_Irecv(in[from].bytes, (int)in[from].size, MPI_BYTE, from, DATA_TAG, MPI_COMM_WORLD,
								   &requests[count++]),
						 "receiving"));
		if (out[to].size > 0)
			FP_TRY(check(
				comm,
				MPI_Isend(out[to].bytes, (int)out[to].size, MPI_BYTE, to, DATA_TAG, MPI_COMM_WORLD, &requests[count++]),
				"sending"));
	}
	for (int i = 0; i < count; i++)
		FP_TRY(finish(comm, &requests[i], FOR_DATA, "an exchange"));
cleanup:
	fp_free(requests);
	return status;
}

static fp_status mpi_broadcast(fp_comm *comm, int from, void *bytes, int64_t size)
{
	fp_status status = FP_OK;
	MPI_Request request;
	if (size > LONG)
		status = meet(comm, "a broadcast");
	for (int64_t done = 0; status == FP_OK && done < size; done += BLOCK) {
		status = check(comm,
					   MPI_Ibcast((char *)bytes + done, block_at(size, done), MPI_BYTE, from, MPI_COMM_WORLD, &request),
					   "a broadcast");
		if (status == FP_OK)
			status = finish(comm, &request, size > LONG ? FOR_DATA : FOR_A_RANK, "a broadcast");
	}
	return status;
}

static fp_status reduce(fp_comm *comm, int64_t *value, MPI_Op operation)
{
	MPI_Request request;
	int64_t mine = *value;
	fp_status status =
		check(comm, MPI_Iallreduce(&mine, value, 1, MPI_INT64_T, operation, MPI_COMM_WORLD, &request), "an agreement");
	return status == FP_OK ? finish(comm, &request, FOR_A_RANK, "an agreement") : status;
}

static fp_status mpi_minimum(fp_comm *comm, int64_t *value)
{
	return reduce(comm, value, MPI_MIN);
}

static fp_status mpi_sum(fp_comm *comm, int64_t *value)
{
	return reduce(comm, value, MPI_SUM);
}

static void mpi_close(fp_comm *comm, bool failed)
{
	mpi_state *state = comm->state;
	/* after a failure without this call: the launcher then ends the other ranks */
	if (state && state->initialised && !failed)
		MPI_Finalize();
	fp_free(state);
	fp_free(comm);
}

static const fp_comm_operations mpi_operations = {
	.close = mpi_close,
	.send = mpi_send,
	.receive = mpi_receive,
	.exchange = mpi_exchange,
	.broadcast = mpi_broadcast,
	.minimum = mpi_minimum,
	.sum = mpi_sum,
};

/* By the number of processors that the ranks of this machine may use, all together. */
static fp_status choose_waiting(fp_comm *comm, MPI_Comm local)
{
	mpi_state *state = comm->state;
	cpu_set_t own, all;
	fp_status status;
	CPU_ZERO(&own);
	if (sched_getaffinity(0, sizeof own, &own) != 0)
		CPU_ZERO(&own);
	FP_TRY(check(comm, MPI_Allreduce(&own, &all, sizeof own, MPI_BYTE, MPI_BOR, local), "MPI"));
	state->eager_seconds = CPU_COUNT(&all) >= comm->local_size ? EAGER_SECONDS : EAGER_SECONDS_SHARED;
cleanup:
	return status;
}

static fp_status find_ranks(fp_comm *comm)
{
	MPI_Comm local = MPI_COMM_NULL;
	fp_status status;
	FP_TRY(check(comm, MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI"));
	FP_TRY(check(comm, MPI_Comm_rank(MPI_COMM_WORLD, &comm->rank), "MPI"));
	FP_TRY(check(comm, MPI_Comm_size(MPI_COMM_WORLD, &comm->size), "MPI"));
	FP_TRY(check(comm, MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, comm->rank, MPI_INFO_NULL, &local),
				 "MPI"));
	FP_TRY(check(comm, MPI_Comm_rank(local, &comm->local_rank), "MPI"));
	FP_TRY(check(comm, MPI_Comm_size(local, &comm->local_size), "MPI"));
	FP_TRY(choose_waiting(comm, local));
cleanup:
	if (local != MPI_COMM_NULL)
		MPI_Comm_free(&local);
	return status;
}

__attribute__((visibility("default"))) fp_status fp_comm_module_open(fp_comm **out, fp_context *ctx);

fp_status fp_comm_module_open(fp_comm **out, fp_context *ctx)
{
	fp_comm *comm = NULL;
	mpi_state *state = NULL;
	int before = 0, level;
	fp_status status;
	*out = NULL;
	FP_TRY(FP_NEW(ctx, &comm, 1));
	FP_TRY(FP_NEW(ctx, &state, 1));
	*comm = (fp_comm){.ops = &mpi_operations, .ctx = ctx, .state = state, .size = 1};
	MPI_Initialized(&before);
	if (!before)
		FP_TRY(check(comm, MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level), "MPI"));
	state->initialised = !before;
	FP_TRY(find_ranks(comm));
	*out = comm;
	return FP_OK;
cleanup:
	fp_free(state);
	fp_free(comm);
	return status;
}
