/* SPDX-License-Identifier: Apache-2.0 */
#include "report/chart.h"

#include "base/number_text.h"
#include <math.h>
#include <string.h>

enum {
	WIDTH = 800,
	HEIGHT = 340,
	LEFT = 78,
	TOP = 14,
	BOTTOM = 44,
	ROW = 30,
	NAMES = 286,   /* at least for names */
	CHARACTER = 7, /* of a name, at most, on average */
	NAME_GAP = 18,
	MAX_TICKS = 16
};
enum { COLOURS = 8 };

static const char *const dashes[COLOURS] = {"", "7 4", "2 4", "9 3 2 3", "4 2", "12 5", "14 3 2 3 2 3", "1 2"};

/* An axis: values low…high on pixels from…to. */
typedef struct axis {
	double low, high, from, to;
	bool logarithmic;
	double ticks[MAX_TICKS];
	int tick_count;
} axis;

static double place(const axis *a, double value)
{
	double low = a->logarithmic ? log(a->low) : a->low;
	double high = a->logarithmic ? log(a->high) : a->high;
	double at = a->logarithmic ? log(value) : value;
	return a->from + (high > low ? (at - low) / (high - low) : 0.5) * (a->to - a->from);
}

static void add_tick(axis *a, double value)
{
	if (value >= a->low * (a->low > 0 ? 0.9999 : 1) && value <= a->high * 1.0001 && a->tick_count < MAX_TICKS)
		a->ticks[a->tick_count++] = value + 0.0; /* never "-0" */
}

/* A linear axis gets about five ticks, 1, 2 or 5 × 10ⁿ apart. A logarithmic axis gets 1, 2 and 5 × 10ⁿ, more of them
 * over a short range and only powers of ten over a long one. */
static void choose_ticks(axis *a)
{
	static const double mantissas[] = {1, 1.5, 2, 3, 5, 7, 4, 6, 8, 9};
	double range = a->high / a->low;
	if (!a->logarithmic || range < 1.6) {
		double step = (a->high - a->low) / 5;
		double power = pow(10, floor(log10(step > 0 ? step : 1)));
		double factor = step / power;
		step = power * (factor <= 1 ? 1 : factor <= 2 ? 2 : factor <= 5 ? 5 : 10);
		int first = (int)ceil(a->low / step - 1e-9);
		int last = (int)floor(a->high * 1.0001 / step);
		for (int i = first; i <= last; i++)
			add_tick(a, i * step);
		return;
	}
	int last = (int)floor(log10(a->high));
	for (int exponent = (int)floor(log10(a->low)); exponent <= last; exponent++) {
		double power = pow(10, exponent);
		for (int i = 0; i < 10; i++) {
			bool round = i == 0 || ((i == 2 || i == 4) && range < 1e3) || (i < 6 && range < 12) || range < 4;
			if (round)
				add_tick(a, mantissas[i] * power);
		}
	}
}

static void spell(char out[static 32], double value)
{
	if (value >= 1e5)
		fp_format(out, 32, "%.0e", value);
	else
		fp_format(out, 32, "%.4g", value);
}

/* Every series has a mark of its own. */
static void draw_mark(fp_html *html, int series, double x, double y)
{
	int colour = series % COLOURS;
	switch (series % COLOURS) {
	case 0:
		fp_html_format(html, "<circle class=\"m s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>", colour, x, y);
		break;
	case 1:
		fp_html_format(html, "<rect class=\"m s%d\" x=\"%.1f\" y=\"%.1f\" width=\"8\" height=\"8\"/>", colour, x - 4,
					   y - 4);
		break;
	case 2:
		fp_html_format(html, "<path class=\"m s%d\" d=\"M%.1f %.1fl5 9h-10z\"/>", colour, x, y - 5);
		break;
	case 3:
		fp_html_format(html, "<path class=\"m s%d\" d=\"M%.1f %.1fl5 5l-5 5l-5-5z\"/>", colour, x, y - 5);
		break;
	case 4:
		fp_html_format(html, "<path class=\"m s%d\" d=\"M%.1f %.1fl-5-9h10z\"/>", colour, x, y + 5);
		break;
	case 5:
		fp_html_format(html, "<path class=\"x s%d\" d=\"M%.1f %.1fl8 8m-8 0l8-8\"/>", colour, x - 4, y - 4);
		break;
	case 6:
		fp_html_format(html, "<circle class=\"x s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>", colour, x, y);
		break;
	default:
		fp_html_format(html, "<path class=\"x s%d\" d=\"M%.1f %.1fv10m-5-5h10\"/>", colour, x, y - 5);
	}
}

static void open_svg(fp_html *html, const fp_chart *chart, int height)
{
	fp_html_format(html, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH, height);
	fp_html_text(html, chart->label);
	fp_html_raw(html, "\">");
}

