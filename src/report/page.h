/* SPDX-License-Identifier: Apache-2.0 */
/* page.h: the document of a prune or a comparison as one HTML page that needs nothing else: no network, no script. */
#ifndef FP_REPORT_PAGE_H
#define FP_REPORT_PAGE_H

#include "base/context.h"
#include <jansson.h>

/* The caller frees *out with fp_free(). A document of neither kind is FP_ERROR_USAGE. */
fp_status fp_page_write(char **out, fp_context *ctx, const json_t *document);

#endif
