/* SPDX-License-Identifier: Apache-2.0 */
/* rank_device.h: which GPU and how many threads a rank takes, beside the others on its machine. */
#ifndef FP_API_RANK_DEVICE_H
#define FP_API_RANK_DEVICE_H

#include "backend/backend.h"
#include "base/settings.h"
#include "comm/comm.h"

/* Opens the backend of the settings; where several ranks share the machine, "cuda" and "auto" mean the GPU with the
 * number of the rank, and threads 0 an equal part of the processors. */
fp_status fp_rank_device_open(fp_backend **out, fp_context *ctx, const fp_comm *comm, const fp_settings *settings);

#endif
