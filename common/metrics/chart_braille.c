// SPDX-License-Identifier: Apache-2.0
// A chart as text. A character is two columns of four braille dots, so a terminal of 80 by 24 has 140
// by 80 points. Where curves cross, the character has the dots of both and the colour of the later one.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/plain.h"
#include "common/metrics/chart.h"

enum { LABEL = 9 };

struct canvas {
    int columns, lines; // of characters
    unsigned char *dots;
    signed char *curve; // whose colour a character has; −1: none
    char *letter;       // instead of dots; 0: none
    struct arena *arena;
};

static void put_dot(struct canvas *v, int x, int y, int curve)
{
    // Dots 1 2 3 7 are the left column from above, 4 5 6 8 the right one.
    static const unsigned char bit[4][2] = {{1, 8}, {2, 16}, {4, 32}, {64, 128}};
    int at = y / 4 * v->columns + x / 2;
    v->dots[at] |= bit[y % 4][x % 2];
    v->curve[at] = (signed char)curve;
}

static void draw_line(struct canvas *v, const int from[2], const int to[2], int curve)
{
    int dx = abs(to[0] - from[0]), dy = abs(to[1] - from[1]), n = dx > dy ? dx : dy;
    for (int i = 0; i <= n; i++) {
        double t = n ? (double)i / n : 0;
        put_dot(v, from[0] + (int)lround(t * (to[0] - from[0])),
                from[1] + (int)lround(t * (to[1] - from[1])), curve);
    }
}

static void draw_curve(struct canvas *v, const struct chart *c, int i, const struct axis *x,
                       const struct axis *y, bool letters)
{
    struct chart_point *p;
    size_t n = chart_thin(c, i, x, y, 2 * v->columns, v->arena, &p);
    int from[2], to[2];
    for (size_t k = 0; k < n; k++) {
        to[0] = (int)lround(p[k].x * (2 * v->columns - 1));
        to[1] = (int)lround((1 - p[k].y) * (4 * v->lines - 1));
        draw_line(v, k ? from : to, to, i);
        memcpy(from, to, sizeof from);
    }
    if (n && letters)
        v->letter[to[1] / 4 * v->columns + to[0] / 2] = (char)(i < 26 ? 'a' + i : 'A' + i - 26);
}

static void print_cell(const struct canvas *v, int at, bool colour, struct buf *out)
{
    unsigned code = 0x2800u + v->dots[at];
    if (!v->dots[at] && !v->letter[at]) {
        buf_putc(out, ' ');
        return;
    }
    if (colour)
        buf_putc(out, (char)(1 + v->curve[at] % PLAIN_COLOURS));
    if (v->letter[at])
        buf_putc(out, v->letter[at]);
    else
        buf_printf(out, "%c%c%c", 0xe0 | (int)(code >> 12), 0x80 | (int)(code >> 6 & 63),
                   0x80 | (int)(code & 63));
    if (colour)
        buf_putc(out, PLAIN_NO_COLOUR);
}

static void print_lines_of(const struct canvas *v, const struct axis *y, bool colour,
                           struct buf *out)
{
    for (int line = 0; line < v->lines; line++) {
        char label[32] = "";
        for (int i = 0; i < y->nticks; i++) {
            double place = tick_place(y, i);
            if ((int)lround((1 - place) * (v->lines - 1)) == line)
                axis_label(y, y->tick[i], label);
        }
        buf_printf(out, "%*s %s", LABEL, label, *label ? "┤" : "│");
        for (int k = 0; k < v->columns; k++)
            print_cell(v, line * v->columns + k, colour, out);
        while (out->len && out->data[out->len - 1] == ' ')
            out->len--;
        buf_putc(out, '\n');
    }
}

// The x axis: a mark below each tick, and its label centred there if it leaves room to the one before; its
// name stands before them.
static void print_x_axis(const struct canvas *v, const struct axis *x, const char *name,
                         struct buf *out)
{
    char *line = arena_alloc(v->arena, (size_t)v->columns + 33);
    memset(line, ' ', (size_t)v->columns + 32);
    int used = 0, next = 0;
    buf_printf(out, "%*s └", LABEL, "");
    for (int i = 0; i < x->nticks; i++) {
        char label[32];
        int at = (int)lround(tick_place(x, i) * (v->columns - 1)),
            len = (int)strlen(axis_label(x, x->tick[i], label)), from = at - len / 2;
        for (; next < at; next++)
            buf_puts(out, "─");
        if (next++ == at)
            buf_puts(out, "┬");
        from = from < 0 ? 0 : from > v->columns - len ? v->columns - len : from;
        if (from < used)
            continue;
        memcpy(line + from, label, (size_t)len);
        used = from + len + 2;
    }
    for (; next < v->columns; next++)
        buf_puts(out, "─");
    line[used > 2 ? used - 2 : 0] = 0;
    buf_printf(out, "\n%*.*s  %s\n", LABEL, LABEL, name, line);
}

static void print_legend(const struct chart *c, bool colour, int columns, struct buf *out)
{
    int used = LABEL + 2;
    buf_printf(out, "%*s", LABEL + 2, "");
    for (int i = 0; i < c->ncurves; i++) {
        struct buf name = {0};
        plain_append(&name, c->curve[i].name, strlen(c->curve[i].name));
        int len = (int)name.len + 5;
        if (i && used + len > columns) {
            buf_printf(out, "\n%*s", LABEL + 2, "");
            used = LABEL + 2;
        } else if (i) {
            buf_puts(out, "  ");
        }
        if (colour)
            buf_printf(out, "%c━━%c %s", 1 + i % PLAIN_COLOURS, PLAIN_NO_COLOUR, buf_str(&name));
        else
            buf_printf(out, "%c: %s", i < 26 ? 'a' + i : 'A' + i - 26, buf_str(&name));
        used += len;
        buf_clear(&name);
    }
    buf_putc(out, '\n');
}

void chart_braille(const struct chart *c, const struct chart_text *t, struct buf *out)
{
    struct axis x, y;
    struct arena a;
    if (!chart_axes(c, &x, &y)) {
        buf_puts(out, "nothing to draw yet\n");
        return;
    }
    arena_init(&a);
    struct canvas v = {.columns = t->columns - LABEL - 2, .lines = t->lines - 3, .arena = &a};
    v.columns = v.columns < 16 ? 16 : v.columns;
    v.lines = v.lines < 4 ? 4 : v.lines;
    size_t cells = (size_t)v.columns * (size_t)v.lines;
    v.dots = arena_alloc(&a, cells);
    v.curve = arena_alloc(&a, cells);
    v.letter = arena_alloc(&a, cells);
    memset(v.dots, 0, cells);
    memset(v.curve, 0, cells);
    memset(v.letter, 0, cells);
    for (int i = 0; i < c->ncurves; i++)
        draw_curve(&v, c, i, &x, &y, !t->colour && c->ncurves > 1);
    print_lines_of(&v, &y, t->colour, out);
    print_x_axis(&v, &x, c->x_name, out);
    print_legend(c, t->colour, t->columns, out);
    arena_clear(&a);
}
