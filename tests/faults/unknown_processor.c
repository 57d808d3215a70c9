/* SPDX-License-Identifier: Apache-2.0 */
/* unknown_processor.c: loaded with LD_PRELOAD, makes OpenBLAS say what it says on a processor that it does not know,
 * unless a kernel is chosen for it. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

__attribute__((visibility("default"))) char *openblas_get_corename(void);

char *openblas_get_corename(void)
{
	static char slowest[] = "Prescott";
	char *(*real)(void) = NULL;
	void *symbol = dlsym(RTLD_NEXT, "openblas_get_corename");
	if (!getenv("OPENBLAS_CORETYPE") || !symbol)
		return slowest;
	memcpy(&real, &symbol, sizeof real);
	return real();
}
