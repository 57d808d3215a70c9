/* SPDX-License-Identifier: Apache-2.0 */
#include "report/page.h"

#include "base/memory.h"
#include "base/number_text.h"
#include "report/comparison_part.h"
#include "report/layer_error_part.h"
#include "report/operator_part.h"

#include <fistapruner/settings.h>
#include <stdio.h>
#include <string.h>

enum { MAX_LAYERS = 4096 };

static const char style[] =
	":root{color-scheme:light dark;--ink:#1c2430;--soft:#5b6675;--line:#d5dbe3;--paper:#fff;--band:#f4f6f9;"
	"--heat:214 96 "
	"60;--s0:#1f5fa8;--s1:#b45309;--s2:#157a3b;--s3:#7335c9;--s4:#b3261e;--s5:#3f4a5a;--s6:#0b7285;--s7:#a61e6f}"
	"@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa6b6;--line:#354052;--paper:#12171f;--band:#"
	"1a212c;"
	"--heat:232 120 "
	"80;--s0:#74b3ff;--s1:#f0a860;--s2:#66d391;--s3:#bba0ff;--s4:#ff8f86;--s5:#b4c0d0;--s6:#5fd0e0;--s7:#ff8ac6}}"
	"*{box-sizing:border-box}"
	"body{margin:0 auto;max-width:60rem;padding:1.5rem 1rem 4rem;background:var(--paper);color:var(--ink);"
	"font:16px/1.5 system-ui,sans-serif}"
	"h1{font-size:1.6rem;line-height:1.25;margin:0 0 .25rem;overflow-wrap:anywhere}"
	".next{border-top:3px solid var(--line);margin-top:3rem;padding-top:2rem}"
	"h2{font-size:1.2rem;margin:2.5rem 0 .5rem}h3{font-size:1rem;margin:1.5rem 0 .25rem}"
	"p{margin:.4rem 0;max-width:46rem}.soft{color:var(--soft)}"
	".wide{overflow-x:auto;margin:.5rem 0}"
	"table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
	"th,td{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}"
	"thead th{border-bottom:2px solid var(--line);font-weight:600}th{font-weight:500}"
	"td.n,th.n{text-align:right}td.best{font-weight:700;background:var(--band)}"
	"td.h{text-align:right;background:rgb(var(--heat)/calc(var(--h)*.55))}"
	".facts td,.facts th{white-space:normal;overflow-wrap:anywhere;vertical-align:top}"
	".bar{display:inline-block;height:.7em;background:var(--s0);vertical-align:baseline;min-width:1px}"
	"svg{width:100%;max-width:50rem;height:auto;display:block;margin:.5rem 0}"
	"svg text{font:13px system-ui,sans-serif;fill:var(--ink)}.end{text-anchor:end}.mid{text-anchor:middle}"
	".grid{stroke:var(--line);fill:none}.axis{stroke:var(--soft);fill:none}"
	".base{stroke:var(--soft);stroke-dasharray:3 3;fill:none}.l{fill:none;stroke-width:2}.x{fill:none;stroke-width:2.5}"
	".s0{stroke:var(--s0)}.s1{stroke:var(--s1)}.s2{stroke:var(--s2)}.s3{stroke:var(--s3)}.s4{stroke:var(--s4)}"
	".s5{stroke:var(--s5)}.s6{stroke:var(--s6)}.s7{stroke:var(--s7)}.m.s0{fill:var(--s0)}.m.s1{fill:var(--s1)}.m.s2{"
	"fill:var(--s2)}.m.s3{fill:var(--s3)}"
	".m.s4{fill:var(--s4)}.m.s5{fill:var(--s5)}"
	"details{border-top:1px solid var(--line);padding:.4rem 0}summary{cursor:pointer;font-weight:600}"
	"@media(max-width:30rem){body{padding:1rem .75rem 3rem}th,td{padding:.25rem .4rem;font-size:.9rem}"
	"svg text{font-size:15px}}"
	"@media print{:root{--ink:#000;--soft:#333;--line:#999;--paper:#fff;--band:#eee}body{max-width:none;padding:0}"
	"h2,h3{break-after:avoid}svg,tr{break-inside:avoid}.wide{overflow:visible}"
	"details::details-content{content-visibility:visible!important;height:auto!important}}";

