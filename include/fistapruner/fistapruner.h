/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fistapruner.h: the public interface. It is plain C, usable from C++ and through ctypes, and needs no other library's
 * headers.
 *
 * Calls return a status; fp_context_message() says why a call failed. Results that are more than a number are one JSON
 * document (docs/cli.md lists the keys), which the caller frees with fp_text_free(). Only one thread at a time may use a
 * context.
 */
#ifndef FISTAPRUNER_H
#define FISTAPRUNER_H

#include <fistapruner/context.h>
#include <fistapruner/settings.h>
#include <fistapruner/status.h>
#include <fistapruner/tasks.h>

#ifdef __cplusplus
extern "C" {
#endif

/* "0.2.0". Borrowed. */
FP_API const char *fp_version(void);
/* Which build this is: a digest of all sources as 16 hexadecimal digits, equal for equal sources only. Borrowed. */
FP_API const char *fp_build_id(void);
/* The git commit of the sources, followed by "-dirty" if files had changed since; "" when it is not known. Borrowed. */
FP_API const char *fp_build_commit(void);
/* The value of the environment variable OPENBLAS_CORETYPE with which OpenBLAS would be about ten times faster, because
 * it does not know this processor; NULL when OpenBLAS does, or when the variable is set. OpenBLAS reads the variable
 * only when it is loaded. Borrowed. */
FP_API const char *fp_openblas_kernel(void);
/* Frees a text that a call returned. NULL is allowed. */
FP_API void fp_text_free(char *text);

/*
 * Prunes the checkpoint `model` (a directory, or org/name[@revision] in the Hugging Face cache) and writes it as the
 * directory `output`, which must not exist, or be empty. calibration: one or more text files, or the word "self"
 * (none: the same, if the method needs text) for windows that the model writes. With dry_run nothing is written and
 * the document says what would be done. metrics (may be NULL) is called with one JSON line per operator as soon as it is
 * pruned.
 *
 * Until the output is complete, finished layers are kept in a hidden directory beside it. If the call fails or the
 * process is killed, a later call with resume continues the run and gives the same bytes as an undisturbed one. It is
 * refused if the model, the text, the settings or the build differ. Without resume an unfinished run is an error.
 *
 * With ranks, processes that mpirun (or srun --mpi=pmix) started share the work. All of them make the same call and
 * see the same directories. Rank 0 gets the document, the others NULL. If the call fails, the process should exit soon
 * with a code other than 0, so that the launcher ends the others. An empty message means that another rank reports the
 * error.
 */
typedef void (*fp_metrics_function)(void *data, const char *line);
typedef struct fp_prune_request {
	const char *model;
	const char *output; /* may be NULL with dry_run */
	const char *const *calibration;
	int calibration_count;
	int dry_run;
	int resume;
	int ranks;
	fp_metrics_function metrics;
	void *metrics_data;
	int64_t *kept;     /* may be NULL; after a failure: how many layers are kept for a resume */
	int hidden_errors; /* also measure the error of the hidden state after each layer: layers[].hidden_error */
	int check;         /* also measure the output on calibration windows that the run does not use: check.{kl, …} */
} fp_prune_request;
/* Runs the request; *json: the report, which is also written as pruning_report.json. */
FP_API fp_status fp_prune(char **json, fp_context *ctx, const fp_prune_request *request, const fp_settings *settings);

/*
 * Fits all remaining weights of the pruned checkpoint `model` to the predictions of `reference`, the dense model that it
 * was pruned from, on windows of the calibration text (none, or "self": `reference` writes it, also besides files), and writes it as the
 * directory `output`, which must not exist, or be empty. Zeros of weights stay zeros. Some windows are held out (the setting fit_holdout); the weights that are
 * written are those of the best point on these, which may be the start. The whole model must fit into memory.
 */
typedef struct fp_distill_request {
	const char *model, *reference, *output;
	const char *const *calibration;
	int calibration_count;
} fp_distill_request;
/* Runs the request; *json: kl_before and kl_after on the held-out windows, steps, kept_steps, windows, seconds. */
FP_API fp_status fp_distill(char **json, fp_context *ctx, const fp_distill_request *request,
							const fp_settings *settings);

/* Perplexity of `model` on the text file: perplexity, windows, tokens, sequence_length, protocol, model, seconds. */
FP_API fp_status fp_evaluate(char **json, fp_context *ctx, const char *model, const char *text,
							 const fp_settings *settings);
/* The same, and how far its predictions are from those of `reference`, the dense model that was pruned: kl, kl_stderr,
 * kl_median, kl_p99, top1, perplexity_ratio. reference NULL: as fp_evaluate(). */
FP_API fp_status fp_evaluate_against(char **json, fp_context *ctx, const char *model, const char *reference,
									 const char *text, const fp_settings *settings);

/*
 * Zero-shot accuracy of `model` on tasks, each "NAME=FILE" (docs/cli.md lists the names and the files), by the prompts
 * and rules of lm-evaluation-harness. sampled (may be NULL) is called with one JSON line per example.
 */
typedef struct fp_tasks_request {
	const char *model;
	const char *const *tasks;
	int task_count;
	fp_metrics_function sampled;
	void *sampled_data;
} fp_tasks_request;
/* Runs the request; *json: tasks[] with samples, acc, acc_stderr and the other scores of the task. */
FP_API fp_status fp_evaluate_tasks(char **json, fp_context *ctx, const fp_tasks_request *request,
								   const fp_settings *settings);

/*
 * Prunes and evaluates `model` once for every method × preset × correction × pattern × sample count × seed, and the
 * dense model: rows[] with method, preset, pattern, perplexity, kl, relative_error, seconds. calibration: as in
 * fp_prune_request. Lists are comma-separated; NULL: those of the recipe (main|sparsity|correction|samples|seeds; NULL:
 * main). No pruned model is written. journal (may be NULL) is a file that keeps finished rows: a stopped run continues,
 * and no row is computed twice as long as the build, the model, the texts and the settings are the same.
 */
typedef struct fp_compare_request {
	const char *model;
	const char *const *calibration;
	int calibration_count;
	const char *text;
	const char *recipe;
	const char *methods, *presets, *corrections, *patterns, *samples, *seeds;
	const char *journal;
} fp_compare_request;
/* Runs the request, or the rows that are not in the journal. */
FP_API fp_status fp_compare(char **json, fp_context *ctx, const fp_compare_request *request,
							const fp_settings *settings);

/* A document of fp_prune() or fp_compare(), or {"note": …, "comparisons": […]} with several of the latter, as one
 * self-contained HTML page. Freed with fp_text_free(). */
FP_API fp_status fp_report_page(char **html, fp_context *ctx, const char *json);

/* Architecture, parameters and sparsity, per tensor and in total. With a pattern (not NULL) every operator of the
 * decoder layers is checked against it; if the check fails, the status is FP_ERROR_CHECK and the document is still made.
 */
FP_API fp_status fp_inspect(char **json, fp_context *ctx, const char *model, const char *pattern);

/* Writes the safetensors checkpoint `model` as the directory `output`, which must not exist, or be empty, with every
 * sparse matrix stored without its zeros (docs/packed.md); all calls read it like `model`. The document has by_mask and
 * as_2_4, the numbers of packed matrices, and their bytes. */
FP_API fp_status fp_pack(char **json, fp_context *ctx, const char *model, const char *output);
/* Writes the files of a packed checkpoint as they were before, to the byte. Damaged ones are refused. */
FP_API fp_status fp_unpack(char **json, fp_context *ctx, const char *model, const char *output);

/* Read bandwidth and the rate of matrix products of the settings' device; with a model (not NULL) also its tokens per
 * second for a prompt and for text after it, with weights dense and without their zeros, as shares of those. */
FP_API fp_status fp_bench(char **json, fp_context *ctx, const char *model, const fp_settings *settings);

/* Token ids of a text file: ids[] for plain text; documents[].ids for JSON lines. Text NULL: `size` bytes at `bytes`
 * instead. */
FP_API fp_status fp_tokenize(char **json, fp_context *ctx, const char *model, const char *text, const char *bytes,
							 int64_t size);

/*
 * Continues a prompt, or with `batch` each of the prompts in a file of JSON lines ("prompt" or "text"), with the whole
 * model in memory. The settings have max_tokens, temperature, top_k, top_p, seed and batch_size. text (may be NULL) is
 * called with the text after a prompt as it comes, whole characters of UTF-8; finished (may be NULL) with one JSON line
 * per prompt of a batch, in their order.
 */
typedef void (*fp_text_function)(void *data, const char *bytes, int64_t size);
typedef struct fp_generate_request {
	const char *model;
	const char *prompt; /* prompt_size bytes; ignored with `batch` */
	int64_t prompt_size;
	const char *batch; /* NULL: one prompt */
	fp_text_function text;
	void *text_data;
	fp_metrics_function finished;
	void *finished_data;
} fp_generate_request;
/* Runs the request; *json: results[] with text, ids, tokens and stop, and tokens_per_second. */
FP_API fp_status fp_generate(char **json, fp_context *ctx, const fp_generate_request *request,
							 const fp_settings *settings);

/*
 * Prunes one matrix:  min ‖V X* − W X‖²_F over V with the pattern of the settings, in Gram form.
 *   weights   W, rows × cols, row-major
 *   gram      A = X* X*ᵀ, cols × cols, symmetric
 *   target    C = W X X*ᵀ, rows × cols; NULL: W·A, that is X* = X
 *   energy    y² = ‖W X‖²_F; ignored if target is NULL
 *   result    V, rows × cols; may be `weights`
 * The method, preset and solver settings apply. `family` is the model_type on which presets may depend, such as "opt"
 * (NULL: none).
 */
typedef struct fp_matrix_problem {
	int64_t rows, cols;
	const float *weights, *gram, *target;
	double energy;
	const char *family;
} fp_matrix_problem;
typedef struct fp_matrix_report {
	double error, relative_error; /* ‖VX* − WX‖_F, and that over ‖WX‖_F */
	double sparsity;
	double lambda;      /* of the best solution; 0 if the method has no λ */
	int64_t iterations; /* FISTA steps in total */
} fp_matrix_report;
/* Solves the problem; *report has the error. */
FP_API fp_status fp_prune_matrix(float *result, fp_matrix_report *report, fp_context *ctx,
								 const fp_matrix_problem *problem, const fp_settings *settings);

#ifdef __cplusplus
}
#endif
#endif
