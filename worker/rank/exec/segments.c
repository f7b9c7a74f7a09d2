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

void segments_clear(struct segments *s)
{
    for (int i = 0; i < s->n; i++)
        if (s->segment[i].graph)
            s->backend->graph->destroy(s->segment[i].graph);
    *s = (struct segments){0};
}

typedef int (*issue_fn)(void *ctx, int first, int end, struct err *e);

// Nothing runs while it is captured. What began is ended also after an error, or the stream would
// go on recording.
static int capture(struct segments *s, struct segment *g, issue_fn issue, void *ctx, struct err *e)
{
    const struct backend *b = s->backend;
    int rc = b->graph->begin(s->q, e);
    if (rc)
        return rc;
    rc = issue(ctx, g->first, g->end, e);
    int ended = b->graph->end(s->q, &g->graph, rc ? NULL : e);
    rc = rc ? rc : ended;
    if (rc && !ended && g->graph)
        b->graph->destroy(g->graph);
    if (rc)
        g->graph = NULL;
    return rc;
}

static int try_capture(struct segments *s, struct segment *g, issue_fn issue, void *ctx)
{
    struct err why = {0};
    int rc = capture(s, g, issue, ctx, &why);
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
        (void)try_capture(s, g, issue, ctx); // what failed is said there, and runs below
    if (g->state == SEGMENT_GRAPH)
        return s->backend->graph->launch(s->q, g->graph, e);
    if (g->state == SEGMENT_FRESH)
        g->state = SEGMENT_WARM;
    return issue(ctx, g->first, g->end, e);
}