static const char *text_at(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));
	return text ? text : "";
}

/* "/a/b/name" or "org/name" → "name". */
static const char *last_name(const char *model)
{
	const char *slash = strrchr(model, '/');
	return slash && slash[1] ? slash + 1 : model;
}

static void write_head(fp_html *html, const char *title, const char *model)
{
	fp_html_raw(html, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
					  "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>");
	fp_html_text(html, title);
	fp_html_raw(html, ": ");
	fp_html_text(html, last_name(model));
	fp_html_raw(html, "</title><style>");
	fp_html_raw(html, style);
	fp_html_raw(html, "</style></head><body><header><h1>");
	fp_html_text(html, last_name(model));
	fp_html_raw(html, "</h1><p class=\"soft\">");
	fp_html_text(html, title);
	fp_html_raw(html, "</p></header>\n");
}

/* "446 s", "0.32 GiB" */
static void spell_fact(char *out, size_t size, const char *name, const json_t *value)
{
	*out = '\0';
	if (strcmp(name, "peak memory") == 0)
		fp_format(out, size, "%.2f GiB", json_number_value(value) / (1 << 30));
	else if (strcmp(name, "time") == 0)
		fp_format(out, size, "%.1f s", json_number_value(value));
	else if (json_is_integer(value))
		snprintf(out, size, "%lld", (long long)json_integer_value(value));
	else if (json_is_real(value))
		fp_format(out, size, "%.6g", json_real_value(value));
}

static void write_fact(fp_html *html, const char *name, const json_t *value)
{
	char number[64];
	if (!value || json_is_null(value) || (json_is_array(value) && json_array_size(value) == 0))
		return;
	fp_html_raw(html, "<tr><th>");
	fp_html_text(html, name);
	fp_html_raw(html, "</th><td>");
	for (size_t i = 0; i < (json_is_array(value) ? json_array_size(value) : 1); i++) {
		const json_t *one = json_is_array(value) ? json_array_get(value, i) : value;
		spell_fact(number, sizeof number, name, one);
		fp_html_raw(html, i ? ", " : "");
		fp_html_text(html, json_is_string(one) ? json_string_value(one) : number);
	}
	fp_html_raw(html, "</td></tr>");
}

/* What is needed to repeat the run: versions, data, and every setting. */
static void write_settings(fp_html *html, const json_t *document)
{
	static const char *const facts[][2] = {
		{"program", "program"},
		{"model", "model"},
		{"architecture", "architecture"},
		{"pruned checkpoint", "output"},
		{"recipe", "recipe"},
		{"calibration text", "calibration"},
		{"calibration windows", "calibration_windows"},
		{"scored text", "text"},
		{"protocol", "protocol"},
		{"scored windows", "windows"},
		{"tokens in a window", "sequence_length"},
		{"device", "device"},
		{"time", "seconds"},
		{"peak memory", "peak_memory_bytes"},
	};
	static const char *const own_text[][2] = {
		{"calibration texts that the model wrote", "texts"},
		{"their distinct runs of four tokens, as a share", "distinct"},
		{"their perplexity", "perplexity"},
		{"windows of them drawn again", "drawn_again"},
		{"seconds to write them", "seconds"},
	};
	fp_html_raw(html, "<h2>Settings and versions</h2><div class=\"wide\"><table class=\"facts\"><tbody>");
	for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
		write_fact(html, facts[i][0], json_object_get(document, facts[i][1]));
	for (size_t i = 0; i < sizeof own_text / sizeof own_text[0]; i++)
		write_fact(html, own_text[i][0], json_object_get(json_object_get(document, "own_text"), own_text[i][1]));
	fp_html_raw(html, "</tbody></table></div><details><summary>Every setting</summary><div class=\"wide\"><table "
					  "class=\"facts\"><tbody>");
	const char *name;
	json_t *value;
	json_object_foreach(json_object_get(document, "settings"), name, value)
	{
		write_fact(html, name, value);
	}
	fp_html_raw(html, "</tbody></table></div></details>");
}

