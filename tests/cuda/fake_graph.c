// SPDX-License-Identifier: Apache-2.0
// Capture and graphs of the fake CUDA runtime. See fake_work.h.
//
// A launched graph runs its nodes in an order of its own: those that were captured on streams that
// forked off come as early as they may, the origin's as late. What CUDA refuses while it captures
// is refused here, and loses the capture as it does there. A graph has memory of the device from its
// upload on, or its first launch, and may find none.
#include <stdlib.h>
#include <unistd.h>

#include "tests/cuda/fake_work.h"

static _Thread_local struct capture *mine; // of this thread, unless relaxed
static struct capture *everybodys;         // of any thread, in the global mode

// ---- nodes -------------------------------------------------------------------------------------

static void deps_add(struct deps *d, int node)
{
    for (int i = 0; i < d->n; i++)
        if (d->node[i] == node)
            return;
    if (d->n == MOST_DEPS)
        abort();
    d->node[d->n++] = node;
}

void capture_add(cudaStream_t s, struct work *w)
{
    struct capture *c = s->capture;
    if (c->nodes == MOST_NODES)
        abort();
    if (!(c->nodes & (c->nodes - 1)))
        c->node = realloc(c->node, sizeof *c->node * (c->nodes ? 2 * (size_t)c->nodes : 1));
    c->node[c->nodes] = (struct node){.work = w, .deps = s->at, .lane = s->lane};
    s->at = (struct deps){.n = 1, .node = {c->nodes++}};
}

cudaError_t capture_join(cudaStream_t s, cudaEvent_t ev)
{
    if (ev->capture->ended)
        return cudaErrorCapturedEvent;
    if (s->capture && s->capture != ev->capture)
        return cudaErrorStreamCaptureIsolation;
    if (!s->capture) {
        s->capture = ev->capture;
        s->at = (struct deps){0};
        s->lane = ++ev->capture->lanes;
    }
    for (int i = 0; i < ev->at.n; i++)
        deps_add(&s->at, ev->at.node[i]);
    return cudaSuccess;
}

void capture_drop(struct capture *c)
{
    if (c && !--c->refs)
        free(c);
}

// ---- capture -----------------------------------------------------------------------------------

