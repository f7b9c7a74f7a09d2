// SPDX-License-Identifier: Apache-2.0
// A device's memory: by category, over a step, and what lives at its fullest
// moment. See picture.h.
#include <stdlib.h>

#include "common/explain/findings.h"
#include "common/explain/picture_draw.h"

enum { BYTES = PICTURE_BYTES, CHART_ROWS = 10, AT_PEAK = 8 };

// Live bytes after each instruction, by what they are for.
enum layer { STAYS, STASH, PASSES, LAYERS };
static const char *const inks[LAYERS] = {"█", "▓", "░"};
static const char *const meanings[LAYERS] = {"lives for the job", "kept for the backward",
                                             "passes by"};

struct course {
    int n; // instructions
    uint64_t *bytes[LAYERS];
    int fullest;
    uint64_t peak;
};

static enum layer choose_layer(const struct buffer *b)
{
    return b->persistent ? STAYS : b->kind == BUFFER_STASH ? STASH : PASSES;
}

static void make_course(const struct program *p, struct arena *a, struct course *x)
{
    *x = (struct course){.n = p->ninstrs};
    for (int l = 0; l < LAYERS; l++)
        x->bytes[l] = arena_array(a, uint64_t, p->ninstrs + 1);
    for (int i = 0; i < p->nbuffers; i++) {
        const struct buffer *b = &p->buffers[i];
        uint64_t *line = x->bytes[choose_layer(b)];
        bool ever = b->persistent || b->last >= p->ninstrs; // to the end
        line[b->persistent ? 0 : b->first] += b->bytes;
        line[ever ? p->ninstrs : b->last + 1] -= b->bytes; // wraps, and back
    }
    for (int i = 0; i < p->ninstrs; i++) {
        uint64_t sum = 0;
        for (int l = 0; l < LAYERS; l++) {
            x->bytes[l][i] += i ? x->bytes[l][i - 1] : 0;
            sum += x->bytes[l][i];
        }
        if (sum > x->peak) {
            x->peak = sum;
            x->fullest = i;
        }
    }
}

// ---- over the step ------------------------------------------------------------------------------

// The fullest instruction of a column.
static int find_fullest(const struct course *x, int col, int cols)
{
    int from = (int)((int64_t)x->n * col / cols), to = (int)((int64_t)x->n * (col + 1) / cols);
    int best = from;
    uint64_t most = 0;
    for (int i = from; i < to || i == from; i++) {
        uint64_t sum = 0;
        for (int l = 0; l < LAYERS; l++)
            sum += x->bytes[l][i];
        if (sum > most) {
            most = sum;
            best = i;
        }
    }
    return best;
}

// What a row of the chart shows at an instruction: the layer that its middle
// lies in.
static const char *choose_ink(const struct course *x, int at, int row)
{
    double level = (double)x->peak * (row + 0.5) / CHART_ROWS, sum = 0;
    for (int l = 0; l < LAYERS; l++) {
        sum += (double)x->bytes[l][at];
        if (level < sum)
            return inks[l];
    }
    return " ";
}

static void draw_chart(const struct program *p, const struct course *x, int width, struct buf *out)
{
    int cols = width - 2 - BYTES - 1;
    cols = cols > x->n ? x->n : cols;
    for (int row = CHART_ROWS - 1; row >= 0; row--) {
        struct buf size = {0};
        buf_bytes(&size, (uint64_t)((double)x->peak * (row + 1) / CHART_ROWS));
        buf_puts(out, "  ");
        put_padded(out, row % 3 == 0 ? buf_str(&size) : "", BYTES);
        buf_puts(out, "│");
        int blank = 0; // spaces are held back until more ink follows: no line ends in blanks
        for (int c = 0; c < cols; c++) {
            const char *ink = choose_ink(x, find_fullest(x, c, cols), row);
            put_times(out, " ", *ink == ' ' ? 0 : blank);
            buf_puts(out, *ink == ' ' ? "" : ink);
            blank = *ink == ' ' ? blank + 1 : 0;
        }
        buf_putc(out, '\n');
        buf_clear(&size);
    }
    put_times(out, " ", 2 + BYTES + 1);
    for (int c = 0; c < cols; c++)
        buf_putc(out, "FBWU"[p->instrs[find_fullest(x, c, cols)].phase]);
    buf_puts(out, "\n ");
    for (int l = 0; l < LAYERS; l++)
        buf_printf(out, " %s %s%s", inks[l], meanings[l], l + 1 < LAYERS ? "," : "\n");
    bool weights = false;
    for (int i = 0; i < p->ninstrs; i++)
        weights |= p->instrs[i].phase == PHASE_WEIGHTS;
    buf_printf(out,
               "  F forward, B backward, %sU update; to the right: the instructions of a step\n",
               weights ? "W gradients of weights, " : "");
}

// ---- at its fullest -----------------------------------------------------------------------------

static int compare_bytes(const void *x, const void *y)
{
    const struct buffer *a = *(struct buffer *const *)x, *b = *(struct buffer *const *)y;
    return a->bytes != b->bytes ? (a->bytes > b->bytes ? -1 : 1) : (a < b ? -1 : a > b);
}

static void draw_peak(const struct program *p, const struct course *x, int width, struct arena *a,
                      struct buf *out)
{
    const struct buffer **live = arena_array(a, const struct buffer *, p->nbuffers);
    int n = 0;
    for (int i = 0; i < p->nbuffers; i++) {
        const struct buffer *b = &p->buffers[i];
        if (b->persistent || (b->first <= x->fullest && x->fullest <= b->last))
            live[n++] = b;
    }
    qsort(live, (size_t)n, sizeof *live, compare_bytes);
    buf_printf(out, "fullest in the %s of microbatch %d; the largest of %d buffers then\n",
               phase_name(p->instrs[x->fullest].phase), p->instrs[x->fullest].microbatch, n);
    for (int i = 0; i < n && i < AT_PEAK; i++) {
        struct buf size = {0}, shape = {0};
        buf_bytes(&size, live[i]->bytes);
        for (int d = 0; d < live[i]->shape.n; d++)
            buf_printf(&shape, "%s%lld", d ? "×" : "", (long long)live[i]->shape.dim[d]);
        buf_printf(out, "  %s ", inks[choose_layer(live[i])]);
        put_padded(out, buf_str(&size), BYTES - 2);
        buf_putc(out, ' ');
        struct buf text = {0};
        buf_printf(&text, "%s %s", findings_name_buffer(p, live[i], a), buf_str(&shape));
        int room = width - 4 - BYTES + 1, len = text_columns(buf_str(&text));
        put_padded(out, buf_str(&text), len < room ? len : room);
        buf_putc(out, '\n');
        buf_clear(&text);
        buf_clear(&size);
        buf_clear(&shape);
    }
}

void picture_memory(const struct compiled *c, int width, struct buf *out)
{
    for (int s = 0; s < c->nstages; s++) {
        const struct program *p = compiled_program(c, PROGRAM_TRAIN, s);
        const struct memory *m = compiled_memory(c, s);
        struct arena a = {0};
        struct course x;
        make_course(p, &a, &x);
        buf_puts(out, "memory of a device");
        if (c->nstages > 1)
            buf_printf(out, " of stage %d", s);
        buf_puts(out, ": ");
        buf_bytes(out, m->arena);
        buf_putc(out, '\n');
        picture_categories(m, m->arena, width, out);
        draw_chart(p, &x, width, out);
        draw_peak(p, &x, width, &a, out);
        arena_clear(&a);
    }
}
