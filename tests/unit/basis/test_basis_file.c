/* SPDX-License-Identifier: Apache-2.0 */
/* A basis as a file: what is restored has the bytes of what was saved, and a damaged file is not used. */
#include "basis_fixture.h"

#include "basis/basis_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct file_run {
	model_fixture f;
	fp_basis_freedom freedom;
	fp_basis *basis;
	char *folder, path[4200];
	char warning[512]; /* the last one */
} file_run;

static void keep_warning(void *data, fp_log_level level, const char *text)
{
	file_run *run = data;
	if (level == FP_LOG_WARNING)
		snprintf(run->warning, sizeof run->warning, "%s", text);
}

static void open_run(file_run *run, const char *name)
{
	memset(run, 0, sizeof *run);
	open_fixture(&run->f, name);
	fp_context_set_log(run->f.ctx, keep_warning, run, FP_LOG_WARNING);
	assert_ok(run->f.ctx, fp_basis_freedom_of(&run->freedom, run->f.model));
	run->basis = random_basis(&run->f, &run->freedom, 77);
	run->folder = temporary_folder();
	snprintf(run->path, sizeof run->path, "%s/basis", run->folder);
}

static void close_run(file_run *run)
{
	fp_basis_free(run->basis);
	close_fixture(&run->f);
	remove_folder(run->folder);
	free(run->folder);
}

static void assert_same(file_run *run, fp_matrix a, fp_matrix b)
{
	assert_int_equal(fp_matrix_is_absent(a), fp_matrix_is_absent(b));
	if (fp_matrix_is_absent(a))
		return;
	float *x = matrix_floats(&run->f, a), *y = matrix_floats(&run->f, b);
	assert_int_equal(fp_matrix_size(a), fp_matrix_size(b));
	assert_memory_equal(x, y, (size_t)fp_matrix_size(a) * sizeof *x);
	free(x);
	free(y);
}

static void check_restored(file_run *run, bool ordered)
{
	const fp_basis_gain gain = {0.5, 0.25, 0.125, 0.0625, 3};
	fp_basis_gain got = {0};
	fp_basis *restored;
	int64_t layers = fp_model_get_config(run->f.model)->layers;
	assert_ok(run->f.ctx, fp_basis_save(run->path, run->basis, run->f.model, &gain));
	assert_ok(run->f.ctx,
			  fp_basis_restore(&restored, run->path, run->f.model, &run->freedom, !run->freedom.stream, &got));
	assert_non_null(restored);
	assert_memory_equal(&got, &gain, sizeof got);
	assert_same(run, run->basis->R, restored->R);
	assert_int_equal(restored->layer_count, layers);
	for (int64_t i = 0; i < layers; i++) {
		assert_same(run, run->basis->layers[i].value, restored->layers[i].value);
		assert_same(run, run->basis->layers[i].query, restored->layers[i].query);
		assert_int_equal(restored->layers[i].inner != NULL, ordered);
		if (ordered)
			assert_memory_equal(restored->layers[i].inner, run->basis->layers[i].inner,
								(size_t)fp_layer_channels(run->f.model, i) * sizeof(int32_t));
	}
	assert_string_equal(run->warning, "");
	fp_basis_free(restored);
}

static void what_is_saved_is_restored(void **unused)
{
	(void)unused;
	/* with all parts, without queries, without the stream, with experts in all layers or in one */
	static const char *const names[] = {"llama-gqa", "opt-plain",     "qwen3-plain",
										"opt-350m",  "mixtral-plain", "qwen2_moe-plain"};
	for (int i = 0; i < 6; i++) {
		file_run run;
		open_run(&run, names[i]);
		check_restored(&run, true);
		for (int64_t layer = 0; layer < run.basis->layer_count; layer++) {
			fp_free(run.basis->layers[layer].inner);
			run.basis->layers[layer].inner = NULL;
		}
		check_restored(&run, false);
		close_run(&run);
	}
}

static void no_file_is_no_basis(void **unused)
{
	(void)unused;
	file_run run;
	fp_basis *restored;
	fp_basis_gain gain;
	open_run(&run, "llama-gqa");
	assert_ok(run.f.ctx, fp_basis_restore(&restored, run.path, run.f.model, &run.freedom, true, &gain));
	assert_null(restored);
	assert_string_equal(run.warning, ""); /* the first run of all has none */
	close_run(&run);
}

/* The bytes of the file, changed, give a warning and no basis. */
static void expect_damaged(file_run *run, const unsigned char *bytes, size_t size, const char *what)
{
	fp_basis *restored;
	fp_basis_gain gain;
	run->warning[0] = '\0';
	write_file(run->folder, "basis", bytes, size);
	fp_status status = fp_basis_restore(&restored, run->path, run->f.model, &run->freedom, true, &gain);
	if (status != FP_OK)
		fail_msg("%s: %s: %s", what, fp_status_name(status), fp_context_message(run->f.ctx));
	assert_null(restored);
	if (!strstr(run->warning, "is damaged; the basis will be learned again") || !strstr(run->warning, run->path))
		fail_msg("%s: the warning is '%s'", what, run->warning);
}

static void damaged_files_are_not_used(void **unused)
{
	(void)unused;
	file_run run;
	const fp_basis_gain gain = {0};
	size_t size;
	open_run(&run, "llama-gqa");
	assert_ok(run.f.ctx, fp_basis_save(run.path, run.basis, run.f.model, &gain));
	unsigned char *bytes = read_whole(run.path, &size);
	for (size_t at = 0; at < size; at += at < 100 ? 1 : 97) { /* the whole head, then some of the rest */
		bytes[at] ^= 0x10;
		expect_damaged(&run, bytes, size, "a changed byte");
		bytes[at] ^= 0x10;
	}
	bytes[size - 1] ^= 0x80;
	expect_damaged(&run, bytes, size, "a changed digest");
	bytes[size - 1] ^= 0x80;
	static const size_t kept[] = {0, 1, 7, 8, 40, 100};
	for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
		expect_damaged(&run, bytes, kept[i], "a short file");
	expect_damaged(&run, bytes, size - 1, "a file without its last byte");
	free(bytes);
	close_run(&run);
}

/* Of another model, or with more bytes than this one can have. */
static void files_of_another_size_are_not_used(void **unused)
{
	(void)unused;
	file_run run, other;
	const fp_basis_gain gain = {0};
	size_t size;
	static const char *const names[] = {"opt-plain", "qwen3-plain", "llama-head-dim", "llama-multi-query"};
	open_run(&run, "llama-gqa");
	for (int i = 0; i < 4; i++) {
		open_run(&other, names[i]);
		assert_ok(other.f.ctx, fp_basis_save(other.path, other.basis, other.f.model, &gain));
		unsigned char *bytes = read_whole(other.path, &size);
		expect_damaged(&run, bytes, size, names[i]);
		free(bytes);
		close_run(&other);
	}
	assert_ok(run.f.ctx, fp_basis_save(run.path, run.basis, run.f.model, &gain));
	unsigned char *bytes = read_whole(run.path, &size), *longer = calloc(size + 64, 1);
	memcpy(longer, bytes, size);
	expect_damaged(&run, longer, size + 64, "a longer file");
	free(bytes);
	free(longer);
	close_run(&run);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_saved_is_restored),
		cmocka_unit_test(no_file_is_no_basis),
		cmocka_unit_test(damaged_files_are_not_used),
		cmocka_unit_test(files_of_another_size_are_not_used),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
