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

static void alone_close(fp_comm *comm, bool failed)
{
	(void)failed;
	fp_free(comm);
}

static fp_status nobody_there(fp_comm *comm)
{
	return fp_fail(comm->ctx, FP_ERROR_INTERNAL, "there is no other rank");
}

static fp_status alone_send(fp_comm *comm, int to, const void *bytes, int64_t size)
{
	(void)to;
	(void)bytes;
	(void)size;
	return nobody_there(comm);
}

static fp_status alone_receive(fp_comm *comm, int from, void *bytes, int64_t size)
{
	(void)from;
	(void)bytes;
	(void)size;
	return nobody_there(comm);
}

static fp_status alone_broadcast(fp_comm *comm, void *bytes, int64_t size)
{
	(void)comm;
	(void)bytes;
	(void)size;
	return FP_OK;
}

static fp_status alone_smallest(fp_comm *comm, int64_t *value)
{
	(void)comm;
	(void)value;
	return FP_OK;
}

static const fp_comm_operations alone_operations = {
	.close = alone_close,
	.send = alone_send,
	.receive = alone_receive,
	.broadcast = alone_broadcast,
	.smallest = alone_smallest,
};

static fp_status open_alone(fp_comm **out, fp_context *ctx)
{
	fp_status status = FP_NEW(ctx, out, 1);
	if (status == FP_OK)
		**out = (fp_comm){.ops = &alone_operations, .ctx = ctx, .size = 1, .local_size = 1};
	return status;
}

/* --- several -------------------------------------------------------------------------------------------------- */

static long number_in(const char *variable)
{
	const char *text = getenv(variable);
	return text ? strtol(text, NULL, 10) : 0;
}

/* By what the launchers leave: mpirun of OpenMPI, and Slurm's srun --mpi=pmix. */
static bool is_one_of_several(void)
{
	return number_in("OMPI_COMM_WORLD_SIZE") > 1 || (getenv("PMIX_RANK") && number_in("SLURM_STEP_NUM_TASKS") > 1);
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
	return shared && is_one_of_several() ? open_module(out, ctx) : open_alone(out, ctx);
}

void fp_comm_close(fp_comm *comm, bool failed)
{
	if (comm)
		comm->ops->close(comm, failed);
}

fp_status fp_comm_agree(fp_comm *comm, fp_status status)
{
	/* the first rank that failed, and in the same number how */
	int64_t word = status == FP_OK ? INT64_MAX : (int64_t)comm->rank * 256 + (int64_t)status;
	if (comm->size == 1)
		return status;
	fp_status told = comm->ops->smallest(comm, &word);
	if (told != FP_OK)
		return status != FP_OK ? status : told;
	if (word == INT64_MAX)
		return FP_OK;
	if (word / 256 != comm->rank) {
		/* whoever ends first makes the launcher end the rest: let the one speak that has something to say */
		const struct timespec pause = {.tv_nsec = 300000000};
		nanosleep(&pause, NULL);
		comm->ctx->message[0] = '\0';
	}
	return (fp_status)(word % 256);
}
