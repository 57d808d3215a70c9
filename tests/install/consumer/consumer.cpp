// SPDX-License-Identifier: Apache-2.0
// The headers in C++: every call that needs no model, and an error that comes back as a status with its message.
#include <fistapruner/fistapruner.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

int main()
{
	std::unique_ptr<fp_context, decltype(&fp_context_free)> context(fp_context_new(), fp_context_free);
	fp_settings *raw = nullptr;
	if (!context || fp_settings_new(&raw, context.get()) != FP_OK)
		return 1;
	std::unique_ptr<fp_settings, decltype(&fp_settings_free)> settings(raw, fp_settings_free);
	for (const char *assignment : {"pattern=2:4", "method=magnitude", "threads=1"})
		if (fp_settings_assign(raw, context.get(), assignment) != FP_OK)
			return 2;

	const float weights[8] = {1, -4, 3, 2, 8, 5, -6, 7};
	const float wanted[8] = {0, -4, 3, 0, 8, 0, 0, 7};
	const float gram[16] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
	float result[8];
	fp_matrix_problem problem = {};
	fp_matrix_report report;
	problem.rows = 2;
	problem.cols = 4;
	problem.weights = weights;
	problem.gram = gram;
	if (fp_prune_matrix(result, &report, context.get(), &problem, raw) != FP_OK ||
		std::memcmp(result, wanted, sizeof wanted) != 0 || report.sparsity != 0.5)
		return 3;

	char *json = nullptr;
	fp_status status = fp_inspect(&json, context.get(), "no/such/model", nullptr);
	fp_text_free(json);
	if (fp_status_exit_code(status) != 3 || !std::string(fp_context_message(context.get())).length())
		return 4;
	std::printf("%s %s\n", fp_version(), fp_status_name(status));
	return 0;
}
