/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h: the struct behind the settings table, and the presets. */
#ifndef FP_BASE_SETTINGS_H
#define FP_BASE_SETTINGS_H

#include "base/context.h"
#include <fistapruner/settings.h>

enum { FP_SETTING_TEXT_SIZE = 256 };

#define FP_FIELD_INT(name) int64_t name;
#define FP_FIELD_REAL(name) double name;
#define FP_FIELD_FLAG(name) bool name;
#define FP_FIELD_TEXT(name) char name[FP_SETTING_TEXT_SIZE];
#define FP_FIELD_CHOICE(name) char name[FP_SETTING_TEXT_SIZE]; /* one of the table's words; compare with fp_is() */

enum fp_setting_id {
#define FP_SETTING_ID(kind, name, ...) FP_ID_##name,
	FP_SETTINGS_TABLE(FP_SETTING_ID)
#undef FP_SETTING_ID
		FP_SETTING_COUNT
};

struct fp_settings {
#define FP_SETTING_FIELD(kind, name, ...) FP_FIELD_##kind(name)
	FP_SETTINGS_TABLE(FP_SETTING_FIELD)
#undef FP_SETTING_FIELD
	bool by_hand[FP_SETTING_COUNT]; /* set by the user: a preset leaves it alone */
};

bool fp_is(const char *choice, const char *word);

/*
 * Fills in the preset's values for everything the user did not set. family is the architecture's model_type ("opt",
 * "llama"): the paper tunes by family. Call once the model is known. A stand-alone method (wanda, sparsegpt, magnitude,
 * admm) has its own row.
 */
fp_status fp_settings_resolve(fp_settings *settings, fp_context *ctx, const char *family);

/* "50%", "0.5", "2:4" → pattern fields; fails with the rule. Declared here since the table owns the spelling. */
fp_status fp_parse_sparsity(fp_context *ctx, const char *text, double *sparsity, int64_t *kept, int64_t *group);
/* "2G", "512M", "1073741824" → bytes; "" → 0. */
fp_status fp_parse_size(fp_context *ctx, const char *text, int64_t *bytes);
/* "3", "2-5", "" → first and one past the last of `count` layers. */
fp_status fp_parse_range(fp_context *ctx, const char *text, int64_t count, int64_t *first, int64_t *end);

#endif
