/* SPDX-License-Identifier: Apache-2.0 */
/* module.c: opens the CUDA backend from its module and says what is missing when it cannot. */
#include "backend/module.h"

#include "base/module_file.h"

#include <dlfcn.h>
#include <string.h>

static const fp_module_file cuda_module = {
	.name = "libfistapruner_cuda.so",
	.variable = "FISTAPRUNER_CUDA_MODULE",
	.entry = FP_BACKEND_MODULE_ENTRY,
	.if_missing = "this program was built without CUDA; build it where nvcc is installed, set FISTAPRUNER_CUDA_MODULE "
				  "to the module's path, or use --device cpu",
	.if_unloadable =
		"; install the library that is missing (CUDA 13: pip install nvidia-cublas nvidia-cusolver), add its "
		"folder to LD_LIBRARY_PATH, or use --device cpu",
	.scope = RTLD_LOCAL,
};

/* Without the driver the module cannot work, and this check is quick. The driver stays loaded: the module needs it. */
static fp_status load_driver(fp_context *ctx)
{
	if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_GLOBAL))
		return FP_OK;
	return fp_fail(ctx, FP_ERROR_DEVICE,
				   "there is no NVIDIA driver here (libcuda.so.1 cannot be loaded); use --device cpu");
}

fp_status fp_cuda_module_open(fp_backend **out, fp_context *ctx, const char *device, int threads)
{
	fp_backend_module_function open;
	void *entry;
	fp_status status;
	*out = NULL;
	FP_TRY(load_driver(ctx));
	FP_TRY(fp_module_load(&entry, ctx, &cuda_module));
	memcpy(&open, &entry, sizeof open);
	FP_TRY(open(out, ctx, device, threads));
cleanup:
	return status == FP_OK ? status
						   : fp_fail_in(ctx, status, "device 'cuda%s%s'", device ? ":" : "", device ? device : "");
}