static bool is_point(const fp_chart *chart, double y)
{
	return isfinite(y) && (!chart->y_log || y > 0);
}

static void widen(double *low, double *high, double value)
{
	*low = value < *low ? value : *low;
	*high = value > *high ? value : *high;
}

/* The range of y over all series; false: no series has a point. */
static bool range_of_y(const fp_chart *chart, double *low, double *high)
{
	*low = INFINITY;
	*high = -INFINITY;
	for (int s = 0; s < chart->count; s++)
		for (int64_t i = 0; i < chart->series[s].count; i++)
			if (is_point(chart, chart->series[s].y[i]))
				widen(low, high, chart->series[s].y[i]);
	if (isfinite(chart->base))
		widen(low, high, chart->base);
	if (!(*low <= *high))
		return false;
	if (chart->y_log) {
		*low /= 1.04;
		*high *= 1.04;
	} else {
		*low = 0;
		*high = *high > 0 ? *high * 1.05 : 1;
	}
	return true;
}

static void draw_frame(fp_html *html, const fp_chart *chart, const axis *x, const axis *y)
{
	char number[32];
	for (int i = 0; i < y->tick_count; i++) {
		double at = place(y, y->ticks[i]);
		spell(number, y->ticks[i]);
		fp_html_format(
			html, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/><text class=\"end\" x=\"%.1f\" y=\"%.1f\">%s</text>",
			x->from, at, x->to, x->from - 7, at + 4, number);
	}
	for (int i = 0; i < x->tick_count; i++) {
		double at = place(x, x->ticks[i]);
		spell(number, x->ticks[i]);
		fp_html_format(html,
					   "<path class=\"axis\" d=\"M%.1f %.1fv5\"/><text class=\"mid\" x=\"%.1f\" y=\"%.1f\">%s%s</text>",
					   at, y->from, at, y->from + 19, number, chart->x_unit ? chart->x_unit : "");
	}
	fp_html_format(html, "<path class=\"axis\" d=\"M%.1f %.1fH%.1f\"/><text class=\"mid\" x=\"%.1f\" y=\"%.1f\">",
				   x->from, y->from, x->to, (x->from + x->to) / 2, y->from + 38);
	fp_html_text(html, chart->x_title);
	fp_html_format(html, "</text><text class=\"mid\" transform=\"translate(13 %.1f) rotate(-90)\">",
				   (y->from + y->to) / 2);
	fp_html_text(html, chart->y_title);
	fp_html_raw(html, "</text>");
}

/* The width of the longest name. */
static int name_space(const fp_chart *chart)
{
	int space = NAMES;
	for (int s = 0; s < chart->count; s++) {
		int own = CHARACTER * (int)strlen(chart->series[s].name);
		space = own > space ? own : space;
	}
	return space;
}

/* Names at the ends of the lines, moved apart if they would overlap. */
static void draw_names(fp_html *html, const fp_chart *chart, const double *wanted, double x)
{
	double at[FP_CHART_SERIES];
	int order[FP_CHART_SERIES];
	int count = 0;
	for (int s = 0; s < chart->count; s++) {
		if (!isfinite(wanted[s]))
			continue;
		int i = count++;
		for (; i > 0 && wanted[order[i - 1]] > wanted[s]; i--)
			order[i] = order[i - 1];
		order[i] = s;
	}
	for (int i = 0; i < count; i++) {
		at[i] = wanted[order[i]];
		if (i > 0 && at[i] < at[i - 1] + NAME_GAP)
			at[i] = at[i - 1] + NAME_GAP;
	}
	double over = count > 0 ? at[count - 1] - (HEIGHT - BOTTOM) : 0;
	for (int i = count - 1; i >= 0 && over > 0; i--) {
		double limit = i == count - 1 ? HEIGHT - BOTTOM : at[i + 1] - NAME_GAP;
		at[i] = at[i] > limit ? limit : at[i];
	}
	for (int i = 0; i < count; i++) {
		int colour = order[i] % COLOURS;
		draw_mark(html, order[i], x + 26, at[i]);
		fp_html_format(html, "<text class=\"t%d\" x=\"%.1f\" y=\"%.1f\">", colour, x + 36, at[i] + 4);
		fp_html_text(html, chart->series[order[i]].name);
		fp_html_raw(html, "</text>");
	}
}

