/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/hub_cache.h"

#include "base/file.h"
#include "base/memory.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_MODEL_NAME = 256, MAX_HASH_FILE = 4096 };

struct model_name {
	char folder[MAX_MODEL_NAME + 16]; /* models--org--name */
	char revision[MAX_MODEL_NAME];
};

/* Letters, digits, '-', '_' and '.', as the hub allows. No leading '.', so that no part leaves its folder. */
static bool is_name_part(const char *text, size_t length)
{
	if (length == 0 || text[0] == '.' || text[0] == '-')
		return false;
	for (size_t i = 0; i < length; i++)
		if (!isalnum((unsigned char)text[i]) && !strchr("-_.", text[i]))
			return false;
	return true;
}

/* A revision may be a branch with slashes (refs/pr/1). */
static bool is_revision(const char *text)
{
	while (*text) {
		size_t length = strcspn(text, "/");
		if (!is_name_part(text, length))
			return false;
		text += length;
		if (*text == '/' && *++text == '\0')
			return false;
	}
	return true;
}

static bool parse_name(struct model_name *out, const char *model)
{
	size_t length = strcspn(model, "@");
	const char *revision = model[length] == '@' ? model + length + 1 : "main";
	if (length >= MAX_MODEL_NAME || strlen(revision) >= MAX_MODEL_NAME || revision[0] == '\0' || !is_revision(revision))
		return false;
	size_t organisation = strcspn(model, "/");
	if (organisation >= length) {
		/* the oldest models have no organisation */
		if (!is_name_part(model, length))
			return false;
		snprintf(out->folder, sizeof out->folder, "models--%.*s", (int)length, model);
	} else {
		const char *name = model + organisation + 1;
		size_t name_length = length - organisation - 1;
		if (!is_name_part(model, organisation) || !is_name_part(name, name_length))
			return false;
		snprintf(out->folder, sizeof out->folder, "models--%.*s--%.*s", (int)organisation, model, (int)name_length,
				 name);
	}
	snprintf(out->revision, sizeof out->revision, "%s", revision);
	return true;
}

/* Replaces a leading ~ by the home directory. */
static fp_status expand_home(char **out, fp_context *ctx, const char *path)
{
	const char *home = getenv("HOME");
	if (path[0] == '~' && (path[1] == '/' || path[1] == '\0') && home)
		return fp_join_path(out, ctx, home, path[1] ? path + 2 : "");
	return fp_copy_text(ctx, out, path);
}

static fp_status cache_folder(char **out, fp_context *ctx)
{
	static const struct {
		const char *variable, *below;
	} places[] = {
		{"HF_HUB_CACHE", ""},
		{"HUGGINGFACE_HUB_CACHE", ""},
		{"HF_HOME", "hub"},
		{"XDG_CACHE_HOME", "huggingface/hub"},
		{"HOME", ".cache/huggingface/hub"},
	};
	*out = NULL;
	for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
		const char *value = getenv(places[i].variable);
		if (!value || !*value)
			continue;
		char *folder;
		fp_status status = expand_home(&folder, ctx, value);
		if (status == FP_OK && places[i].below[0]) {
			status = fp_join_path(out, ctx, folder, places[i].below);
			fp_free(folder);
		} else if (status == FP_OK) {
			*out = folder;
		}
		return status;
	}
	return fp_copy_text(ctx, out, ".cache/huggingface/hub");
}

/* The commit of a branch or tag; NULL if there is none of this name, which may then be a commit itself. */
static fp_status read_reference(char **out, fp_context *ctx, const char *repository, const char *revision)
{
	fp_status status;
	char *references = NULL, *path = NULL, *text = NULL;
	int64_t size;
	*out = NULL;
	FP_TRY(fp_join_path(&references, ctx, repository, "refs"));
	FP_TRY(fp_join_path(&path, ctx, references, revision));
	if (!fp_is_file(path))
		goto cleanup;
	FP_TRY(fp_read_file(&text, &size, ctx, path, MAX_HASH_FILE));
	while (size > 0 && isspace((unsigned char)text[size - 1]))
		text[--size] = '\0';
	if (!is_name_part(text, strlen(text))) {
		status = fp_fail(ctx, FP_ERROR_INPUT, "%s: does not contain the name of a commit", path);
		goto cleanup;
	}
	*out = text;
	text = NULL;
cleanup:
	fp_free(references);
	fp_free(path);
	fp_free(text);
	return status;
}

static fp_status find_in_cache(char **out, fp_context *ctx, const char *model, const struct model_name *name)
{
	fp_status status;
	char *cache = NULL, *repository = NULL, *snapshots = NULL, *commit = NULL, *found = NULL;
	FP_TRY(cache_folder(&cache, ctx));
	FP_TRY(fp_join_path(&repository, ctx, cache, name->folder));
	if (!fp_is_directory(repository)) {
		status =
			fp_fail(ctx, FP_ERROR_INPUT,
					"'%s' is not a directory, and the Hugging Face cache %s has no such model: give a directory, or "
					"download it with 'hf download %s'",
					model, cache, model);
		goto cleanup;
	}
	FP_TRY(read_reference(&commit, ctx, repository, name->revision));
	FP_TRY(fp_join_path(&snapshots, ctx, repository, "snapshots"));
	FP_TRY(fp_join_path(&found, ctx, snapshots, commit ? commit : name->revision));
	if (!fp_is_directory(found)) {
		status =
			fp_fail(ctx, FP_ERROR_INPUT,
					"'%s': revision '%s' is not in the Hugging Face cache (%s): download it, or give another after "
					"the '@'",
					model, name->revision, repository);
		goto cleanup;
	}
	*out = found;
	found = NULL;
cleanup:
	fp_free(cache);
	fp_free(repository);
	fp_free(snapshots);
	fp_free(commit);
	fp_free(found);
	return status;
}

fp_status fp_find_model(char **out, fp_context *ctx, const char *model)
{
	*out = NULL;
	struct model_name name;
	fp_status status = fp_check_path(ctx, model);
	if (status != FP_OK)
		return status;
	if (fp_is_directory(model))
		return fp_copy_text(ctx, out, model);
	const char *ending = strrchr(model, '.');
	if (ending && strcasecmp(ending, ".gguf") == 0)
		return fp_fail(ctx, FP_ERROR_INPUT,
					   "%s: GGUF files are not read; give the directory of the safetensors checkpoint", model);
	if (fp_is_file(model))
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: is a file; give its directory", model);
	if (!parse_name(&name, model))
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: no such directory; give a model's directory or org/name[@revision]",
					   model);
	return find_in_cache(out, ctx, model, &name);
}
