// SPDX-License-Identifier: Apache-2.0
// Streams, events, copies, and the capture of a stream's work into a graph.
//
// Streams do not wait for the legacy default stream: only events order them. Events record no
// times. A capture affects only the calling thread, so a second thread may copy meanwhile.
#include "kernels/cuda/cuda_stream.h"

#include <stdlib.h>

#include "kernels/cuda/cuda_memory.h"

struct stream_graph {
    cudaGraphExec_t exec;
    struct list link;
};

// ---- streams -----------------------------------------------------------------------------------

int cuda_stream_create(struct device *d, enum stream_priority priority, struct stream_q **out,
                       struct err *e)
{
    int least = 0, greatest = 0;
    int rc = device_bind(d, e);
    rc = rc ? rc : CUDA(d, NULL, e, cudaDeviceGetStreamPriorityRange(&least, &greatest));
    if (rc)
        return rc;
    struct stream_q *q = calloc(1, sizeof *q);
    if (!q)
        return err_set(e, ERR_NOMEM, "no memory for a stream");
    rc = CUDA(d, NULL, e,
              cudaStreamCreateWithPriority(&q->stream, cudaStreamNonBlocking,
                                           priority == STREAM_URGENT ? greatest : least));
    if (rc) {
        free(q);
        return rc;
    }
    q->device = d;
    // Kernels compiled for less do not wait for those ahead of them (launch.h), on any device.
    q->early = d->switches[SWITCH_EARLY_LAUNCH] && d->major >= 9 && d->compiled >= 90;
    list_append(&d->streams, &q->link);
    *out = q;
    return 0;
}

void cuda_stream_destroy(struct stream_q *q)
{
    if (!q || device_is_abandoned(q->device))
        return;
    list_remove(&q->link);
    (void)cudaStreamDestroy(q->stream);
    (void)cudaGetLastError();
    free(q);
}

int cuda_stream_sync(struct stream_q *q, struct err *e)
{
    int rc = device_bind(q->device, e);
    if (rc || device_is_abandoned(q->device))
        return rc;
    rc = CUDA(q->device, q, e, cudaStreamSynchronize(q->stream));
    return rc || !q->device->guard ? rc : memory_check(q->device, e);
}

// ---- events ------------------------------------------------------------------------------------

int event_create(struct device *d, struct event **out, struct err *e)
{
    int rc = device_bind(d, e);
    if (rc)
        return rc;
    struct event *ev = calloc(1, sizeof *ev);
    if (!ev)
        return err_set(e, ERR_NOMEM, "no memory for an event");
    rc = CUDA(d, NULL, e, cudaEventCreateWithFlags(&ev->event, cudaEventDisableTiming));
    if (rc) {
        free(ev);
        return rc;
    }
    ev->device = d;
    list_append(&d->events, &ev->link);
    *out = ev;
    return 0;
}

void event_destroy(struct event *ev)
{
    if (!ev)
        return;
    list_remove(&ev->link);
    (void)cudaEventDestroy(ev->event);
    (void)cudaGetLastError();
    free(ev);
}

int event_record(struct stream_q *q, struct event *ev, struct err *e)
{
    int rc = device_bind(q->device, e);
    return rc ? rc : CUDA(q->device, q, e, cudaEventRecord(ev->event, q->stream));
}

int event_wait(struct stream_q *q, struct event *ev, struct err *e)
{
    int rc = device_bind(q->device, e);
    return rc ? rc : CUDA(q->device, q, e, cudaStreamWaitEvent(q->stream, ev->event, 0));
}

int event_query(struct event *ev, bool *done, struct err *e)
{
    int rc = device_bind(ev->device, e);
    *done = device_is_abandoned(ev->device);
    if (rc || *done)
        return rc;
    cudaError_t said = cudaEventQuery(ev->event);
    *done = said == cudaSuccess;
    if (said != cudaErrorNotReady)
        return cuda_check(ev->device, NULL, "cudaEventQuery", said, e);
    (void)cudaGetLastError();
    return 0;
}