static double draw_series(fp_html *html, const fp_chart *chart, int index, const axis *x, const axis *y)
{
	const fp_chart_series *series = &chart->series[index];
	double last = NAN;
	bool pen = false;
	fp_html_format(html, "<path class=\"l s%d\" stroke-dasharray=\"%s\" d=\"", index % COLOURS,
				   dashes[index % COLOURS]);
	for (int64_t i = 0; i < series->count; i++) {
		bool point = is_point(chart, series->y[i]);
		if (point) {
			last = place(y, series->y[i]);
			fp_html_format(html, "%c%.1f %.1f", pen ? 'L' : 'M', place(x, series->x[i]), last);
		}
		pen = point;
	}
	fp_html_raw(html, "\"/>");
	for (int64_t i = 0; i < series->count && series->count <= 40; i++)
		if (is_point(chart, series->y[i]))
			draw_mark(html, index, place(x, series->x[i]), place(y, series->y[i]));
	return last;
}

/* A tick at each point if there are few points, else at round numbers. */
static void choose_x_ticks(const fp_chart *chart, axis *x)
{
	const fp_chart_series *longest = &chart->series[0];
	for (int s = 1; s < chart->count; s++)
		if (chart->series[s].count > longest->count)
			longest = &chart->series[s];
	if (longest->count > 10) {
		choose_ticks(x);
		return;
	}
	for (int64_t i = 0; i < longest->count; i++)
		add_tick(x, longest->x[i]);
}

void fp_chart_lines(fp_html *html, const fp_chart *chart)
{
	axis x = {.low = INFINITY,
			  .high = -INFINITY,
			  .from = LEFT,
			  .to = WIDTH - 34 - name_space(chart),
			  .logarithmic = chart->x_log2};
	axis y = {.from = HEIGHT - BOTTOM, .to = TOP, .logarithmic = chart->y_log};
	double ends[FP_CHART_SERIES];
	for (int s = 0; s < chart->count; s++)
		for (int64_t i = 0; i < chart->series[s].count; i++)
			widen(&x.low, &x.high, chart->series[s].x[i]);
	if (!range_of_y(chart, &y.low, &y.high) || !(x.low <= x.high))
		return;
	choose_ticks(&y);
	choose_x_ticks(chart, &x);
	open_svg(html, chart, HEIGHT);
	draw_frame(html, chart, &x, &y);
	if (isfinite(chart->base)) {
		double at = place(&y, chart->base);
		fp_html_format(
			html, "<path class=\"base\" d=\"M%.1f %.1fH%.1f\"/><text class=\"end\" x=\"%.1f\" y=\"%.1f\">dense</text>",
			x.from, at, x.to, x.to - 8, at - 5);
	}
	for (int s = 0; s < chart->count; s++)
		ends[s] = draw_series(html, chart, s, &x, &y);
	draw_names(html, chart, ends, x.to);
	fp_html_raw(html, "</svg>");
}

void fp_chart_dots(fp_html *html, const fp_chart *chart)
{
	int names = name_space(chart);
	axis value = {.from = names + 14, .to = WIDTH - 70, .logarithmic = chart->y_log};
	double bottom = TOP + (double)chart->count * ROW;
	char number[32];
	if (!range_of_y(chart, &value.low, &value.high))
		return;
	choose_ticks(&value);
	open_svg(html, chart, (int)bottom + BOTTOM);
	for (int i = 0; i < value.tick_count; i++) {
		double at = place(&value, value.ticks[i]);
		spell(number, value.ticks[i]);
		fp_html_format(html,
					   "<path class=\"grid\" d=\"M%.1f %dV%.1f\"/><text class=\"mid\" x=\"%.1f\" y=\"%.1f\">%s</text>",
					   at, TOP, bottom, at, bottom + 17, number);
	}
	if (isfinite(chart->base))
		fp_html_format(html, "<path class=\"base\" d=\"M%.1f %dV%.1f\"/>", place(&value, chart->base), TOP, bottom);
	for (int s = 0; s < chart->count; s++) {
		double y = TOP + ROW * (s + 0.5);
		fp_html_format(html, "<text class=\"end\" x=\"%d\" y=\"%.1f\">", names, y + 4);
		fp_html_text(html, chart->series[s].name);
		fp_html_raw(html, "</text>");
		if (chart->series[s].count < 1 || !is_point(chart, chart->series[s].y[0])) {
			fp_html_format(html, "<text x=\"%.1f\" y=\"%.1f\">not finite</text>", value.from + 8, y + 4);
			continue;
		}
		double at = place(&value, chart->series[s].y[0]);
		fp_html_format(html, "<path class=\"axis\" d=\"M%.1f %.1fH%.1f\"/>", value.from, y, at);
		draw_mark(html, s, at, y);
		spell(number, chart->series[s].y[0]);
		fp_html_format(html, "<text x=\"%.1f\" y=\"%.1f\">%s</text>", at + 10, y + 4, number);
	}
	fp_html_format(html, "<text class=\"mid\" x=\"%.1f\" y=\"%.1f\">", (value.from + value.to) / 2, bottom + 36);
	fp_html_text(html, chart->y_title);
	fp_html_raw(html, "</text></svg>");
}
