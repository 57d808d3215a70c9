/* SPDX-License-Identifier: Apache-2.0 */
/* whole_file.h: small files (vocabularies, settings) read in one piece. */
#ifndef FP_BASE_WHOLE_FILE_H
#define FP_BASE_WHOLE_FILE_H

#include "base/context.h"

/* The bytes of a regular file, with a NUL after the last one (not counted in *size). Refuses files above `limit` bytes,
 * so that a wrong path cannot eat the memory. The caller frees *out with fp_free(). */
fp_status fp_read_whole_file(char **out, int64_t *size, fp_context *ctx, const char *path, int64_t limit);

#endif
