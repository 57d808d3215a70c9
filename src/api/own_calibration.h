/* SPDX-License-Identifier: Apache-2.0 */
/* own_calibration.h: --calibration self: the dense model writes the calibration windows. prune keeps them beside the
 * finished layers, so that a resumed run has the same ones without drawing them again. */
#ifndef FP_API_OWN_CALIBRATION_H
#define FP_API_OWN_CALIBRATION_H

#include "base/settings.h"
#include "checkpoint/writer.h"
#include "generation/own_text.h"

#include <jansson.h>

typedef struct fp_own_calibration {
	bool wanted, by_default; /* the latter: since no text was given */
	int32_t start;           /* the token that begins a text */
	fp_own_text_statistics statistics;
} fp_own_calibration;

/* *out: the calibration is the word `self`. Fails if there are files besides the word. */
fp_status fp_own_calibration_asked(bool *out, fp_context *ctx, const char *const *calibration, int count);
/* Whether it is asked for: by the word, also besides files, or since there is no text and one is needed. Fails if the
 * settings do not say how many windows. */
fp_status fp_own_calibration_choose(fp_own_calibration *out, fp_context *ctx, const char *const *calibration, int count,
									bool needed, const fp_settings *settings);
/* windows->ids ← windows->count windows of windows->length tokens, and the same for held_out, which are others (its
 * count may be 0): drawn, or those of the unfinished run that is to write the directory `resumed` (may be NULL). Logs what
 * was done. */
fp_status fp_own_calibration_make(fp_own_calibration *own, fp_windows *windows, fp_windows *held_out, fp_model *model,
								  const char *resumed, const fp_settings *settings);
/* Keeps them for a resumed run. */
fp_status fp_own_calibration_keep(const fp_own_calibration *own, const fp_windows *windows, const fp_windows *held_out,
								  const fp_writer *writer, fp_context *ctx);
/* What the report says of the text. */
json_t *fp_own_calibration_document(const fp_own_calibration *own, bool with_times);

#endif
