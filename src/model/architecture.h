/* SPDX-License-Identifier: Apache-2.0 */
/*
 * architecture.h: the table of architectures. A row reads config.json into fp_model_config and names
 * the tensors. To add an architecture, add a file with its row and a line in architecture.c.
 */
#ifndef FP_MODEL_ARCHITECTURE_H
#define FP_MODEL_ARCHITECTURE_H

#include "model/config_reader.h"
#include "model/model.h"

enum { FP_MAX_PREFIXES = 4 };

/* Tensor names omit ".weight" and ".bias". NULL: the architecture has no such tensor. Which tensors a
 * model must have follows from its config. */
typedef struct fp_architecture {
	const char *name;       /* as in config.json's "architectures" */
	const char *model_type; /* for a config.json without "architectures" */
	/* Fills `config`, which is zeroed. The caller checks rules that all architectures share. */
	fp_status (*read_config)(const fp_config_reader *reader, fp_model_config *config);

	/* Candidates for the prefix of all names but the head's, ended by NULL; the first one under which
	 * the token embedding exists is used. */
	const char *prefixes[FP_MAX_PREFIXES];
	const char *embedding, *positions, *project_in, *project_out, *final_norm;
	const char *head;
	/* In a layer: prefix + layers + "." + index + "." + name */
	const char *layers;
	const char *operators[FP_ROLE_COUNT];
	const char *norms[2];
	const char *query_norm, *key_norm;
} fp_architecture;

/* The row for a config.json, or an error that lists the supported architectures. */
fp_status fp_architecture_find(const fp_architecture **out, const fp_config_reader *reader);

/* Upper limit of a dimension: a product of two fits int64, and a matrix side fits BLAS's int. */
#define FP_MAX_DIMENSION ((int64_t)1 << 28)
#define FP_MAX_LAYERS ((int64_t)1 << 16)

/* Reads rope_theta and rope_scaling, or rope_parameters (transformers 5). */
fp_status fp_config_rope(const fp_config_reader *reader, double default_theta, fp_model_config *config);

extern const fp_architecture fp_architecture_opt;
extern const fp_architecture fp_architecture_llama;
extern const fp_architecture fp_architecture_qwen2;
extern const fp_architecture fp_architecture_qwen3;
extern const fp_architecture fp_architecture_mistral;

#endif
