/* SPDX-License-Identifier: Apache-2.0 */
#include "base/digest.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

uint64_t fp_digest_bytes(uint64_t digest, const void *bytes, int64_t size)
{
	const unsigned char *at = bytes;
	for (int64_t i = 0; i < size; i++)
		digest = (digest ^ at[i]) * UINT64_C(1099511628211);
	return digest;
}

uint64_t fp_digest_text(uint64_t digest, const char *text)
{
	return fp_digest_bytes(digest, text, (int64_t)strlen(text) + 1);
}

uint64_t fp_digest_file(uint64_t digest, const char *path)
{
	struct stat info;
	bool there = stat(path, &info) == 0;
	const int64_t facts[3] = {there ? info.st_size : -1, there ? info.st_mtim.tv_sec : 0,
							  there ? info.st_mtim.tv_nsec : 0};
	unsigned char bytes[sizeof facts];
	memcpy(bytes, facts, sizeof facts);
	return fp_digest_bytes(digest, bytes, sizeof bytes);
}

void fp_digest_spell(char out[static FP_DIGEST_TEXT_SIZE], uint64_t digest)
{
	snprintf(out, FP_DIGEST_TEXT_SIZE, "%016" PRIx64, digest);
}
