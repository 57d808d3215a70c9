/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/standard_input.h"

#include <errno.h>
#include <string.h>

fp_status fp_cli_read_input(char **bytes, size_t *size)
{
	char block[65536];
	size_t got;
	FILE *memory = open_memstream(bytes, size);
	if (!memory)
		return fp_cli_error(FP_ERROR_MEMORY, "out of memory");
	bool whole = true;
	while (whole && (got = fread(block, 1, sizeof block, stdin)) > 0)
		whole = fwrite(block, 1, got, memory) == got;
	if (fclose(memory) != 0 || !whole)
		return fp_cli_error(FP_ERROR_MEMORY, "out of memory for standard input");
	if (ferror(stdin))
		return fp_cli_error(FP_ERROR_INPUT, "standard input: %s", strerror(errno));
	return FP_OK;
}
