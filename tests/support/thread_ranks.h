/* SPDX-License-Identifier: Apache-2.0 */
/* thread_ranks.h: several ranks in one process, a thread and a communication each. */
#ifndef FP_TESTS_THREAD_RANKS_H
#define FP_TESTS_THREAD_RANKS_H

#include "comm/comm.h"

/* Runs on every rank. A failing assertion must wait until all have ended: ranks record what they see in `data`. */
typedef void (*rank_function)(fp_comm *comm, void *data);

/* Runs `function` on so many ranks and waits for all of them. */
void run_thread_ranks(int ranks, rank_function function, void *data);

#endif
