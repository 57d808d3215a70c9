/* SPDX-License-Identifier: Apache-2.0 */
/* layer_error_part.h: the charts "Error by layer": how far the hidden state after each layer is from the dense one. */
#ifndef FP_REPORT_LAYER_ERROR_PART_H
#define FP_REPORT_LAYER_ERROR_PART_H

#include "report/html_text.h"
#include <jansson.h>

/* One line of a chart. */
typedef struct fp_layer_errors {
	const char *name;
	const json_t *errors; /* one number per layer, from layer 0 on; NULL: nothing to draw */
} fp_layer_errors;

/* The heading, and the definition of what is drawn. */
void fp_layer_error_heading(fp_html *html);
/* A chart of these lines. Fewer than two layers: none. */
void fp_layer_error_chart(fp_html *html, const fp_layer_errors *lines, int count);

#endif
