/* SPDX-License-Identifier: Apache-2.0 */
/* digest.h: 64-bit hashes that detect accidental changes. They do not protect against deliberate ones. */
#ifndef FP_BASE_DIGEST_H
#define FP_BASE_DIGEST_H

#include <stdint.h>

#define FP_DIGEST_START UINT64_C(14695981039346656037)
enum { FP_DIGEST_TEXT_SIZE = 17 };

/* FNV-1a, continued from `digest`. */
uint64_t fp_digest_bytes(uint64_t digest, const void *bytes, int64_t size);
/* Includes the NUL, so that "ab","c" and "a","bc" differ. */
uint64_t fp_digest_text(uint64_t digest, const char *text);
/* A file's size and time of modification. A missing file has a digest, too. */
uint64_t fp_digest_file(uint64_t digest, const char *path);
/* 16 hexadecimal digits. */
void fp_digest_spell(char out[static FP_DIGEST_TEXT_SIZE], uint64_t digest);

#endif