/* layers[].hidden_error of a prune as one line. */
static void write_hidden_errors(fp_html *html, const json_t *layers, const char *title)
{
	json_t *errors = json_array();
	bool any = false;
	for (size_t i = 0; i < json_array_size(layers); i++) {
		const json_t *one = json_array_get(layers, i);
		json_t *error = json_object_get(one, "hidden_error");
		json_int_t layer = json_integer_value(json_object_get(one, "layer"));
		while (json_is_number(error) && layer < MAX_LAYERS && (json_int_t)json_array_size(errors) <= layer)
			json_array_append_new(errors, json_null());
		if (json_is_number(error) && layer >= 0 && layer < MAX_LAYERS)
			any = json_array_set(errors, (size_t)layer, error) == 0 || any;
	}
	if (any) {
		fp_layer_error_heading(html);
		fp_layer_error_chart(html, &(fp_layer_errors){title, errors}, 1);
	}
	json_decref(errors);
}

static bool has_fits(const json_t *layers)
{
	for (size_t i = 0; i < json_array_size(layers); i++)
		if (json_object_get(json_array_get(layers, i), "fit_steps"))
			return true;
	return false;
}

/* The layer fit: before and after, by layer. */
static void write_fits(fp_html *html, const json_t *layers)
{
	if (!has_fits(layers))
		return;
	fp_html_raw(html,
				"<h2>Layer fit</h2><p class=\"soft\">Error of the layer's output on held-out windows, relative to "
				"what the layer adds to its input. A fit that did not lower it was dropped (0 steps).</p><div "
				"class=\"wide\"><table>"
				"<thead><tr><th>layer</th><th class=\"n\">before</th><th class=\"n\">after</th><th class=\"n\">"
				"steps</th></tr></thead><tbody>");
	for (size_t i = 0; i < json_array_size(layers); i++) {
		const json_t *one = json_array_get(layers, i);
		if (!json_object_get(one, "fit_steps"))
			continue;
		fp_html_format(html, "<tr><th>%lld</th><td class=\"n\">%.4f</td><td class=\"n\">%.4f</td>",
					   (long long)json_integer_value(json_object_get(one, "layer")),
					   json_number_value(json_object_get(one, "fit_loss_before")),
					   json_number_value(json_object_get(one, "fit_loss_after")));
		fp_html_format(html, "<td class=\"n\">%lld</td></tr>",
					   (long long)json_integer_value(json_object_get(one, "fit_steps")));
	}
	fp_html_raw(html, "</tbody></table></div>\n");
}

/* "full" and "local" in words, and what they gained. */
static void write_basis(fp_html *html, const json_t *basis)
{
	const json_t *removed = json_object_get(basis, "removed");
	bool stream = json_array_size(removed) == 2;
	if (!stream)
		removed = json_object_get(basis, "removed_of_heads");
	if (json_array_size(removed) != 2)
		return;
	fp_html_raw(html, "<p>It was pruned in a learned basis, which is folded into the weights (");
	fp_html_text(html, text_at(basis, "kind"));
	fp_html_format(
		html,
		": %s). The share that the pattern removes of the%s operators' squared weights fell from %.1f%% to %.1f%%.",
		stream ? "residual stream and heads" : "heads", stream ? "" : " attention",
		100 * json_number_value(json_array_get(removed, 0)), 100 * json_number_value(json_array_get(removed, 1)));
	if (json_is_true(json_object_get(basis, "untied_head")))
		fp_html_format(html, " The head is no longer the embedding and takes %.1f MiB of its own.",
					   json_number_value(json_object_get(basis, "head_bytes")) / (1 << 20));
	fp_html_raw(html, "</p>\n");
}

