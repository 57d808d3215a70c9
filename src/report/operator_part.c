/* SPDX-License-Identifier: Apache-2.0 */
#include "report/operator_part.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const roles[] = {"q", "k", "v", "o", "gate", "up", "down"};
enum { ROLES = sizeof roles / sizeof roles[0] };

static double number_at(const json_t *object, const char *key)
{
	const json_t *value = json_object_get(object, key);
	return json_is_number(value) ? json_number_value(value) : NAN;
}

static bool is_experts(const json_t *one)
{
	return json_object_get(one, "expert") != NULL;
}

static int64_t layer_of(const json_t *one)
{
	return json_integer_value(json_object_get(one, "layer"));
}

/* Whether it is the operator of this role that reads every token. */
static bool has_name(const json_t *one, const char *role)
{
	const char *name = json_string_value(json_object_get(one, "operator"));
	return !is_experts(one) && name && strcmp(name, role) == 0;
}

static const json_t *find_operator(const json_t *operators, int64_t layer, const char *role)
{
	for (size_t i = 0; i < json_array_size(operators); i++) {
		const json_t *one = json_array_get(operators, i);
		if (layer_of(one) == layer && has_name(one, role))
			return one;
	}
	return NULL;
}

/* The first layer after `layer` that has an operator; −1: there is none. A damaged document may name any number, so
 * numbers in between are not tried one by one. */
static int64_t next_layer(const json_t *operators, int64_t layer)
{
	int64_t next = -1;
	for (size_t i = 0; i < json_array_size(operators); i++) {
		int64_t other = layer_of(json_array_get(operators, i));
		if (other > layer && (next < 0 || other < next))
			next = other;
	}
	return next;
}

static bool has_role(const json_t *operators, const char *role)
{
	for (size_t i = 0; i < json_array_size(operators); i++)
		if (has_name(json_array_get(operators, i), role))
			return true;
	return false;
}

static double largest(const json_t *operators, const char *key)
{
	double most = 0;
	for (size_t i = 0; i < json_array_size(operators); i++) {
		double value = number_at(json_array_get(operators, i), key);
		most = value > most ? value : most;
	}
	return most;
}

typedef void (*cell_writer)(fp_html *html, const json_t *one, double most);

static void write_error(fp_html *html, const json_t *one, double most)
{
	double error = number_at(one, "relative_error");
	fp_html_format(html, "<td class=\"h\" style=\"--h:%.2f\">%.4f</td>", most > 0 ? error / most : 0.0, error);
}

static void write_steps(fp_html *html, const json_t *one, double most)
{
	(void)most;
	double steps = number_at(one, "iterations");
	double search = number_at(one, "search_steps");
	fp_html_format(html, "<td class=\"n\">%.3g / %.0f", number_at(one, "lambda"), steps);
	if (search > 0)
		fp_html_format(html, " + %.0f", search);
	fp_html_raw(html, "</td>");
}

/* A row per layer, a column per operator. */
static void write_grid(fp_html *html, const json_t *operators, cell_writer write, double most)
{
	bool there[ROLES];
	fp_html_raw(html, "<div class=\"wide\"><table><thead><tr><th>layer</th>");
	for (int r = 0; r < ROLES; r++) {
		there[r] = has_role(operators, roles[r]);
		if (there[r])
			fp_html_format(html, "<th class=\"n\">%s</th>", roles[r]);
	}
	fp_html_raw(html, "</tr></thead><tbody>");
	for (int64_t layer = next_layer(operators, -1); layer >= 0; layer = next_layer(operators, layer)) {
		fp_html_format(html, "<tr><th>%lld</th>", (long long)layer);
		for (int r = 0; r < ROLES; r++) {
			const json_t *one = there[r] ? find_operator(operators, layer, roles[r]) : NULL;
			if (one)
				write(html, one, most);
			else if (there[r])
				fp_html_raw(html, "<td></td>");
		}
		fp_html_raw(html, "</tr>");
	}
	fp_html_raw(html, "</tbody></table></div>\n");
}

/* What a layer's experts have in common. */
typedef struct expert_sums {
	int64_t count;          /* of operators of one role */
	double error[ROLES];    /* the sum, by role */
	double fewest, most;    /* tokens of an expert; NAN: unknown */
	int64_t numbers[ROLES]; /* of operators, by role */
} expert_sums;

