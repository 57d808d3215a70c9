/* SPDX-License-Identifier: Apache-2.0 */
/* rank_device.h: which GPU and how many threads a rank uses when ranks share a machine. */
#ifndef FP_API_RANK_DEVICE_H
#define FP_API_RANK_DEVICE_H

#include "backend/backend.h"
#include "base/settings.h"
#include "comm/comm.h"

/* Opens the backend that the settings name. If several ranks share the machine, "cuda" and "auto" mean the GPU with the
 * rank's number, and 0 threads mean an equal share of the processors. */
fp_status fp_rank_device_open(fp_backend **out, fp_context *ctx, const fp_comm *comm, const fp_settings *settings);
/* Every rank's strips of rows ← the largest of all, so that they divide rows alike; and comm->mixed: processors of several
 * machines may differ. */
fp_status fp_rank_devices_agree(fp_backend *be, fp_comm *comm);

#endif
