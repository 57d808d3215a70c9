/* SPDX-License-Identifier: Apache-2.0 */
/* control_group.h: the memory limit that a container, a batch system or systemd has set for this process, by control
 * groups of version 1 or 2. */
#ifndef FP_BASE_CONTROL_GROUP_H
#define FP_BASE_CONTROL_GROUP_H

#include <stdbool.h>
#include <stdint.h>

/* Of the process's group and its parents, the one with the least memory left: *limit ← its limit, *left ← what is left,
 * where cached file pages that can be dropped count as free. False: there is no limit. root is put before /proc and
 * /sys: "" except in tests. */
bool fp_control_group_memory(const char *root, int64_t *limit, int64_t *left);

#endif
