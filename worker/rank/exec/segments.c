// SPDX-License-Identifier: Apache-2.0
// Segments. See segments.h.
#include "worker/rank/exec/segments.h"

enum { LEAST = 2 }; // a graph of one op saves nothing

void segments_init(struct segments *s, const struct backend *b, struct stream_q *q, struct arena *a,
                   const enum segment_part *part, const bool *cut, int n)
{
    *s = (struct segments){
        .backend = b, .q = q, .state = b->graph ? SEGMENTS_FRESH : SEGMENTS_PLAIN};
    s->segment = arena_array(a, struct segment, n);
    for (int i = 0, end; i < n; i = end) {
        bool queued = part[i] != PART_HOST;
        int ops = part[i] == PART_OP;
        for (end = i + 1; queued && end < n && part[end] != PART_HOST && !cut[end]; end++)
            ops += part[end] == PART_OP;
        s->segment[s->n++] =
            (struct segment){.first = i, .end = end, .queued = queued, .worth = ops >= LEAST};
    }
}

static bool reads_inputs(const struct program *p, const struct instr *i)
{
    for (int k = 0; k < i->nin && i->kind == INSTR_OP; k++)
        if (p->buffers[i->in[k].buffer].source == VALUE_INPUT)
            return true;
    return false;
}

static bool writes_state(const struct program *p, const struct instr *i)
{
    for (int k = 0; k < i->nout && i->kind != INSTR_MARK; k++) {
        enum buffer_kind kind = p->buffers[i->out[k].buffer].kind;
        if (kind == BUFFER_PARAM || kind == BUFFER_OPTIMIZER)
            return true;
    }
    return false;
}

// The first of a bucket does what its other STARTs and WAITs stand for.
static enum segment_part find_part(const struct program *p, const struct instr *i, bool captured)
{
    if (i->kind == INSTR_OP)
        return PART_OP;
    if (i->kind == INSTR_MARK || program_goes_with(p, i))
        return PART_NONE;
    return !captured ? PART_HOST : i->kind == INSTR_WAIT ? PART_NONE : PART_OP;
}

void segments_of_program(struct segments *s, const struct backend *b, struct stream_q *q,
                         struct arena *a, const struct program *p, bool captured)
{
    enum segment_part *part = arena_array(a, enum segment_part, p->ninstrs + 1);
    bool *cut = arena_array(a, bool, p->ninstrs + 1);
    int inputs_read = 0, state_writes = -1;
    for (int i = 0; i < p->ninstrs; i++) {
        const struct instr *in = &p->instrs[i];
        part[i] = find_part(p, in, captured);
        if (reads_inputs(p, in))
            inputs_read = i + 1;
        if (state_writes < 0 && writes_state(p, in))
            state_writes = i;
    }
    cut[inputs_read] = true;
    if (state_writes >= 0)
        cut[state_writes] = true;
    segments_init(s, b, q, a, part, cut, p->ninstrs);
    s->inputs_read = inputs_read;
    s->state_writes = state_writes;
}

static void drop_graphs(struct segments *s)
{
    for (int i = 0; i < s->n; i++) {
        if (s->segment[i].graph)
            s->backend->graph->destroy(s->segment[i].graph);
        s->segment[i].graph = NULL;
    }
}

void segments_clear(struct segments *s)
{
    drop_graphs(s);
    *s = (struct segments){0};
}

typedef int (*issue_fn)(void *ctx, int first, int end, struct err *e);

// Nothing runs while it is captured. A capture that began is ended after an error too, or the stream
// would continue recording.
static int capture_segment(struct segments *s, struct segment *g, issue_fn issue, void *ctx,
                           struct err *e)
{
    const struct backend *b = s->backend;
    int rc = b->graph->begin(s->q, e);
    if (rc)
        return rc;
    rc = issue(ctx, g->first, g->end, e);
    int ended = b->graph->end(s->q, &g->graph, rc ? NULL : e);
    if (!rc)
        rc = ended;
    if (rc && !ended && g->graph)
        b->graph->destroy(g->graph);
    if (rc)
        g->graph = NULL;
    return rc;
}

int segment_run(struct segments *s, struct segment *g, issue_fn issue, void *ctx, struct err *e)
{
    struct err why = {0};
    if (s->state == SEGMENTS_GRAPHS && g->graph)
        return s->backend->graph->launch(s->q, g->graph, e);
    if (s->state == SEGMENTS_WARM && g->worth && !s->failed.code &&
        capture_segment(s, g, issue, ctx, &why))
        err_set(&s->failed, why.code, "instructions %d to %d cannot be captured: %s", g->first,
                g->end - 1, why.text);
    return issue(ctx, g->first, g->end, e);
}

bool segments_ran(struct segments *s)
{
    bool captured = s->state == SEGMENTS_WARM;
    if (captured)
        s->state = SEGMENTS_CAPTURED;
    else if (s->state == SEGMENTS_FRESH)
        s->state = SEGMENTS_WARM;
    return captured;
}

void segments_decide(struct segments *s, bool replay)
{
    s->state = replay ? SEGMENTS_GRAPHS : SEGMENTS_PLAIN;
    if (!replay)
        drop_graphs(s);
}
