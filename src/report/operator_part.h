/* SPDX-License-Identifier: Apache-2.0 */
/* operator_part.h: the operators of one prune: error, λ and steps by layer, and time by stage. */
#ifndef FP_REPORT_OPERATOR_PART_H
#define FP_REPORT_OPERATOR_PART_H

#include "report/html_text.h"
#include <jansson.h>

/* `run` has operators[] and stages{}. */
void fp_operator_part(fp_html *html, const json_t *run);

#endif
