/* SPDX-License-Identifier: Apache-2.0 */
/* model_fixture.h: opens the tiny models of tests/fixtures/model, or modified copies, on the CPU or on the
 * device FP_TEST_DEVICE with the precision FP_TEST_PRECISION. */
#ifndef FP_TESTS_MODEL_FIXTURE_H
#define FP_TESTS_MODEL_FIXTURE_H

#include "support.h"

#include "model/layer.h"
#include "text/windows.h"

typedef struct model_fixture {
	fp_context *ctx;
	fp_backend *be;
	fp_checkpoint *checkpoint;
	fp_model *model;
} model_fixture;

/* Opens tests/fixtures/model/<name>; fails the test on error. */
void open_fixture(model_fixture *f, const char *name);
/* Opens the model in a directory; returns the status of fp_model_open() or of opening the checkpoint. */
fp_status open_directory(model_fixture *f, const char *directory);
void close_fixture(model_fixture *f);

/* expected.bin of a fixture. The caller frees ids and logits with free(). */
typedef struct expected_output {
	int32_t sequences, length, vocabulary;
	int32_t *ids;
	float *logits;
} expected_output;
void read_expected(expected_output *out, const char *name);
/* Only its ids. The caller frees them with free(). */
fp_windows read_windows(const char *name);

/* Runs ids through all layers. The caller frees hidden with fp_matrix_free(). */
void run_model(model_fixture *f, const int32_t *ids, int64_t sequences, int64_t length, fp_matrix *hidden);

/* A copy of a fixture in a new temporary folder with config.json's `key` set to a JSON text, or removed if that
 * is NULL. The caller frees the path after remove_folder(). */
char *copy_fixture(const char *name, const char *key, const char *value);

/* The whole file; the caller frees it with free(). */
unsigned char *read_whole(const char *path, size_t *size);

#endif
