/* SPDX-License-Identifier: Apache-2.0 */
#include "report/html_text.h"

#include "base/memory.h"
#include "base/number_text.h"

#include <stdarg.h>
#include <string.h>

static void append(fp_html *html, const char *bytes, size_t size)
{
	int64_t needed = html->length + (int64_t)size + 1;
	if (html->status == FP_OK && needed > html->capacity)
		html->status = FP_GROW(html->ctx, &html->text, &html->capacity, 2 * needed);
	if (html->status != FP_OK)
		return;
	memcpy(html->text + html->length, bytes, size);
	html->length += (int64_t)size;
	html->text[html->length] = '\0';
}

void fp_html_raw(fp_html *html, const char *markup)
{
	append(html, markup, strlen(markup));
}

void fp_html_text(fp_html *html, const char *text)
{
	for (; *text; text++) {
		const char *name = *text == '<'   ? "&lt;"
						   : *text == '>' ? "&gt;"
						   : *text == '&' ? "&amp;"
						   : *text == '"' ? "&quot;"
										  : NULL;
		if (name)
			fp_html_raw(html, name);
		else
			append(html, text, 1);
	}
}

void fp_html_format(fp_html *html, const char *format, ...)
{
	char line[1024];
	va_list arguments;
	va_start(arguments, format);
	int length = fp_format_arguments(line, sizeof line, format, arguments);
	va_end(arguments);
	if (length < 0 || length >= (int)sizeof line) {
		if (html->status == FP_OK)
			html->status = fp_fail(html->ctx, FP_ERROR_INTERNAL, "a line of the report is too long");
		return;
	}
	append(html, line, (size_t)length);
}
