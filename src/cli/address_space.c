/* SPDX-License-Identifier: Apache-2.0 */
/*
 * address_space.c: refuses a limit of the address space (ulimit -v) that is too small for OpenBLAS to start. OpenBLAS's
 * constructor allocates 128 MiB per thread and retries for ever if that fails. The check therefore runs before the
 * constructors of shared libraries, from the section .preinit_array.
 */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FP_CLI_SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FP_CLI_SANITIZED
#endif

#ifndef FP_CLI_SANITIZED /* the sanitizers' runtimes have not started yet */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* MiB that OpenBLAS allocates per thread at its start, and MiB for everything else. */
enum { THREAD_MIB = 128, OTHER_MIB = 8, EXIT_NO_MEMORY = 4 };

/* The number in an environment variable; 0: none. getenv() may not work yet. */
static long number_of(char *const *environment, const char *name)
{
	size_t length = strlen(name);
	for (; *environment; environment++)
		if (strncmp(*environment, name, length) == 0 && (*environment)[length] == '=')
			return strtol(*environment + length + 1, NULL, 10);
	return 0;
}

/* The number of threads as OpenBLAS chooses it: as requested, at most one per processor. */
static long blas_threads(char *const *environment)
{
	static const char *const names[] = {"OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"};
	cpu_set_t processors[8]; /* one has 1,024, Linux at most 8,192; there is no malloc() yet */
	long most = 1, asked = 0;
	if (sched_getaffinity(0, sizeof processors, processors) == 0)
		most = CPU_COUNT_S(sizeof processors, processors);
	for (size_t i = 0; i < sizeof names / sizeof names[0] && asked <= 0; i++)
		asked = number_of(environment, names[i]);
	return asked > 0 && asked < most ? asked : most;
}

/* MiB of the address space in use. */
static long used_mib(void)
{
	char text[64] = "";
	int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return 0;
	ssize_t size = read(file, text, sizeof text - 1);
	close(file);
	return size > 0 ? strtol(text, NULL, 10) * (sysconf(_SC_PAGESIZE) / 1024) / 1024 : 0;
}

static void check_address_space(int count, char **arguments, char **environment)
{
	struct rlimit limit;
	char text[512];
	(void)count;
	(void)arguments;
	if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
		return;
	long threads = blas_threads(environment), allowed = (long)(limit.rlim_cur >> 20);
	long wanted = used_mib() + threads * THREAD_MIB + OTHER_MIB;
	if (allowed >= wanted)
		return;
	int size =
		snprintf(text, sizeof text,
				 "fistapruner: out of memory: the address space is limited to %ld MiB (ulimit -v), but starting takes "
				 "%ld MiB, %d per thread; raise the limit%s\n",
				 allowed, wanted, THREAD_MIB, threads > 1 ? " or set OMP_NUM_THREADS=1" : "");
	ssize_t written = write(STDERR_FILENO, text, (size_t)size);
	(void)written;
	_exit(EXIT_NO_MEMORY);
}

__attribute__((section(".preinit_array"), used)) static void (*const before_libraries)(int, char **,
																					   char **) = check_address_space;
#else
typedef int fp_cli_no_check; /* a translation unit must not be empty */
#endif
