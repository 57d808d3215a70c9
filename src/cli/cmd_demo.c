/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_demo.c: fistapruner demo: every method and preset on the models that ship with the program. */
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/report_file.h"
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
enum { SCORED_DOCUMENTS = 100 };
static const char *const common_settings[] = {"samples=32", "sequence_length=256", NULL};
/* The fit of `best` is most of its time. Which is said where the figures are. */
static const char *const short_fit[] = {"samples=32", "sequence_length=256", "fit_steps=30", "fit_tokens=1024", NULL};
#define NOTE                                                                                                           \
	"32 windows of calibration text, the first 100 stories of the evaluation text, and for preset best 30 steps of "   \
	"1,024 tokens a layer: a demonstration of a minute, no benchmark."

static const char *const model_names[] = {"llama-demo", "opt-demo"};
static const char *const patterns[] = {"50%", "2:4"};
static const struct {
	const char *method, *preset, *title;
} contestants[] = {
	{"magnitude", NULL, "magnitude"},
	{"wanda", NULL, "Wanda"},
	{"sparsegpt", NULL, "SparseGPT"},
	{"admm", NULL, "ADMM"},
	{"fista", "paper", "FISTAPruner, as published"},
	{"fista", "fast", "FISTAPruner, preset fast"},
	{"fista", "best", "FISTAPruner, preset best"},
};
/* Two comparisons a model, which share a journal: the second finds the dense row there. */
static const struct {
	const char *methods, *presets;
	const char *const *settings;
	int cells; /* that are run */
} parts[] = {
	{"magnitude,wanda,sparsegpt,admm,fista", "paper,fast", common_settings, 13},
	{"fista", "best", short_fit, 2},
};
enum {
	MODEL_COUNT = sizeof model_names / sizeof model_names[0],
	PATTERN_COUNT = sizeof patterns / sizeof patterns[0],
	CONTESTANT_COUNT = sizeof contestants / sizeof contestants[0],
	PART_COUNT = sizeof parts / sizeof parts[0],
};

