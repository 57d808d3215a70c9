/* SPDX-License-Identifier: Apache-2.0 */
/* module.c: opens the CUDA backend from its module and says what is missing when it cannot. */
#include "backend/module.h"

#include "base/module_file.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define IF_UNLOADABLE                                                                                                  \
	"; install the library that is missing (of CUDA 13: pip install nvidia-cublas nvidia-cusolver; of CUDA 12: the "   \
	"same names with -cu12), add its folder to LD_LIBRARY_PATH, or use --device cpu"

static const fp_module_file cuda_module = {
	.name = "libfistapruner_cuda.so",
	.variable = "FISTAPRUNER_CUDA_MODULE",
	.entry = FP_BACKEND_MODULE_ENTRY,
	.if_missing = "this program was built without CUDA; build it where nvcc is installed, set FISTAPRUNER_CUDA_MODULE "
				  "to the module's path, or use --device cpu",
	.if_unloadable = IF_UNLOADABLE,
	.scope = RTLD_LOCAL,
};

/* A second one, of CUDA 12, that a wheel has for machines with older drivers or libraries. */
static const fp_module_file cuda12_module = {
	.name = "libfistapruner_cuda12.so",
	.variable = "FISTAPRUNER_CUDA_MODULE",
	.entry = FP_BACKEND_MODULE_ENTRY,
	.if_missing = "",
	.if_unloadable = IF_UNLOADABLE,
	.scope = RTLD_LOCAL,
};

enum { CUDA_13 = 13000 };

/* Without the driver the module cannot work, and this check is quick. The driver stays loaded: the module needs it. */
static fp_status load_driver(fp_context *ctx)
{
	if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_GLOBAL))
		return FP_OK;
	return fp_fail(ctx, FP_ERROR_DEVICE,
				   "there is no NVIDIA driver here (libcuda.so.1 cannot be loaded); use --device cpu");
}

/* The newest CUDA version that the driver runs, such as 12040; 0: it does not say. */
static int driver_version(void)
{
	int (*get)(int *) = NULL;
	int version = 0;
	void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
	void *symbol = driver ? dlsym(driver, "cuDriverGetVersion") : NULL;
	if (!symbol)
		return 0;
	memcpy(&get, &symbol, sizeof get);
	return get(&version) == 0 ? version : 0;
}

/* Of the modules that are there, the one that the driver can run and whose libraries are found. */
static fp_status load_module(void **entry, fp_context *ctx)
{
	char path[PATH_MAX];
	int version = driver_version();
	const char *named = getenv(cuda_module.variable);
	bool second = !(named && *named) && fp_module_find(path, sizeof path, ctx, &cuda12_module) == FP_OK;
	if (second && version > 0 && version < CUDA_13)
		return fp_module_load(entry, ctx, &cuda12_module);
	fp_status status = fp_module_load(entry, ctx, &cuda_module);
	if (status == FP_ERROR_DEVICE && second)
		status = fp_module_load(entry, ctx, &cuda12_module);
	return status == FP_ERROR_DEVICE ? fp_module_load(entry, ctx, &cuda_module) : status; /* the first one's message */
}

fp_status fp_cuda_module_open(fp_backend **out, fp_context *ctx, const char *device, int threads)
{
	fp_backend_module_function open;
	void *entry;
	fp_status status;
	*out = NULL;
	FP_TRY(load_driver(ctx));
	FP_TRY(load_module(&entry, ctx));
	memcpy(&open, &entry, sizeof open);
	FP_TRY(open(out, ctx, device, threads));
cleanup:
	return status == FP_OK ? status
						   : fp_fail_in(ctx, status, "device 'cuda%s%s'", device ? ":" : "", device ? device : "");
}
