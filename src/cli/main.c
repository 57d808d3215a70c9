/* SPDX-License-Identifier: Apache-2.0 */
/* main.c: the table of commands, signals and exit codes. */
#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/help.h"
#include "cli/progress.h"

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

static const fp_cli_command command_table[] = {
	{
		.name = "prune",
		.letter = 'p',
		.operands = 1,
		.usage = "MODEL -o DIR [--calibration FILE|self] [flags]",
		.summary = "make a model sparse and write it as a new checkpoint",
		.detail =
			"Prunes every linear operator of MODEL's decoder layers to a pattern and writes the checkpoint DIR: the "
			"files of MODEL with new values in those weights. The presets fast and best also change biases and, "
			"through --basis, other weights such as embeddings and norms. The calibration text determines which inputs "
			"matter; without one the model writes it, and must then fit into memory as a whole. N:M means N kept of M "
			"consecutive entries of a row.",
		.run = fp_cli_prune,
	},
	{
		.name = "distill",
		.letter = 's',
		.operands = 1,
		.usage = "MODEL --reference DENSE -o DIR [--calibration FILE|self] [flags]",
		.summary = "fit all remaining weights of a pruned model to the dense model's predictions",
		.detail =
			"Takes a pruned checkpoint, of this program or another one, and the dense model that it was pruned from. "
			"Gradient steps through the whole model move the weights of the decoder layers that are not zero, and the "
			"biases, so that MODEL's predictions on the text approach DENSE's (KL divergence); zeros stay zeros. "
			"Without a text DENSE writes it. Some windows of the text are held out, and the best point by these is "
			"written. Each weight takes 16 bytes of memory; if they do not fit, only weights that are not zero are "
			"stored, and on a GPU the layers wait in the host's memory for their turn. --set fit_steps, fit_tokens, "
			"fit_rate and fit_holdout change the steps.",
		.run = fp_cli_distill,
	},
	{
		.name = "eval",
		.letter = 'e',
		.operands = 1,
		.usage = "MODEL --text FILE [--reference DENSE] | --task NAME=FILE... [flags]",
		.summary = "perplexity of a model on a text, or its zero-shot accuracy on tasks",
		.detail =
			"Prints the perplexity of MODEL on a text: exp(mean token cross-entropy) over windows that do not overlap. "
			"Perplexities at different sequence lengths or by different protocols cannot be compared. With --reference "
			"it also compares MODEL's predictions with those of the dense model that it was pruned from. With --task "
			"it prints the zero-shot accuracy on tasks, with the prompts and rules of lm-evaluation-harness.",
		.run = fp_cli_eval,
	},
	{
		.name = "compare",
		.letter = 'c',
		.operands = 1,
		.usage = "MODEL --text FILE [--calibration FILE|self] [flags]",
		.summary = "methods and patterns side by side on one model: the paper's tables and curves",
		.detail = "Prunes MODEL once for every method, preset, pattern, number of samples and seed, evaluates each "
				  "result and the dense model, and prints one table. A flag holds for all rows: --basis full "
				  "prunes with every method in that basis, while without it each preset has the basis below and "
				  "the other methods have none. No pruned model is written. Finished rows are kept: started again, "
				  "a stopped run continues.",
		.run = fp_cli_compare,
	},
	{
		.name = "inspect",
		.letter = 'i',
		.operands = 1,
		.usage = "MODEL [--pattern 50%|2:4|N:M] [flags]",
		.summary = "what is in a checkpoint, how sparse it is, and whether a pattern holds",
		.detail =
			"Prints architecture, parameters and sparsity of MODEL, by kind of tensor and in total. With --pattern "
			"every linear operator of the decoder layers is checked.",
		.exit_note = "some operator breaks the pattern",
		.run = fp_cli_inspect,
	},
	{
		.name = "tokenize",
		.letter = 't',
		.operands = 1,
		.usage = "MODEL [--text FILE] [flags]",
		.summary = "token ids of a text, as the model's own tokenizer gives them",
		.detail = "Prints the token ids of a text, one line per document, with the special tokens that the model's own "
				  "tokenizer adds.",
		.run = fp_cli_tokenize,
	},
	{
		.name = "generate",
		.letter = 'g',
		.operands = 1,
		.usage = "MODEL [--prompt TEXT | --batch FILE] [flags]",
		.summary = "text that continues a prompt, to see what a pruned model writes",
		.detail = "Prints the text with which MODEL continues a prompt, as it comes, and then on stderr the tokens per "
				  "second. It ends at a stop token of the model's files (eos_token_id of generation_config.json or "
				  "config.json), at --max-tokens, or where the model has no more positions. The whole model must fit "
				  "into memory. Without --temperature the most likely token is always taken; the same --seed draws the "
				  "same text again.",
		.run = fp_cli_generate,
	},
	{
		.name = "pack",
		.letter = 'k',
		.operands = 1,
		.usage = "MODEL -o DIR [flags]",
		.summary = "the same checkpoint with its zeros left out: a bit for each entry, or 2:4 pairs",
		.detail =
			"Writes DIR: the files of MODEL with every sparse matrix stored without its zeros, about 0.56 of its "
			"size at 50% and at 2:4. All commands read DIR like MODEL, and unpack gives MODEL's files back to the "
			"byte. Other programs do not read it.",
		.run = fp_cli_pack,
	},
	{
		.name = "unpack",
		.letter = 'u',
		.operands = 1,
		.usage = "MODEL -o DIR [flags]",
		.summary = "a packed checkpoint as it was before, to the byte",
		.detail =
			"Writes DIR: the files of the packed checkpoint MODEL as they were before pack, byte for byte. Damaged "
			"files are refused.",
		.run = fp_cli_unpack,
	},
	{
		.name = "bench",
		.letter = 'b',
		.operands = -1,
		.usage = "[MODEL] [flags]",
		.summary = "how fast this machine is, and how much of that a model reaches, with and without its zeros",
		.detail =
			"Measures how fast the device reads memory and multiplies matrices. With MODEL it also measures how fast "
			"MODEL reads a prompt (and the share of the multiplication speed) and writes text (and the share of the "
			"memory speed), with its weights held dense and, where that saves bytes, without their zeros. The whole "
			"model must fit into memory.",
		.run = fp_cli_bench,
	},
	{
		.name = "demo",
		.letter = 'd',
		.operands = 0,
		.usage = "[flags]",
		.summary = "every method and preset on three models that ship with the program",
		.detail = "Prunes and evaluates the three small models that ship with the program with every method and "
				  "preset, at 50% and at 2:4, prints the perplexities side by side and writes the report (without "
				  "--report as fistapruner-demo.html in the current directory). It downloads nothing and leaves no "
				  "other files.",
		.run = fp_cli_demo,
	},
	{
		.name = "help",
		.letter = 'h',
		.operands = -1,
		.usage = "[COMMAND] [--man | --completion SHELL]",
		.summary = "this text, a command's flags, the manual page, or completion for a shell",
		.run = fp_cli_show_help,
	},
};

