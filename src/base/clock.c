/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <sys/resource.h>
#include <time.h>

static const char *const stage_names[] = {
#define FP_STAGE_NAME(id, name) [id] = name,
	FP_STAGE_LIST(FP_STAGE_NAME)
#undef FP_STAGE_NAME
};

const char *fp_stage_name(fp_stage stage)
{
	return stage_names[stage];
}

double fp_clock(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int64_t fp_peak_memory(void)
{
	struct rusage usage;
	return getrusage(RUSAGE_SELF, &usage) == 0 ? (int64_t)usage.ru_maxrss * 1024 : 0;
}

fp_stage fp_stage_enter(fp_context *ctx, fp_stage stage)
{
	fp_stopwatch *watch = ctx->stopwatch;
	if (!watch)
		return FP_STAGE_OTHER;
	fp_stage before = watch->current;
	if (watch->wait_for_device && stage != before)
		watch->wait_for_device(watch->device);
	double now = fp_clock();
	if (watch->since > 0)
		watch->seconds[before] += now - watch->since;
	watch->since = now;
	watch->current = stage;
	return before;
}
