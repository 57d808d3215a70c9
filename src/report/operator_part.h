/* SPDX-License-Identifier: Apache-2.0 */
/* operator_part.h: what is known of one prune's operators: error, λ and steps by layer, and time by stage. */
#ifndef FP_REPORT_OPERATOR_PART_H
#define FP_REPORT_OPERATOR_PART_H

#include "report/html_text.h"
#include <jansson.h>

/* `run` has operators[] and stages{}. */
void fp_operator_part(fp_html *html, const json_t *run);
/* Relative error of a layer: the root of the mean square over its operators. NaN: there is no such layer. */
double fp_layer_error(const json_t *operators, int64_t layer);
/* One more than the highest layer. */
int64_t fp_layer_end(const json_t *operators);

#endif
