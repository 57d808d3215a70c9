/* SPDX-License-Identifier: Apache-2.0 */
/*
 * component_table.h: the components of a tokenizer.json ("normalizer", "pre_tokenizer", "post_processor") have a type,
 * and a Sequence of components is one, too. A row gives a type and how it is read; an unknown type is an error that
 * lists the rows.
 */
#ifndef FP_TOKENIZER_COMPONENT_TABLE_H
#define FP_TOKENIZER_COMPONENT_TABLE_H

#include "base/context.h"
#include <jansson.h>

typedef struct fp_component {
	const char *type; /* NULL behind the last row */
	/* Adds the component to `target`, whose type the table's owner knows; `kind` is the row's. */
	fp_status (*read)(fp_context *ctx, void *target, int kind, const json_t *json);
	int kind;
} fp_component;

typedef struct fp_component_table {
	const char *name;     /* "normalizer" */
	const char *sequence; /* the key of a Sequence's list */
	const fp_component *rows;
} fp_component_table;

/* json NULL or null: no component. */
fp_status fp_components_read(fp_context *ctx, const fp_component_table *table, void *target, const json_t *json);

#endif
