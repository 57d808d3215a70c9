/* SPDX-License-Identifier: Apache-2.0 */
#include "base/module_file.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef FP_MODULE_FOLDER
#define FP_MODULE_FOLDER "/usr/local/lib"
#endif

/* path ← where this code is: the program, or the library that another program has loaded. */
static bool own_path(char *path, size_t size)
{
	static const char here[] = "";
	Dl_info info;
	ssize_t length = readlink("/proc/self/exe", path, size - 1);
	if (length <= 0)
		return false;
	path[length] = '\0';
	/* an address in a library has the library's path; in the program what it was called by, which may be relative */
	if (dladdr(here, &info) && info.dli_fname && strstr(info.dli_fname, ".so"))
		return snprintf(path, size, "%s", info.dli_fname) < (int)size;
	return true;
}

/* path ← "the folder of this code" + between + name; false when it is not there. */
static bool beside_this(char *path, size_t size, const char *between, const char *name)
{
	char *slash = own_path(path, size) ? strrchr(path, '/') : NULL;
	if (!slash)
		return false;
	size_t left = size - (size_t)(slash - path);
	return snprintf(slash, left, "%s%s", between, name) < (int)left && access(path, R_OK) == 0;
}

fp_status fp_module_find(char *path, size_t size, fp_context *ctx, const fp_module_file *module)
{
	const char *named = getenv(module->variable);
	if (named && *named) {
		if (snprintf(path, size, "%s", named) < (int)size && access(path, R_OK) == 0)
			return FP_OK;
		return fp_fail(ctx, FP_ERROR_DEVICE, "%s is '%.200s', which cannot be read; unset it or name %s",
					   module->variable, named, module->name);
	}
	if (beside_this(path, size, "/", module->name) || beside_this(path, size, "/../", module->name) ||
		beside_this(path, size, "/../lib/", module->name))
		return FP_OK;
	if (snprintf(path, size, "%s/%s", FP_MODULE_FOLDER, module->name) < (int)size && access(path, R_OK) == 0)
		return FP_OK;
	return fp_fail(ctx, FP_ERROR_DEVICE, "%s is neither beside the program nor in " FP_MODULE_FOLDER ": %s",
				   module->name, module->advice);
}
