/* SPDX-License-Identifier: Apache-2.0 */
#include "base/module_file.h"

#include <dlfcn.h>
#include <fistapruner/fistapruner.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef FP_MODULE_FOLDER
#define FP_MODULE_FOLDER "/usr/local/lib"
#endif

/* path ← the file this code is in: the program, or the library that another program has loaded. */
static bool own_path(char *path, size_t size)
{
	static const char here[] = "";
	Dl_info info;
	ssize_t length = readlink("/proc/self/exe", path, size - 1);
	if (length <= 0)
		return false;
	path[length] = '\0';
	/* dladdr() gives a library's path, but for the program only the name it was started by, which may be relative */
	if (dladdr(here, &info) && info.dli_fname && strstr(info.dli_fname, ".so"))
		return snprintf(path, size, "%s", info.dli_fname) < (int)size;
	return true;
}

/* path ← the folder of this code + between + name; false when there is no such file. */
static bool find_relative(char *path, size_t size, const char *between, const char *name)
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
		return fp_fail(ctx, FP_ERROR_DEVICE,
					   "%s is '%.200s', which cannot be read; unset it or set it to the path of %s", module->variable,
					   named, module->name);
	}
	if (find_relative(path, size, "/", module->name) || find_relative(path, size, "/../", module->name) ||
		find_relative(path, size, "/../lib/", module->name))
		return FP_OK;
	if (snprintf(path, size, "%s/%s", FP_MODULE_FOLDER, module->name) < (int)size && access(path, R_OK) == 0)
		return FP_OK;
	return fp_fail(ctx, FP_ERROR_DEVICE, "%s is neither beside the program nor in " FP_MODULE_FOLDER ": %s",
				   module->name, module->if_missing);
}

/* The build that made a loaded module; "" when it does not say. */
static const char *build_of(void *handle)
{
	const char *(*build_id)(void) = NULL;
	void *symbol = dlsym(handle, "fp_module_build_id");
	if (!symbol)
		return "";
	memcpy(&build_id, &symbol, sizeof build_id);
	return build_id();
}

fp_status fp_module_load(void **entry, fp_context *ctx, const fp_module_file *module)
{
	char path[PATH_MAX];
	fp_status status;
	*entry = NULL;
	FP_TRY(fp_module_find(path, sizeof path, ctx, module));
	/* never unloaded: CUDA's and MPI's libraries do not survive that */
	void *handle = dlopen(path, RTLD_NOW | RTLD_NODELETE | module->scope);
	if (!handle)
		FP_TRY(
			fp_fail(ctx, FP_ERROR_DEVICE, "%s cannot be loaded: %s%s", module->name, dlerror(), module->if_unloadable));
	const char *build = build_of(handle);
	if (strcmp(build, fp_build_id()) != 0)
		FP_TRY(fp_fail(ctx, FP_ERROR_INPUT,
					   "%s belongs to another build of this program (the module is of build %s, the program of build "
					   "%s); build and install both together, or set %s to the path of this build's module",
					   path, build[0] ? build : "unknown", fp_build_id(), module->variable));
	*entry = dlsym(handle, module->entry);
	if (!*entry)
		FP_TRY(fp_fail(ctx, FP_ERROR_DEVICE, "%s is not %s: it lacks %s()", path, module->name, module->entry));
cleanup:
	return status;
}
