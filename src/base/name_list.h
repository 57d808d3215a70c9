/* SPDX-License-Identifier: Apache-2.0 */
/* name_list.h: "a, b, c" for messages that list what a table holds. */
#ifndef FP_BASE_NAME_LIST_H
#define FP_BASE_NAME_LIST_H

enum { FP_NAME_LIST_SIZE = 512 };

typedef struct fp_name_list { /* all zero at first */
	char text[FP_NAME_LIST_SIZE];
} fp_name_list;

/* Appends a name; one that does not fit is cut short. */
void fp_name_list_add(fp_name_list *list, const char *name);

#endif
