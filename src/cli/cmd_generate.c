/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_generate.c: fistapruner generate MODEL [--prompt TEXT | --batch FILE] */
#include "cli/commands.h"
#include "cli/result.h"
#include "cli/standard_input.h"

#include <stdlib.h>
#include <string.h>

/* What was printed of a text so far. */
typedef struct printed_text {
	bool any, ends_line;
} printed_text;

static void print_text(void *data, const char *bytes, int64_t size)
{
	printed_text *printed = data;
	if (size == 0)
		return;
	fwrite(bytes, 1, (size_t)size, stdout);
	fflush(stdout);
	printed->any = true;
	printed->ends_line = bytes[size - 1] == '\n';
}

static void print_line(void *data, const char *line)
{
	(void)data;
	puts(line);
	fflush(stdout);
}

/* Why the texts ended, such as "a stop token"; of several texts nothing is said. */
static const char *stop_of(const json_t *result)
{
	const json_t *results = json_object_get(result, "results");
	return json_array_size(results) == 1 ? fp_cli_text_at(json_array_get(results, 0), "stop") : NULL;
}

/* "154 operators as mask (1.1 GB)" for each form. */
static void print_weights(const json_t *weights)
{
	fputs("weights     ", stderr);
	for (size_t i = 0; i < json_array_size(weights); i++) {
		const json_t *form = json_array_get(weights, i);
		double operators = fp_cli_number_at(form, "operators");
		char bytes[32];
		fp_cli_format_bytes(bytes, fp_cli_number_at(form, "bytes"));
		fprintf(stderr, "%s%.0f operator%s %s (%s)", i > 0 ? ", " : "", operators, operators == 1 ? "" : "s",
				fp_cli_text_at(form, "form"), bytes);
	}
	fputc('\n', stderr);
}

/* The text is on stdout already; how long it took goes to stderr, so that the text can be redirected. */
static void print_rates(const json_t *result)
{
	char bytes[32];
	const char *stop = stop_of(result);
	fp_cli_format_bytes(bytes, fp_cli_number_at(result, "peak_memory_bytes"));
	fprintf(stderr, "prompt      %.0f tokens, %.1f per second\n", fp_cli_number_at(result, "prompt_tokens"),
			fp_cli_number_at(result, "prompt_tokens_per_second"));
	fprintf(stderr, "text        %.0f tokens, %.1f per second%s%s\n", fp_cli_number_at(result, "tokens"),
			fp_cli_number_at(result, "tokens_per_second"), stop ? "; ended by " : "", stop ? stop : "");
	print_weights(json_object_get(result, "weights"));
	fprintf(stderr, "took        %.1f s, %s at most, on %s\n", fp_cli_number_at(result, "seconds"), bytes,
			fp_cli_text_at(result, "device"));
}

static fp_status finish(const fp_cli_options *options, const char *json, const printed_text *printed)
{
	if (options->json)
		return fp_cli_print_result(options, json, NULL);
	if (printed->any && !printed->ends_line)
		putchar('\n');
	fflush(stdout);
	json_t *result = json_loads(json, 0, NULL);
	if (result && !options->quiet)
		print_rates(result);
	json_decref(result);
	return FP_OK;
}

fp_status fp_cli_generate(fp_context *ctx, const fp_cli_options *options)
{
	char *input = NULL, *json = NULL;
	size_t size = 0;
	printed_text printed = {0};
	fp_status status = FP_OK;
	if (options->prompt && options->batch)
		return fp_cli_error(FP_ERROR_USAGE, "--prompt and --batch exclude each other: give one of them");
	if (!options->prompt && !options->batch)
		status = fp_cli_read_input(&input, &size);
	if (input && size > 0 && input[size - 1] == '\n')
		size--;
	const fp_generate_request request = {
		.model = options->operands[0],
		.prompt = options->prompt ? options->prompt : input,
		.prompt_size = options->prompt ? (int64_t)strlen(options->prompt) : (int64_t)size,
		.batch = options->batch,
		.text = options->json ? NULL : print_text,
		.text_data = &printed,
		.finished = options->json ? NULL : print_line,
	};
	if (status == FP_OK) {
		status = fp_generate(&json, ctx, &request, options->settings);
		if (status != FP_OK && printed.any && !printed.ends_line)
			putchar('\n');
		if (status == FP_OK)
			status = finish(options, json, &printed);
		else
			fp_cli_failed(ctx, status);
		if (status == FP_OK && ferror(stdout))
			status = fp_cli_error(FP_ERROR_IO, "stdout: the text could not be written");
	}
	fp_text_free(json);
	free(input);
	return status;
}
