/* SPDX-License-Identifier: Apache-2.0 */
/* A cache as the Hugging Face tools make it: refs, snapshots with symbolic links, blobs. */
#include "support.h"

#include "checkpoint/checkpoint.h"
#include "checkpoint/hub_cache.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static fp_context *ctx;
static char *home;
static char hub[4200];

static void make_folder(const char *name)
{
	char command[9000];
	snprintf(command, sizeof command, "mkdir -p '%s/%s'", hub, name);
	assert_int_equal(system(command), 0);
}

static void write_text(const char *name, const char *text)
{
	write_file(hub, name, text, strlen(text));
}

static int set_up(void **state)
{
	(void)state;
	ctx = fp_context_new();
	home = temporary_folder();
	snprintf(hub, sizeof hub, "%s/hub", home);
	make_folder("models--org--name/refs/refs/pr");
	make_folder("models--org--name/blobs");
	make_folder("models--org--name/snapshots/aaa111");
	make_folder("models--org--name/snapshots/bbb222");
	make_folder("models--bare/refs");
	make_folder("models--bare/snapshots/ccc333");
	write_text("models--org--name/refs/main", "aaa111");
	write_text("models--org--name/refs/v1.0", "bbb222\n");
	write_text("models--org--name/refs/refs/pr/1", "bbb222");
	write_text("models--org--name/refs/broken", "../../..");
	write_text("models--org--name/refs/gone", "ddd444");
	write_text("models--bare/refs/main", "ccc333");
	write_text("models--org--name/blobs/b1", "{\"model_type\": \"llama\"}");
	char target[9000];
	snprintf(target, sizeof target, "%s/models--org--name/snapshots/aaa111/config.json", hub);
	assert_int_equal(symlink("../../blobs/b1", target), 0);
	unsetenv("HF_HUB_CACHE");
	unsetenv("HUGGINGFACE_HUB_CACHE");
	unsetenv("XDG_CACHE_HOME");
	setenv("HF_HOME", home, 1);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	remove_folder(home);
	free(home);
	fp_context_free(ctx);
	return 0;
}

static void found(const char *model, const char *wanted)
{
	char *path, full[9000];
	assert_ok(ctx, fp_find_model(&path, ctx, model));
	snprintf(full, sizeof full, "%s/%s", hub, wanted);
	assert_string_equal(path, full);
	fp_free(path);
}

static void refused(const char *model, const char *message)
{
	char *path;
	assert_fails(ctx, FP_ERROR_INPUT, message, fp_find_model(&path, ctx, model));
	assert_null(path);
}

static void names_and_revisions(void **state)
{
	(void)state;
	found("org/name", "models--org--name/snapshots/aaa111");
	found("org/name@main", "models--org--name/snapshots/aaa111");
	found("org/name@v1.0", "models--org--name/snapshots/bbb222");
	found("org/name@refs/pr/1", "models--org--name/snapshots/bbb222");
	found("org/name@bbb222", "models--org--name/snapshots/bbb222");
	found("bare", "models--bare/snapshots/ccc333");
}

static void what_is_not_there(void **state)
{
	(void)state;
	refused("org/other", "hf download org/other");
	refused("org/name@v9", "revision 'v9' is not in the Hugging Face cache");
	refused("org/name@gone", "revision 'gone'");
	refused("org/name@broken", "does not contain the name of a commit");
	refused("org/name@", "no such directory");
	refused("org/name@../../x", "no such directory");
	refused("../name", "no such directory");
	refused("org/..", "no such directory");
	refused("a/b/c", "no such directory");
	refused("", "no such directory");
}

static void the_environment_decides(void **state)
{
	(void)state;
	char path[9000];
	setenv("HF_HUB_CACHE", "/nonexistent", 1);
	refused("org/name", "cache /nonexistent has no such model");
	setenv("HF_HUB_CACHE", hub, 1);
	setenv("HF_HOME", "/nonexistent", 1);
	found("org/name", "models--org--name/snapshots/aaa111");
	/* ~/.cache/huggingface/hub and XDG_CACHE_HOME */
	unsetenv("HF_HUB_CACHE");
	unsetenv("HF_HOME");
	char *before = strdup(getenv("HOME") ? getenv("HOME") : "/");
	snprintf(path, sizeof path, "mkdir -p '%s/.cache/huggingface' && ln -s ../../hub '%s/.cache/huggingface/hub'", home,
			 home);
	assert_int_equal(system(path), 0);
	setenv("HOME", home, 1);
	char *found_path;
	assert_ok(ctx, fp_find_model(&found_path, ctx, "org/name"));
	assert_non_null(strstr(found_path, "/.cache/huggingface/hub/models--org--name/snapshots/aaa111"));
	fp_free(found_path);
	setenv("HF_HOME", "~/.cache/huggingface", 1);
	assert_ok(ctx, fp_find_model(&found_path, ctx, "org/name"));
	fp_free(found_path);
	unsetenv("HF_HOME");
	snprintf(path, sizeof path, "%s/.cache", home);
	setenv("XDG_CACHE_HOME", path, 1);
	assert_ok(ctx, fp_find_model(&found_path, ctx, "org/name"));
	fp_free(found_path);
	setenv("HOME", before, 1);
	free(before);
}

static void a_snapshot_of_symlinks_opens(void **state)
{
	(void)state;
	fp_checkpoint *checkpoint;
	assert_fails(ctx, FP_ERROR_INPUT, "has no weights", fp_checkpoint_open(&checkpoint, ctx, "org/name"));
	static const char header[] = "\x02\0\0\0\0\0\0\0{}";
	write_file(hub, "models--org--name/blobs/b2", header, 10);
	char target[9000];
	snprintf(target, sizeof target, "%s/models--org--name/snapshots/aaa111/model.safetensors", hub);
	assert_int_equal(symlink("../../blobs/b2", target), 0);
	assert_ok(ctx, fp_checkpoint_open(&checkpoint, ctx, "org/name"));
	assert_string_equal(json_string_value(json_object_get(fp_checkpoint_config(checkpoint), "model_type")), "llama");
	fp_checkpoint_close(checkpoint);
}

int main(void)
{
#define HUB_TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		HUB_TEST(names_and_revisions),
		HUB_TEST(what_is_not_there),
		HUB_TEST(the_environment_decides),
		HUB_TEST(a_snapshot_of_symlinks_opens),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
