/* SPDX-License-Identifier: Apache-2.0 */
/*
 * portable_symbols.c: what the archives in a portable library (cmake/Portable.cmake) refer to and what neither glibc
 * 2.17 nor the other archives define.
 */
#include <stddef.h>

/* gfortran's a // b, the only function of its run-time library that LAPACK uses here. The rest of that library is input
 * and output, and does not fit into a shared library. */
void _gfortran_concat_string(size_t length, char *out, size_t length_a, const char *a, size_t length_b, const char *b);
void _gfortran_concat_string(size_t length, char *out, size_t length_a, const char *a, size_t length_b, const char *b)
{
	for (size_t i = 0; i < length; i++)
		out[i] = (char)(i < length_a ? a[i] : i - length_a < length_b ? b[i - length_a] : ' ');
}

/* jansson's stdin: no stream is ever equal to it. */
extern void *fp_jansson_stdin;
void *fp_jansson_stdin = NULL;

/* glibc 2.32 tells libstdc++ by this variable that there is one thread only. 0: there may be several. */
extern char __libc_single_threaded;
char __libc_single_threaded = 0;
