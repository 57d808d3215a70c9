/* SPDX-License-Identifier: Apache-2.0 */
/*
 * number_text.h: numbers to text and back, with a decimal point in every locale.
 * strtod() and printf() follow the host program's setlocale(LC_NUMERIC), so the library does not call them for reals.
 */
#ifndef FP_BASE_NUMBER_TEXT_H
#define FP_BASE_NUMBER_TEXT_H

#include <stdarg.h>
#include <stddef.h>

/* strtod() in the C locale. */
double fp_parse_real(const char *text, char **end);
/* snprintf() and vsnprintf() in the C locale. */
int fp_format(char *out, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
int fp_format_arguments(char *out, size_t size, const char *format, va_list arguments)
	__attribute__((format(printf, 3, 0)));

#endif
