/* SPDX-License-Identifier: Apache-2.0 */
/* module.c: finds and loads the module of the CUDA backend, and says what is missing when it cannot. */
#include "backend/module.h"

#include "base/module_file.h"

#include <dlfcn.h>
#include <limits.h>
#include <string.h>

static const fp_module_file cuda_module = {
	.name = "libfistapruner_cuda.so",
	.variable = "FISTAPRUNER_CUDA_MODULE",
	.advice =
		"this program was built without CUDA; build it where nvcc is, name the module in FISTAPRUNER_CUDA_MODULE, "
		"or use --device cpu",
};

/* Without the driver nothing else is worth trying, and its absence is quick to see. It stays loaded: the module needs
 * it. */
static fp_status find_driver(fp_context *ctx)
{
	if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_GLOBAL))
		return FP_OK;
	return fp_fail(ctx, FP_ERROR_DEVICE,
				   "there is no NVIDIA driver here (libcuda.so.1 cannot be loaded); use --device cpu");
}

fp_status fp_cuda_module_open(fp_backend **out, fp_context *ctx, const char *device, int threads)
{
	const fp_backend_abi abi = FP_BACKEND_ABI;
	char path[PATH_MAX];
	fp_backend_module_function open;
	fp_status status;
	*out = NULL;
	FP_TRY(find_driver(ctx));
	FP_TRY(fp_module_find(path, sizeof path, ctx, &cuda_module));
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
