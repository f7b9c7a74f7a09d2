// SPDX-License-Identifier: Apache-2.0
// Streams and events of the fake CUDA runtime. See fake_work.h.
#include <stdlib.h>

#include "tests/cuda/fake_work.h"

// ---- streams -----------------------------------------------------------------------------------

enum { LEAST = 0, GREATEST = -5 }; // priorities of streams, as an H200 has them

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = LEAST;
    *greatest = GREATEST;
    return fake_error(fake_failed());
}

// Work runs as late as can be, whatever its priority.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    (void)flags;
    fake_lock();
    cudaError_t rc = fake_failed();
    if (priority > LEAST || priority < GREATEST)
        rc = cudaErrorInvalidValue;
    if (!rc && fake_nstreams == MOST_STREAMS)
        rc = cudaErrorMemoryAllocation;
    if (!rc) {
        struct CUstream_st *s = calloc(1, sizeof *s);
        if (!s)
            abort();
        s->device = fake_device();
        s->last = &s->first;
        *out = fake_streams[fake_nstreams++] = s;
    }
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return cudaStreamCreateWithPriority(out, flags, LEAST);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    fake_lock();
    work_run_until(s, NULL);
    for (int i = 0; i < fake_nstreams; i++)
        if (fake_streams[i] == s)
            fake_streams[i] = fake_streams[--fake_nstreams];
    cudaError_t rc = fake_failed_of(s->device);
    free(s);
    fake_unlock();
    return fake_error(rc);
}

// A capturing stream cannot be waited for, nor may the thread that captures wait for any; who tries
// loses the capture.
static cudaError_t refuse_capturing(cudaStream_t s)
{
    if (!s->capture)
        return fake_refused_in_capture();
    s->capture->broken = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    fake_lock();
    cudaStream_t s = fake_stream(stream);
    cudaError_t rc = refuse_capturing(s);
    if (!rc)
        work_run_until(s, NULL);
    rc = rc ? rc : fake_failed_of(s->device);
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    fake_lock();
    cudaStream_t s = fake_stream(stream);
    cudaError_t rc = refuse_capturing(s);
    if (!rc && s->first) {
        rc = cudaErrorNotReady;
        fake_memory_open();
        work_run_one(s); // whoever asks again and again gets there
        fake_memory_close();
    }
    rc = rc ? rc : fake_failed_of(s->device);
    fake_unlock();
    return fake_error(rc);
}

// ---- events ------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return cudaErrorMemoryAllocation;
    (*out)->timed = !(flags & cudaEventDisableTiming);
    return fake_error(fake_failed());
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t ev)
{
    fake_lock();
    mark_drop(ev->mark);
    capture_drop(ev->capture);
    free(ev);
    fake_unlock();
    return cudaSuccess;
}

static struct work *mark_work(struct mark *m, bool reach)
{
    struct work *w = work_new(NULL, NULL, 0, reach ? "record" : "wait");
    m->refs++;
    if (reach)
        w->reach = m;
    else
        w->await = m;
    return w;
}

cudaError_t cudaEventRecord(cudaEvent_t ev, cudaStream_t stream)
{
    fake_lock();
    cudaStream_t s = fake_stream(stream);
    cudaError_t rc = cudaSuccess;
    mark_drop(ev->mark);
    ev->mark = NULL;
    capture_drop(ev->capture);
    ev->capture = s->capture;
    if (s->capture) {
        s->capture->refs++;
        ev->at = s->at;
        rc = s->capture->broken ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    } else {
        ev->mark = calloc(1, sizeof *ev->mark);
        if (!ev->mark)
            abort();
        *ev->mark = (struct mark){.refs = 1, .stream = s};
        rc = work_queue(s, mark_work(ev->mark, true));
    }
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t ev, unsigned flags)
{
    (void)flags;
    fake_lock();
    cudaStream_t s = fake_stream(stream);
    cudaError_t rc = cudaSuccess;
    if (ev->capture) {
        rc = capture_join(s, ev);
    } else if (s->capture && ev->mark) {
        s->capture->broken = true;
        rc = cudaErrorStreamCaptureIsolation;
    } else if (ev->mark && !ev->mark->done) {
        rc = work_queue(s, mark_work(ev->mark, false));
    }
    rc = rc ? rc : fake_failed_of(s->device);
    fake_unlock();
    return fake_error(rc);
}

static cudaError_t refuse_captured(cudaEvent_t ev)
{
    if (!ev->capture)
        return fake_refused_in_capture();
    ev->capture->broken = true;
    return cudaErrorCapturedEvent;
}

cudaError_t cudaEventSynchronize(cudaEvent_t ev)
{
    fake_lock();
    cudaError_t rc = refuse_captured(ev);
    if (!rc && ev->mark && !ev->mark->done)
        work_run_until(ev->mark->stream, ev->mark);
    rc = rc ? rc : fake_failed();
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaEventQuery(cudaEvent_t ev)
{
    fake_lock();
    cudaError_t rc = refuse_captured(ev);
    if (!rc && ev->mark && !ev->mark->done) {
        rc = cudaErrorNotReady;
        fake_memory_open();
        work_run_one(ev->mark->stream);
        fake_memory_close();
    }
    rc = rc ? rc : fake_failed();
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    fake_lock();
    cudaError_t rc = !from->timed || !to->timed || !from->mark || !to->mark
                         ? cudaErrorInvalidResourceHandle
                     : from->mark->done && to->mark->done ? cudaSuccess
                                                          : cudaErrorNotReady;
    if (!rc)
        *ms = (float)(to->mark->ms - from->mark->ms);
    fake_unlock();
    return fake_error(rc);
}
