/* SPDX-License-Identifier: Apache-2.0 */
/* Resuming runs that ended early by a failed allocation, a failed write or an interrupt. The final bytes equal those of
 * an uninterrupted run, and until then the final name does not exist. */
#include "model_fixture.h"

#include "base/settings.h"
#include "run/layer_journal.h"
#include "run/report.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

typedef struct journal_run {
	model_fixture f;
	fp_windows windows;
	fp_settings *settings;
	char *folder;
	char output[4200], partial[4200];
	int finished, stop_after; /* operators; 0: never */
	volatile int flag;
} journal_run;

static void listen(void *data, const fp_operator_result *result)
{
	journal_run *run = data;
	(void)result;
	if (++run->finished == run->stop_after)
		run->flag = 1;
}

static void open_run(journal_run *run, const char *name, const char *const *assignments)
{
	memset(run, 0, sizeof *run);
	open_fixture(&run->f, name);
	run->windows = read_windows(name);
	run->settings = resolved_settings(run->f.ctx, "llama", assignments);
	run->folder = temporary_folder();
	snprintf(run->output, sizeof run->output, "%s/out", run->folder);
	snprintf(run->partial, sizeof run->partial, "%s/.out.partial", run->folder);
	fp_context_set_interrupt(run->f.ctx, &run->flag);
}

static void close_run(journal_run *run)
{
	fp_settings_free(run->settings);
	free(run->windows.ids);
	close_fixture(&run->f);
	remove_folder(run->folder);
	free(run->folder);
}

/* What one process does: starts or resumes the output, prunes, commits. */
static fp_status attempt(journal_run *run)
{
	fp_context *ctx = run->f.ctx;
	fp_prune_result result = {0};
	fp_writer *writer = NULL;
	fp_layer_journal *journal = NULL;
	bool begun;
	fp_status status;
	fp_prune_task task = {.be = run->f.be,
						  .ctx = run->f.ctx,
						  .model = run->f.model,
						  .settings = run->settings,
						  .windows = &run->windows,
						  .listener = listen,
						  .listener_data = run};
	run->finished = 0;
	FP_TRY(fp_writer_resume(&writer, ctx, run->f.checkpoint, run->output, NULL, &begun));
	task.writer = writer;
	FP_TRY(fp_layer_journal_open(&journal, &task, begun));
	task.journal = journal;
	FP_TRY(fp_prune_model(&result, &task));
	json_t *report = fp_report_result(&task, &result, "model", false);
	char *text = json_dumps(report, JSON_REAL_PRECISION(17));
	status = fp_writer_add_file(writer, "pruning_report.json", text, (int64_t)strlen(text));
	free(text);
	json_decref(report);
	if (status == FP_OK)
		status = fp_writer_commit(writer);
cleanup:
	fp_prune_result_free(&result);
	fp_layer_journal_close(journal);
	fp_writer_close(writer);
	return status;
}

typedef struct output_bytes {
	unsigned char *weights, *report;
	size_t weights_size, report_size;
} output_bytes;

static output_bytes take_output(journal_run *run)
{
	output_bytes bytes;
	char path[4300], command[4300];
	snprintf(path, sizeof path, "%s/model.safetensors", run->output);
	bytes.weights = read_whole(path, &bytes.weights_size);
	snprintf(path, sizeof path, "%s/pruning_report.json", run->output);
	bytes.report = read_whole(path, &bytes.report_size);
	assert_int_not_equal(access(run->partial, F_OK), 0);
	snprintf(command, sizeof command, "rm -r '%s'", run->output);
	assert_int_equal(system(command), 0);
	return bytes;
}

static void free_output(output_bytes *bytes)
{
	free(bytes->weights);
	free(bytes->report);
}

static void assert_same_output(journal_run *run, const output_bytes *wanted)
{
	output_bytes bytes = take_output(run);
	assert_int_equal(bytes.weights_size, wanted->weights_size);
	assert_int_equal(bytes.report_size, wanted->report_size);
	assert_memory_equal(bytes.weights, wanted->weights, wanted->weights_size);
	assert_memory_equal(bytes.report, wanted->report, wanted->report_size);
	free_output(&bytes);
}

static const char *const recipes[][5] = {
	{"preset=fast", "search_steps=2", "refit_steps=2"},
	{"preset=best", "search_steps=2", "refit_steps=2", "fit_steps=4"},
	{"preset=fast", "search_steps=2", "refit_steps=2", "correction=intra"},
	{"method=sparsegpt"},
};
enum { RECIPES = sizeof recipes / sizeof recipes[0] };

