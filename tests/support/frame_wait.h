// SPDX-License-Identifier: Apache-2.0
// Sends or receives one frame and waits for that until the deadline: for doubles without a loop.
#pragma once
#include <errno.h>
#include <poll.h>

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "common/base/deadline.h"

static inline int frame_wait(int fd, short events, int64_t deadline_ns, struct err *e)
{
    for (;;) {
        int64_t now = clock_mono_ns();
        if (deadline_ns <= now)
            return err_set(e, ERR_TIMEOUT, "no answer in time");
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, deadline_wait_ms(deadline_ns, now));
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return err_errno(e, ERR_IO, "cannot poll");
    }
}

static inline int frame_send_wait(struct frame_conn *c, const Weft__Rank__Frame *f,
                                  int64_t deadline_ns, struct err *e)
{
    int rc = frame_queue(c, f, e);
    while (!rc && !(rc = frame_flush(c, e)) && frame_conn_pending(c))
        rc = frame_wait(c->fd, POLLOUT, deadline_ns, e);
    return rc;
}

static inline int frame_recv_wait(struct frame_conn *c, Weft__Rank__Frame **out,
                                  int64_t deadline_ns, struct err *e)
{
    for (;;) {
        int rc = frame_next(c, out, e);
        if (rc || *out)
            return rc;
        if ((rc = frame_wait(c->fd, POLLIN, deadline_ns, e)))
            return rc;
        if ((rc = frame_fill(c, e))) {
            struct err ignored = {0}; // what came before the end still counts
            if (!frame_next(c, out, &ignored) && *out)
                return 0;
            return rc;
        }
    }
}