int event_sync(struct event *ev, struct err *e)
{
    int rc = device_bind(ev->device, e);
    if (rc || device_is_abandoned(ev->device))
        return rc;
    return CUDA(ev->device, NULL, e, cudaEventSynchronize(ev->event));
}

// ---- bytes -------------------------------------------------------------------------------------

int stream_copy(struct stream_q *q, void *to, const void *from, size_t bytes, struct err *e)
{
    int rc = device_bind(q->device, e);
    if (rc || !bytes)
        return rc;
    return CUDA(q->device, q, e, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, q->stream));
}

int stream_fill_zero(struct stream_q *q, void *to, size_t bytes, struct err *e)
{
    int rc = device_bind(q->device, e);
    if (rc || !bytes)
        return rc;
    return CUDA(q->device, q, e, cudaMemsetAsync(to, 0, bytes, q->stream));
}

// ---- graphs ------------------------------------------------------------------------------------

// Whoever wants to learn which op fails gets no graphs, of which CUDA waits for the whole at most.
int capture_begin(struct stream_q *q, struct err *e)
{
    int rc = device_bind(q->device, e);
    if (!rc && q->device->blocks)
        rc = err_set(e, ERR_UNSUPPORTED, "CUDA_LAUNCH_BLOCKING asks for one op at a time");
    if (!rc)
        rc = CUDA(q->device, q, e,
                  cudaStreamBeginCapture(q->stream, cudaStreamCaptureModeThreadLocal));
    q->device->captures += !rc;
    return rc;
}

void graph_destroy(void *graph)
{
    struct stream_graph *g = graph;
    if (!g)
        return;
    list_remove(&g->link);
    (void)cudaGraphExecDestroy(g->exec);
    (void)cudaGetLastError();
    free(g);
}

// The memory that a graph has on the device is taken by the upload, else by the first launch: a rank
// that finds none could not go on without the graph then.
static int instantiate_graph(struct stream_q *q, cudaGraph_t captured, void **out, struct err *e)
{
    struct stream_graph *g = calloc(1, sizeof *g);
    if (!g)
        return err_set(e, ERR_NOMEM, "no memory for a graph");
    int rc = CUDA(q->device, q, e, cudaGraphInstantiate(&g->exec, captured, 0));
    if (rc) {
        free(g);
        return rc;
    }
    list_append(&q->device->graphs, &g->link);
    rc = CUDA(q->device, q, e, cudaGraphUpload(g->exec, q->stream));
    if (rc)
        graph_destroy(g);
    else
        *out = g;
    return rc;
}

int capture_end(struct stream_q *q, void **graph, struct err *e)
{
    cudaGraph_t captured = NULL;
    int rc = device_bind(q->device, e);
    q->device->captures -= q->device->captures > 0;
    if (!rc)
        rc = CUDA(q->device, q, e, cudaStreamEndCapture(q->stream, &captured));
    if (!rc)
        rc = instantiate_graph(q, captured, graph, e);
    if (captured)
        (void)cudaGraphDestroy(captured);
    return rc;
}

int graph_launch(struct stream_q *q, void *graph, struct err *e)
{
    const struct stream_graph *g = graph;
    int rc = device_bind(q->device, e);
    return rc ? rc : CUDA(q->device, q, e, cudaGraphLaunch(g->exec, q->stream));
}

// ---- the end -----------------------------------------------------------------------------------

void stream_clear(struct device *d)
{
    list_for_each (it, &d->streams)
        (void)cudaStreamSynchronize(list_entry(it, struct stream_q, link)->stream);
    list_for_each (it, &d->graphs)
        graph_destroy(list_entry(it, struct stream_graph, link));
    list_for_each (it, &d->events)
        event_destroy(list_entry(it, struct event, link));
    list_for_each (it, &d->streams)
        cuda_stream_destroy(list_entry(it, struct stream_q, link));
}
