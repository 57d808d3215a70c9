/* SPDX-License-Identifier: Apache-2.0 */
#include "base/number_text.h"

#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

/* The C locale for the calling thread alone. glibc's newlocale() has it ready, so nothing is allocated. */
typedef struct locale_scope {
	locale_t plain, before;
} locale_scope;

static locale_scope enter_plain_locale(void)
{
	int error = errno;
	locale_scope scope = {.plain = newlocale(LC_ALL_MASK, "C", (locale_t)0)};
	scope.before = uselocale(scope.plain);
	errno = error;
	return scope;
}

static void leave_plain_locale(locale_scope scope)
{
	int error = errno;
	uselocale(scope.before);
	if (scope.plain)
		freelocale(scope.plain);
	errno = error;
}

double fp_parse_real(const char *text, char **end)
{
	locale_scope scope = enter_plain_locale();
	double value = strtod(text, end);
	leave_plain_locale(scope);
	return value;
}

int fp_format_arguments(char *out, size_t size, const char *format, va_list arguments)
{
	locale_scope scope = enter_plain_locale();
	int length = vsnprintf(out, size, format, arguments);
	leave_plain_locale(scope);
	return length;
}

int fp_format(char *out, size_t size, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	int length = fp_format_arguments(out, size, format, arguments);
	va_end(arguments);
	return length;
}
