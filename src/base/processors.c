/* SPDX-License-Identifier: Apache-2.0 */
#include "base/processors.h"

#include <errno.h>
#include <sched.h>
#include <unistd.h>

/* The kernel refuses a set with fewer bits than it has processors, and a cpu_set_t has 1,024. */
enum { FIRST_SIZE = 1024, LAST_SIZE = 1 << 20 };

int fp_usable_processors(void)
{
	int count = 0;
	for (int bits = FIRST_SIZE; bits <= LAST_SIZE && count == 0; bits *= 2) {
		size_t size = CPU_ALLOC_SIZE(bits);
		cpu_set_t *set = CPU_ALLOC(bits);
		if (!set)
			break;
		int failed = sched_getaffinity(0, size, set) != 0;
		int error = errno;
		if (!failed)
			count = CPU_COUNT_S(size, set);
		CPU_FREE(set);
		if (failed && error != EINVAL)
			break;
	}
	if (count == 0)
		count = (int)sysconf(_SC_NPROCESSORS_ONLN);
	return count > 0 ? count : 1;
}