const fp_cli_command *fp_cli_command_at(size_t index)
{
	return index < sizeof command_table / sizeof command_table[0] ? &command_table[index] : NULL;
}

const fp_cli_command *fp_cli_command_find(const char *name)
{
	const fp_cli_command *command;
	for (size_t i = 0; (command = fp_cli_command_at(i)); i++)
		if (strcmp(command->name, name) == 0)
			return command;
	return NULL;
}

fp_status fp_cli_show_help(fp_context *ctx, const fp_cli_options *options)
{
	(void)ctx;
	const fp_cli_command *about = NULL;
	if (options->man) {
		fp_cli_manual(stdout);
		return FP_OK;
	}
	if (options->completion)
		return fp_cli_completion(stdout, options->completion);
	if (options->operand_count > 0) {
		about = fp_cli_command_find(options->operands[0]);
		if (!about)
			return fp_cli_error(FP_ERROR_USAGE, "no such command: '%s'; 'fistapruner help' lists them",
								options->operands[0]);
	}
	fp_cli_help(stdout, about);
	return FP_OK;
}

static volatile int interrupted; /* int, as fp_context_set_interrupt() takes it */

static void on_signal(int number)
{
	(void)number;
	__atomic_store_n(&interrupted, 1, __ATOMIC_RELAXED); /* other threads may be reading it */
}

/* A page of a mapped file that cannot be read raises SIGBUS. Finished layers are on the disk already, so that printing
 * a message and leaving is enough. */
static void on_bus_error(int number)
{
	static const char text[] = "fistapruner: a mapped file could not be read: its disk failed, or it was cut short\n";
	(void)number;
	ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
	_exit(written < 0 ? 1 : fp_status_exit_code(FP_ERROR_IO));
}

/* The first signal requests an orderly stop, the second ends the program at once. */
static void catch_signals(void)
{
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_handler = on_signal;
	action.sa_flags = (int)SA_RESETHAND;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	action.sa_handler = on_bus_error;
	sigaction(SIGBUS, &action, NULL);
}