static void add_expert(expert_sums *sums, const json_t *one)
{
	const char *name = json_string_value(json_object_get(one, "operator"));
	double tokens = number_at(one, "tokens");
	for (int r = 0; r < ROLES; r++)
		if (name && strcmp(name, roles[r]) == 0) {
			sums->error[r] += number_at(one, "relative_error");
			sums->numbers[r]++;
			sums->count = sums->numbers[r] > sums->count ? sums->numbers[r] : sums->count;
		}
	sums->fewest = fmin(sums->fewest, tokens); /* which ignore NAN */
	sums->most = fmax(sums->most, tokens);
}

/* A row per layer: the mean errors of its experts, and the tokens that reached them. */
static void write_experts(fp_html *html, const json_t *operators)
{
	bool begun = false;
	for (int64_t layer = next_layer(operators, -1); layer >= 0; layer = next_layer(operators, layer)) {
		expert_sums sums = {.fewest = NAN, .most = NAN};
		for (size_t i = 0; i < json_array_size(operators); i++) {
			const json_t *one = json_array_get(operators, i);
			if (is_experts(one) && layer_of(one) == layer)
				add_expert(&sums, one);
		}
		if (sums.count == 0)
			continue;
		if (!begun)
			fp_html_raw(html, "<h3>Experts</h3><p class=\"soft\">Mean errors of each layer's experts, and how many "
							  "tokens reached one.</p><div class=\"wide\"><table><thead><tr><th>layer</th>"
							  "<th class=\"n\">experts</th><th class=\"n\">gate</th><th class=\"n\">up</th>"
							  "<th class=\"n\">down</th><th class=\"n\">tokens</th></tr></thead><tbody>");
		begun = true;
		fp_html_format(html, "<tr><th>%lld</th><td class=\"n\">%lld</td>", (long long)layer, (long long)sums.count);
		for (int r = ROLES - 3; r < ROLES; r++)
			fp_html_format(html, "<td class=\"n\">%.4f</td>",
						   sums.numbers[r] > 0 ? sums.error[r] / (double)sums.numbers[r] : 0.0);
		if (sums.most >= 0)
			fp_html_format(html, "<td class=\"n\">%.0f to %.0f</td></tr>", sums.fewest, sums.most);
		else
			fp_html_raw(html, "<td></td></tr>");
	}
	if (begun)
		fp_html_raw(html, "</tbody></table></div>\n");
}

static void write_times(fp_html *html, const json_t *stages)
{
	const char *name;
	json_t *seconds;
	double sum = 0;
	json_object_foreach((json_t *)stages, name, seconds)
	{
		sum += json_number_value(seconds);
	}
	if (sum <= 0)
		return;
	fp_html_raw(html, "<h3>Time by stage</h3><div class=\"wide\"><table><tbody>");
	json_object_foreach((json_t *)stages, name, seconds)
	{
		double value = json_number_value(seconds);
		if (value < 0.0005 * sum)
			continue;
		fp_html_raw(html, "<tr><th>");
		fp_html_text(html, name);
		fp_html_format(html,
					   "</th><td class=\"n\">%.2f s</td><td class=\"n\">%.0f%%</td><td><span class=\"bar\" "
					   "style=\"width:%.1frem\"></span></td></tr>",
					   value, 100 * value / sum, 12 * value / sum);
	}
	fp_html_raw(html, "</tbody></table></div>\n");
}

void fp_operator_part(fp_html *html, const json_t *run)
{
	const json_t *operators = json_object_get(run, "operators");
	double searched = largest(operators, "iterations") + largest(operators, "search_steps");
	fp_html_raw(html,
				"<p class=\"soft\">‖W*X* − WX‖ / ‖WX‖ of each operator; the stronger the colour, the larger.</p>");
	write_grid(html, operators, write_error, largest(operators, "relative_error"));
	write_experts(html, operators);
	if (searched > 0) {
		fp_html_raw(html, "<h3>λ / steps</h3><p class=\"soft\">λ of the solution that was kept / FISTA steps in all; "
						  "after a plus sign steps of the support search.</p>");
		write_grid(html, operators, write_steps, 0);
	}
	write_times(html, json_object_get(run, "stages"));
}
