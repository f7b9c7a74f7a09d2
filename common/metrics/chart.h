// SPDX-License-Identifier: Apache-2.0
// Charts: curves over one pair of axes, as text of braille dots or as SVG. What both share is here: the
// range of the axes, ticks at round numbers, and what is left of a curve that has more points than the
// picture has columns: of each column its first, least, greatest and last point, so that no peak is lost.
// Numbers that are not finite, and on a log scale those not above 0, are left out: a curve joins the
// points that there are.
//
// The colours are Okabe and Ito's, which colour-blind people tell apart; in SVG each curve has its
// own dashes too, and in a terminal without colours a letter of its own at its end.
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "common/base/arena.h"
#include "common/base/buf.h"

enum { CHART_CURVES = 64, CHART_TICKS = 12 };

struct curve { // borrowed
    const char *name;
    const double *x, *y; // x does not fall
    size_t n;
};
struct chart {
    const char *x_name;
    bool log; // the y axis
    int ncurves;
    struct curve curve[CHART_CURVES];
};

struct axis {
    double from, to; // of a log axis the powers of ten
    int nticks;
    double tick[CHART_TICKS];
    bool log;
};
// False: no curve has a point that can be drawn.
bool chart_axes(const struct chart *c, struct axis *x, struct axis *y);
// Where a tick lies between the ends of the axis, 0 to 1.
double tick_place(const struct axis *a, int tick);
// "0.002", "1e-05", "12k": in the digits that the ticks of this axis need.
const char *axis_label(const struct axis *a, double v, char out[32]);

struct chart_point {
    double x, y; // 0 to 1, of the axes
};
// The points of curve i that a picture of so many columns shows. Returns how many; the arena's.
size_t chart_thin(const struct chart *c, int i, const struct axis *x, const struct axis *y,
                  int columns, struct arena *a, struct chart_point **out);

struct chart_text {
    int columns, lines; // of all, with axes and legend
    bool colour;        // the terminal shows colours
};
// For plain_picture() where it has colours.
void chart_braille(const struct chart *c, const struct chart_text *t, struct buf *out);
void chart_svg(const struct chart *c, const char *title, struct buf *out);
