/* SPDX-License-Identifier: Apache-2.0 */
#include "report/layer_error_part.h"

#include "base/memory.h"
#include "report/chart.h"

#include <math.h>
#include <stdio.h>

void fp_layer_error_heading(fp_html *html)
{
	fp_html_raw(html,
				"<h2>Error by layer</h2><p class=\"soft\">‖h* − h‖ / ‖h‖ of a token's hidden state after each decoder "
				"layer, as the root of its mean square over the tokens of a few windows: h* in the pruned model, h in "
				"the dense model. The definition is the same for every method, so that lines can be compared. Layers "
				"count from 0.</p>\n");
}

static double error_at(const json_t *errors, int64_t layer)
{
	const json_t *error = json_array_get(errors, (size_t)layer);
	return json_is_number(error) ? json_number_value(error) : NAN;
}

void fp_layer_error_chart(fp_html *html, const fp_layer_errors *lines, int count)
{
	fp_chart chart = {.label = "relative error of the hidden state by layer, one line per method",
					  .x_title = "layer",
					  .y_title = "relative error",
					  .base = NAN};
	double *values = NULL;
	int64_t layers = 0;
	for (int i = 0; i < count; i++)
		layers =
			(int64_t)json_array_size(lines[i].errors) > layers ? (int64_t)json_array_size(lines[i].errors) : layers;
	if (layers < 2 || html->status != FP_OK)
		return;
	html->status = FP_NEW(html->ctx, &values, 2 * layers * FP_CHART_SERIES);
	for (int i = 0; html->status == FP_OK && i < count && chart.count < FP_CHART_SERIES; i++) {
		fp_chart_series *series = &chart.series[chart.count];
		if (json_array_size(lines[i].errors) == 0)
			continue;
		snprintf(series->name, sizeof series->name, "%s", lines[i].name);
		series->x = values + 2 * layers * chart.count;
		series->y = series->x + layers;
		series->count = layers;
		for (int64_t layer = 0; layer < layers; layer++) {
			series->x[layer] = (double)layer;
			series->y[layer] = error_at(lines[i].errors, layer);
		}
		chart.count++;
	}
	fp_chart_lines(html, &chart);
	fp_free(values);
}
