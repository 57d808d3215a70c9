/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chart.h: line and dot charts as SVG. Series differ by mark and dash and carry their names, so that a chart can be
 * read without colour; colours are the classes s0…s7 of the page's style, for light and dark.
 */
#ifndef FP_REPORT_CHART_H
#define FP_REPORT_CHART_H

#include "report/html_text.h"

enum { FP_CHART_SERIES = 12, FP_CHART_NAME = 80 };

typedef struct fp_chart_series {
	char name[FP_CHART_NAME];
	double *x, *y; /* NaN in y: no point there */
	int64_t count;
} fp_chart_series;

typedef struct fp_chart {
	const char *label; /* what it shows, for screen readers */
	const char *x_title, *y_title;
	bool x_log2, y_log;
	const char *x_unit; /* printed after each number of the x axis: "%" */
	double base;        /* a horizontal line at this height, named "dense"; NaN: none */
	fp_chart_series series[FP_CHART_SERIES];
	int count;
} fp_chart;

/* y over x, one line per series. */
void fp_chart_lines(fp_html *html, const fp_chart *chart);
/* Each series' only point as a dot in a row of its own, y along the axis. */
void fp_chart_dots(fp_html *html, const fp_chart *chart);

#endif
