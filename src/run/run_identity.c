/* SPDX-License-Identifier: Apache-2.0 */
#include "run/run_identity.h"

#include "base/digest.h"
#include "base/file.h"
#include "base/memory.h"
#include "run/report.h"

#include <fistapruner/fistapruner.h>
#include <stdio.h>
#include <string.h>

void fp_windows_digest(char *out, size_t size, const fp_windows *windows)
{
	char text[FP_DIGEST_TEXT_SIZE];
	int64_t shape[2] = {windows->count, windows->length};
	uint64_t digest = fp_digest_bytes(FP_DIGEST_START, shape, sizeof shape);
	if (windows->count > 0)
		digest =
			fp_digest_bytes(digest, windows->ids, windows->count * windows->length * (int64_t)sizeof *windows->ids);
	fp_digest_spell(text, digest);
	snprintf(out, size, "%s", text);
}

/* A digest of each file's size and modification time: reading all of a large model would take minutes. */
static json_t *model_files(const fp_checkpoint *checkpoint, fp_context *ctx)
{
	int shards = fp_checkpoint_shard_count(checkpoint);
	json_t *files = json_object();
	for (int i = 0; files && i <= shards; i++) {
		const char *name = i < shards ? fp_checkpoint_shard_name(checkpoint, i) : "config.json";
		char text[FP_DIGEST_TEXT_SIZE];
		char *path = NULL;
		if (fp_join_path(&path, ctx, fp_checkpoint_directory(checkpoint), name) != FP_OK) {
			json_decref(files);
			return NULL;
		}
		fp_digest_spell(text, fp_digest_file(FP_DIGEST_START, path));
		fp_free(path);
		json_object_set_new(files, name, json_string(text));
	}
	return files;
}

json_t *fp_run_identity(const fp_prune_task *task)
{
	const fp_backend *be = task->be;
	char text[FP_DIGEST_TEXT_SIZE];
	fp_windows_digest(text, sizeof text, task->windows);
	json_t *identity =
		json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:i}", "program", "fistapruner " FP_VERSION, "build",
				  fp_build_id(), "commit", fp_build_commit(), "text", text, "device", be->name, "precision",
				  fp_backend_precision_name(be), "processor", be->description, "threads", be->threads);
	if (!identity)
		return NULL;
	json_object_set_new(identity, "files", model_files(fp_model_checkpoint(task->model), be->ctx));
	json_object_set_new(identity, "settings", fp_report_settings(task->settings, be->ctx));
	return identity;
}

/* Settings that change at most the last bits of the result. */
static bool changes_last_bits_only(const char *setting)
{
	return fp_is(setting, "threads") || fp_is(setting, "memory") || fp_is(setting, "device");
}

static const char *text_at(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));
	return text ? text : "";
}

/* out ← "fistapruner 0.2.0 (commit 1234abcd, build 0123456789abcdef)"; an unknown commit is left out. */
static void name_program(char *out, size_t size, const json_t *identity)
{
	const char *commit = text_at(identity, "commit"), *build = text_at(identity, "build");
	snprintf(out, size, "%.100s (%s%.100s%sbuild %.100s)", text_at(identity, "program"), commit[0] ? "commit " : "",
			 commit, commit[0] ? ", " : "", build[0] ? build : "unknown");
}

/* Commits may differ: the same sources give the same build. */
static fp_status compare_programs(fp_context *ctx, const json_t *then, const json_t *now, const char *where,
								  const char *way_out)
{
	char before[512], present[512];
	if (strcmp(text_at(then, "program"), text_at(now, "program")) == 0 &&
		strcmp(text_at(then, "build"), text_at(now, "build")) == 0)
		return FP_OK;
	name_program(before, sizeof before, then);
	name_program(present, sizeof present, now);
	return fp_fail(ctx, FP_ERROR_USAGE, "%s: was started by %s, but this is %s; %s", where, before, present, way_out);
}

fp_status fp_run_identity_compare(fp_context *ctx, const json_t *then, const json_t *now, const char *where)
{
	const char *key;
	json_t *value;
	const json_t *settings = json_object_get(now, "settings"), *earlier = json_object_get(then, "settings");
	const json_t *files = json_object_get(now, "files");
	const char *way_out = "use the same, or delete that directory to start over";
	fp_status status = compare_programs(ctx, then, now, where, way_out);
	if (status != FP_OK)
		return status;
	json_object_foreach((json_t *)settings, key, value)
	{
		if (!changes_last_bits_only(key) && strcmp(text_at(earlier, key), json_string_value(value)) != 0)
			return fp_fail(ctx, FP_ERROR_USAGE, "%s: was started with the setting %s '%s', but now it is '%s'; %s",
						   where, key, text_at(earlier, key), json_string_value(value), way_out);
	}
	json_object_foreach((json_t *)files, key, value)
	{
		if (strcmp(text_at(json_object_get(then, "files"), key), json_string_value(value)) != 0)
			return fp_fail(ctx, FP_ERROR_USAGE, "%s: was started with another model: %s has changed since then; %s",
						   where, key, way_out);
	}
	if (strcmp(text_at(then, "text"), text_at(now, "text")) != 0)
		return fp_fail(ctx, FP_ERROR_USAGE, "%s: was started with another calibration text; %s", where, way_out);
	if (strcmp(text_at(then, "device"), text_at(now, "device")) != 0)
		return fp_fail(ctx, FP_ERROR_USAGE, "%s: was started on the device %s, but this is %s; %s", where,
					   text_at(then, "device"), text_at(now, "device"), way_out);
	if (strcmp(text_at(then, "precision"), text_at(now, "precision")) != 0)
		return fp_fail(
			ctx, FP_ERROR_USAGE,
			"%s: was started with products in %s, but on this processor they are in %s; resume it on one like "
			"the first, or delete that directory to start over",
			where, text_at(then, "precision"), text_at(now, "precision"));
	if (strcmp(text_at(then, "processor"), text_at(now, "processor")) != 0 ||
		strcmp(text_at(earlier, "memory"), text_at(settings, "memory")) != 0)
		fp_log(
			ctx, FP_LOG_WARNING,
			"the run was started with other threads, another memory limit or another processor (%s): the last bits may "
			"differ",
			text_at(then, "processor"));
	return FP_OK;
}
