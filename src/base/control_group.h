/* SPDX-License-Identifier: Apache-2.0 */
/* control_group.h: how much memory the kernel grants this process beside what the machine has: the limits of
 * containers, of batch systems and of systemd, by control groups of either version. */
#ifndef FP_BASE_CONTROL_GROUP_H
#define FP_BASE_CONTROL_GROUP_H

#include <stdbool.h>
#include <stdint.h>

/* The tightest of the process's group and those above it: *limit ← its limit, *left ← what it has left, counting pages
 * of files that can be dropped as free. false: there is no limit. root: "" but for tests, in front of /proc and /sys.
 */
bool fp_control_group_memory(const char *root, int64_t *limit, int64_t *left);

#endif