/* What the workers share; the lock guards it. */
typedef struct demo_board {
	pthread_mutex_t lock;
	fp_cli_progress progress;
	int64_t done[MODEL_COUNT], total;
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
	int64_t before;        /* cells of the parts before this one */
	json_t *comparison;    /* the document of fp_compare(), all parts in one */
	char models[PATH_MAX]; /* where the demo models are */
	char work[PATH_MAX];   /* a folder of our own for the journals and the scored text */
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

/* The beginning of the evaluation text, as a file of its own. */
static fp_status cut_text(const demo *d)
{
	char from[PATH_MAX + 32];
	char to[PATH_MAX + 32];
	char *line = NULL;
	size_t capacity = 0;
	snprintf(from, sizeof from, "%s/evaluation.jsonl", d->models);
	snprintf(to, sizeof to, "%s/evaluation.jsonl", d->work);
	FILE *in = fopen(from, "r");
	FILE *out = in ? fopen(to, "w") : NULL;
	bool good = out != NULL;
	for (int i = 0; good && i < SCORED_DOCUMENTS && getline(&line, &capacity, in) > 0; i++)
		good = fputs(line, out) >= 0;
	free(line);
	if (in)
		fclose(in);
	if (out)
		good = fclose(out) == 0 && good;
	return good ? FP_OK : fp_cli_error(FP_ERROR_IO, "%s: cannot be made from %s", to, from);
}

static fp_status make_settings(fp_settings **out, const demo *d, const char *const *assignments)
{
	char threads[32];
	snprintf(threads, sizeof threads, "%d", d->threads);
	fp_status status = fp_settings_new(out, d->ctx);
	if (status == FP_OK)
		status = fp_settings_set(*out, d->ctx, "threads", threads);
	for (size_t i = 0; status == FP_OK && assignments[i]; i++)
		status = fp_settings_assign(*out, d->ctx, assignments[i]);
	return status;
}

static void show_progress(void *data, const char *stage, int64_t done, int64_t total)
{
	const demo *d = data;
	demo_board *board = d->board;
	int64_t all = 0;
	(void)stage;
	(void)total;
	pthread_mutex_lock(&board->lock);
	board->done[d->model] = d->before + done;
	for (size_t m = 0; m < MODEL_COUNT; m++)
		all += board->done[m];
	fp_cli_progress_step(&board->progress, "demo", all, board->total);
	pthread_mutex_unlock(&board->lock);
}

/* The rows of a later part, dense left out, go to those of the first. */
static void join(demo *d, json_t *document)
{
	if (!d->comparison) {
		d->comparison = document;
		return;
	}
	json_t *rows = json_object_get(d->comparison, "rows");
	for (size_t i = 1; i < json_array_size(json_object_get(document, "rows")); i++)
		json_array_append(rows, json_array_get(json_object_get(document, "rows"), i));
	double seconds = json_number_value(json_object_get(d->comparison, "seconds")) +
					 json_number_value(json_object_get(document, "seconds"));
	json_object_set_new(d->comparison, "seconds", json_real(seconds));
	json_decref(document);
}

static fp_status run_part(demo *d, size_t part)
{
	char model[PATH_MAX + 32];
	char calibration_text[PATH_MAX + 32];
	char text[PATH_MAX + 32];
	char journal[PATH_MAX + 32];
	snprintf(model, sizeof model, "%s/%s", d->models, model_names[d->model]);
	snprintf(calibration_text, sizeof calibration_text, "%s/calibration.jsonl", d->models);
	snprintf(text, sizeof text, "%s/evaluation.jsonl", d->work);
	snprintf(journal, sizeof journal, "%s/%s.jsonl", d->work, model_names[d->model]);
	const char *const calibration[] = {calibration_text};
	const fp_compare_request request = {.model = model,
										.calibration = calibration,
										.calibration_count = 1,
										.text = text,
										.methods = parts[part].methods,
										.presets = parts[part].presets,
										.patterns = "50%,2:4",
										.journal = journal};
	fp_settings *settings = NULL;
	char *json = NULL;
	fp_status status = make_settings(&settings, d, parts[part].settings);
	if (status == FP_OK)
		status = fp_compare(&json, d->ctx, &request, settings);
	if (status == FP_OK)
		join(d, json_loads(json, 0, NULL));
	else if (!__atomic_load_n(&d->board->stop, __ATOMIC_RELAXED))
		fp_cli_failed(d->ctx, status);
	fp_text_free(json);
	fp_settings_free(settings);
	d->before += parts[part].cells;
	return status;
}

static const char *title_of(const json_t *row)
{
	for (size_t c = 0; c < CONTESTANT_COUNT; c++)
		if (strcmp(fp_cli_text_at(row, "method"), contestants[c].method) == 0 &&
			(!contestants[c].preset || strcmp(fp_cli_text_at(row, "preset"), contestants[c].preset) == 0))
			return contestants[c].title;
	return "dense";
}

/* What --json tells of a comparison's rows. */
static void add_rows(json_t *all, const char *model, const json_t *comparison)
{
	static const char *const taken[] = {"method", "preset", "pattern", "perplexity", "relative_error", "seconds"};
	const json_t *rows = json_object_get(comparison, "rows");
	for (size_t i = 0; i < json_array_size(rows); i++) {
		const json_t *from = json_array_get(rows, i);
		json_t *row = json_pack("{s:s, s:s}", "model", model, "title", title_of(from));
		for (size_t k = 0; k < sizeof taken / sizeof taken[0]; k++) {
			json_t *value = json_object_get(from, taken[k]);
			if (value && !json_is_null(value))
				json_object_set(row, taken[k], value);
		}
		json_array_append_new(all, row);
	}
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
		{"title", "perplexity", NULL, 0, false},
		{"llama-demo 50%", "llama-demo 50%", "%.3f", 1, false},
		{"llama-demo 2:4", "llama-demo 2:4", "%.3f", 1, false},
		{"opt-demo 50%", "opt-demo 50%", "%.3f", 1, false},
		{"opt-demo 2:4", "opt-demo 2:4", "%.3f", 1, false},
	};
	const json_t *rows = json_object_get(result, "rows");
	const char *report = fp_cli_text_at(result, "report");
	json_t *table = json_array();
	add_line(table, rows, "dense");
	for (size_t c = 0; c < CONTESTANT_COUNT; c++)
		add_line(table, rows, contestants[c].title);
	fp_cli_print_table(table, columns, sizeof columns / sizeof columns[0]);
	json_decref(table);
	printf(
		"\nPerplexity tells how surprised a model is by text it has not seen: lower is better, and the dense row is\n"
		"the goal. At 50%% half of the weights of every linear operator are zero, at 2:4 two of every four\n"
		"neighbours; each row is a way to choose which, and to mend the others. 32 windows of calibration text,\n"
		"100 stories scored, a short fit for best: a demonstration, no benchmark.\n\n");
	if (*report)
		printf("Charts, errors by layer and times: %s\n\n", report);
	printf("On your own model (a directory, or a name in the Hugging Face cache):\n"
		   "  fistapruner prune MODEL -o DIR --calibration TEXT --pattern 2:4\n"
		   "  fistapruner inspect DIR --pattern 2:4\n"
		   "  fistapruner eval DIR --text OTHER_TEXT\n");
}

