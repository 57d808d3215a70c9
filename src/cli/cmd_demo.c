/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_demo.c: fistapruner demo: every method and preset on the models that ship with the program. */
#include "cli/commands.h"
#include "cli/demo_table.h"
#include "cli/progress.h"
#include "cli/report_file.h"

#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Small enough for a minute or two on two processors, large enough to show the order of the methods. */
enum { SCORED_DOCUMENTS = 100, METHODS_SIZE = 256 };
static const char *const common_settings[] = {"samples=32", "sequence_length=256", NULL};
/* A full fit would take most of the demo's time. */
#define SHORT_FIT "samples=32", "sequence_length=256", "fit_steps=30", "fit_tokens=1024"
static const char *const short_fit[] = {SHORT_FIT, NULL};
static const char *const short_fit_plain[] = {SHORT_FIT, "basis=none", NULL};
#define NOTE                                                                                                           \
	"This is a short demonstration, not a benchmark: 32 windows of calibration text, the first 100 stories of "        \
	"the evaluation text, and for best a short fit of 30 steps of 1,024 tokens per layer. The presets fast and best "  \
	"prune these models in the basis full, which is learned and folded into the weights; one row shows best without "  \
	"it."

static const char *const model_names[] = {"llama-demo", "opt-demo", "moe-demo"};
static const char patterns[] = "50%,2:4";
/* Comparisons of each model with one journal, in which the later ones find the dense row. */
static const struct {
	bool all_methods; /* else fista alone */
	const char *presets;
	const char *const *settings;
	const char *addition; /* to the titles of the rows */
} parts[] = {
	{true, "paper,fast", common_settings, NULL},
	{false, "best", short_fit_plain, "basis none, short fit"}, /* shows what the basis does */
	{false, "best", short_fit, "short fit"},
};
enum {
	MODEL_COUNT = sizeof model_names / sizeof model_names[0],
	PART_COUNT = sizeof parts / sizeof parts[0],
};

/* Progress of all workers together; the lock guards it. */
typedef struct demo_progress {
	pthread_mutex_t lock;
	fp_cli_progress bar;
	int64_t done[MODEL_COUNT], total; /* cells: prunes and evaluations */
	volatile int stop;                /* a worker failed or was interrupted: the others end too */
} demo_progress;

/* One worker per model: the models are so small that several of them use the processors better than one of them could. */
typedef struct demo {
	fp_context *ctx;
	const fp_cli_options *options;
	demo_progress *progress;
	size_t model;
	int threads;
	fp_status status;
	int64_t before;        /* cells of the parts before this one */
	json_t *comparison;    /* the document of fp_compare(), all parts in one */
	char models[PATH_MAX]; /* directory of the demo models */
	char work[PATH_MAX];   /* temporary directory for the journals and the scored text */
} demo;

/* "magnitude,wanda,…": every method of the program. */
static void list_methods(char *out, size_t size)
{
	const fp_method_info *method;
	size_t used = 0;
	for (size_t i = 0; (method = fp_method_at(i)) && used < size; i++)
		used += (size_t)snprintf(out + used, size - used, "%s%s", i ? "," : "", method->name);
}

static int count_words(const char *list)
{
	int count = 1;
	for (; *list; list++)
		count += *list == ',';
	return count;
}

/* How many cells a part runs for one model: method fista once per preset, the others once; the dense model first. */
static int64_t count_cells(size_t part)
{
	char methods[METHODS_SIZE] = "";
	list_methods(methods, sizeof methods);
	int others = parts[part].all_methods ? count_words(methods) - 1 : 0;
	return (part == 0) + (int64_t)count_words(patterns) * (others + count_words(parts[part].presets));
}

/* Finds the models: beside an installed program (../share/fistapruner/models) or in the source tree of the build. */
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

/* Copies the first documents of the evaluation text into a file of their own. */
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
	demo_progress *progress = d->progress;
	int64_t all = 0;
	(void)stage;
	(void)total;
	pthread_mutex_lock(&progress->lock);
	progress->done[d->model] = d->before + done;
	for (size_t m = 0; m < MODEL_COUNT; m++)
		all += progress->done[m];
	fp_cli_progress_step(&progress->bar, "demo", all, progress->total);
	pthread_mutex_unlock(&progress->lock);
}

