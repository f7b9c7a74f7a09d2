// SPDX-License-Identifier: Apache-2.0
// Segments. See segments.h.
#include "worker/rank/exec/segments.h"

#include "common/base/log.h"

enum { LEAST = 2 }; // a graph of one op saves nothing

void segments_init(struct segments *s, const struct backend *b, struct stream_q *q, struct arena *a,
                   const bool *queued, const bool *cut, int n)
{
    *s = (struct segments){.backend = b, .q = q, .plain = !b->graph};
    s->segment = arena_array(a, struct segment, n);
    for (int i = 0, end; i < n; i = end) {
        for (end = i + 1; queued[i] && end < n && queued[end] && !cut[end]; end++)
            ;
        s->segment[s->n++] = (struct segment){
            .first = i,
            .end = end,
            .queued = queued[i],
            .state = queued[i] && end - i >= LEAST ? SEGMENT_FRESH : SEGMENT_PLAIN,
        };
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

void segments_of_program(struct segments *s, const struct backend *b, struct stream_q *q,
                         struct arena *a, const struct program *p, bool captured)
{
    bool *queued = arena_array(a, bool, p->ninstrs + 1);
    bool *cut = arena_array(a, bool, p->ninstrs + 1);
    int inputs_read = 0, state_writes = -1;
    for (int i = 0; i < p->ninstrs; i++) {
        const struct instr *in = &p->instrs[i];
        queued[i] = in->kind == INSTR_OP || in->kind == INSTR_MARK || captured;
        if (reads_inputs(p, in))
            inputs_read = i + 1;
        if (state_writes < 0 && writes_state(p, in))
            state_writes = i;
    }
    cut[inputs_read] = true;
    if (state_writes >= 0)
        cut[state_writes] = true;
    segments_init(s, b, q, a, queued, cut, p->ninstrs);
    s->inputs_read = inputs_read;
    s->state_writes = state_writes;
}

void segments_clear(struct segments *s)
{
    for (int i = 0; i < s->n; i++)
        if (s->segment[i].graph)
            s->backend->graph->destroy(s->segment[i].graph);
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

static int try_capture(struct segments *s, struct segment *g, issue_fn issue, void *ctx)
{
    struct err why = {0};
    int rc = capture_segment(s, g, issue, ctx, &why);
    g->state = rc ? SEGMENT_PLAIN : SEGMENT_GRAPH;
    if (rc) {
        s->plain = true;
        log_warn("graph", "steps run op by op: instructions %d to %d cannot be captured: %s",
                 g->first, g->end - 1, why.text);
    }
    return rc;
}

int segment_run(struct segments *s, struct segment *g, issue_fn issue, void *ctx, struct err *e)
{
    if (g->state == SEGMENT_WARM && !s->plain)
        (void)try_capture(s, g, issue, ctx); // if it fails the log says so, and the ops run below
    if (g->state == SEGMENT_GRAPH)
        return s->backend->graph->launch(s->q, g->graph, e);
    if (g->state == SEGMENT_FRESH)
        g->state = SEGMENT_WARM;
    return issue(ctx, g->first, g->end, e);
}
