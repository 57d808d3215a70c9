/* SPDX-License-Identifier: Apache-2.0 */
/* processors.h: how many processors there are to use. */
#ifndef FP_BASE_PROCESSORS_H
#define FP_BASE_PROCESSORS_H

/* The processors that this process may run on, at least 1: a container or taskset may allow fewer than there are. */
int fp_usable_processors(void);

#endif