cudaError_t fake_refused_in_capture(void)
{
    struct capture *c = mine ? mine : everybodys;
    if (!c)
        return cudaSuccess;
    c->broken = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    fake_lock();
    cudaError_t rc = fake_failed_of(s->device);
    if (!rc && s->capture)
        rc = cudaErrorIllegalState;
    if (!rc) {
        s->capture = calloc(1, sizeof *s->capture);
        if (!s->capture)
            abort();
        s->capture->origin = s;
        s->capture->refs = 1;
        s->at = (struct deps){0};
        s->lane = 0;
        s->capture->relaxed = mode == cudaStreamCaptureModeRelaxed;
        mine = s->capture->relaxed ? mine : s->capture;
        everybodys = mode == cudaStreamCaptureModeGlobal ? s->capture : everybodys;
    }
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status)
{
    *status = !s->capture          ? cudaStreamCaptureStatusNone
              : s->capture->broken ? cudaStreamCaptureStatusInvalidated
                                   : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

// Every node comes before the origin's last.
static bool joined(const struct capture *c)
{
    bool *seen = calloc((size_t)c->nodes + 1, sizeof *seen), all = true;
    for (int i = 0; i < c->origin->at.n; i++)
        seen[c->origin->at.node[i]] = true;
    for (int node = c->nodes - 1; node >= 0; node--) { // a node lies behind those it waits for
        all &= seen[node];
        for (int i = 0; i < c->node[node].deps.n; i++)
            seen[c->node[node].deps.node[i]] = true;
    }
    free(seen);
    return all;
}

static void nodes_free(struct node *node, int nodes)
{
    for (int i = 0; i < nodes; i++)
        work_free(node[i].work);
    free(node);
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    fake_lock();
    struct capture *c = s->capture;
    bool wrong_thread = c && !c->relaxed && mine != c;
    cudaError_t rc = !c || c->origin != s ? cudaErrorIllegalState
                     : wrong_thread       ? cudaErrorStreamCaptureWrongThread
                     : c->broken          ? cudaErrorStreamCaptureInvalidated
                     : !joined(c)         ? cudaErrorStreamCaptureUnjoined
                                          : cudaSuccess;
    *out = NULL;
    if (c && c->origin == s && !wrong_thread) {
        for (int i = 0; i < fake_nstreams; i++)
            if (fake_streams[i]->capture == c)
                fake_streams[i]->capture = NULL;
        if (rc) {
            nodes_free(c->node, c->nodes);
        } else {
            *out = calloc(1, sizeof **out);
            (*out)->node = c->node;
            (*out)->nodes = c->nodes;
        }
        mine = mine == c ? NULL : mine;
        everybodys = everybodys == c ? NULL : everybodys;
        c->ended = true; // its events are of no use until they are recorded again
        c->node = NULL;
        capture_drop(c);
    }
    fake_unlock();
    return fake_error(rc);
}

// ---- graphs ------------------------------------------------------------------------------------

static bool ready(const struct node *node, int i, const bool *done)
{
    for (int k = 0; k < node[i].deps.n; k++)
        if (!done[node[i].deps.node[k]])
            return false;
    return !done[i];
}

// Of those that are ready the one furthest from the origin's stream.
static int pick(const struct CUgraph_st *g, const bool *done, int from)
{
    int best = -1;
    for (int i = from; i < g->nodes; i++)
        if (ready(g->node, i, done) && (best < 0 || g->node[i].lane > g->node[best].lane))
            best = i;
    return best;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags)
{
    static long made;
    long hangs = 0;
    (void)flags;
    made++;
    while (fake_scene("graph_hang", &hangs) && made == hangs)
        pause();
    struct CUgraphExec_st *x = calloc(1, sizeof *x);
    bool *done = calloc((size_t)g->nodes + 1, sizeof *done);
    if (!x || !done)
        abort();
    x->refs = 1;
    x->node = calloc((size_t)g->nodes + 1, sizeof *x->node);
    for (int first = 0; x->nodes < g->nodes;) {
        int i = pick(g, done, first);
        done[i] = true;
        x->node[x->nodes++].work = work_again(g->node[i].work);
        while (first < g->nodes && done[first])
            first++;
    }
    free(done);
    *out = x;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    nodes_free(g->node, g->nodes);
    free(g);
    return cudaSuccess;
}

void exec_drop(struct CUgraphExec_st *x)
{
    if (!x || --x->refs)
        return;
    fake_memory_give_back(x->device, x->uploaded);
    nodes_free(x->node, x->nodes);
    free(x);
}

bool exec_perform(cudaStream_t s, struct CUgraphExec_st *x, int *at)
{
    if (*at < x->nodes)
        work_perform(s, x->node[(*at)++].work);
    return *at == x->nodes;
}

enum { GRAPH = 64 << 10, NODE = 512 }; // bytes of the device

static cudaError_t upload(cudaGraphExec_t x, cudaStream_t s)
{
    static long uploads;
    long fails = 0;
    if (s->capture)
        return cudaErrorStreamCaptureUnsupported;
    if (x->uploaded)
        return cudaSuccess;
    const size_t bytes = GRAPH + NODE * (size_t)x->nodes;
    fake_scene("graph", &fails);
    if (++uploads == fails || !fake_memory_take(s->device, bytes))
        return cudaErrorMemoryAllocation;
    x->device = s->device;
    x->uploaded = bytes;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t x, cudaStream_t stream)
{
    fake_lock();
    cudaError_t rc = upload(x, fake_stream(stream));
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t stream)
{
    fake_lock();
    cudaStream_t s = fake_stream(stream);
    cudaError_t rc = upload(x, s);
    if (!rc) {
        struct work *w = work_new(NULL, NULL, 0, "graph");
        w->exec = x;
        x->refs++;
        rc = work_queue(s, w);
    }
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    fake_lock();
    exec_drop(x);
    fake_unlock();
    return cudaSuccess;
}
