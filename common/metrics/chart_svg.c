// SPDX-License-Identifier: Apache-2.0
// A chart as SVG: one file that any browser opens, and that a page may hold as it is.
#include <stdio.h>
#include <string.h>

#include "common/base/utf8.h"
#include "common/metrics/chart.h"

enum { WIDTH = 960, HEIGHT = 540, LEFT = 80, RIGHT = 24, TOP = 48, BOTTOM = 56, SPARSE = 60 };

static const char *const colours[] = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                      "#d55e00", "#56b4e9", "#000000", "#8f7700"};
static const char *const dashes[] = {"none", "8 3", "2 2", "8 3 2 3"};
enum { COLOURS = sizeof colours / sizeof *colours, DASHES = sizeof dashes / sizeof *dashes };

// Text between tags. What XML does not take, even escaped, becomes U+FFFD.
static void put_text(struct buf *out, const char *text)
{
    for (const char *p = text; *p;) {
        size_t n = utf8_length(p, strlen(p));
        if (!n || (unsigned char)*p < 0x20 || (n == 3 && !memcmp(p, "\xef\xbf", 2)))
            buf_puts(out, "\xef\xbf\xbd");
        else if (*p == '&')
            buf_puts(out, "&amp;");
        else if (*p == '<')
            buf_puts(out, "&lt;");
        else if (*p == '>')
            buf_puts(out, "&gt;");
        else
            buf_append(out, p, n);
        p += n ? n : 1;
    }
}

static double place_x(double at)
{
    return LEFT + at * (WIDTH - LEFT - RIGHT);
}

static double place_y(double at)
{
    return HEIGHT - BOTTOM - at * (HEIGHT - TOP - BOTTOM);
}

static void put_axes(const struct chart *c, const struct axis *x, const struct axis *y,
                     struct buf *out)
{
    char label[32];
    buf_puts(out, "<g stroke=\"#ddd\" stroke-width=\"1\" fill=\"#444\">\n");
    for (int i = 0; i < x->nticks; i++) {
        double at = place_x(tick_place(x, i));
        buf_printf(out,
                   "<path d=\"M%.1f %dV%d\"/><text stroke=\"none\" x=\"%.1f\" y=\"%d\" "
                   "text-anchor=\"middle\">%s</text>\n",
                   at, TOP, HEIGHT - BOTTOM, at, HEIGHT - BOTTOM + 20,
                   axis_label(x, x->tick[i], label));
    }
    for (int i = 0; i < y->nticks; i++) {
        double at = place_y(tick_place(y, i));
        buf_printf(out,
                   "<path d=\"M%d %.1fH%d\"/><text stroke=\"none\" x=\"%d\" y=\"%.1f\" "
                   "text-anchor=\"end\">%s</text>\n",
                   LEFT, at, WIDTH - RIGHT, LEFT - 8, at + 4, axis_label(y, y->tick[i], label));
    }
    buf_printf(out,
               "<path stroke=\"#444\" fill=\"none\" d=\"M%d %dV%dH%d\"/><text stroke=\"none\" "
               "x=\"%d\" y=\"%d\" text-anchor=\"end\">",
               LEFT, TOP, HEIGHT - BOTTOM, WIDTH - RIGHT, WIDTH - RIGHT, HEIGHT - 14);
    put_text(out, c->x_name);
    buf_puts(out, "</text>\n</g>\n");
}

// A curve of few points shows where they are.
static void put_curve(const struct chart *c, int i, const struct axis *x, const struct axis *y,
                      struct arena *a, struct buf *out)
{
    struct chart_point *p;
    size_t n = chart_thin(c, i, x, y, WIDTH - LEFT - RIGHT, a, &p);
    if (!n)
        return;
    buf_printf(out, "<path fill=\"none\" stroke=\"%s\" stroke-dasharray=\"%s\" d=\"",
               colours[i % COLOURS], dashes[i % DASHES]);
    for (size_t k = 0; k < n; k++)
        buf_printf(out, "%c%.1f %.1f", k ? 'L' : 'M', place_x(p[k].x), place_y(p[k].y));
    buf_puts(out, "\"/>\n");
    for (size_t k = 0; n <= SPARSE && k < n; k++)
        buf_printf(out, "<circle r=\"3\" fill=\"%s\" cx=\"%.1f\" cy=\"%.1f\"/>\n",
                   colours[i % COLOURS], place_x(p[k].x), place_y(p[k].y));
}

static void put_legend(const struct chart *c, struct buf *out)
{
    enum { LETTER = 7, LINE = 20, LONG = 100 }; // about as wide and high as they are
    size_t longest = 0;
    for (int i = 0; i < c->ncurves; i++) {
        size_t len = strlen(c->curve[i].name);
        longest = len > longest ? len : longest;
    }
    int width = (longest > LONG ? LONG : (int)longest) * LETTER + 52;
    buf_printf(out,
               "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#fff\" "
               "fill-opacity=\"0.8\"/>\n",
               WIDTH - RIGHT - width, TOP + 2, width, LINE * c->ncurves + 6);
    for (int i = 0; i < c->ncurves; i++) {
        int at = TOP + 16 + LINE * i;
        buf_printf(out,
                   "<path stroke=\"%s\" stroke-dasharray=\"%s\" d=\"M%d %dh28\"/>"
                   "<text fill=\"#222\" x=\"%d\" y=\"%d\" text-anchor=\"end\">",
                   colours[i % COLOURS], dashes[i % DASHES], WIDTH - RIGHT - 36, at,
                   WIDTH - RIGHT - 44, at + 4);
        put_text(out, c->curve[i].name);
        buf_puts(out, "</text>\n");
    }
}

void chart_svg(const struct chart *c, const char *title, struct buf *out)
{
    struct axis x, y;
    struct arena a;
    arena_init(&a);
    buf_printf(out,
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
               "height=\"%d\" font-family=\"sans-serif\" font-size=\"13\">\n"
               "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n<text x=\"%d\" y=\"28\" "
               "font-size=\"17\" fill=\"#222\">",
               WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT);
    put_text(out, title);
    buf_puts(out, "</text>\n");
    if (chart_axes(c, &x, &y)) {
        put_axes(c, &x, &y, out);
        buf_puts(out, "<g stroke-width=\"1.6\" stroke-linejoin=\"round\">\n");
        for (int i = 0; i < c->ncurves; i++)
            put_curve(c, i, &x, &y, &a, out);
        put_legend(c, out);
        buf_puts(out, "</g>\n");
    } else {
        buf_printf(out, "<text x=\"%d\" y=\"%d\">nothing to draw yet</text>\n", LEFT, HEIGHT / 2);
    }
    buf_puts(out, "</svg>\n");
    arena_clear(&a);
}
