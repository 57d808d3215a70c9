/* SPDX-License-Identifier: Apache-2.0 */
/* module_file.h: finds and loads a module, a shared object of this program that is loaded only when it is needed. */
#ifndef FP_BASE_MODULE_FILE_H
#define FP_BASE_MODULE_FILE_H

#include "base/context.h"
#include <stddef.h>

typedef struct fp_module_file {
	const char *name;          /* "libfistapruner_cuda.so" */
	const char *variable;      /* the environment variable that may name the file */
	const char *entry;         /* the function that the module exports */
	const char *if_missing;    /* what the user can do when there is no such file */
	const char *if_unloadable; /* what the user can do when the file cannot be loaded; may be "" */
	int scope;                 /* RTLD_LOCAL or RTLD_GLOBAL */
} fp_module_file;

/* path ← the module: the file that the variable names, or the first one found beside the program or the library, in
 * .. or ../lib from there, or in the folder it was installed to. FP_ERROR_DEVICE when there is none. */
fp_status fp_module_find(char *path, size_t size, fp_context *ctx, const fp_module_file *module);

/* *entry ← the module's function `entry`; the module stays loaded. Both sides share structures by their headers, so a
 * module of another build is refused with FP_ERROR_INPUT. FP_ERROR_DEVICE when it cannot be found or loaded. */
fp_status fp_module_load(void **entry, fp_context *ctx, const fp_module_file *module);

#endif
