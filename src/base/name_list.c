/* SPDX-License-Identifier: Apache-2.0 */
#include "base/name_list.h"

#include <stdio.h>
#include <string.h>

void fp_name_list_add(fp_name_list *list, const char *name)
{
	size_t used = strlen(list->text);
	snprintf(list->text + used, sizeof list->text - used, "%s%s", used > 0 ? ", " : "", name);
}
