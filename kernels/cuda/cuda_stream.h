// SPDX-License-Identifier: Apache-2.0
// Streams, events, copies, graphs: slots of backend.h. Inside kernels/cuda/ only.
#pragma once
#include "kernels/cuda/cuda_device.h"

struct event {
    struct device *device;
    cudaEvent_t event;
    struct list link;
};

int cuda_stream_create(struct device *d, enum stream_priority priority, struct stream_q **out,
                       struct err *e);
void cuda_stream_destroy(struct stream_q *q);
int cuda_stream_sync(struct stream_q *q, struct err *e);
int event_create(struct device *d, struct event **out, struct err *e);
void event_destroy(struct event *ev);
int event_record(struct stream_q *q, struct event *ev, struct err *e);
int event_wait(struct stream_q *q, struct event *ev, struct err *e);
int event_query(struct event *ev, bool *done, struct err *e);
int event_sync(struct event *ev, struct err *e);
int stream_copy(struct stream_q *q, void *to, const void *from, size_t bytes, struct err *e);
int stream_fill_zero(struct stream_q *q, void *to, size_t bytes, struct err *e);
int capture_begin(struct stream_q *q, struct err *e);
int capture_end(struct stream_q *q, void **graph, struct err *e);
int graph_launch(struct stream_q *q, void *graph, struct err *e);
void graph_destroy(void *graph);
void stream_clear(struct device *d); // waits, then frees all of these
