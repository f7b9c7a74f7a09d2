// SPDX-License-Identifier: Apache-2.0
// Running loaded programs. See exec.h.
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/attempt/page.h"
#include "common/base/clock.h"
#include "common/base/heap.h"
#include "common/base/log.h"
#include "worker/rank/exec/loaded.h"

static int put_mark(struct exec *x, const struct loaded *l, const struct bound *b, struct err *e)
{
    int begins = l->begins ? l->begins[b - l->bound] : 0;
    return begins ? marks_put(x->marks, x->stream, b->instr, begins, e) : 0;
}

static int run_collective(struct exec *x, const struct bound *b, struct err *e)
{
    x->communication_ns -= clock_mono_ns();
    int rc = b->instr->kind == INSTR_WAIT ? x->transport->wait(b->collective, x->stream, e)
                                          : x->transport->start(b->collective, x->stream, e);
    x->communication_ns += clock_mono_ns();
    return rc;
}

// Queues an instruction's work on the stream.
static int run_instr(struct exec *x, const struct bound *b, struct err *e)
{
    const struct instr *i = b->instr;
    switch (i->kind) {
    case INSTR_MARK:
        return 0;
    case INSTR_OP:
        return b->calls ? x->o.backend->op.run_many[i->op](x->stream, b->calls, i->with + 1, e)
                        : x->o.backend->op.run[i->op](x->stream, &b->call, e);
    case INSTR_START:
    case INSTR_SEND:
    case INSTR_RECV:
    case INSTR_WAIT:
        return b->collective ? run_collective(x, b, e) : 0; // 0: the first of its bucket does it
    }
    return 0;
}

static int run_one(struct exec *x, const struct loaded *l, const struct bound *b, struct err *e)
{
    int rc = put_mark(x, l, b, e);
    if (b->instr->kind == INSTR_MARK && x->o.page && !x->marks)
        page_phase(x->o.page, (int)b->instr->phase, b->instr->microbatch);
    return rc ? rc : run_instr(x, b, e);
}

static int name_instr(const struct bound *b, int rc, struct err *e)
{
    if (b->instr->kind == INSTR_OP)
        err_wrap(e, "%s of microbatch %d: %s", phase_name(b->instr->phase), b->instr->microbatch,
                 op_name(b->instr->op));
    return rc;
}

static int run_watched(struct exec *x, struct loaded *l, struct bound *b, struct err *e)
{
    int rc = run_one(x, l, b, e);
    rc = rc ? rc : x->o.backend->stream.sync(x->stream, e);
    if (!rc)
        x->o.ran(x->o.ctx, (int)(b - l->bound));
    return rc;
}

static int run_each(struct exec *x, struct loaded *l, int first, int end, struct err *e)
{
    struct progress_page *page = x->o.page;
    bool watched = x->o.ran && l == &x->loaded[PROGRAM_TRAIN];
    for (int i = first; i < end; i++) {
        struct bound *b = &l->bound[i];
        if (page && !x->marks)
            atomic_fetch_add_explicit(&page->ops, 1, memory_order_relaxed);
        int rc = watched ? run_watched(x, l, b, e) : run_one(x, l, b, e);
        if (rc)
            return name_instr(b, rc, e);
        i += b->calls ? b->instr->with : 0;
    }
    return 0;
}

static int queue_instrs(void *ctx, int first, int end, struct err *e)
{
    struct loaded *l = ctx;
    for (int i = first; i < end; i++) {
        struct bound *b = &l->bound[i];
        int rc = put_mark(l->exec, l, b, e);
        if (!rc)
            rc = run_instr(l->exec, b, e);
        if (rc)
            return name_instr(b, rc, e);
        i += b->calls ? b->instr->with : 0;
    }
    return 0;
}

// A captured segment fails as a whole, so its first and last op are named: one between them failed.
static int name_graph(const struct loaded *l, const struct segment *g, int rc, struct err *e)
{
    const struct bound *first = NULL, *last = NULL;
    for (int i = g->first; i < g->end; i++)
        if (l->bound[i].instr->kind == INSTR_OP) {
            last = &l->bound[i];
            first = first ? first : last;
        }
    if (first)
        err_wrap(e, "in a graph from %s (%s of microbatch %d) to %s (%s of microbatch %d)",
                 op_name(first->instr->op), phase_name(first->instr->phase),
                 first->instr->microbatch, op_name(last->instr->op), phase_name(last->instr->phase),
                 last->instr->microbatch);
    return rc;
}

