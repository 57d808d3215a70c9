/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_demo.c: fistapruner demo: every method on the models that ship with the program. */
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/result.h"

#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Small enough for a minute on two processors, large enough for the order of the methods to show. */
static const char *const common_settings[] = {"samples=32", "sequence_length=256", NULL};

static const char *const model_names[] = {"llama-demo", "opt-demo"};
static const char *const patterns[] = {"50%", "2:4"};
static const struct {
	const char *method, *preset, *title;
} contestants[] = {
	{"magnitude", NULL, "magnitude"},
	{"wanda", NULL, "Wanda"},
	{"sparsegpt", NULL, "SparseGPT"},
	{"fista", "paper", "FISTAPruner, as published"},
	{"fista", "fast", "FISTAPruner, preset fast"},
};
enum {
	MODEL_COUNT = sizeof model_names / sizeof model_names[0],
	PATTERN_COUNT = sizeof patterns / sizeof patterns[0],
	CONTESTANT_COUNT = sizeof contestants / sizeof contestants[0],
};

/* What the workers share; the lock guards it. */
typedef struct demo_board {
	pthread_mutex_t lock;
	fp_cli_progress progress;
	json_t *rows;
	int done, total;
	volatile int stop; /* a worker failed or was interrupted: the others end too */
} demo_board;

/* One worker takes one model: the models are small, and two of them side by side use two processors better than each of
 * them could. */
typedef struct demo {
	fp_context *ctx;
	const fp_cli_options *options;
	demo_board *board;
	size_t model;
	int threads;
	fp_status status;
	char models[PATH_MAX]; /* where the demo models are */
	char work[PATH_MAX];   /* a folder of our own for pruned models */
} demo;

/* The models are beside an installed program (../share/fistapruner/models) or in the tree it was built in. */
static fp_status find_models(demo *d)
{
	static const char *const places[] = {"/../share/fistapruner/models", "/../../models"};
	char program[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
	program[length > 0 ? length : 0] = '\0';
	char *slash = strrchr(program, '/');
	if (slash)
		*slash = '\0';
	for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
		char path[PATH_MAX + 64];
		snprintf(path, sizeof path, "%s%s/calibration.jsonl", program, places[i]);
		if (access(path, R_OK) != 0)
			continue;
		path[strlen(path) - strlen("/calibration.jsonl")] = '\0';
		if (realpath(path, d->models))
			return FP_OK;
	}
	return fp_cli_error(FP_ERROR_INPUT, "the demo models are neither in %s%s nor in %s%s", program, places[0], program,
						places[1]);
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *walk)
{
	(void)info;
	(void)type;
	(void)walk;
	return remove(path);
}

