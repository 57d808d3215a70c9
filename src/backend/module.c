/* SPDX-License-Identifier: Apache-2.0 */
/* module.c: finds and loads the module of the CUDA backend, and says what is missing when it cannot. */
#include "backend/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODULE_NAME "libfistapruner_cuda.so"
#ifndef FP_MODULE_FOLDER
#define FP_MODULE_FOLDER "/usr/local/lib"
#endif

/* Without the driver nothing else is worth trying, and its absence is quick to see. It stays loaded: the module needs
 * it. */
static fp_status find_driver(fp_context *ctx)
{
	if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_GLOBAL))
		return FP_OK;
	return fp_fail(ctx, FP_ERROR_DEVICE,
				   "there is no NVIDIA driver here (libcuda.so.1 cannot be loaded); use --device cpu");
}

/* path ← where this code is: the program, or the library that another program has loaded. */
static bool own_path(char *path, size_t size)
{
	Dl_info info;
	ssize_t length = readlink("/proc/self/exe", path, size - 1);
	if (length <= 0)
		return false;
	path[length] = '\0';
	/* an address in a library has the library's path; in the program what it was called by, which may be relative */
	if (dladdr(MODULE_NAME, &info) && info.dli_fname && strstr(info.dli_fname, ".so"))
		return snprintf(path, size, "%s", info.dli_fname) < (int)size;
	return true;
}

/* path ← "the folder of this code" + rest; false when it is not there. */
static bool beside_this(char *path, size_t size, const char *rest)
{
	char *slash = own_path(path, size) ? strrchr(path, '/') : NULL;
	if (!slash || (size_t)(slash - path) + strlen(rest) + 1 > size)
		return false;
	strcpy(slash, rest);
	return access(path, R_OK) == 0;
}

static fp_status find_module(fp_context *ctx, char *path, size_t size)
{
	const char *named = getenv("FISTAPRUNER_CUDA_MODULE");
	if (named && *named) {
		if (snprintf(path, size, "%s", named) < (int)size && access(path, R_OK) == 0)
			return FP_OK;
		return fp_fail(ctx, FP_ERROR_DEVICE,
					   "FISTAPRUNER_CUDA_MODULE is '%.200s', which cannot be read; unset it or "
					   "name " MODULE_NAME,
					   named);
	}
	if (beside_this(path, size, "/" MODULE_NAME) || beside_this(path, size, "/../" MODULE_NAME) ||
		beside_this(path, size, "/../lib/" MODULE_NAME))
		return FP_OK;
	snprintf(path, size, "%s", FP_MODULE_FOLDER "/" MODULE_NAME);
	if (access(path, R_OK) == 0)
		return FP_OK;
	return fp_fail(ctx, FP_ERROR_DEVICE,
				   MODULE_NAME " is neither beside the program nor in " FP_MODULE_FOLDER
							   ": this program was built without CUDA; build it where nvcc is, name the module in "
							   "FISTAPRUNER_CUDA_MODULE, or use --device cpu");
}

fp_status fp_cuda_module_open(fp_backend **out, fp_context *ctx, const char *device, int threads)
{
	const fp_backend_abi abi = FP_BACKEND_ABI;
	char path[PATH_MAX];
	fp_backend_module_function open;
	fp_status status;
	*out = NULL;
	FP_TRY(find_driver(ctx));
	FP_TRY(find_module(ctx, path, sizeof path));
	/* never unloaded: a CUDA library does not survive that */
	void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!module)
		FP_TRY(fp_fail(ctx, FP_ERROR_DEVICE,
					   "the CUDA module cannot be loaded: %s; put the folder of CUDA's libraries into LD_LIBRARY_PATH",
					   dlerror()));
	void *entry = dlsym(module, FP_BACKEND_MODULE_ENTRY);
	if (!entry)
		FP_TRY(fp_fail(ctx, FP_ERROR_DEVICE, "%s is not a module of this program", path));
	memcpy(&open, &entry, sizeof open);
	ctx->message[0] = '\0';
	status = open(&abi, out, ctx, device, threads);
	if (status == FP_ERROR_INTERNAL && !ctx->message[0])
		status =
			fp_fail(ctx, FP_ERROR_DEVICE, "%s belongs to another version of this program; install both again", path);
cleanup:
	return status == FP_OK ? status
						   : fp_fail_in(ctx, status, "device 'cuda%s%s'", device ? ":" : "", device ? device : "");
}
