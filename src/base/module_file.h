/* SPDX-License-Identifier: Apache-2.0 */
/* module_file.h: where a shared object is that belongs to this program and is loaded when it is needed. */
#ifndef FP_BASE_MODULE_FILE_H
#define FP_BASE_MODULE_FILE_H

#include "base/context.h"
#include <stddef.h>

typedef struct fp_module_file {
	const char *name;     /* "libfistapruner_cuda.so" */
	const char *variable; /* of the environment: names the file */
	const char *advice;   /* what to do when it is nowhere */
} fp_module_file;

/* path ← the module: by its variable, beside the program or the library, in ../lib from there, or in the folder it was
 * installed to. FP_ERROR_DEVICE when it is in none of these. */
fp_status fp_module_find(char *path, size_t size, fp_context *ctx, const fp_module_file *module);

#endif
