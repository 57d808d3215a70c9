/* SPDX-License-Identifier: Apache-2.0 */
/* test_processors.c: the processors a process may use, under taskset and on a machine with more than 1,024. */
#include "base/processors.h"
#include "support.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int pretended; /* processors of the machine; 0: the real one */

/* Takes the place of the C library's function, in the libraries too. */
int sched_getaffinity(pid_t process, size_t size, cpu_set_t *set)
{
	if (pretended == 0) {
		long written = syscall(SYS_sched_getaffinity, process, size, set);
		if (written < 0)
			return -1; /* errno is set */
		memset((char *)set + written, 0, size - (size_t)written);
		return 0;
	}
	if (size * 8 < (size_t)pretended) {
		errno = EINVAL;
		return -1;
	}
	CPU_ZERO_S(size, set);
	for (int i = 0; i < pretended; i++)
		CPU_SET_S(i, size, set);
	return 0;
}

static void test_affinity(void **state)
{
	(void)state;
	cpu_set_t before, one;
	assert_true(fp_usable_processors() >= 1);
	assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
	assert_int_equal(fp_usable_processors(), CPU_COUNT(&before));
	CPU_ZERO(&one);
	for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
		if (CPU_ISSET(i, &before))
			CPU_SET(i, &one);
	assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
	assert_int_equal(fp_usable_processors(), 1);
	assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

static void test_large_machines(void **state)
{
	(void)state;
	static const int sizes[] = {1, 1024, 1025, 5000, 100000};
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		pretended = sizes[i];
		int found = fp_usable_processors();
		pretended = 0;
		assert_int_equal(found, sizes[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_affinity), cmocka_unit_test(test_large_machines)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