static void remove_tree(const char *path)
{
	nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static fp_status make_settings(fp_settings **out, const demo *d, size_t contestant, const char *pattern)
{
	fp_context *ctx = d->ctx;
	char threads[32];
	snprintf(threads, sizeof threads, "%d", d->threads);
	fp_status status = fp_settings_new(out, ctx);
	if (status == FP_OK)
		status = fp_settings_set(*out, ctx, "threads", threads);
	for (size_t i = 0; status == FP_OK && common_settings[i]; i++)
		status = fp_settings_assign(*out, ctx, common_settings[i]);
	if (status == FP_OK && pattern)
		status = fp_settings_set(*out, ctx, "pattern", pattern);
	if (status == FP_OK && pattern)
		status = fp_settings_set(*out, ctx, "method", contestants[contestant].method);
	if (status == FP_OK && pattern && contestants[contestant].preset)
		status = fp_settings_set(*out, ctx, "preset", contestants[contestant].preset);
	return status;
}

/* Perplexity of a model directory on the demo text, as the document of fp_evaluate(). */
static fp_status evaluate(demo *d, const char *model, const fp_settings *settings, json_t **out)
{
	char text[PATH_MAX + 32];
	char *json = NULL;
	snprintf(text, sizeof text, "%s/evaluation.jsonl", d->models);
	fp_status status = fp_evaluate(&json, d->ctx, model, text, settings);
	*out = status == FP_OK ? json_loads(json, 0, NULL) : NULL;
	fp_text_free(json);
	return status;
}

static void add_row(demo *d, const char *model, const char *pattern, size_t contestant, const json_t *evaluation,
					const json_t *pruning)
{
	json_t *row = json_object();
	json_object_set_new(row, "model", json_string(model));
	json_object_set_new(row, "method", json_string(pattern ? contestants[contestant].method : "dense"));
	if (pattern && contestants[contestant].preset)
		json_object_set_new(row, "preset", json_string(contestants[contestant].preset));
	json_object_set_new(row, "title", json_string(pattern ? contestants[contestant].title : "dense"));
	if (pattern)
		json_object_set_new(row, "pattern", json_string(pattern));
	json_object_set(row, "perplexity", json_object_get(evaluation, "perplexity"));
	if (pruning) {
		json_object_set(row, "relative_error", json_object_get(pruning, "relative_error"));
		json_object_set(row, "seconds", json_object_get(pruning, "seconds"));
	}
	demo_board *board = d->board;
	pthread_mutex_lock(&board->lock);
	json_array_append_new(board->rows, row);
	fp_cli_progress_step(&board->progress, "demo", ++board->done, board->total);
	pthread_mutex_unlock(&board->lock);
}

static fp_status run_one(demo *d, const char *model, const char *pattern, size_t contestant)
{
	char source[PATH_MAX + 32];
	char output[PATH_MAX + 32];
	char text[PATH_MAX + 32];
	snprintf(source, sizeof source, "%s/%s", d->models, model);
	snprintf(output, sizeof output, "%s/%s-pruned", d->work, model);
	snprintf(text, sizeof text, "%s/calibration.jsonl", d->models);
	const char *const calibration[] = {text};
	const fp_prune_request request = {
		.model = source, .output = output, .calibration = calibration, .calibration_count = 1};
	fp_settings *settings = NULL;
	json_t *pruning = NULL;
	json_t *evaluation = NULL;
	char *json = NULL;
	fp_status status = make_settings(&settings, d, contestant, pattern);
	if (status == FP_OK && pattern)
		status = fp_prune(&json, d->ctx, &request, settings);
	if (status == FP_OK && pattern)
		pruning = json_loads(json, 0, NULL);
	if (status == FP_OK)
		status = evaluate(d, pattern ? output : source, settings, &evaluation);
	if (status == FP_OK)
		add_row(d, model, pattern, contestant, evaluation, pruning);
	else if (!d->board->stop)
		fp_cli_failed(d->ctx, status);
	if (pattern)
		remove_tree(output);
	json_decref(pruning);
	json_decref(evaluation);
	fp_text_free(json);
	fp_settings_free(settings);
	return status;
}

static const json_t *find_row(const json_t *rows, const char *model, const char *title, const char *pattern)
{
	for (size_t i = 0; i < json_array_size(rows); i++) {
		const json_t *row = json_array_get(rows, i);
		const char *own = json_string_value(json_object_get(row, "pattern"));
		if (strcmp(fp_cli_text_at(row, "model"), model) == 0 && strcmp(fp_cli_text_at(row, "title"), title) == 0 &&
			(!own || strcmp(own, pattern) == 0))
			return row;
	}
	return NULL;
}

static void add_line(json_t *table, const json_t *rows, const char *title)
{
	json_t *line = json_object();
	json_object_set_new(line, "title", json_string(title));
	for (size_t m = 0; m < MODEL_COUNT; m++)
		for (size_t p = 0; p < PATTERN_COUNT; p++) {
			char key[64];
			snprintf(key, sizeof key, "%s %s", model_names[m], patterns[p]);
			const json_t *row = find_row(rows, model_names[m], title, patterns[p]);
			if (row)
				json_object_set(line, key, json_object_get(row, "perplexity"));
		}
	json_array_append_new(table, line);
}

static void render(const json_t *result)
{
	static const fp_cli_column columns[] = {
		{"title", "perplexity", NULL, 0},
		{"llama-demo 50%", "llama-demo 50%", "%.3f", 1},
		{"llama-demo 2:4", "llama-demo 2:4", "%.3f", 1},
		{"opt-demo 50%", "opt-demo 50%", "%.3f", 1},
		{"opt-demo 2:4", "opt-demo 2:4", "%.3f", 1},
	};
	const json_t *rows = json_object_get(result, "rows");
	json_t *table = json_array();
	add_line(table, rows, "dense");
	for (size_t c = 0; c < CONTESTANT_COUNT; c++)
		add_line(table, rows, contestants[c].title);
	fp_cli_print_table(table, columns, sizeof columns / sizeof columns[0]);
	json_decref(table);
	printf("\nPerplexity tells how surprised a model is by text it has not seen: lower is better, and the dense row is "
		   "the "
		   "goal.\nAt 50%% half of the weights of every linear operator are zero, at 2:4 two of every four neighbours; "
		   "each "
		   "row is a way\nto choose which, and to mend the others.\n\n"
		   "On your own model:\n"
		   "  fistapruner prune MODEL -o DIR --calibration TEXT --pattern 2:4\n"
		   "  fistapruner inspect DIR --pattern 2:4\n"
		   "  fistapruner eval DIR --text OTHER_TEXT\n");
}

static void *run_model(void *data)
{
	demo *d = data;
	const char *model = model_names[d->model];
	d->status = run_one(d, model, NULL, 0);
	for (size_t p = 0; p < PATTERN_COUNT; p++)
		for (size_t c = 0; d->status == FP_OK && c < CONTESTANT_COUNT; c++)
			d->status = run_one(d, model, patterns[p], c);
	if (d->status != FP_OK)
		d->board->stop = 1;
	return NULL;
}

/* The first model on this thread, the others each on one of their own. */
static fp_status run_all(const demo *first)
{
	demo workers[MODEL_COUNT];
	pthread_t threads[MODEL_COUNT];
	size_t started = 1;
	fp_status status = FP_OK;
	first->board->total = MODEL_COUNT * (1 + PATTERN_COUNT * CONTESTANT_COUNT);
	for (size_t m = 0; m < MODEL_COUNT; m++) {
		workers[m] = *first;
		workers[m].model = m;
		if (m == 0)
			continue;
		workers[m].ctx = fp_context_new();
		if (!workers[m].ctx) {
			status = fp_cli_error(FP_ERROR_MEMORY, "out of memory");
			break;
		}
		fp_context_set_interrupt(workers[m].ctx, &first->board->stop);
		if (pthread_create(&threads[m], NULL, run_model, &workers[m]) != 0) {
			fp_context_free(workers[m].ctx);
			status = fp_cli_error(FP_ERROR_RUN, "a thread could not be started");
			break;
		}
		started++;
	}
	if (status == FP_OK) {
		run_model(&workers[0]);
		status = workers[0].status;
	}
	for (size_t m = 1; m < started; m++) {
		if (status != FP_OK)
			first->board->stop = 1;
		pthread_join(threads[m], NULL);
		fp_context_free(workers[m].ctx);
		if (status == FP_OK)
			status = workers[m].status;
	}
	return status;
}

/* Half of the processors (or of --threads) for each model. */
static int threads_each(const demo *d)
{
	char text[32];
	long all = 0;
	if (fp_settings_get(d->options->settings, d->ctx, "threads", text, sizeof text) == FP_OK)
		all = strtol(text, NULL, 10);
	if (all == 0)
		all = sysconf(_SC_NPROCESSORS_ONLN);
	return all > MODEL_COUNT ? (int)(all / MODEL_COUNT) : 1;
}

fp_status fp_cli_demo(fp_context *ctx, const fp_cli_options *options)
{
	demo_board board = {.rows = json_array()};
	demo d = {.ctx = ctx, .options = options, .board = &board};
	const char *folder = getenv("TMPDIR");
	pthread_mutex_init(&board.lock, NULL);
	d.threads = threads_each(&d);
	snprintf(d.work, sizeof d.work, "%s/fistapruner-demo-XXXXXX", folder && *folder ? folder : "/tmp");
	fp_status status = find_models(&d);
	if (status == FP_OK && !mkdtemp(d.work))
		status = fp_cli_error(FP_ERROR_IO, "%s: %s", d.work, strerror(errno));
	if (status == FP_OK) {
		/* One bar for the whole demo, not one for each of its runs. */
		fp_cli_progress_attach(&board.progress, ctx, options);
		fp_context_set_progress(ctx, NULL, NULL);
		if (!options->verbose)
			fp_context_set_log(ctx, NULL, NULL, FP_LOG_ERROR);
		status = run_all(&d);
		fp_cli_progress_clear(&board.progress);
		remove_tree(d.work);
	}
	if (status == FP_OK) {
		json_t *document = json_pack("{s:O}", "rows", board.rows);
		char *json = json_dumps(document, JSON_INDENT(2) | JSON_REAL_PRECISION(10));
		status = json ? fp_cli_print_result(options, json, render) : fp_cli_error(FP_ERROR_MEMORY, "out of memory");
		free(json);
		json_decref(document);
	}
	json_decref(board.rows);
	pthread_mutex_destroy(&board.lock);
	return status;
}
