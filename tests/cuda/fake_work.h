// SPDX-License-Identifier: Apache-2.0
// Work of the fake CUDA runtime: streams, marks, nodes of graphs. Between fake_queue.c (work and
// how it runs), fake_stream.c (streams and events) and fake_graph.c (capture and graphs).
//
// A stream is a list of work that nobody has done yet. A mark is one recording of an event: waits
// hold the mark that was the last when they were queued. While a stream captures, its work becomes
// nodes of a graph, each behind those that the stream had come to; events carry these to other
// streams, which then capture too and must come back before the end.
#pragma once
#include "tests/cuda/fake.h"

enum { MOST_DEPS = 32, MOST_STREAMS = 256, MOST_NODES = 1 << 20 };

struct mark {
    int refs;
    bool done;
    cudaStream_t stream;
    double ms; // when it was reached
};

struct work {
    struct work *next;
    struct mark *reach, *await; // one of these, or run
    void (*run)(const void *args);
    const char *what;
    size_t bytes;
    bool kernel;
    struct CUgraphExec_st *exec; // a launched graph,
    int at;                      // and its next node
    _Alignas(16) char args[];
};

struct deps {
    int n, node[MOST_DEPS];
};

struct node {
    struct work *work;
    struct deps deps;
    int lane;
};

struct capture {
    struct node *node;
    int nodes, lanes;
    int refs; // its origin and the events recorded in it
    bool broken, ended, relaxed;
    cudaStream_t origin;
};

struct CUstream_st {
    int device;
    struct work *first, **last;
    struct capture *capture;
    struct deps at;
    int lane;
};

struct CUevent_st {
    bool timed;
    struct mark *mark;
    struct capture *capture; // recorded while this was captured
    struct deps at;
};

struct CUgraph_st {
    struct node *node;
    int nodes;
};

struct CUgraphExec_st {
    int refs;
    struct node *node; // in the order in which they run
    int nodes;
    int device;
    size_t uploaded; // bytes of the device; 0: it has none yet
};

extern cudaStream_t fake_streams[MOST_STREAMS];
extern int fake_nstreams;

// Null is the legacy stream.
cudaStream_t fake_stream(cudaStream_t s);

// ---- fake_queue.c ------------------------------------------------------------------------------

struct work *work_new(void (*run)(const void *), const void *args, size_t bytes, const char *what);
struct work *work_again(const struct work *w); // a copy of one that holds nothing
void work_free(struct work *w);
// Into the stream, or into the graph that it captures.
cudaError_t work_queue(cudaStream_t s, struct work *w);
void work_perform(cudaStream_t s, struct work *w);
void work_run_one(cudaStream_t s);
// Until the mark is reached; null: until nothing is left.
void work_run_until(cudaStream_t s, const struct mark *until);
void mark_drop(struct mark *m);

// ---- fake_graph.c ------------------------------------------------------------------------------

void capture_add(cudaStream_t s, struct work *w);
// The stream continues behind what the event was recorded behind.
cudaError_t capture_join(cudaStream_t s, cudaEvent_t ev);
void capture_drop(struct capture *c);
// One node, from *at on; true when it was the last.
bool exec_perform(cudaStream_t s, struct CUgraphExec_st *x, int *at);
void exec_drop(struct CUgraphExec_st *x);
