// SPDX-License-Identifier: Apache-2.0
// What happens when: the schedule of the stages, and the memory over a step.
// See picture.h.
//
// Times of the schedule are told in units of a forward of the smallest stage; a
// stage's forward is as long as it has layers, its backward twice that. A slot
// begins when its stage is free and what it needs has come from the neighbour.
#include <stdio.h>
#include <string.h>

#include "common/compile/picture.h"

// ---- schedule -----------------------------------------------------------------------------------

struct task {
    enum phase phase;
    int microbatch, begin, units;
};
struct lane { // of a stage
    int n, next, busy, layers;
    struct task *tasks;
};

// The layers of each stage: scopes of its forward nodes.
static void count_layers(const struct compiled *c, struct lane *lanes, struct arena *a)
{
    const struct graph *g = compiled_program(c, PROGRAM_TRAIN, 0)->graph;
    int *seen = arena_array(a, int, g->nscopes);
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        bool layer = strncmp(g->scopes[n->scope], "layers/", 7) == 0;
        if (!layer || n->phase != PHASE_FORWARD || seen[n->scope]++)
            continue;
        lanes[n->stage].layers++;
    }
    for (int s = 0; s < c->nstages; s++)
        lanes[s].layers += lanes[s].layers == 0;
}

static void lanes_read(const struct compiled *c, struct lane *lanes, struct arena *a)
{
    count_layers(c, lanes, a);
    int least = lanes[0].layers;
    for (int s = 1; s < c->nstages; s++)
        least = lanes[s].layers < least ? lanes[s].layers : least;
    for (int s = 0; s < c->nstages; s++) {
        const struct program *p = compiled_program(c, PROGRAM_TRAIN, s);
        struct lane *l = &lanes[s];
        bool even = l->layers % least == 0;
        int unit = even ? l->layers / least : (l->layers + least - 1) / least;
        l->tasks = arena_array(a, struct task, 2 * p->microbatches + 1);
        for (int i = 0; i < p->ninstrs; i++) {
            const struct instr *in = &p->instrs[i];
            if (in->kind == INSTR_MARK && in->phase != PHASE_UPDATE)
                l->tasks[l->n++] = (struct task){in->phase, in->microbatch, -1,
                                                 unit * (in->phase == PHASE_BACKWARD ? 2 : 1)};
        }
    }
}

// When a stage has done a phase of a microbatch; −1: not yet.
static int done_at(const struct lane *l, enum phase phase, int microbatch)
{
    for (int i = 0; i < l->next; i++)
        if (l->tasks[i].phase == phase && l->tasks[i].microbatch == microbatch)
            return l->tasks[i].begin + l->tasks[i].units;
    return -1;
}

// Runs the lanes against each other; returns when the last has ended.
static int play(struct lane *lanes, int n)
{
    int end = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int s = 0; s < n; s++) {
            struct lane *l = &lanes[s];
            if (l->next == l->n)
                continue;
            struct task *t = &l->tasks[l->next];
            int from = t->phase == PHASE_FORWARD ? s - 1 : s + 1;
            int ready = from < 0 || from == n ? 0 : done_at(&lanes[from], t->phase, t->microbatch);
            if (ready < 0)
                continue;
            t->begin = ready > l->busy ? ready : l->busy;
            l->busy = t->begin + t->units;
            l->next++;
            moved = true;
            end = l->busy > end ? l->busy : end;
        }
    }
    return end;
}

// One stage's line from `first` to before `last` units, each `each` columns
// wide.
static void lane_print(const struct lane *l, int first, int last, int each, struct buf *out)
{
    int at = first;
    for (int i = 0; i < l->n; i++) {
        const struct task *t = &l->tasks[i];
        char text[16];
        if (t->begin + t->units <= first || t->begin >= last)
            continue;
        for (; at < t->begin; at++)
            put_padded(out, "·", each);
        int end = t->begin + t->units < last ? t->begin + t->units : last;
        snprintf(text, sizeof text, "%c%d", t->phase == PHASE_FORWARD ? 'F' : 'B', t->microbatch);
        put_padded(out, t->begin < first ? "" : text, (end - at) * each);
        at = end;
    }
    for (; at < last; at++)
        put_padded(out, "·", each);
}

static void lanes_print(const struct lane *lanes, int n, int end, int microbatches, int width,
                        struct buf *out)
{
    enum { LABEL = 10 };
    int each = 3 + (microbatches > 10) + (microbatches > 100) + (microbatches > 1000);
    int most = (width - LABEL - 4) / each, all = end <= most;
    int head = all ? end : most * 2 / 3, tail = all ? end : end - (most - head - 1);
    for (int s = 0; s < n; s++) {
        struct buf line = {0};
        char label[24];
        snprintf(label, sizeof label, "stage %d", s);
        put_padded(&line, label, LABEL);
        buf_puts(&line, "│");
        lane_print(&lanes[s], 0, head, each, &line);
        if (!all) {
            put_padded(&line, "…", each);
            lane_print(&lanes[s], tail, end, each, &line);
        }
        buf_printf(out, "%s│ U\n", buf_str(&line));
        buf_clear(&line);
    }
}

void picture_schedule(const struct compiled *c, int width, struct buf *out)
{
    struct arena a = {0};
    struct lane *lanes = arena_array(&a, struct lane, c->nstages);
    int microbatches = compiled_program(c, PROGRAM_TRAIN, 0)->microbatches, busy = 0;
    lanes_read(c, lanes, &a);
    int end = play(lanes, c->nstages);
    for (int s = 0; s < c->nstages; s++)
        for (int i = 0; i < lanes[s].n; i++)
            busy += lanes[s].tasks[i].units;
    buf_printf(out, "a step of %d stage%s and %d microbatch%s, time to the right\n", c->nstages,
               c->nstages > 1 ? "s" : "", microbatches, microbatches > 1 ? "es" : "");
    lanes_print(lanes, c->nstages, end, microbatches, width, out);
    buf_puts(out, "F forward, B backward (twice as long), each of a microbatch; "
                  "U update; · waits\n");
    buf_printf(out, "stages wait %.3g of the time\n",
               1 - (double)busy / ((double)end * c->nstages));
    arena_clear(&a);
}
