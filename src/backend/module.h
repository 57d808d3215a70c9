/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module.h: a backend that is a shared object of its own, loaded when it is asked for, so that one program runs with
 * and without the device. A module has one entry point, fp_backend_module_open(); both sides compare what they think
 * the shared structures look like before anything else.
 */
#ifndef FP_BACKEND_MODULE_H
#define FP_BACKEND_MODULE_H

#include "backend/backend.h"

enum { FP_BACKEND_VERSION = 1 }; /* goes up when an operation changes its meaning but not its type */

typedef struct fp_backend_abi {
	uint32_t version, backend, context; /* the version, and sizes */
} fp_backend_abi;

#define FP_BACKEND_ABI                                                                                                 \
	{                                                                                                                  \
		FP_BACKEND_VERSION, (uint32_t)sizeof(fp_backend), (uint32_t)sizeof(fp_context)                                 \
	}

/* What a module exports. FP_ERROR_INTERNAL with nothing recorded: the two sides do not fit. */
#define FP_BACKEND_MODULE_ENTRY "fp_backend_module_open"
typedef fp_status (*fp_backend_module_function)(const fp_backend_abi *abi, fp_backend **out, fp_context *ctx,
												const char *device, int threads);

/* Opens the CUDA backend from its module: $FISTAPRUNER_CUDA_MODULE, beside the program or the library, in
 * ../lib from there, or in the folder it was installed to. device: what stands after "cuda:", or NULL. */
fp_status fp_cuda_module_open(fp_backend **out, fp_context *ctx, const char *device, int threads);

#endif
