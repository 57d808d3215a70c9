/* SPDX-License-Identifier: Apache-2.0 */
/* presets.c: what methods and presets are called and what they run. The presets' values are in settings.c. */
#include "base/settings.h"

#include <stdio.h>

static const fp_preset_info preset_infos[] = {
	{"best", "layer reconstruction (best)",
	 "Layer-wise reconstruction on the calibration text: the basis, search and refit of fast, then gradient steps that "
	 "fit the output of each decoder layer; it does not run FISTA."},
	{"fast", "ADMM search + refit (fast)",
	 "A basis learned for the pattern (--basis), in it an L0 support search by ADMM, then a least-squares refit of the "
	 "remaining weights; no gradient steps on weights, no retraining; it does not run FISTA."},
	{"paper", "FISTAPruner (paper)",
	 "FISTAPruner as published (arXiv 2408.03728): FISTA on the L1 problem with a search for lambda; no retraining."},
};

static const fp_method_info method_infos[] = {
#define METHOD_INFO(name, title, description) {#name, title, description},
	FP_METHOD_LIST(METHOD_INFO)
#undef METHOD_INFO
};

const fp_method_info *fp_method_at(size_t index)
{
	return index < sizeof method_infos / sizeof method_infos[0] ? &method_infos[index] : NULL;
}

const fp_preset_info *fp_preset_at(size_t index)
{
	return index < sizeof preset_infos / sizeof preset_infos[0] ? &preset_infos[index] : NULL;
}

const char *fp_method_title(const char *method, const char *preset)
{
	const fp_preset_info *info;
	if (fp_is(method, "fista")) {
		for (size_t i = 0; preset && (info = fp_preset_at(i)); i++)
			if (fp_is(info->name, preset))
				return info->title;
		return method; /* without a preset it is not known what runs */
	}
	const fp_method_info *row;
	for (size_t i = 0; (row = fp_method_at(i)); i++)
		if (fp_is(row->name, method))
			return row->title;
	return method;
}

/* The default as the table spells it, where the preset leaves it alone: 1e-6, not 1e-06. */
static void keep_spelling(const fp_settings *plain, fp_context *ctx, const char *name, char *out, size_t size)
{
	char value[FP_SETTING_TEXT_SIZE];
	const fp_setting_info *info;
	if (fp_settings_get(plain, ctx, name, value, sizeof value) != FP_OK || !fp_is(value, out))
		return;
	for (size_t i = 0; (info = fp_setting_at(i)); i++)
		if (fp_is(info->name, name))
			snprintf(out, size, "%s", info->initial);
}

fp_status fp_preset_value(fp_context *ctx, const char *preset, const char *family, const char *name, char *out,
						  size_t size)
{
	fp_settings *plain = NULL, *settings = NULL;
	fp_status status;
	FP_TRY(fp_settings_new(&plain, ctx));
	FP_TRY(fp_settings_new(&settings, ctx));
	FP_TRY(fp_settings_set(settings, ctx, "preset", preset));
	FP_TRY(fp_settings_resolve(settings, ctx, family));
	FP_TRY(fp_settings_get(settings, ctx, name, out, size));
	keep_spelling(plain, ctx, name, out, size);
cleanup:
	fp_settings_free(plain);
	fp_settings_free(settings);
	return status;
}