/* How the weights of the input are stored, if they were decoded. */
static void write_coding(fp_html *html, const json_t *document)
{
	if (!json_object_get(document, "stored_as"))
		return;
	fp_html_raw(html, "<p>The weights of the input are stored as ");
	fp_html_text(html, text_at(document, "stored_as"));
	fp_html_raw(html, ".</p>\n");
}

/* The number format of the output. */
static void write_quantised(fp_html *html, const json_t *quantised)
{
	if (!quantised)
		return;
	fp_html_raw(html, "<p>The pruned operators are stored as ");
	fp_html_text(html, text_at(quantised, "stored_as"));
	fp_html_raw(html, " (compressed-tensors, ");
	fp_html_text(html, text_at(quantised, "layout"));
	fp_html_raw(html, "). Zeros are ");
	fp_html_text(html, text_at(quantised, "zeros"));
	fp_html_raw(html, ".</p>\n");
}

static void write_prune(fp_html *html, const json_t *document)
{
	const char *name = fp_method_title(text_at(document, "method"), text_at(document, "preset"));
	char title[128];
	snprintf(title, sizeof title, "pruned to %.16s: %.64s", text_at(document, "pattern"), name);
	write_head(html, title, text_at(document, "model"));
	fp_html_format(
		html,
		"<p>%.4g%% of the weights of the linear operators are zero. The operators' outputs on the calibration text "
		"differ from the dense model's by %.4g%% (√(Σ‖W*X* − WX‖² / Σ‖WX‖²)). It took %.1f s.</p>\n",
		100 * json_number_value(json_object_get(document, "sparsity")),
		100 * json_number_value(json_object_get(document, "relative_error")),
		json_number_value(json_object_get(document, "seconds")));
	write_coding(html, document);
	write_quantised(html, json_object_get(document, "quantized"));
	write_basis(html, json_object_get(document, "basis"));
	write_hidden_errors(html, json_object_get(document, "layers"), name);
	fp_html_raw(html, "<h2>Error by operator</h2>");
	fp_operator_part(html, document);
	write_fits(html, json_object_get(document, "layers"));
}

/* Several comparisons on one page: the demo's report. */
static void write_several(fp_html *html, const json_t *document)
{
	const json_t *all = json_object_get(document, "comparisons");
	for (size_t i = 0; i < json_array_size(all); i++) {
		const json_t *one = json_array_get(all, i);
		if (i == 0)
			write_head(html, "every method and preset on a small model", text_at(one, "model"));
		else {
			fp_html_raw(html, "<header class=\"next\"><h1>");
			fp_html_text(html, last_name(text_at(one, "model")));
			fp_html_raw(html, "</h1></header>\n");
		}
		fp_html_raw(html, "<p>");
		fp_html_text(html, text_at(document, "note"));
		fp_html_raw(html, "</p>");
		fp_comparison_part(html, one);
		write_settings(html, one);
	}
}

fp_status fp_page_write(char **out, fp_context *ctx, const json_t *document)
{
	fp_html html = {.ctx = ctx};
	*out = NULL;
	bool several = json_array_size(json_object_get(document, "comparisons")) > 0;
	if (several) {
		write_several(&html, document);
	} else if (json_is_array(json_object_get(document, "rows"))) {
		char title[128];
		snprintf(title, sizeof title, "methods compared, recipe %.32s", text_at(document, "recipe"));
		write_head(&html, title, text_at(document, "model"));
		write_coding(&html, document);
		write_quantised(&html, json_object_get(document, "quantized"));
		fp_comparison_part(&html, document);
	} else if (json_is_array(json_object_get(document, "operators"))) {
		write_prune(&html, document);
	} else {
		return fp_fail(ctx, FP_ERROR_USAGE, "a report needs the result of prune or compare; this document is neither");
	}
	if (!several)
		write_settings(&html, document);
	fp_html_raw(&html, "</body></html>\n");
	if (html.status == FP_OK)
		*out = html.text;
	else
		fp_free(html.text);
	return html.status;
}
