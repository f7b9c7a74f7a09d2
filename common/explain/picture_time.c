// SPDX-License-Identifier: Apache-2.0
// What happens when: the schedule of the stages, as it was simulated. See picture.h.
#include <stdio.h>

#include "common/explain/picture_draw.h"

// ---- schedule -----------------------------------------------------------------------------------

// A stage's slots on a line of units, each as long as the shortest forward.
struct line {
    const struct schedule *s;
    double unit;
    bool chunks; // named behind the microbatch
};

static int round_to_unit(const struct line *l, double time)
{
    return (int)(time / l->unit + 0.5);
}

// Prints a stage's line from unit `first` to before unit `last`, each `each` columns wide.
static void print_line(const struct line *l, int first, int last, int each, struct buf *out)
{
    int at = first;
    for (int i = 0; i < l->s->n; i++) {
        const struct slot *t = &l->s->slots[i];
        int begin = round_to_unit(l, t->start), end = round_to_unit(l, t->end);
        char text[32];
        if (t->phase == PHASE_UPDATE || end <= first || begin >= last)
            continue;
        for (; at < begin; at++)
            put_padded(out, "·", each);
        end = end < last ? end : last;
        int n = snprintf(text, sizeof text, "%c%d", "FBW"[t->phase], t -> microbatch);
        if (l->chunks)
            snprintf(text + n, sizeof text - (size_t)n, ".%d", t->chunk);
        put_padded(out, begin < first ? "" : text, (end - at) * each);
        at = end;
    }
    for (; at < last; at++)
        put_padded(out, "·", each);
}

static double shortest_forward(const struct schedule *s, int nstages)
{
    double least = 0;
    for (int k = 0; k < nstages; k++)
        for (int i = 0; i < s[k].n; i++) {
            double time = s[k].slots[i].end - s[k].slots[i].start;
            if (s[k].slots[i].phase == PHASE_FORWARD && (least <= 0 || time < least))
                least = time;
        }
    return least;
}

static bool has_weights(const struct schedule *s)
{
    for (int i = 0; i < s->n; i++)
        if (s->slots[i].phase == PHASE_WEIGHTS)
            return true;
    return false;
}

void picture_schedule(const struct compiled *c, int width, struct buf *out)
{
    int microbatches = compiled_program(c, PROGRAM_TRAIN, 0)->microbatches;
    buf_printf(out, "a step of %d stage%s and %d microbatch%s, time to the right\n", c->nstages,
               c->nstages > 1 ? "s" : "", microbatches, microbatches > 1 ? "es" : "");
    enum { LABEL = 10 };
    const struct schedule *s = c->schedule[PROGRAM_TRAIN];
    struct line l = {.unit = shortest_forward(s, c->nstages), .chunks = c->nchunks > 1};
    int each = 3 + (microbatches > 10) + (microbatches > 100) + (microbatches > 1000);
    each += c->nchunks > 1 ? 2 + (c->nchunks > 10) : 0;
    int end = round_to_unit(&l, c->schedule_cost.makespan);
    int most = (width - LABEL - 4) / each, all = end <= most;
    int head = all ? end : most * 2 / 3, tail = all ? end : end - (most - head - 1);
    for (int k = 0; k < c->nstages; k++) {
        struct buf line = {0};
        char label[24];
        l.s = &s[k];
        snprintf(label, sizeof label, "stage %d", k);
        put_padded(&line, label, LABEL);
        buf_puts(&line, "│");
        print_line(&l, 0, head, each, &line);
        if (!all) {
            put_padded(&line, "…", each);
            print_line(&l, tail, end, each, &line);
        }
        buf_printf(out, "%s│ U\n", buf_str(&line));
        buf_clear(&line);
    }
    buf_puts(out, has_weights(c->schedule[PROGRAM_TRAIN])
                      ? "F forward, B backward, W gradients of weights, each of a microbatch; "
                      : "F forward, B backward (twice as long), each of a microbatch; ");
    buf_puts(out, c->nchunks > 1 ? "2.1: microbatch 2, chunk 1; U update; · waits\n"
                                 : "U update; · waits\n");
    buf_printf(out, "stages wait %.3g of the time\n", c->schedule_cost.bubble);
}
