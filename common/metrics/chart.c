// SPDX-License-Identifier: Apache-2.0
// What all pictures of a chart share. See chart.h.
#include "common/metrics/chart.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

static bool is_drawn(const struct chart *c, double y)
{
    return isfinite(y) && (!c->log || y > 0);
}

// Ticks at multiples of 1, 2 or 5 times a power of ten, at most `most` of them; of a log axis at powers
// of ten, and where these are fewer than two, at the ends, as of an axis of no finite length.
static void place_ticks(struct axis *a, int most)
{
    double span = a->to - a->from, step = pow(10, floor(log10(span / most)));
    static const double round_by[] = {1, 2, 5, 10};
    for (int i = 0; i < 4; i++)
        if (span / (step * round_by[i]) <= most) {
            step *= round_by[i];
            break;
        }
    if (a->log && step < 1)
        step = 1;
    const double last = fmin(a->to + span * 1e-9, DBL_MAX);
    for (double v = ceil(a->from / step); v * step <= last && a->nticks < most; v++)
        a->tick[a->nticks++] = v * step == 0 ? 0 : v * step;
    if (a->nticks < 2 && (a->log || !isfinite(span))) {
        a->nticks = 2;
        a->tick[0] = a->from;
        a->tick[1] = a->to;
    }
}

static void take(struct axis *a, double v)
{
    a->from = v < a->from ? v : a->from;
    a->to = v > a->to ? v : a->to;
}

bool chart_axes(const struct chart *c, struct axis *x, struct axis *y)
{
    *x = *y = (struct axis){.from = INFINITY, .to = -INFINITY};
    y->log = c->log;
    for (int i = 0; i < c->ncurves; i++)
        for (size_t k = 0; k < c->curve[i].n; k++)
            if (is_drawn(c, c->curve[i].y[k])) {
                take(x, c->curve[i].x[k]);
                take(y, c->log ? log10(c->curve[i].y[k]) : c->curve[i].y[k]);
            }
    if (!(x->from <= x->to))
        return false;
    struct axis *axes[] = {x, y};
    for (int i = 0; i < 2; i++) {
        struct axis *a = axes[i];
        double half = a->from == a->to ? fmax(fabs(a->from) * 0.05, 0.5) : 0;
        a->from = fmax(a->from - half, -DBL_MAX);
        a->to = fmin(a->to + half, a->log ? log10(DBL_MAX) : DBL_MAX);
        place_ticks(a, i == 0 ? 8 : 6);
    }
    return true;
}

static double place_between(const struct axis *a, double at)
{
    return (at / 2 - a->from / 2) / (a->to / 2 - a->from / 2); // the ends may lie far apart
}

double tick_place(const struct axis *a, int tick)
{
    return place_between(a, a->tick[tick]);
}

// NaN where it cannot be drawn.
static double find_place(const struct axis *a, double v)
{
    return place_between(a, a->log ? log10(v) : v);
}

const char *axis_label(const struct axis *a, double v, char out[32])
{
    double value = a->log ? pow(10, v) : v;
    double step = a->nticks > 1 ? fabs(a->tick[1] - a->tick[0]) : fabs(value);
    if (a->log) {
        snprintf(out, 32, "%.3g", value);
    } else if (fabs(value) >= 1e6 || (value != 0 && step < 1e-4)) {
        snprintf(out, 32, "%.4g", value);
    } else if (fabs(value) >= 10000 && step >= 100) {
        snprintf(out, 32, "%.6gk", value / 1000);
    } else {
        int digits = step > 0 && step < 1 ? (int)ceil(-log10(step) - 1e-9) : 0;
        snprintf(out, 32, "%.*f", digits, value);
    }
    return out;
}

struct column { // of the points that fall into one
    size_t first, least, greatest, last;
};

// Puts the column's points, in their order and each once.
static size_t put_column(const struct curve *v, const struct axis *x, const struct axis *y,
                         const struct column *c, struct chart_point *out)
{
    bool falls = c->greatest < c->least;
    const size_t order[] = {c->first, falls ? c->greatest : c->least,
                            falls ? c->least : c->greatest, c->last};
    size_t n = 0;
    for (int i = 0; i < 4; i++)
        if (i == 0 || order[i] > order[i - 1])
            out[n++] =
                (struct chart_point){find_place(x, v->x[order[i]]), find_place(y, v->y[order[i]])};
    return n;
}

size_t chart_thin(const struct chart *c, int i, const struct axis *x, const struct axis *y,
                  int columns, struct arena *a, struct chart_point **out)
{
    const struct curve *v = &c->curve[i];
    struct chart_point *points = arena_array(a, struct chart_point, 4 * columns);
    struct column held = {0};
    size_t n = 0;
    int at = -1; // the column that is held; -1: none
    for (size_t k = 0; k < v->n; k++) {
        if (!is_drawn(c, v->y[k]))
            continue;
        int column = (int)(find_place(x, v->x[k]) * (columns - 1));
        if (column != at) {
            n += at >= 0 ? put_column(v, x, y, &held, points + n) : 0;
            held = (struct column){k, k, k, k};
            at = column;
        }
        held.least = v->y[k] < v->y[held.least] ? k : held.least;
        held.greatest = v->y[k] > v->y[held.greatest] ? k : held.greatest;
        held.last = k;
    }
    n += at >= 0 ? put_column(v, x, y, &held, points + n) : 0;
    *out = points;
    return n;
}
