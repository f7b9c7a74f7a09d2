// SPDX-License-Identifier: Apache-2.0
// A lane: a stream beside the computation's, for copies that wait only for part of it. Inputs come
// in on one, checkpoints go out on another. Inside worker/rank/exec/ only.
//
//   lane_mark → lane_begin → copies on lane->q → lane_end → lane_join
//
// mark: the computation has come to where the copies may start; begin: what is queued on the lane
// from here on runs after the newest mark; end: the copies are queued; join: what the computation
// queues from here on runs after them. None of these waits on the host.
//
// On a device that shares the host's memory copies are done when the call returns: there a lane is
// the computation's own stream and these calls do nothing. One thread.
#pragma once
#include "kernels/backend.h"

struct lane {
    const struct backend *backend;
    struct stream_q *main, *q; // borrowed; the lane's own, or main
    struct event *mark, *end;
};

int lane_open(struct lane *l, const struct backend *b, struct device *d, struct stream_q *main,
              struct err *e);
void lane_close(struct lane *l); // a zeroed one is fine

int lane_mark(struct lane *l, struct err *e);
int lane_begin(struct lane *l, struct err *e);
int lane_end(struct lane *l, struct err *e);
int lane_join(struct lane *l, struct err *e);
int lane_done(struct lane *l, bool *done, struct err *e); // what came before the newest end
int lane_sync(struct lane *l, struct err *e);             // the host waits for it
