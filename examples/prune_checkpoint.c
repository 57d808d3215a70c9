/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prune_checkpoint.c: prunes a Hugging Face checkpoint, by default to 50% zeros.
 *
 *     prune_checkpoint MODEL CALIBRATION_TEXT OUTPUT [setting=value …]
 *
 * Ctrl-C stops the run. Finished layers stay in .OUTPUT.partial, and a request with resume = 1 continues
 * there.
 */
#include <fistapruner/fistapruner.h>

#include <signal.h>
#include <stdio.h>

static volatile int stop;

static void on_interrupt(int number)
{
	(void)number;
	stop = 1;
}

static void on_log(void *data, fp_log_level level, const char *text)
{
	(void)data;
	(void)level;
	fprintf(stderr, "%s\n", text);
}

static fp_status prune(fp_context *ctx, fp_settings *settings, int count, char **arguments)
{
	const char *calibration[] = {arguments[2]};
	fp_prune_request request = {
		.model = arguments[1], .output = arguments[3], .calibration = calibration, .calibration_count = 1};
	char *report = NULL;
	fp_status status = FP_OK;
	for (int i = 4; i < count && status == FP_OK; i++)
		status = fp_settings_assign(settings, ctx, arguments[i]);
	if (status == FP_OK)
		status = fp_prune(&report, ctx, &request, settings);
	if (status == FP_OK)
		printf("%s\n", report);
	fp_text_free(report);
	return status;
}

int main(int count, char **arguments)
{
	if (count < 4) {
		fprintf(stderr, "usage: %s MODEL CALIBRATION_TEXT OUTPUT [setting=value ...]\n", arguments[0]);
		return 2;
	}
	fp_context *ctx = fp_context_new();
	fp_settings *settings = NULL;
	if (!ctx)
		return 4;
	signal(SIGINT, on_interrupt);
	fp_context_set_interrupt(ctx, &stop);
	fp_context_set_log(ctx, on_log, NULL, FP_LOG_INFO);
	fp_status status = fp_settings_new(&settings, ctx);
	if (status == FP_OK)
		status = prune(ctx, settings, count, arguments);
	if (status != FP_OK)
		fprintf(stderr, "%s: %s\n", fp_status_name(status), fp_context_message(ctx));
	fp_settings_free(settings);
	fp_context_free(ctx);
	return fp_status_exit_code(status);
}
