/* SPDX-License-Identifier: Apache-2.0 */
#include "report/comparison_part.h"

#include "base/memory.h"
#include "base/number_text.h"
#include "report/chart.h"
#include "report/layer_error_part.h"
#include "report/operator_part.h"

#include <fistapruner/settings.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = FP_CHART_NAME, MAX_NAMES = 96, MAX_LAYER_CHARTS = 7 };

/* The rows but the dense one, by run (method, preset, correction) and condition (pattern, samples, seed). */
typedef struct comparison {
	fp_html *html;
	const json_t *rows;
	double dense;
	bool varies_correction, varies_samples, varies_seed;
	bool bases;                       /* some row was pruned in a learned basis */
	char runs[MAX_NAMES][NAME];       /* "FISTAPruner (paper)" */
	char conditions[MAX_NAMES][NAME]; /* "50%" */
	int run_count, condition_count;
} comparison;

static const char *text_at(const json_t *row, const char *key)
{
	const char *text = json_string_value(json_object_get(row, key));
	return text ? text : "";
}

static double number_at(const json_t *row, const char *key)
{
	const json_t *value = json_object_get(row, key);
	return json_is_number(value) ? json_number_value(value) : NAN;
}

static bool is_dense(const json_t *row)
{
	return strcmp(text_at(row, "method"), "dense") == 0;
}

/* "none", "local" or "full"; "": rows of the dense model and of earlier versions have none. */
static const char *basis_of(const json_t *row)
{
	return text_at(json_object_get(row, "basis"), "kind");
}

static bool varies(const json_t *rows, const char *key)
{
	const json_t *first = NULL;
	for (size_t i = 0; i < json_array_size(rows); i++) {
		const json_t *value = json_object_get(json_array_get(rows, i), key);
		if (!value || json_is_null(value))
			continue;
		if (first && !json_equal(first, value))
			return true;
		first = value;
	}
	return false;
}

/* Whether a preset occurs with two corrections, so that names must include the correction. */
static bool varies_correction(const json_t *rows)
{
	for (size_t i = 0; i < json_array_size(rows); i++)
		for (size_t j = 0; j < i; j++) {
			const json_t *a = json_array_get(rows, i);
			const json_t *b = json_array_get(rows, j);
			if (strcmp(text_at(a, "preset"), text_at(b, "preset")) == 0 &&
				strcmp(text_at(a, "method"), text_at(b, "method")) == 0 &&
				strcmp(text_at(a, "correction"), text_at(b, "correction")) != 0)
				return true;
		}
	return false;
}

static void name_run(const comparison *s, char out[static NAME], const json_t *row)
{
	const char *title = text_at(row, "title"); /* the demo has titles of its own */
	const char *correction = s->varies_correction ? text_at(row, "correction") : "";
	if (!*title)
		title = fp_method_title(text_at(row, "method"), text_at(row, "preset"));
	snprintf(out, NAME, "%.60s%s%.16s", title, *correction ? ", " : "", correction);
}

static void name_condition(const comparison *s, char out[static NAME], const json_t *row)
{
	int used = snprintf(out, NAME, "%.16s", text_at(row, "pattern"));
	if (s->varies_samples)
		used += snprintf(out + used, (size_t)(NAME - used), " · %.0f", number_at(row, "samples"));
	if (s->varies_seed)
		snprintf(out + used, (size_t)(NAME - used), " · seed %.0f", number_at(row, "seed"));
}

static void add_name(char names[][NAME], int *count, const char *name)
{
	for (int i = 0; i < *count; i++)
		if (strcmp(names[i], name) == 0)
			return;
	if (*count < MAX_NAMES)
		snprintf(names[(*count)++], NAME, "%s", name);
}

static const json_t *row_of(const comparison *s, const char *run, const char *condition)
{
	for (size_t i = 0; i < json_array_size(s->rows); i++) {
		const json_t *row = json_array_get(s->rows, i);
		char own[NAME];
		if (is_dense(row))
			continue;
		name_run(s, own, row);
		if (strcmp(own, run) != 0)
			continue;
		name_condition(s, own, row);
		if (strcmp(own, condition) == 0)
			return row;
	}
	return NULL;
}

