/* SPDX-License-Identifier: Apache-2.0 */
/*
 * settings.h: every setting of the program, once. The struct, defaults, bounds, command-line flags, --help, the man
 * page and the record of a run are all generated from the table below.
 */
#ifndef FISTAPRUNER_SETTINGS_H
#define FISTAPRUNER_SETTINGS_H

#include <fistapruner/context.h>
#include <fistapruner/methods.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* "magnitude|wanda|…", without the '|' that comes first */
#define FP_METHOD_WORD(name, ...) "|" #name
#define FP_METHOD_WORDS (&(FP_METHOD_LIST(FP_METHOD_WORD))[1])

/*
 * X(kind, name, default, minimum, maximum, choices, commands, help)
 *   kind      INT | REAL | FLAG | TEXT | CHOICE
 *   name      field of fp_settings; its flag is --name with '-' for '_'; --set name=value accepts all of them
 *   default   used where no preset sets it; --help shows what the default preset uses
 *   choices   CHOICE: the words, '|' between them; TEXT, INT, REAL: the placeholder for the value in --help
 *   commands  letters of the commands that have the flag: p prune, e eval, c compare, g generate, s distill; "" : --set only
 */
#define FP_SETTINGS_TABLE(X)                                                                                           \
	X(TEXT, pattern, "50%", 0, 0, "50%|2:4|N:M|REGEX=PATTERN", "p",                                                    \
	  "sparsity (share of zeros) of each matrix, or N:M: N entries kept of every M consecutive entries of a row; "     \
	  "REGEX=PATTERN: for operators whose tensor name matches; may be given several times, the first match wins")      \
	X(TEXT, only, "", 0, 0, "REGEX", "p", "prune only operators whose tensor name matches; empty: all")                \
	X(TEXT, skip, "", 0, 0, "REGEX", "p", "leave operators whose tensor name matches as they are; empty: none")        \
	X(CHOICE, quantize, "none", 0, 0, "none|int4|int4-g32|int4-asym|int4-asym-g32|int8|fp8", "pc",                     \
	  "store the pruned operators in fewer bits, as compressed-tensors: 4-bit integers with a scale for each 128 or "  \
	  "32 entries of a row (asym: and a zero point), or 8-bit integers or floats with a scale for each row; zeros "    \
	  "stay zeros, and --pattern 0% prunes nothing and keeps the zeros of MODEL")                                      \
	X(CHOICE, method, "fista", 0, 0, FP_METHOD_WORDS, "p",                                                             \
	  "pruning method; fista runs what --preset says, the others run with their authors' defaults")                    \
	X(CHOICE, preset, "best", 0, 0, "best|fast|paper", "pc",                                                           \
	  "what the method fista runs, described below; flags and --set override it in any order")                         \
	X(CHOICE, warm_start, "wanda", 0, 0, "wanda|sparsegpt|magnitude|dense", "p",                                       \
	  "weights from which the solver starts")                                                                          \
	X(CHOICE, correction, "intra", 0, 0, "none|intra|cross", "p",                                                      \
	  "which earlier pruning errors an operator compensates: none; intra: those of its own layer, so that "            \
	  "layers stay independent; cross: those of all layers before it too")                                             \
	X(CHOICE, basis, "none", 0, 0, "auto|full|local|none", "pc",                                                       \
	  "change of basis before pruning, learned so that the pattern removes little, and folded into the weights: "      \
	  "local: rotates the attention heads and, for N:M, reorders the inner channels; full: also rotates the residual " \
	  "stream, which gives a model with tied embeddings a separate lm_head; auto: full unless that lm_head adds more " \
	  "than 15% to the checkpoint; none: no change")                                                                   \
	X(REAL, allocate, 0, 0, 0.5, "X", "p",                                                                             \
	  "unstructured patterns: give operators to which the loss is sensitive fewer zeros, at most X away from "         \
	  "the pattern's sparsity; 0: the same sparsity for each")                                                         \
	X(CHOICE, sampler, "packed", 0, 0, "packed|c4", "pcs",                                                             \
	  "how calibration windows are drawn: packed: documents joined end to end; c4: as SparseGPT's and Wanda's "        \
	  "scripts draw them")                                                                                             \
	X(INT, samples, 128, 0, 1000000, "N", "pcs", "number of calibration windows; 0: as many as the text has")          \
	X(INT, sequence_length, 0, 0, 1048576, "N", "pecs", "tokens per window; 0: the model's own length, at most 8192")  \
	X(INT, seed, 0, 0, 9007199254740991, "N", "pcgs",                                                                  \
	  "seed of the calibration sample (0 with packed: the first windows of the text), or of the tokens that generate " \
	  "draws")                                                                                                         \
	X(TEXT, layers, "", 0, 0, "A-B", "p", "prune only these decoder layers, counted from 0; empty: all")               \
	X(TEXT, device, "auto", 0, 0, "auto|cpu|cuda[:N]", "pecgbs", "where to compute")                                   \
	X(CHOICE, precision, "auto", 0, 0, "auto|fp32|bf16x3|tf32|bf16", "pecgbs",                                         \
	  "arithmetic of matrix products where rounding is harmless, on a GPU or a CPU with AMX or AVX512-BF16; auto: "    \
	  "bf16 in prune and generate, tf32 in eval (AVX512-BF16: fp32), and fp32 for models with a hidden size of 512 "   \
	  "or less and on other CPUs")                                                                                     \
	X(INT, threads, 0, 0, 4096, "N", "pecgbs", "CPU threads; 0: as many as this process may use")                      \
	X(TEXT, memory, "", 0, 0, "SIZE", "pecgbs",                                                                        \
	  "upper limit for memory, such as 2G; with a GPU, for its memory; empty: what is free")                           \
	X(CHOICE, protocol, "documents", 0, 0, "documents|wikitext2|ptb|c4", "ec", "how the text is cut into windows")     \
	X(INT, limit, 0, 0, 1000000000, "N", "e", "with --task: only the first N examples of each file; 0: all")           \
	X(INT, max_tokens, 256, 1, 1048576, "N", "g", "the most tokens to write after a prompt")                           \
	X(REAL, temperature, 0, 0, 100, "T", "g",                                                                          \
	  "0: always take the most likely token; T > 0: draw tokens from softmax(logits / T)")                             \
	X(INT, top_k, 0, 0, 100000000, "K", "g", "draw from the K most likely tokens only; 0: from all")                   \
	X(REAL, top_p, 1, 0, 1, "P", "g", "draw from the fewest tokens that have the probability P together; 1: from all") \
	X(INT, batch_size, 8, 1, 65536, "N", "g", "with --batch: how many prompts are continued at once")                  \
	X(TEXT, pattern_rules, "", 0, 0, "REGEX=PATTERN", "", "the rules of --pattern REGEX=PATTERN, one on each line")    \
	/* the published algorithm */                                                                                      \
	X(INT, iterations, 20, 0, 100000, "K", "", "FISTA steps for one lambda; 0: no FISTA")                              \
	X(REAL, step_tolerance, 1e-6, 0, 1, "X", "",                                                                       \
	  "FISTA stops when a step moves the weights by less than this (Frobenius norm)")                                  \
	X(INT, patience, 3, 1, 1000, "T", "", "lambda search: rounds without improvement before it stops")                 \
	X(REAL, tolerance, 1e-3, 0, 1, "E", "", "lambda search: stops when the relative improvement is smaller than this") \
	X(REAL, rounding_share, 0.3, 0, 1, "XI", "", "lambda search: share of the error that rounding should cause")       \
	X(REAL, lambda_start, 1e-5, 0, 1e12, "L", "",                                                                      \
	  "lambda search: first value (bisection: absolute; geometric: times max abs C)")                                  \
	X(REAL, lambda_low, 1e-6, 0, 1e12, "L", "", "lambda search: lower end, in the units of lambda_start")              \
	X(REAL, lambda_high, 1, 0, 1e12, "L", "", "lambda search: upper end, in the units of lambda_start")                \
	X(CHOICE, lambda_search, "geometric", 0, 0, "geometric|bisection", "",                                             \
	  "geometric halving, or the paper's bisection")                                                                   \
	X(CHOICE, momentum, "standard", 0, 0, "standard|literal", "",                                                      \
	  "FISTA: Beck and Teboulle's momentum, or the formula as the paper prints it")                                    \
	X(FLAG, restart, 0, 0, 1, "", "", "FISTA: reset the momentum when the objective rises")                            \
	X(FLAG, reset_patience, 1, 0, 1, "", "", "lambda search: an improvement resets the count of failures")             \
	/* beyond the paper */                                                                                             \
	X(FLAG, scaling, 0, 0, 1, "", "", "scale columns by the norms of the inputs before solving")                       \
	X(INT, refit_steps, 0, 0, 10000, "N", "", "conjugate-gradient steps on the chosen support; 0: no refit")           \
	X(CHOICE, support_search, "none", 0, 0, "none|admm", "", "search for a better support after the convex solve")     \
	X(INT, search_steps, 0, 0, 10000, "N", "", "steps of the support search")                                          \
	X(REAL, ridge, 0, 0, 100, "X", "",                                                                                 \
	  "penalty on the distance from the dense weights, as a share of the mean of diag(A)")                             \
	X(REAL, residual, 0, 0, 10, "R", "",                                                                               \
	  "share of the residual stream's error that the operators writing into it compensate")                            \
	X(REAL, residual_output, 0, 0, 10, "R", "",                                                                        \
	  "the same for attention's output operator (with correction=cross only)")                                         \
	X(REAL, mix, 1, 0, 1, "ALPHA", "", "correction=cross: weight of the dense model's input in the target")            \
	X(FLAG, row_importance, 0, 0, 1, "", "",                                                                           \
	  "unstructured patterns: weight each output of an operator by its effect on the layer's output when zeros "       \
	  "are placed")                                                                                                    \
	X(FLAG, bias_update, 0, 0, 1, "", "", "fit the biases of operators that have them along with the weights")         \
	/* the layer fit */                                                                                                \
	X(INT, fit_steps, 0, 0, 1000000, "N", "",                                                                          \
	  "Adam steps on each layer's remaining weights for up to 128 windows, in proportion for up to 512; 0: no "        \
	  "fit")                                                                                                           \
	X(REAL, fit_rate, 0.1, 0, 10, "X", "",                                                                             \
	  "step length, as a share of each operator's mean weight times the layer's relative error")                       \
	X(INT, fit_width, 256, 1, 1000000000, "N", "",                                                                     \
	  "operators with more inputs than this take shorter steps than fit_rate, by the square root of the ratio")        \
	X(INT, fit_tokens, 4096, 1, 1000000000, "N", "", "tokens in one step of the fit, in whole windows")                \
	X(REAL, fit_holdout, 0.0625, 0, 0.5, "X", "", "share of the windows that is held out to judge the fit")            \
	X(REAL, fit_mix, 0.5, 0, 1, "ALPHA", "",                                                                           \
	  "correction=cross: weight of the dense model's output in the fit's target; the rest is the dense layer's "       \
	  "output for the pruned model's input")                                                                           \
	X(CHOICE, fit_metric, "token", 0, 0, "plain|token", "",                                                            \
	  "how the fit weights errors: plain: all alike; token: by their effect on the token loss, from the dense "        \
	  "model's gradients")                                                                                             \
	X(REAL, adapt, 0, 0, 1, "X", "p",                                                                                  \
	  "best: weight of the token loss on the calibration text in the fit, such as 0.005, which is a mild "             \
	  "fine-tuning; 0: the fit only imitates the dense model")                                                         \
	/* the basis */                                                                                                    \
	X(INT, basis_steps, 150, 0, 1000000, "N", "",                                                                      \
	  "basis: Adam steps for the rotation of the residual stream; half as many for the heads of each layer")           \
	X(REAL, basis_rate, 1, 0, 10, "X", "",                                                                             \
	  "basis: step length: a step rotates two of n channels by an angle of up to X over the root of n")                \
	/* quantised weights */                                                                                            \
	X(CHOICE, quantizer, "auto", 0, 0, "auto|descent|nearest", "",                                                     \
	  "quantize: how weights are put on the grid: descent: coordinate descent on weights and scales; nearest: each "   \
	  "weight on its own; auto: descent, or what the method's authors do: sparsegpt within its sweep, wanda and "      \
	  "magnitude nearest")                                                                                             \
	X(INT, quantizer_passes, 5, 0, 1000, "N", "", "quantize: passes of descent over the columns")                      \
	/* SparseGPT */                                                                                                    \
	X(REAL, damping, 0.01, 0, 100, "X", "", "SparseGPT: damping as a share of the mean of diag(A)")                    \
	X(INT, block, 128, 1, 65536, "N", "", "SparseGPT: columns in a block")

