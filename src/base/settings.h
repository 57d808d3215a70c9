/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h: the struct that the settings table defines, and how presets fill it. */
#ifndef FP_BASE_SETTINGS_H
#define FP_BASE_SETTINGS_H

#include "base/context.h"
#include <fistapruner/settings.h>

enum { FP_SETTING_TEXT_SIZE = 1024 };

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
	bool by_hand[FP_SETTING_COUNT]; /* set by the user, so that a preset does not change it */
};

bool fp_is(const char *choice, const char *word);

/*
 * Sets everything that the user did not set to the preset's values. family is the architecture's model_type ("opt",
 * "llama"), which the paper's values depend on, so the model must be known. Methods other than fista have no preset.
 */
fp_status fp_settings_resolve(fp_settings *settings, fp_context *ctx, const char *family);

/* "50%" and "0.5" → sparsity; "2:4" → kept, group and sparsity. */
fp_status fp_parse_sparsity(fp_context *ctx, const char *text, double *sparsity, int64_t *kept, int64_t *group);
/* "2G", "512M", "1073741824" → bytes; "" → 0. */
fp_status fp_parse_size(fp_context *ctx, const char *text, int64_t *bytes);
/* "3", "2-5", "" (all) → the first layer and one past the last, of `count` layers. */
fp_status fp_parse_range(fp_context *ctx, const char *text, int64_t count, int64_t *first, int64_t *end);

#endif
