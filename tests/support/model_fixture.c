/* SPDX-License-Identifier: Apache-2.0 */
#include "model_fixture.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fixture_path(char *path, size_t size, const char *name, const char *file)
{
	char inside[512];
	snprintf(inside, sizeof inside, "tests/fixtures/model/%s%s%s", name, file[0] ? "/" : "", file);
	snprintf(path, size, "%s", source_path(inside));
}

unsigned char *read_whole(const char *path, size_t *size)
{
	FILE *file = fopen(path, "rb");
	if (!file)
		fail_msg("%s: cannot be read", path);
	fseek(file, 0, SEEK_END);
	*size = (size_t)ftell(file);
	rewind(file);
	unsigned char *bytes = malloc(*size + 1);
	if (!bytes || fread(bytes, 1, *size, file) != *size)
		fail_msg("%s: cannot be read", path);
	fclose(file);
	return bytes;
}

fp_status open_directory(model_fixture *f, const char *directory)
{
	memset(f, 0, sizeof *f);
	f->ctx = fp_context_new();
	assert_non_null(f->ctx);
	const char *device = getenv("FP_TEST_DEVICE"), *precision = getenv("FP_TEST_PRECISION");
	assert_ok(f->ctx, fp_backend_open(&f->be, f->ctx, device ? device : "cpu", 2));
	if (precision)
		assert_ok(f->ctx, fp_backend_set_precision(f->be, precision, 0));
	fp_status status = fp_checkpoint_open(&f->checkpoint, f->ctx, directory);
	if (status == FP_OK)
		status = fp_model_open(&f->model, f->be, f->checkpoint);
	return status;
}

void open_fixture(model_fixture *f, const char *name)
{
	char path[4096];
	fixture_path(path, sizeof path, name, "");
	fp_status status = open_directory(f, path);
	if (status != FP_OK)
		fail_msg("%s: %s", name, fp_context_message(f->ctx));
}

void close_fixture(model_fixture *f)
{
	fp_model_close(f->model);
	fp_checkpoint_close(f->checkpoint);
	fp_backend_close(f->be);
	fp_context_free(f->ctx);
	memset(f, 0, sizeof *f);
}

void read_expected(expected_output *out, const char *name)
{
	char path[4096];
	size_t size;
	fixture_path(path, sizeof path, name, "expected.bin");
	unsigned char *bytes = read_whole(path, &size);
	int32_t header[3];
	memcpy(header, bytes, sizeof header);
	out->sequences = header[0];
	out->length = header[1];
	out->vocabulary = header[2];
	size_t tokens = (size_t)out->sequences * (size_t)out->length;
	size_t logits = tokens * (size_t)out->vocabulary;
	assert_int_equal(size, sizeof header + 4 * (tokens + logits));
	out->ids = malloc(4 * tokens);
	out->logits = malloc(4 * logits);
	memcpy(out->ids, bytes + sizeof header, 4 * tokens);
	memcpy(out->logits, bytes + sizeof header + 4 * tokens, 4 * logits);
	free(bytes);
}

fp_windows read_windows(const char *name)
{
	expected_output expected;
	read_expected(&expected, name);
	free(expected.logits);
	return (fp_windows){.ids = expected.ids, .count = expected.sequences, .length = expected.length};
}

void run_model(model_fixture *f, const int32_t *ids, int64_t sequences, int64_t length, fp_matrix *hidden)
{
	const fp_model_config *c = fp_model_get_config(f->model);
	fp_workspace *workspace;
	assert_ok(f->ctx, fp_matrix_new(f->be, hidden, sequences * length, c->hidden, FP_F32));
	assert_ok(f->ctx, fp_workspace_new(&workspace, f->model, sequences * length));
	assert_ok(f->ctx, fp_model_embed(f->model, ids, sequences, length, *hidden));
	for (int64_t i = 0; i < c->layers; i++) {
		fp_layer *layer;
		fp_layer_state state = {.sequences = sequences, .length = length, .hidden = *hidden};
		assert_ok(f->ctx, fp_layer_load(&layer, f->model, i));
		assert_ok(f->ctx, fp_layer_forward(layer, &state, workspace));
		fp_layer_free(layer);
	}
	fp_workspace_free(workspace);
}

char *copy_fixture(const char *name, const char *key, const char *value)
{
	char path[4096];
	char command[9000];
	char *folder = temporary_folder();
	fixture_path(path, sizeof path, name, "");
	snprintf(command, sizeof command, "cp '%s'/* '%s'/ && chmod u+w '%s'/*", path, folder, folder);
	if (system(command) != 0)
		fail_msg("%s: could not be copied", path);
	if (!key)
		return folder;
	snprintf(path, sizeof path, "%s/config.json", folder);
	json_t *config = json_load_file(path, 0, NULL);
	assert_non_null(config);
	if (value) {
		json_t *parsed = json_loads(value, JSON_DECODE_ANY, NULL);
		assert_non_null(parsed);
		json_object_set_new(config, key, parsed);
	} else {
		json_object_del(config, key);
	}
	assert_int_equal(json_dump_file(config, path, 0), 0);
	json_decref(config);
	return folder;
}
