/* SPDX-License-Identifier: Apache-2.0 */
/* preset_table.h: the settings in which the presets differ, as lines of text for --help and the man page. */
#ifndef FP_CLI_PRESET_TABLE_H
#define FP_CLI_PRESET_TABLE_H

/* Calls print() for the heading and for each setting. */
void fp_cli_preset_table(void (*print)(void *data, const char *line), void *data);

#endif
