/* SPDX-License-Identifier: Apache-2.0 */
/* html_text.h: a growing HTML page. After a failure, calls do nothing and `status` keeps the failure, so that callers
 * check once at the end. */
#ifndef FP_REPORT_HTML_TEXT_H
#define FP_REPORT_HTML_TEXT_H

#include "base/context.h"

typedef struct fp_html { /* text is freed with fp_free() */
	fp_context *ctx;
	char *text; /* with a NUL at its end */
	int64_t length, capacity;
	fp_status status;
} fp_html;

/* Appends markup unchanged. */
void fp_html_raw(fp_html *html, const char *markup);
/* Appends text, escaped. */
void fp_html_text(fp_html *html, const char *text);
/* Appends formatted markup of less than 1 KiB; text from outside goes through fp_html_text(). */
void fp_html_format(fp_html *html, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