static void collect_names(comparison *s)
{
	char name[NAME];
	s->dense = NAN;
	s->varies_correction = varies_correction(s->rows);
	s->varies_samples = varies(s->rows, "samples");
	s->varies_seed = varies(s->rows, "seed");
	for (size_t i = 0; i < json_array_size(s->rows); i++) {
		const json_t *row = json_array_get(s->rows, i);
		if (is_dense(row)) {
			s->dense = number_at(row, "perplexity");
			continue;
		}
		s->bases = s->bases || (*basis_of(row) && strcmp(basis_of(row), "none") != 0);
		name_run(s, name, row);
		add_name(s->runs, &s->run_count, name);
		name_condition(s, name, row);
		add_name(s->conditions, &s->condition_count, name);
	}
}

static void write_figure(fp_html *html, double value, bool best)
{
	fp_html_format(html, "<td class=\"n%s\">", best ? " best" : "");
	if (isfinite(value))
		fp_html_format(html, value < 1000 ? "%.3f%s" : "%.4g%s", value, best ? " ★" : "");
	else
		fp_html_raw(html, "–");
	fp_html_raw(html, "</td>");
}

static double best_of(const comparison *s, const char *condition, const char *key)
{
	double best = INFINITY;
	for (int m = 0; m < s->run_count; m++) {
		const json_t *row = row_of(s, s->runs[m], condition);
		double value = row ? number_at(row, key) : NAN;
		best = value < best ? value : best;
	}
	return best;
}

/* The basis of a run, which is the same for every condition. */
static void write_basis(const comparison *s, const char *run)
{
	const char *basis = "";
	for (int c = 0; c < s->condition_count && !*basis; c++)
		basis = basis_of(row_of(s, run, s->conditions[c]));
	fp_html_raw(s->html, "<td>");
	fp_html_text(s->html, *basis ? basis : "–");
	fp_html_raw(s->html, "</td>");
}

/* The figure `key` of all runs, a line per run and a column per condition. */
static void write_table(const comparison *s, const char *key, double dense)
{
	fp_html *html = s->html;
	fp_html_raw(html, "<div class=\"wide\"><table><thead><tr><th>method</th>");
	fp_html_raw(html, s->bases ? "<th>basis</th>" : "");
	for (int c = 0; c < s->condition_count; c++) {
		fp_html_raw(html, "<th class=\"n\">");
		fp_html_text(html, s->conditions[c]);
		fp_html_raw(html, "</th>");
	}
	fp_html_raw(html, "</tr></thead><tbody><tr><th>dense</th>");
	fp_html_raw(html, s->bases ? "<td>–</td>" : "");
	for (int c = 0; c < s->condition_count; c++)
		write_figure(html, dense, false);
	fp_html_raw(html, "</tr>");
	for (int m = 0; m < s->run_count; m++) {
		fp_html_raw(html, "<tr><th>");
		fp_html_text(html, s->runs[m]);
		fp_html_raw(html, "</th>");
		if (s->bases)
			write_basis(s, s->runs[m]);
		for (int c = 0; c < s->condition_count; c++) {
			const json_t *row = row_of(s, s->runs[m], s->conditions[c]);
			double value = row ? number_at(row, key) : NAN;
			write_figure(html, value, s->run_count > 1 && value == best_of(s, s->conditions[c], key));
		}
		fp_html_raw(html, "</tr>");
	}
	fp_html_raw(html, "</tbody></table></div>\n");
}

static void write_tables(const comparison *s)
{
	fp_html_raw(s->html, "<h2>Perplexity</h2><p class=\"soft\">Lower is better; ★ marks the best of a column.");
	if (s->varies_samples)
		fp_html_raw(s->html, " A column is a pattern and the number of calibration windows.");
	fp_html_raw(s->html, "</p>");
	write_table(s, "perplexity", s->dense);
	bool any = false; /* results of earlier versions have no divergence */
	for (size_t i = 0; i < json_array_size(s->rows); i++)
		any = any || json_object_get(json_array_get(s->rows, i), "kl");
	if (!any)
		return;
	fp_html_raw(s->html,
				"<h2>KL divergence from the dense model</h2><p class=\"soft\">Mean per token of Σ p (log p − log q), "
				"p and q the predictions of the dense and the pruned model. Lower is better; 0 means equal.</p>");
	write_table(s, "kl", 0);
}