static void an_interrupted_run_is_resumed(void **unused)
{
	(void)unused;
	static const char *const models[] = {"llama-gqa", "opt-plain", "phi3-plain", "gpt2-plain", "deepseek_v2-lite"};
	for (size_t m = 0; m < sizeof models / sizeof *models; m++)
		for (int r = 0; r < RECIPES; r++) {
			journal_run run;
			open_run(&run, models[m], recipes[r]);
			assert_ok(run.f.ctx, attempt(&run));
			int operators = run.finished;
			output_bytes whole = take_output(&run);
			for (int stop = 1; stop<operators; stop += m> 0 ? 11 : 4) {
				run.stop_after = stop;
				assert_int_equal(attempt(&run), FP_ERROR_INTERRUPTED);
				assert_int_not_equal(access(run.output, F_OK), 0);
				run.stop_after = run.flag = 0;
				assert_ok(run.f.ctx, attempt(&run));
				assert_int_equal(run.finished, operators); /* the listener gets restored operators too */
				assert_same_output(&run, &whole);
			}
			free_output(&whole);
			close_run(&run);
		}
}

static void failing_allocations_lose_nothing(void **unused)
{
	(void)unused;
	for (int r = 0; r < 2; r++) {
		journal_run run;
		open_run(&run, "llama-gqa", recipes[r]);
		fp_context *ctx = run.f.ctx;
		ctx->allocations = 0;
		assert_ok(ctx, attempt(&run));
		int64_t total = ctx->allocations, stride = total / 16 + 1, failed = 0;
		output_bytes whole = take_output(&run);
		for (int64_t n = 1; n < total; n += stride) {
			ctx->allocations = 0;
			ctx->fail_allocation_at = n;
			fp_status status = attempt(&run);
			ctx->fail_allocation_at = 0;
			if (status != FP_OK) {
				assert_int_equal(status, FP_ERROR_MEMORY);
				assert_int_not_equal(access(run.output, F_OK), 0);
				assert_ok(ctx, attempt(&run));
				failed++;
			}
			assert_same_output(&run, &whole);
		}
		assert_true(failed > 10);
		free_output(&whole);
		close_run(&run);
	}
}

/* Each limit on the file size makes another write fail. */
static void failing_writes_lose_nothing(void **unused)
{
	(void)unused;
	journal_run run;
	struct rlimit before, small;
	output_bytes whole;
	int failed = 0;
	open_run(&run, "llama-gqa", recipes[0]);
	assert_ok(run.f.ctx, attempt(&run));
	whole = take_output(&run);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	signal(SIGXFSZ, SIG_IGN);
	small = before;
	for (rlim_t limit = 0; limit < (rlim_t)whole.weights_size + 4096; limit += whole.weights_size / 9 + 1) {
		small.rlim_cur = limit;
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
		fp_status status = attempt(&run);
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
		if (status != FP_OK) {
			failed++;
			assert_int_equal(status, FP_ERROR_IO);
			assert_int_not_equal(access(run.output, F_OK), 0);
			assert_ok(run.f.ctx, attempt(&run));
		}
		assert_same_output(&run, &whole);
	}
	assert_true(failed > 5);
	free_output(&whole);
	close_run(&run);
}

static void another_run_is_refused(void **unused)
{
	(void)unused;
	journal_run run;
	open_run(&run, "llama-gqa", recipes[2]);
	fp_context *ctx = run.f.ctx;
	run.stop_after = 8; /* in the second layer */
	assert_int_equal(attempt(&run), FP_ERROR_INTERRUPTED);
	run.stop_after = run.flag = 0;
	assert_ok(ctx, fp_settings_set(run.settings, ctx, "refit_steps", "7"));
	assert_fails(ctx, FP_ERROR_USAGE, "setting refit_steps", attempt(&run));
	assert_int_equal(access(run.partial, F_OK), 0);
	fp_settings *settings = run.settings;
	run.settings = resolved_settings(ctx, "llama", recipes[2]);
	fp_settings_free(settings);
	run.windows.ids[0] ^= 1;
	assert_fails(ctx, FP_ERROR_USAGE, "another calibration text", attempt(&run));
	run.windows.ids[0] ^= 1;
	fp_writer *writer;
	assert_fails(ctx, FP_ERROR_USAGE, "unfinished run",
				 fp_writer_open(&writer, ctx, run.f.checkpoint, run.output, NULL));
	bool begun;
	fp_writer *first;
	assert_ok(ctx, fp_writer_resume(&first, ctx, run.f.checkpoint, run.output, NULL, &begun));
	assert_true(begun);
	assert_fails(ctx, FP_ERROR_USAGE, "another run is writing",
				 fp_writer_resume(&writer, ctx, run.f.checkpoint, run.output, NULL, &begun));
	fp_writer_close(first);
	assert_ok(ctx, attempt(&run));
	close_run(&run);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_interrupted_run_is_resumed),
		cmocka_unit_test(failing_allocations_lose_nothing),
		cmocka_unit_test(failing_writes_lose_nothing),
		cmocka_unit_test(another_run_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
