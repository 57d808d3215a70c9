/* SPDX-License-Identifier: Apache-2.0 */
#include "api/rank_device.h"

#include "base/digest.h"
#include "base/processors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How many GPUs CUDA_VISIBLE_DEVICES lists; 0: not set. Slurm may list one for each rank. */
static int visible_devices(void)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	int count = list && *list ? 1 : 0;
	for (; list && *list; list++)
		count += *list == ',';
	return count;
}

static int own_threads(const fp_comm *comm, const fp_settings *settings)
{
	if (settings->threads > 0 || comm->local_size == 1)
		return (int)settings->threads;
	int threads = fp_usable_processors() / comm->local_size;
	return threads > 1 ? threads : 1;
}

fp_status fp_rank_device_open(fp_backend **out, fp_context *ctx, const fp_comm *comm, const fp_settings *settings)
{
	bool automatic = fp_is(settings->device, "auto");
	int threads = own_threads(comm, settings), visible = visible_devices();
	char device[32];
	if (comm->local_size == 1 || (!automatic && !fp_is(settings->device, "cuda")))
		return fp_backend_open(out, ctx, settings->device, threads);
	snprintf(device, sizeof device, "cuda:%d", visible > 0 ? comm->local_rank % visible : comm->local_rank);
	fp_status status = fp_backend_open(out, ctx, device, threads);
	if (status == FP_OK || !automatic)
		return status;
	fp_log(ctx, FP_LOG_DEBUG, "device auto: %s cannot be used: %s", device, fp_context_message(ctx));
	fp_clear_message(ctx);
	return fp_backend_open(out, ctx, "cpu", threads);
}

fp_status fp_rank_devices_agree(fp_backend *be, fp_comm *comm)
{
	/* two numbers of which the least of all ranks are each other's opposite only if all are the same */
	const char *device = strstr(be->description, ": "); /* after its name and number */
	int64_t kind = device ? (int64_t)(fp_digest_bytes(FP_DIGEST_START, device, (int64_t)strlen(device)) >> 2) : 0;
	int64_t negative = -be->strip_rows, least = kind, most = -kind;
	fp_status status;
	FP_TRY(comm->ops->minimum(comm, &negative));
	FP_TRY(comm->ops->minimum(comm, &least));
	FP_TRY(comm->ops->minimum(comm, &most));
	be->strip_rows = -negative;
	comm->mixed = least != -most;
cleanup:
	return status;
}