/* One sentence for each preset in the table. */
static void write_presets(const comparison *s)
{
	const fp_preset_info *preset;
	for (size_t i = 0; (preset = fp_preset_at(i)); i++)
		for (size_t k = 0; k < json_array_size(s->rows); k++)
			if (strcmp(text_at(json_array_get(s->rows, k), "preset"), preset->name) == 0) {
				fp_html_raw(s->html, "<p class=\"soft\"><b>");
				fp_html_text(s->html, preset->name);
				fp_html_raw(s->html, "</b>: ");
				fp_html_text(s->html, preset->description);
				fp_html_raw(s->html, "</p>\n");
				break;
			}
}

static void write_summary(fp_html *html, const json_t *summary)
{
	if (json_array_size(summary) == 0)
		return;
	fp_html_raw(html, "<h2>Mean over seeds</h2><div class=\"wide\"><table><thead><tr><th>method</th><th>pattern</th>"
					  "<th class=\"n\">seeds</th><th class=\"n\">mean ± deviation</th></tr></thead><tbody>");
	for (size_t i = 0; i < json_array_size(summary); i++) {
		const json_t *one = json_array_get(summary, i);
		fp_html_raw(html, "<tr><th>");
		fp_html_text(html, fp_method_title(text_at(one, "method"), text_at(one, "preset")));
		fp_html_raw(html, "</th><td>");
		fp_html_text(html, text_at(one, "pattern"));
		fp_html_format(html, "</td><td class=\"n\">%.0f</td><td class=\"n\">%.3f ± %.3f</td></tr>",
					   number_at(one, "seeds"), number_at(one, "mean"), number_at(one, "deviation"));
	}
	fp_html_raw(html, "</tbody></table></div>\n");
}

/* x of a row on a curve: the share of zeros, or the number of windows. NaN: it belongs on none (N:M). */
static double curve_place(const comparison *s, const json_t *row)
{
	const char *pattern = text_at(row, "pattern");
	if (s->varies_samples)
		return number_at(row, "samples");
	if (strchr(pattern, ':'))
		return NAN;
	return strchr(pattern, '%') ? fp_parse_real(pattern, NULL) : 100 * fp_parse_real(pattern, NULL);
}

static int by_x(const void *a, const void *b)
{
	const double *p = a;
	const double *q = b;
	return (p[0] > q[0]) - (p[0] < q[0]);
}

/* The run's points, sorted by x; returns how many. */
static int collect(const comparison *s, const char *run, double (*points)[2])
{
	int count = 0;
	for (size_t i = 0; i < json_array_size(s->rows) && count < MAX_NAMES; i++) {
		const json_t *row = json_array_get(s->rows, i);
		char own[NAME];
		if (is_dense(row))
			continue;
		name_run(s, own, row);
		double x = curve_place(s, row);
		if (strcmp(own, run) != 0 || !isfinite(x))
			continue;
		points[count][0] = x;
		points[count++][1] = number_at(row, "perplexity");
	}
	qsort(points, (size_t)count, sizeof points[0], by_x);
	return count;
}

/* False: there are not two points on any curve. */
static bool write_curve(const comparison *s)
{
	static const fp_chart empty = {.label = "perplexity, one line per method", .y_title = "perplexity", .y_log = true};
	double x[FP_CHART_SERIES][MAX_NAMES];
	double y[FP_CHART_SERIES][MAX_NAMES];
	fp_chart chart = empty;
	bool curve = false;
	chart.x_log2 = s->varies_samples;
	chart.x_title = s->varies_samples ? "calibration windows" : "zeros in the linear operators";
	chart.x_unit = s->varies_samples ? "" : "%";
	chart.base = s->dense;
	for (int m = 0; m < s->run_count && chart.count < FP_CHART_SERIES; m++) {
		double points[MAX_NAMES][2];
		int count = collect(s, s->runs[m], points);
		fp_chart_series *series = &chart.series[chart.count];
		if (count == 0)
			continue;
		for (int i = 0; i < count; i++) {
			x[chart.count][i] = points[i][0];
			y[chart.count][i] = points[i][1];
		}
		snprintf(series->name, sizeof series->name, "%s", s->runs[m]);
		series->x = x[chart.count];
		series->y = y[chart.count];
		series->count = count;
		curve = curve || count > 1;
		chart.count++;
	}
	if (!curve || s->varies_seed)
		return false;
	fp_html_raw(s->html,
				s->varies_samples ? "<h2>Perplexity and calibration text</h2>" : "<h2>Perplexity and sparsity</h2>");
	fp_chart_lines(s->html, &chart);
	return true;
}