/* Appends the rows of a later part, without the dense one, to those of the first. */
static void add_part(demo *d, size_t part, json_t *document)
{
	fp_cli_demo_add_titles(document, parts[part].addition);
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
	char methods[METHODS_SIZE] = "";
	list_methods(methods, sizeof methods);
	snprintf(model, sizeof model, "%s/%s", d->models, model_names[d->model]);
	snprintf(calibration_text, sizeof calibration_text, "%s/calibration.jsonl", d->models);
	snprintf(text, sizeof text, "%s/evaluation.jsonl", d->work);
	snprintf(journal, sizeof journal, "%s/%s.jsonl", d->work, model_names[d->model]);
	const char *const calibration[] = {calibration_text};
	const fp_compare_request request = {.model = model,
										.calibration = calibration,
										.calibration_count = 1,
										.text = text,
										.methods = parts[part].all_methods ? methods : "fista",
										.presets = parts[part].presets,
										.patterns = patterns,
										.journal = journal};
	fp_settings *settings = NULL;
	char *json = NULL;
	fp_status status = make_settings(&settings, d, parts[part].settings);
	if (status == FP_OK)
		status = fp_compare(&json, d->ctx, &request, settings);
	if (status == FP_OK)
		add_part(d, part, json_loads(json, 0, NULL));
	else if (!__atomic_load_n(&d->progress->stop, __ATOMIC_RELAXED))
		fp_cli_failed(d->ctx, status);
	fp_text_free(json);
	fp_settings_free(settings);
	d->before += count_cells(part);
	return status;
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
		__atomic_store_n(&d->progress->stop, 1, __ATOMIC_RELAXED);
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
		first->progress->total += (int64_t)MODEL_COUNT * count_cells(part);
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
		fp_context_set_interrupt(workers[m].ctx, &first->progress->stop);
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
			__atomic_store_n(&first->progress->stop, 1, __ATOMIC_RELAXED);
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

/* The processors that this process may use, shared equally between the models. */
static int threads_each(void)
{
	cpu_set_t usable;
	int all = sched_getaffinity(0, sizeof usable, &usable) == 0 ? CPU_COUNT(&usable) : MODEL_COUNT;
	return all > MODEL_COUNT ? all / MODEL_COUNT : 1;
}

/* Without --report the page goes into the current directory, if that is writable. */
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
		fp_cli_demo_add_rows(json_object_get(document, "rows"), json_array_get(comparisons, m));
	char *json = json_dumps(page, JSON_REAL_PRECISION(10));
	fp_status status =
		json ? fp_cli_report_write(d->ctx, options, json) : fp_cli_error(FP_ERROR_MEMORY, "out of memory");
	free(json);
	json = status == FP_OK ? json_dumps(document, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) : NULL;
	if (json)
		status = fp_cli_print_result(options, json, fp_cli_demo_render);
	free(json);
	json_decref(document);
	json_decref(page);
	return status;
}

fp_status fp_cli_demo(fp_context *ctx, const fp_cli_options *options)
{
	fp_cli_options own = *options;
	demo_progress progress = {.total = 0};
	demo d = {.ctx = ctx, .options = &own, .progress = &progress};
	json_t *comparisons = json_array();
	const char *folder = getenv("TMPDIR");
	pthread_mutex_init(&progress.lock, NULL);
	d.threads = threads_each();
	snprintf(d.work, sizeof d.work, "%s/fistapruner-demo-XXXXXX", folder && *folder ? folder : "/tmp");
	fp_status status = find_models(&d);
	if (status == FP_OK)
		status = check_report(&own);
	if (status == FP_OK && !mkdtemp(d.work))
		status = fp_cli_error(FP_ERROR_IO, "%s: %s", d.work, strerror(errno));
	if (status == FP_OK) {
		/* one bar for the whole demo, not one per run */
		fp_cli_progress_attach(&progress.bar, ctx, &own);
		fp_context_set_progress(ctx, NULL, NULL);
		if (!own.verbose)
			fp_context_set_log(ctx, NULL, NULL, FP_LOG_ERROR);
		status = cut_text(&d);
		if (status == FP_OK)
			status = run_all(&d, comparisons);
		fp_cli_progress_clear(&progress.bar);
		remove_tree(d.work);
	}
	if (status == FP_OK)
		status = print_all(&d, &own, comparisons);
	json_decref(comparisons);
	pthread_mutex_destroy(&progress.lock);
	return status;
}
