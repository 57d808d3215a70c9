/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm.h: several processes (ranks) that share one run, on one machine or many. Alone, a process is rank 0 of 1. Under
 * mpirun or srun the ranks talk by MPI, which is a module of its own (libfistapruner_mpi.so): the program runs where
 * there is no MPI, and loads it only when it was started as one of several.
 *
 * Calls that wait look at the interrupt flag and let the processor go meanwhile. A rank that fails ends without a word
 * to the others; its exit code makes the launcher end them.
 */
#ifndef FP_COMM_COMM_H
#define FP_COMM_COMM_H

#include "base/context.h"

typedef struct fp_comm fp_comm;

typedef struct fp_comm_operations {
	/* failed: end at once, the others are not waited for */
	void (*close)(fp_comm *comm, bool failed);
	fp_status (*send)(fp_comm *comm, int to, const void *bytes, int64_t size);
	fp_status (*receive)(fp_comm *comm, int from, void *bytes, int64_t size);
	fp_status (*broadcast)(fp_comm *comm, void *bytes, int64_t size); /* rank 0's to all */
	fp_status (*smallest)(fp_comm *comm, int64_t *value);             /* over all ranks; every rank gets it */
} fp_comm_operations;

struct fp_comm {
	const fp_comm_operations *ops;
	fp_context *ctx; /* borrowed */
	void *state;
	int rank, size;
	int local_rank, local_size; /* among those on this machine */
};

/* The ranks that this process was started as one of. shared false: alone, however it was started. */
fp_status fp_comm_open(fp_comm **out, fp_context *ctx, bool shared);
void fp_comm_close(fp_comm *comm, bool failed); /* NULL is allowed */

/* Every rank calls it with how its part went, and every rank gets the same answer: FP_OK, or the status of the first
 * rank that failed. Only that one keeps its message; the others' is "". */
fp_status fp_comm_agree(fp_comm *comm, fp_status status);

/* What the MPI module exports. */
#define FP_COMM_MODULE_ENTRY "fp_comm_module_open"
typedef fp_status (*fp_comm_module_function)(fp_comm **out, fp_context *ctx);

#endif
