/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module.h: a backend in a shared object of its own, which is loaded only when it is needed, so that one program runs
 * with and without the device. A module exports one function, fp_backend_module_open().
 */
#ifndef FP_BACKEND_MODULE_H
#define FP_BACKEND_MODULE_H

#include "backend/backend.h"

#define FP_BACKEND_MODULE_ENTRY "fp_backend_module_open"
typedef fp_status (*fp_backend_module_function)(fp_backend **out, fp_context *ctx, const char *device, int threads);

/* Opens the CUDA backend from its module (base/module_file.h says where it may be). There may be two, one of CUDA 12: that
 * one is taken if the driver, or the libraries that are found, are of CUDA 12. device: what follows "cuda:", or NULL. */
fp_status fp_cuda_module_open(fp_backend **out, fp_context *ctx, const char *device, int threads);

#endif
