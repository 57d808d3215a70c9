/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm.h"

#include "base/memory.h"
#include "base/module_file.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const fp_module_file mpi_module = {
	.name = "libfistapruner_mpi.so",
	.variable = "FISTAPRUNER_MPI_MODULE",
	.entry = FP_COMM_MODULE_ENTRY,
	.if_missing = "this program was started as one of several ranks but built without MPI; build it where OpenMPI is "
				  "installed (libopenmpi-dev), set FISTAPRUNER_MPI_MODULE to the module's path, or start one process "
				  "without mpirun",
	.if_unloadable = "",
	.scope = RTLD_GLOBAL, /* OpenMPI's own modules look up its symbols */
};

/* --- one process ---------------------------------------------------------------------------------------------- */

static void single_close(fp_comm *comm, bool failed)
{
	(void)failed;
	fp_free(comm);
}

static fp_status no_other_rank(fp_comm *comm)
{
	return fp_fail(comm->ctx, FP_ERROR_INTERNAL, "there is no other rank");
}

static fp_status single_send(fp_comm *comm, int to, const void *bytes, int64_t size)
{
	(void)to;
	(void)bytes;
	(void)size;
	return no_other_rank(comm);
}

static fp_status single_receive(fp_comm *comm, int from, void *bytes, int64_t size)
{
	(void)from;
	(void)bytes;
	(void)size;
	return no_other_rank(comm);
}

static fp_status single_exchange(fp_comm *comm, const fp_parcel *out, const fp_parcel *in)
{
	(void)comm;
	(void)out;
	(void)in;
	return FP_OK;
}

static fp_status single_broadcast(fp_comm *comm, int from, void *bytes, int64_t size)
{
	(void)comm;
	(void)from;
	(void)bytes;
	(void)size;
	return FP_OK;
}

static fp_status single_reduction(fp_comm *comm, int64_t *value)
{
	(void)comm;
	(void)value;
	return FP_OK;
}

static const fp_comm_operations single_operations = {
	.close = single_close,
	.send = single_send,
	.receive = single_receive,
	.exchange = single_exchange,
	.broadcast = single_broadcast,
	.minimum = single_reduction,
	.sum = single_reduction,
};

static fp_status open_single(fp_comm **out, fp_context *ctx)
{
	fp_status status = FP_NEW(ctx, out, 1);
	if (status == FP_OK)
		**out = (fp_comm){.ops = &single_operations, .ctx = ctx, .size = 1, .local_size = 1};
	return status;
}

/* --- several processes
 * -------------------------------------------------------------------------------------------------- */

static long environment_number(const char *variable)
{
	const char *text = getenv(variable);
	return text ? strtol(text, NULL, 10) : 0;
}

/* By the variables that OpenMPI's mpirun and Slurm's srun --mpi=pmix set. */
static bool has_other_ranks(void)
{
	return environment_number("OMPI_COMM_WORLD_SIZE") > 1 ||
		   (getenv("PMIX_RANK") && environment_number("SLURM_STEP_NUM_TASKS") > 1);
}

static fp_status open_module(fp_comm **out, fp_context *ctx)
{
	fp_comm_module_function open;
	void *entry;
	fp_status status;
	FP_TRY(fp_module_load(&entry, ctx, &mpi_module));
	memcpy(&open, &entry, sizeof open);
	FP_TRY(open(out, ctx));
cleanup:
	return status;
}

fp_status fp_comm_open(fp_comm **out, fp_context *ctx, bool shared)
{
	*out = NULL;
	return shared && has_other_ranks() ? open_module(out, ctx) : open_single(out, ctx);
}

void fp_comm_close(fp_comm *comm, bool failed)
{
	if (comm)
		comm->ops->close(comm, failed);
}

fp_status fp_comm_agree(fp_comm *comm, fp_status status)
{
	/* rank and status in one number, whose minimum is that of the first rank that failed */
	int64_t word = status == FP_OK ? INT64_MAX : (int64_t)comm->rank * 256 + (int64_t)status;
	if (comm->size == 1)
		return status;
	fp_status reached = comm->ops->minimum(comm, &word);
	if (reached != FP_OK)
		return status != FP_OK ? status : reached;
	if (word == INT64_MAX)
		return FP_OK;
	if (word / 256 != comm->rank) {
		/* the launcher ends all ranks when the first one exits: give the one with a message time to print it */
		const struct timespec pause = {.tv_nsec = 300000000};
		nanosleep(&pause, NULL);
		fp_clear_message(comm->ctx);
		comm->failed_elsewhere = true;
	}
	return (fp_status)(word % 256);
}
