/* SPDX-License-Identifier: Apache-2.0 */
/* zip_reader.h: the directory of a zip or zip64 archive. Entries must be stored, not compressed. */
#ifndef FP_CHECKPOINT_ZIP_READER_H
#define FP_CHECKPOINT_ZIP_READER_H

#include "base/file.h"

typedef struct fp_zip_entry {
	const char *name; /* in the archive, without a NUL */
	int64_t name_length;
	int64_t start;        /* of its header in the file */
	int64_t offset, size; /* of its bytes: checked to be inside the file and to overlap no other entry */
	uint32_t checksum;    /* CRC-32, not checked yet */
} fp_zip_entry;

typedef struct fp_zip {
	fp_zip_entry *entries; /* sorted by name; names are unique */
	int64_t count;
} fp_zip;

/* Reads and checks the directory. Entries point into the file, which must stay mapped. */
fp_status fp_zip_open(fp_zip *out, fp_context *ctx, fp_mapping file, const char *path);
void fp_zip_close(fp_zip *zip);
const fp_zip_entry *fp_zip_find(const fp_zip *zip, const char *name, int64_t name_length); /* NULL: no such entry */

#endif
