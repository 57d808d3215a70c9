/* SPDX-License-Identifier: Apache-2.0 */
/* page.h: the document of a prune or a comparison as one self-contained HTML page: no network, no script. */
#ifndef FP_REPORT_PAGE_H
#define FP_REPORT_PAGE_H

#include "base/context.h"
#include <jansson.h>

/* A document of prune or of compare, or {"note": …, "comparisons": […]} with several of compare. The caller frees *out
 * with fp_free(). Any other is FP_ERROR_USAGE. */
fp_status fp_page_write(char **out, fp_context *ctx, const json_t *document);

#endif
