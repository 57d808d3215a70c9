/* SPDX-License-Identifier: Apache-2.0 */
/*
 * architecture.h: the table of architectures. A row says how config.json becomes the switches of fp_model_config and
 * how the tensors are named; everything else is shared. Adding an architecture is one file with its row and one line in
 * architecture.c.
 */
#ifndef FP_MODEL_ARCHITECTURE_H
#define FP_MODEL_ARCHITECTURE_H

#include "model/config_reader.h"
#include "model/model.h"

enum { FP_MAX_PREFIXES = 4 };

/* Names are without ".weight" and ".bias". NULL: the architecture has no such tensor. Which of them must be there for a
 * given model is said by its config. */
typedef struct fp_architecture {
	const char *name;       /* in config.json's "architectures" */
	const char *model_type; /* in config.json, for files without "architectures" */
	/* Fills `config`, which is all zero at first. Shared rules (heads divide, sizes in range) are checked by the
	 * caller. */
	fp_status (*read_config)(const fp_config_reader *reader, fp_model_config *config);

	/* What may stand before all names but the head's: the first with a token embedding counts. Ended by NULL. */
	const char *prefixes[FP_MAX_PREFIXES];
	const char *embedding, *positions, *project_in, *project_out, *final_norm;
	const char *head;
	/* Inside a layer: prefix + layers + "." + index + "." + name */
	const char *layers;
	const char *operators[FP_ROLE_COUNT];
	const char *norms[2];
	const char *query_norm, *key_norm;
} fp_architecture;

/* The row for a config.json, or an error that lists the supported ones. */
fp_status fp_architecture_find(const fp_architecture **out, const fp_config_reader *reader);

/* Largest value of any dimension in a config: products of two stay far inside int64, and a matrix side inside BLAS's
 * int. */
#define FP_MAX_DIMENSION ((int64_t)1 << 28)
#define FP_MAX_LAYERS ((int64_t)1 << 16)

/* Keys that the rotary architectures share: rope_theta, rope_scaling (older) and rope_parameters (transformers 5). */
fp_status fp_config_rope(const fp_config_reader *reader, double default_theta, fp_model_config *config);

extern const fp_architecture fp_architecture_opt;
extern const fp_architecture fp_architecture_llama;
extern const fp_architecture fp_architecture_qwen2;
extern const fp_architecture fp_architecture_qwen3;
extern const fp_architecture fp_architecture_mistral;

#endif