static void *run_model(void *data)
{
	demo *d = data;
	fp_context_set_progress(d->ctx, show_progress, d);
	d->status = FP_OK;
	for (size_t part = 0; d->status == FP_OK && part < PART_COUNT; part++)
		d->status = run_part(d, part);
	fp_context_set_progress(d->ctx, NULL, NULL);
	if (d->status != FP_OK)
		__atomic_store_n(&d->board->stop, 1, __ATOMIC_RELAXED);
	return NULL;
}

/* The first model on this thread, the others each on one of their own. */
static fp_status run_all(const demo *first, json_t *comparisons)
{
	demo workers[MODEL_COUNT];
	pthread_t threads[MODEL_COUNT];
	size_t started = 1;
	fp_status status = FP_OK;
	for (size_t part = 0; part < PART_COUNT; part++)
		first->board->total += (int64_t)MODEL_COUNT * parts[part].cells;
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
			__atomic_store_n(&first->board->stop, 1, __ATOMIC_RELAXED);
		pthread_join(threads[m], NULL);
		fp_context_free(workers[m].ctx);
		if (status == FP_OK)
			status = workers[m].status;
	}
	for (size_t m = 0; m < started; m++)
		if (workers[m].comparison)
			json_array_append_new(comparisons, workers[m].comparison);
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

/* Without --report the page goes into the current folder, where that can be written. */
static fp_status check_report(fp_cli_options *options)
{
	if (options->report)
		return fp_cli_report_check(options);
	options->report = access(".", W_OK) == 0 ? "fistapruner-demo.html" : NULL;
	return FP_OK;
}

static fp_status print_all(const demo *d, const fp_cli_options *options, json_t *comparisons)
{
	json_t *page = json_pack("{s:s, s:O}", "note", NOTE, "comparisons", comparisons);
	json_t *document = json_pack("{s:s, s:[], s:s*}", "note", NOTE, "rows", "report", options->report);
	for (size_t m = 0; m < MODEL_COUNT && m < json_array_size(comparisons); m++)
		add_rows(json_object_get(document, "rows"), model_names[m], json_array_get(comparisons, m));
	char *json = json_dumps(page, JSON_REAL_PRECISION(10));
	fp_status status =
		json ? fp_cli_report_write(d->ctx, options, json) : fp_cli_error(FP_ERROR_MEMORY, "out of memory");
	free(json);
	json = status == FP_OK ? json_dumps(document, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) : NULL;
	if (json)
		status = fp_cli_print_result(options, json, render);
	free(json);
	json_decref(document);
	json_decref(page);
	return status;
}

fp_status fp_cli_demo(fp_context *ctx, const fp_cli_options *options)
{
	fp_cli_options own = *options;
	demo_board board = {.total = 0};
	demo d = {.ctx = ctx, .options = &own, .board = &board};
	json_t *comparisons = json_array();
	const char *folder = getenv("TMPDIR");
	pthread_mutex_init(&board.lock, NULL);
	d.threads = threads_each(&d);
	snprintf(d.work, sizeof d.work, "%s/fistapruner-demo-XXXXXX", folder && *folder ? folder : "/tmp");
	fp_status status = find_models(&d);
	if (status == FP_OK)
		status = check_report(&own);
	if (status == FP_OK && !mkdtemp(d.work))
		status = fp_cli_error(FP_ERROR_IO, "%s: %s", d.work, strerror(errno));
	if (status == FP_OK) {
		/* One bar for the whole demo, not one for each of its runs. */
		fp_cli_progress_attach(&board.progress, ctx, &own);
		fp_context_set_progress(ctx, NULL, NULL);
		if (!own.verbose)
			fp_context_set_log(ctx, NULL, NULL, FP_LOG_ERROR);
		status = cut_text(&d);
		if (status == FP_OK)
			status = run_all(&d, comparisons);
		fp_cli_progress_clear(&board.progress);
		remove_tree(d.work);
	}
	if (status == FP_OK)
		status = print_all(&d, &own, comparisons);
	json_decref(comparisons);
	pthread_mutex_destroy(&board.lock);
	return status;
}
