// SPDX-License-Identifier: Apache-2.0
// A curve in bounded memory. See bounded_curve.h.
#include "common/metrics/bounded_curve.h"

#include <math.h>
#include <string.h>

// Keeps of `more`'s points behind those of `to` the first, least, greatest and last of all.
static void join_columns(struct bounded_column *to, const struct bounded_column *more)
{
    int64_t step[2 * BOUNDED_KEPT];
    double y[2 * BOUNDED_KEPT];
    int n = to->n + more->n, least = 0, greatest = 0;
    memcpy(step, to->step, sizeof to->step);
    memcpy(y, to->y, sizeof to->y);
    memcpy(step + to->n, more->step, (size_t)more->n * sizeof *step);
    memcpy(y + to->n, more->y, (size_t)more->n * sizeof *y);
    for (int i = 1; i < n; i++) {
        least = y[i] < y[least] ? i : least;
        greatest = y[i] > y[greatest] ? i : greatest;
    }
    to->n = 0;
    for (int i = 0; i < n; i++)
        if (n <= BOUNDED_KEPT || i == 0 || i == least || i == greatest || i == n - 1) {
            to->step[to->n] = step[i];
            to->y[to->n++] = y[i];
        }
}

static void cut_off(struct bounded_curve *c, int64_t step)
{
    for (; c->n; c->n--) {
        struct bounded_column *k = &c->column[c->n - 1];
        while (k->n && k->step[k->n - 1] >= step)
            k->n--;
        if (k->n)
            return;
    }
}

static void halve_columns(struct bounded_curve *c)
{
    for (int i = 0; i < c->n; i++) {
        struct bounded_column k = c->column[i];
        if (i % 2 == 0)
            c->column[i / 2] = k;
        else
            join_columns(&c->column[i / 2], &k);
    }
    c->n = (c->n + 1) / 2;
    c->width *= 2;
}

void bounded_curve_add(struct bounded_curve *c, int64_t step, double y)
{
    cut_off(c, step);
    if (!isfinite(y))
        return;
    if (!c->n) {
        c->from = step;
        c->width = 1;
    }
    while ((step - c->from) / c->width >= BOUNDED_COLUMNS)
        halve_columns(c);
    for (int at = (int)((step - c->from) / c->width); c->n <= at; c->n++)
        c->column[c->n].n = 0;
    const struct bounded_column one = {1, {step}, {y}};
    join_columns(&c->column[c->n - 1], &one);
}

size_t bounded_curve_points(const struct bounded_curve *c, double *x, double *y)
{
    size_t n = 0;
    for (int i = 0; i < c->n; i++)
        for (int k = 0; k < c->column[i].n; k++, n++) {
            x[n] = (double)c->column[i].step[k];
            y[n] = c->column[i].y[k];
        }
    return n;
}
