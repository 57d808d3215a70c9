/* SPDX-License-Identifier: Apache-2.0 */
#include "api/weights_document.h"

json_t *fp_weights_document(const fp_decoder_weights *weights)
{
	json_t *forms = json_array();
	for (int form = 0; form < FP_HELD_FORMS; form++)
		if (weights->operators[form] > 0)
			json_array_append_new(forms, json_pack("{s:s, s:I, s:I}", "form", fp_held_form_name((fp_held_form)form),
												   "operators", (json_int_t)weights->operators[form], "bytes",
												   (json_int_t)weights->bytes[form]));
	return forms;
}
