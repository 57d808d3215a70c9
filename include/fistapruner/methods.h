/* SPDX-License-Identifier: Apache-2.0 */
/*
 * methods.h: the pruning methods, once. --method, --help, the man page, the demo and the solver's own table
 * (src/solver/method.c) are made from this list.
 */
#ifndef FISTAPRUNER_METHODS_H
#define FISTAPRUNER_METHODS_H

#include <fistapruner/status.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, title in tables, description), from the simplest to the strongest; `fista` alone has presets */
#define FP_METHOD_LIST(X)                                                                                              \
	X(magnitude, "magnitude", "the smallest weights become zero; needs no text")                                       \
	X(wanda, "Wanda", "the smallest |weight| x |input| of each row become zero (Sun et al. 2023)")                     \
	X(sparsegpt, "SparseGPT", "column by column, the others compensate (Frantar and Alistarh 2023)")                   \
	X(admm, "ADMM", "gradually sparser masks by ADMM (Boza 2024)")                                                     \
	X(alps, "ALPS", "l0 support by ADMM, then conjugate gradients (Meng et al. 2024)")                                 \
	X(fista, "FISTAPruner", "FISTAPruner (preset paper) or this program's variants (presets fast and best)")

typedef struct fp_method_info {
	const char *name, *title, *description;
} fp_method_info;

/* The list's rows in order; NULL past the end. Borrowed. */
FP_API const fp_method_info *fp_method_at(size_t index);

#ifdef __cplusplus
}
#endif
#endif
