/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm.h: communication between the processes (ranks) of one run, on one machine or several. A process that was started
 * by itself is rank 0 of 1. Under mpirun or srun the ranks communicate by MPI, in a module of its own
 * (libfistapruner_mpi.so) that is loaded only then, so that the program runs on machines without MPI.
 *
 * Calls that wait check the interrupt flag. They poll, and sleep between polls after a second, or after a moment if there are
 * more ranks than processors; but not while a message travels. A rank that fails ends without telling the others; its exit
 * code makes the launcher end them.
 */
#ifndef FP_COMM_COMM_H
#define FP_COMM_COMM_H

#include "base/context.h"

typedef struct fp_comm fp_comm;

typedef struct fp_parcel {
	void *bytes;
	int64_t size; /* 0: there is none */
} fp_parcel;

typedef struct fp_comm_operations {
	/* failed: do not wait for the other ranks */
	void (*close)(fp_comm *comm, bool failed);
	fp_status (*send)(fp_comm *comm, int to, const void *bytes, int64_t size);
	fp_status (*receive)(fp_comm *comm, int from, void *bytes, int64_t size);
	/* to and from all other ranks at the same time; parcels by rank, of less than 2 GiB each, the own one is not used */
	fp_status (*exchange)(fp_comm *comm, const fp_parcel *out, const fp_parcel *in);
	fp_status (*broadcast)(fp_comm *comm, int from, void *bytes, int64_t size); /* to all others */
	/* over all ranks, for every rank */
	fp_status (*minimum)(fp_comm *comm, int64_t *value);
	fp_status (*sum)(fp_comm *comm, int64_t *value);
} fp_comm_operations;

struct fp_comm {
	const fp_comm_operations *ops;
	fp_context *ctx; /* borrowed */
	void *state;
	int rank, size;
	int local_rank, local_size; /* on this machine */
	bool mixed;                 /* the ranks' devices are not alike, and round differently */
	bool failed_elsewhere;      /* set by fp_comm_agree(): another rank failed and has the message */
};

/* Opens the communication with the other ranks. shared false: none, however the process was started. */
fp_status fp_comm_open(fp_comm **out, fp_context *ctx, bool shared);
void fp_comm_close(fp_comm *comm, bool failed); /* NULL is allowed */

/* Every rank passes its own status and gets the same result: FP_OK, or the status of the first rank that failed. Only
 * that rank keeps its message; that of the others becomes "". */
fp_status fp_comm_agree(fp_comm *comm, fp_status status);

/* What the MPI module exports. */
#define FP_COMM_MODULE_ENTRY "fp_comm_module_open"
typedef fp_status (*fp_comm_module_function)(fp_comm **out, fp_context *ctx);

#endif
