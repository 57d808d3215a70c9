/* SPDX-License-Identifier: Apache-2.0 */
/* comparison_part.h: the table, the charts and the rows' own parts of a comparison's page. */
#ifndef FP_REPORT_COMPARISON_PART_H
#define FP_REPORT_COMPARISON_PART_H

#include "report/html_text.h"
#include <jansson.h>

void fp_comparison_part(fp_html *html, const json_t *document);

#endif
