// SPDX-License-Identifier: Apache-2.0
// Columns of UTF-8 and framed grids. See picture_draw.h.
#include "common/explain/picture_draw.h"

void put_times(struct buf *out, const char *utf8, int times)
{
    for (; times > 0; times--)
        buf_puts(out, utf8);
}

void put_padded(struct buf *out, const char *utf8, int columns)
{
    int n = text_columns(utf8), left = n > columns ? columns - 1 : n;
    for (const char *at = utf8; *at; at++) {
        bool starts = (*at & 0xc0) != 0x80;
        if (starts && left-- == 0)
            break;
        buf_putc(out, *at);
    }
    buf_puts(out, n > columns ? "…" : "");
    put_times(out, " ", columns - n);
}

// ---- bars ---------------------------------------------------------------------------------------

void picture_bar(const char *what, uint64_t bytes, uint64_t of, int width, struct buf *out)
{
    struct buf size = {0};
    int room = width - 2 - PICTURE_NAME - PICTURE_BYTES - 6;
    int full = of ? (int)((double)bytes / (double)of * room + 0.5) : 0;
    buf_bytes(&size, bytes);
    buf_puts(out, "  ");
    put_padded(out, what, PICTURE_NAME);
    put_padded(out, buf_str(&size), PICTURE_BYTES);
    buf_printf(out, "%3.0f %%", of ? 100 * (double)bytes / (double)of : 0);
    buf_puts(out, full ? " " : "");
    put_times(out, "█", full);
    buf_putc(out, '\n');
    buf_clear(&size);
}

void picture_categories(const struct memory *m, uint64_t of, int width, struct buf *out)
{
    picture_bar("params", m->params, of, width, out);
    if (m->grads || m->optimizer || !m->cache) {
        picture_bar("grads", m->grads, of, width, out);
        picture_bar("optimizer", m->optimizer, of, width, out);
    }
    if (m->copies)
        picture_bar("copies", m->copies, of, width, out);
    if (m->cache)
        picture_bar("keys", m->cache, of, width, out);
    if (m->stash || !m->cache)
        picture_bar("stash", m->stash, of, width, out);
    picture_bar("transient", m->transient, of, width, out);
    picture_bar("workspace", m->workspace, of, width, out);
}

// ---- grids --------------------------------------------------------------------------------------

enum { COLS_SHOWN = 64, LEFT_OUT = -1 };

// Chooses which of n are shown where `fit` have room: all, or the first ones, an ellipsis and the
// last.
static int choose_shown(int n, int fit, int out[])
{
    int count = n <= fit ? n : fit < 3 ? 3 : fit;
    for (int i = 0; i < count; i++)
        out[i] = i;
    if (n > count) {
        out[count - 2] = LEFT_OUT;
        out[count - 1] = n - 1;
    }
    return count;
}

struct grid_layout {
    int row[GRID_ROWS], col[COLS_SHOWN], nrows, ncols;
    int label, cell; // columns of a row's label and of a cell, without the blanks
                     // around it
};

static const char *get_cell_text(const struct grid *g, int row, int col)
{
    return row == LEFT_OUT || col == LEFT_OUT ? "…" : g->cell(g, row, col);
}

static const char *get_row_text(const struct grid *g, int row)
{
    return row == LEFT_OUT ? "…" : g->row_label(g, row);
}

static const char *get_column_text(const struct grid *g, int col)
{
    return col == LEFT_OUT ? "…" : g->col_label(g, col);
}

static int widen_to(int a, const char *text)
{
    int b = text_columns(text);
    return a > b ? a : b;
}

// Finds the greatest number of columns that the width holds. Fewer columns may have shorter texts,
// so it begins with many.
static void lay_out_grid(const struct grid *g, int width, struct grid_layout *l)
{
    l->nrows = choose_shown(g->rows, g->most, l->row);
    for (int fit = COLS_SHOWN; fit > 2; fit--) {
        if (fit > g->cols && fit > 3)
            continue;
        l->ncols = choose_shown(g->cols, fit, l->col);
        l->label = l->cell = 1;
        for (int r = 0; r < l->nrows; r++) {
            l->label = widen_to(l->label, get_row_text(g, l->row[r]));
            for (int c = 0; c < l->ncols; c++)
                l->cell = widen_to(l->cell, get_cell_text(g, l->row[r], l->col[c]));
        }
        for (int c = 0; c < l->ncols; c++)
            l->cell = widen_to(l->cell, get_column_text(g, l->col[c]));
        if (l->label + 2 + l->ncols * (l->cell + 3) <= width)
            return;
    }
    if (l->label > width / 4)
        l->label = width / 4;
    l->cell = (width - l->label - 2) / l->ncols - 3;
}

static void print_frame(const struct grid_layout *l, const char *left, const char *mid,
                        const char *right, struct buf *out)
{
    put_times(out, " ", l->label + 1);
    for (int c = 0; c < l->ncols; c++) {
        buf_puts(out, c ? mid : left);
        put_times(out, "─", l->cell + 2);
    }
    buf_puts(out, right);
    buf_putc(out, '\n');
}

void grid_print(const struct grid *g, int width, struct buf *out)
{
    struct grid_layout l;
    lay_out_grid(g, width, &l);
    struct buf line = {0};
    put_times(&line, " ", l.label + 1);
    for (int c = 0; c < l.ncols; c++) {
        buf_puts(&line, "  ");
        put_padded(&line, get_column_text(g, l.col[c]), l.cell);
        buf_putc(&line, ' ');
    }
    while (line.len && line.data[line.len - 1] == ' ')
        line.data[--line.len] = 0;
    if (line.len)
        buf_printf(out, "%s\n", buf_str(&line));
    buf_clear(&line);
    print_frame(&l, "┌", "┬", "┐", out);
    for (int r = 0; r < l.nrows; r++) {
        if (r)
            print_frame(&l, "├", "┼", "┤", out);
        put_padded(out, get_row_text(g, l.row[r]), l.label);
        buf_putc(out, ' ');
        for (int c = 0; c < l.ncols; c++) {
            buf_puts(out, "│ ");
            put_padded(out, get_cell_text(g, l.row[r], l.col[c]), l.cell);
            buf_putc(out, ' ');
        }
        buf_puts(out, "│\n");
    }
    print_frame(&l, "└", "┴", "┘", out);
}
