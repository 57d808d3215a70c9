/* SPDX-License-Identifier: Apache-2.0 */
#include <fistapruner/status.h>

static const struct {
	const char *name;
	const char *text;
	int exit_code;
} status_table[] = {
#define FP_STATUS_ROW(id, code, meaning) [id] = {#id, meaning, code},
	FP_STATUS_LIST(FP_STATUS_ROW)
#undef FP_STATUS_ROW
};

enum { STATUS_COUNT = sizeof status_table / sizeof status_table[0] };

static int known(fp_status status)
{
	return (int)status >= 0 && (int)status < STATUS_COUNT ? (int)status : FP_ERROR_INTERNAL;
}

const char *fp_status_name(fp_status status)
{
	return status_table[known(status)].name;
}

const char *fp_status_text(fp_status status)
{
	return status_table[known(status)].text;
}

int fp_status_exit_code(fp_status status)
{
	return status_table[known(status)].exit_code;
}