/*
 * libgomp, OpenBLAS and glibc read their environment variables when they are loaded, so the program sets them and starts
 * itself once more. A variable that the user has set is kept. Without /proc the program goes on as it is.
 *
 * GOMP_SPINCOUNT: OpenMP's threads spin for a long while at the end of every loop before they sleep, which takes the
 * processors away from other work: with a load of 10 on two processors eval took 37 s, and 5 s with this limit.
 * OPENBLAS_CORETYPE: the kernel for a processor that OpenBLAS does not know.
 * GLIBC_TUNABLES: large pages for the heap (since glibc 2.35), where matrices of less than some megabytes are. Loops over
 * these miss the TLB less often.
 */
static void restart_with_environment(char **words)
{
	const char *kernel = fp_openblas_kernel();
	bool changed = false;
	if (!getenv("OMP_WAIT_POLICY") && !getenv("GOMP_SPINCOUNT"))
		changed = setenv("GOMP_SPINCOUNT", "1000", 1) == 0;
	if (kernel && setenv("OPENBLAS_CORETYPE", kernel, 1) == 0)
		changed = true;
	if (!getenv("GLIBC_TUNABLES") && setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 1) == 0)
		changed = true;
	if (changed)
		execv("/proc/self/exe", words);
}

/*
 * Returns large blocks to the system as soon as they are freed. glibc raises its threshold for this by itself, after
 * which blocks that stay alive leave large holes in the heap, and a run exceeded --memory. Small ones are kept: each step
 * of a fit frees and allocates the same ones again, and pages that come anew cost more than the copies into them.
 */
static void return_large_blocks(void)
{
#ifdef __GLIBC__
	mallopt(M_MMAP_THRESHOLD, 4 << 20);
	mallopt(M_TRIM_THRESHOLD, 64 << 20);
#endif
}

static fp_status run_command(const fp_cli_command *command, int count, char **words)
{
	fp_cli_options options = {.command = command, .words = words - 2};
	fp_cli_progress progress;
	fp_context *ctx = fp_context_new();
	if (!ctx)
		return fp_cli_error(FP_ERROR_MEMORY, "out of memory");
	fp_status status = fp_settings_new(&options.settings, ctx);
	if (status != FP_OK) {
		fp_cli_failed(ctx, status);
	} else {
		status = fp_cli_parse(&options, ctx, count, words);
		if (status == FP_OK && options.help) {
			fp_cli_help(stdout, command);
		} else if (status == FP_OK) {
			fp_cli_progress_attach(&progress, ctx, &options);
			fp_context_set_interrupt(ctx, &interrupted);
			status = command->run(ctx, &options);
		}
	}
	fp_settings_free(options.settings);
	fp_context_free(ctx);
	return status;
}

static fp_status unknown_command(const char *word)
{
	const char *names[sizeof command_table / sizeof command_table[0] + 1] = {0};
	const fp_cli_command *command;
	for (size_t i = 0; (command = fp_cli_command_at(i)); i++)
		names[i] = command->name;
	const char *nearest = fp_cli_nearest(word, names);
	if (nearest)
		return fp_cli_error(FP_ERROR_USAGE, "no such command: '%s'; did you mean '%s'?", word, nearest);
	return fp_cli_error(FP_ERROR_USAGE, "no such command: '%s'; 'fistapruner help' lists them", word);
}

static void print_version(void)
{
	const char *commit = fp_build_commit();
	printf("fistapruner %s (%s%s%sbuild %s)\n", fp_version(), commit[0] ? "commit " : "", commit, commit[0] ? ", " : "",
		   fp_build_id());
}

int main(int count, char **words)
{
	restart_with_environment(words);
	return_large_blocks();
	catch_signals();
	fp_status status = FP_OK;
	if (count < 2) {
		fp_cli_help(stderr, NULL);
		status = FP_ERROR_USAGE;
	} else if (strcmp(words[1], "--version") == 0) {
		print_version();
	} else if (strcmp(words[1], "--help") == 0 || strcmp(words[1], "-h") == 0) {
		fp_cli_help(stdout, NULL);
	} else {
		const fp_cli_command *command = fp_cli_command_find(words[1]);
		status = command ? run_command(command, count - 2, words + 2) : unknown_command(words[1]);
	}
	if (fflush(stdout) != 0 && status == FP_OK)
		status = fp_cli_error(FP_ERROR_IO, "stdout: could not be written");
	return fp_status_exit_code(status);
}