// Shows on the page of a device without marks what was queued, a segment at a time: its phases, and
// the number of its instructions.
static void show_queued(struct progress_page *page, const struct loaded *l, const struct segment *g)
{
    for (int i = g->first; i < g->end; i++)
        if (l->bound[i].instr->kind == INSTR_MARK)
            page_phase(page, (int)l->bound[i].instr->phase, l->bound[i].instr->microbatch);
    atomic_fetch_add_explicit(&page->ops, (uint64_t)(g->end - g->first), memory_order_relaxed);
}

// Queues a segment. The page shows that as progress, because a capture takes a while, in which the
// device may have nothing to do. This does not hide a device that hangs: the host is at most two
// steps ahead, and then queues no more.
static int run_queued(struct exec *x, struct loaded *l, struct segment *g, struct err *e)
{
    if (x->o.page && x->marks)
        page_beat(x->o.page);
    else if (x->o.page)
        show_queued(x->o.page, l, g);
    int rc = segment_run(&l->segments, g, queue_instrs, l, e);
    return rc && l->segments.state == SEGMENTS_GRAPHS && g->graph ? name_graph(l, g, rc, e) : rc;
}

// All ranks run the same kinds of programs in the same order, so each comes here after the same run.
// Stages of a pipeline have programs of their own: one that has nothing to capture agrees.
// Where one rank could not capture a program, no rank tries another.
static int agree_on_graphs(struct exec *x, struct loaded *l, struct err *e)
{
    const char *kind = program_name(l->program->kind), *own = l->segments.failed.text;
    char what[40];
    int ranks = x->o.world ? mesh_ranks(&x->o.compiled->mesh) : 1, rc = 0, r = 0;
    char(*failed)[GATHER_TEXT] = heap_alloc(sizeof *failed * (size_t)ranks);
    snprintf(what, sizeof what, "graphs of %s", kind);
    if (x->o.world)
        rc = world_gather(x->o.world, what, own, failed, e);
    else
        snprintf(failed[0], GATHER_TEXT, "%s", own);
    while (r < ranks && !failed[r][0])
        r++;
    if (!rc && r == ranks)
        segments_decide(&l->segments, true);
    for (int k = 0; k < PROGRAM_KINDS && !rc && r < ranks; k++)
        if (x->loaded[k].segments.state != SEGMENTS_GRAPHS)
            segments_decide(&x->loaded[k].segments, false);
    if (!rc && r < ranks && x->o.rank == 0)
        log_warn("graph", "%s and later programs run op by op, as rank %d must: %s", kind, r,
                 failed[r]);
    free(failed);
    return rc;
}

static int run_segments(struct exec *x, struct loaded *l, struct err *e)
{
    bool trains = l == &x->loaded[PROGRAM_TRAIN];
    int rc = 0;
    for (int k = 0; k < l->segments.n && !rc; k++) {
        struct segment *g = &l->segments.segment[k];
        bool waits = trains && x->saving && g->first == l->segments.state_writes;
        rc = waits ? lane_join(&x->saves, e) : 0;
        x->saving &= !waits;
        if (!rc)
            rc = exec_check(x, e);
        if (!rc)
            rc = g->queued && !x->o.ran ? run_queued(x, l, g, e)
                                        : run_each(x, l, g->first, g->end, e);
        if (!rc && trains && g->end == l->segments.inputs_read)
            rc = lane_mark(&x->inputs, e);
    }
    bool agree = !rc && !x->o.ran && segments_ran(&l->segments);
    return agree ? agree_on_graphs(x, l, e) : rc;
}

int exec_check(struct exec *x, struct err *e)
{
    return x->fabric && x->transport->try ? x->transport->try(x->fabric, e) : 0;
}

int exec_run(struct exec *x, enum program_kind kind, struct err *e)
{
    struct loaded *l = &x->loaded[kind];
    PRE(l->program);
    x->last = (int)kind;
    return x->separate ? run_segments(x, l, e) : run_each(x, l, 0, l->program->ninstrs, e);
}

int exec_step(struct exec *x, int64_t step, struct err *e)
{
    if (x->marks)
        return marks_step(x->marks, x->stream, step, e);
    if (x->o.page)
        page_step(x->o.page, step);
    return 0;
}

void exec_show(struct exec *x)
{
    marks_show(x->marks);
}
