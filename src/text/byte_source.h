/* SPDX-License-Identifier: Apache-2.0 */
/* byte_source.h: reads a file from start to end and decompresses gzip and zstd, recognised by the first bytes. */
#ifndef FP_TEXT_BYTE_SOURCE_H
#define FP_TEXT_BYTE_SOURCE_H

#include "base/context.h"

typedef struct fp_byte_source fp_byte_source;

/* The caller frees it with fp_byte_source_close(). */
fp_status fp_byte_source_open(fp_byte_source **out, fp_context *ctx, const char *path);
void fp_byte_source_close(fp_byte_source *source); /* NULL is allowed */
/* Up to `size` bytes; *got is 0 only at the end. A truncated compressed file is an error. */
fp_status fp_byte_source_read(fp_byte_source *source, char *buffer, int64_t size, int64_t *got);

#endif
