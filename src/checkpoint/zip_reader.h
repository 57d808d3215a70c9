/* SPDX-License-Identifier: Apache-2.0 */
/* zip_reader.h: the directory of a zip archive in memory, with zip64; stored (uncompressed) entries only. */
#ifndef FP_CHECKPOINT_ZIP_READER_H
#define FP_CHECKPOINT_ZIP_READER_H

#include "base/file.h"

typedef struct fp_zip_entry {
	const char *name; /* in the archive, not terminated */
	int64_t name_length;
	int64_t start;        /* of its header in the file */
	int64_t offset, size; /* of its bytes in the file: checked to lie in it, and no byte in two entries */
	uint32_t checksum;    /* CRC-32 as the archive claims it */
} fp_zip_entry;

typedef struct fp_zip {
	fp_zip_entry *entries; /* sorted by name; names are unique */
	int64_t count;
} fp_zip;

/* Reads and checks the directory. Entries point into the file, which must outlive them. */
fp_status fp_zip_open(fp_zip *out, fp_context *ctx, fp_mapping file, const char *path);
void fp_zip_close(fp_zip *zip);
const fp_zip_entry *fp_zip_find(const fp_zip *zip, const char *name, int64_t name_length); /* NULL: no such entry */

#endif
