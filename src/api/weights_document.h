/* SPDX-License-Identifier: Apache-2.0 */
/* weights_document.h: the forms in which a decoder holds its weights, for results. */
#ifndef FP_API_WEIGHTS_DOCUMENT_H
#define FP_API_WEIGHTS_DOCUMENT_H

#include "generation/decoder.h"
#include <jansson.h>

/* [{"form", "operators", "bytes"}] of the forms that occur; NULL: out of memory. */
json_t *fp_weights_document(const fp_decoder_weights *weights);

#endif