typedef struct fp_settings fp_settings;

typedef enum fp_setting_kind {
	FP_SETTING_INT,
	FP_SETTING_REAL,
	FP_SETTING_FLAG,
	FP_SETTING_TEXT,
	FP_SETTING_CHOICE
} fp_setting_kind;

typedef struct fp_setting_info {
	fp_setting_kind kind;
	const char *name;
	const char *initial;     /* the default, as text */
	double minimum, maximum; /* INT, REAL */
	const char *choices;
	const char *commands;
	const char *help;
} fp_setting_info;

/* Settings with their defaults. The caller frees them with fp_settings_free(). */
FP_API fp_status fp_settings_new(fp_settings **out, fp_context *ctx);
/* NULL is allowed. */
FP_API void fp_settings_free(fp_settings *settings);

/* Sets one by name ('-' counts as '_') from text. The message of a failure gives the rule and a value that works.
 * Setting `preset` only records it: when a run starts, the preset fills in every setting that was not set here. */
FP_API fp_status fp_settings_set(fp_settings *settings, fp_context *ctx, const char *name, const char *value);
/* "name=value" as --set takes it. */
FP_API fp_status fp_settings_assign(fp_settings *settings, fp_context *ctx, const char *assignment);
/* The value as text, at most `size` bytes with the NUL. An unknown name fails. */
FP_API fp_status fp_settings_get(const fp_settings *settings, fp_context *ctx, const char *name, char *out,
								 size_t size);

/* The table's rows: for help texts, completion and bindings. NULL past the end. Borrowed. */
FP_API const fp_setting_info *fp_setting_at(size_t index);

/* A preset of the method fista, in the words that help, tables and reports use. */
typedef struct fp_preset_info {
	const char *name;        /* "paper" */
	const char *title;       /* the name of its row in a table: "FISTAPruner (paper)" */
	const char *description; /* what it runs, one sentence */
} fp_preset_info;

/* The presets, the default one first. NULL past the end. Borrowed. */
FP_API const fp_preset_info *fp_preset_at(size_t index);
/* The value that a setting has under a preset when nothing else is set, as text. `family` is the model_type of
 * config.json ("opt", "llama"), since presets may differ by it; "" : any other. */
FP_API fp_status fp_preset_value(fp_context *ctx, const char *preset, const char *family, const char *name, char *out,
								 size_t size);
/* The name of a row in a table: the preset's title for the method fista, else the method's own name. Borrowed. */
FP_API const char *fp_method_title(const char *method, const char *preset);

#ifdef __cplusplus
}
#endif
#endif