static void write_dots(const comparison *s, const char *condition)
{
	double y[FP_CHART_SERIES];
	fp_chart chart = {.label = "perplexity by method", .y_title = "perplexity; dashed: dense", .y_log = true};
	chart.base = s->dense;
	for (int m = 0; m < s->run_count && chart.count < FP_CHART_SERIES; m++) {
		const json_t *row = row_of(s, s->runs[m], condition);
		if (!row)
			continue;
		y[chart.count] = number_at(row, "perplexity");
		fp_chart_series *series = &chart.series[chart.count];
		snprintf(series->name, sizeof series->name, "%s", s->runs[m]);
		series->y = &y[chart.count];
		series->count = 1;
		chart.count++;
	}
	fp_html_raw(s->html, "<h3>");
	fp_html_text(s->html, condition);
	fp_html_raw(s->html, "</h3>");
	fp_chart_dots(s->html, &chart);
}

static void write_layer_errors(const comparison *s)
{
	bool any = false;
	for (size_t i = 0; i < json_array_size(s->rows); i++)
		any = any || json_array_size(json_object_get(json_array_get(s->rows, i), "hidden_errors")) > 0;
	if (!any)
		return;
	fp_layer_error_heading(s->html);
	for (int c = 0; c < s->condition_count && c < MAX_LAYER_CHARTS; c++) {
		fp_layer_errors lines[MAX_NAMES];
		for (int m = 0; m < s->run_count; m++) {
			const json_t *row = row_of(s, s->runs[m], s->conditions[c]);
			lines[m] = (fp_layer_errors){s->runs[m], json_object_get(row, "hidden_errors")};
		}
		fp_html_raw(s->html, "<h3>");
		fp_html_text(s->html, s->conditions[c]);
		fp_html_raw(s->html, "</h3>");
		fp_layer_error_chart(s->html, lines, s->run_count);
	}
}

static void write_rows(const comparison *s)
{
	fp_html_raw(s->html, "<h2>Each run</h2>");
	for (int c = 0; c < s->condition_count; c++)
		for (int m = 0; m < s->run_count; m++) {
			const json_t *row = row_of(s, s->runs[m], s->conditions[c]);
			if (!row)
				continue;
			fp_html_raw(s->html, "<details><summary>");
			fp_html_text(s->html, s->runs[m]);
			fp_html_raw(s->html, " at ");
			fp_html_text(s->html, s->conditions[c]);
			fp_html_format(s->html, ": perplexity %.4g, ", number_at(row, "perplexity"));
			if (json_object_get(row, "kl"))
				fp_html_format(s->html, "KL %.4f, ", number_at(row, "kl"));
			fp_html_format(s->html, "error %.4f, %.1f s to prune, %.1f s to evaluate</summary>",
						   number_at(row, "relative_error"), number_at(row, "seconds"),
						   number_at(row, "evaluation_seconds"));
			fp_operator_part(s->html, row);
			fp_html_raw(s->html, "</details>\n");
		}
}

void fp_comparison_part(fp_html *html, const json_t *document)
{
	comparison *s = NULL;
	html->status = html->status == FP_OK ? FP_NEW(html->ctx, &s, 1) : html->status;
	if (html->status != FP_OK)
		return;
	s->html = html;
	s->rows = json_object_get(document, "rows");
	collect_names(s);
	fp_html_format(html, "<p>Scored on %.0f windows of %.0f tokens; the dense model's perplexity is %.4f.</p>\n",
				   number_at(document, "windows"), number_at(document, "sequence_length"), s->dense);
	write_tables(s);
	write_presets(s);
	write_summary(html, json_object_get(document, "summary"));
	if (!write_curve(s) && s->run_count > 1)
		for (int c = 0; c < s->condition_count && c < 8; c++)
			write_dots(s, s->conditions[c]);
	write_layer_errors(s);
	write_rows(s);
	fp_free(s);
}
