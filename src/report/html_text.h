/* SPDX-License-Identifier: Apache-2.0 */
/* html_text.h: a page as it grows. The first failure is kept and later calls do nothing, so that a page is written
 * without a check at every line. */
#ifndef FP_REPORT_HTML_TEXT_H
#define FP_REPORT_HTML_TEXT_H

#include "base/context.h"

typedef struct fp_html { /* text is freed with fp_free() */
	fp_context *ctx;
	char *text; /* with a NUL at its end */
	int64_t length, capacity;
	fp_status status;
} fp_html;

/* Markup as it is. */
void fp_html_raw(fp_html *html, const char *markup);
/* Text of unknown origin, made harmless. */
void fp_html_text(fp_html *html, const char *text);
/* Short markup with numbers in it; no text of unknown origin. */
void fp_html_format(fp_html *html, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
