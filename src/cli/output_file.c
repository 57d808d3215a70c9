/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/output_file.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool same(const struct stat *a, const char *path)
{
	struct stat b;
	return path && stat(path, &b) == 0 && a->st_dev == b.st_dev && a->st_ino == b.st_ino;
}

/* The file that a --task NAME=FILE names. */
static const char *task_file(const char *task)
{
	const char *equals = strchr(task, '=');
	return equals ? equals + 1 : NULL;
}

/* True if an existing file, or a link to it, is read by the command. */
static bool is_input(const fp_cli_options *options, const struct stat *file)
{
	const char *single[] = {options->text, options->batch};
	for (size_t i = 0; i < sizeof single / sizeof single[0]; i++)
		if (same(file, single[i]))
			return true;
	for (int i = 0; i < options->calibration_count; i++)
		if (same(file, options->calibration[i]))
			return true;
	for (int i = 0; i < options->task_count; i++)
		if (same(file, task_file(options->tasks[i])))
			return true;
	return false;
}

static void folder_of(char *out, size_t size, const char *path)
{
	const char *slash = strrchr(path, '/');
	int length = slash ? (int)(slash - path) : 0;
	if (slash == path)
		length = 1;
	snprintf(out, size, "%.*s", length > 0 ? length : 1, length > 0 ? path : ".");
}

/* True if the path, without links, is in the folder that the Hugging Face cache has for the model org/name[@revision]. */
static bool is_cached(const char *model, const char *path)
{
	char folder[PATH_MAX];
	const char *slash = model ? strchr(model, '/') : NULL;
	if (!slash || strchr(slash + 1, '/'))
		return false;
	int length = snprintf(folder, sizeof folder, "/models--%.*s--%.*s/", (int)(slash - model), model,
						  (int)strcspn(slash + 1, "@"), slash + 1);
	return length < (int)sizeof folder && strstr(path, folder);
}

/* True if a file in this directory, whose path without links is `path`, is one of the model. */
static bool is_model(const char *model, const struct stat *folder, const char *path)
{
	return same(folder, model) || is_cached(model, path);
}

static bool is_in_model(const fp_cli_options *options, const struct stat *folder, const char *path)
{
	for (int i = 0; i < options->operand_count; i++)
		if (is_model(options->operands[i], folder, path))
			return true;
	return is_model(options->reference, folder, path);
}

fp_status fp_cli_output_check(const fp_cli_options *options, const char *flag, const char *path)
{
	char name[PATH_MAX], real[PATH_MAX];
	struct stat old, folder;
	if (!path)
		return FP_OK;
	bool there = stat(path, &old) == 0;
	folder_of(name, sizeof name, path);
	bool folder_there = stat(name, &folder) == 0 && realpath(there ? path : name, real);
	if (there && is_input(options, &old))
		return fp_cli_error(FP_ERROR_USAGE, "%s %s: the command reads this file; give another one", flag, path);
	if (folder_there && is_in_model(options, &folder, real))
		return fp_cli_error(FP_ERROR_USAGE, "%s %s: is in the model's directory; give a file elsewhere", flag, path);
	if (folder_there && same(&folder, options->output)) /* which must stay empty until the end */
		return fp_cli_error(FP_ERROR_USAGE, "%s %s: is in the output directory; give a file elsewhere", flag, path);
	if (there && S_ISFIFO(old.st_mode)) /* whose reader would take this for the end */
		return FP_OK;
	FILE *file = fopen(path, "a");
	if (!file)
		return fp_cli_output_failed(flag, path, errno);
	fclose(file);
	if (!there)
		unlink(path);
	return FP_OK;
}

fp_status fp_cli_output_failed(const char *flag, const char *path, int error)
{
	return fp_cli_error(FP_ERROR_IO, "%s %s: could not be written: %s", flag, path,
						error != 0 ? strerror(error) : "the disk may be full");
}
