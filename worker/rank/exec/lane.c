// SPDX-License-Identifier: Apache-2.0
// Lanes. See lane.h.
#include "worker/rank/exec/lane.h"

static bool has_own_stream(const struct lane *l)
{
    return l->q != l->main;
}

int lane_open(struct lane *l, const struct backend *b, struct device *d, struct stream_q *main,
              struct err *e)
{
    struct device_info info;
    b->device.info(d, &info);
    *l = (struct lane){.backend = b, .main = main, .q = main};
    if (info.shares_host)
        return 0;
    int rc = b->stream.create(d, STREAM_USUAL, &l->q, e);
    if (rc) {
        l->q = main;
        return rc;
    }
    rc = b->event.create(d, &l->mark, e);
    return rc ? rc : b->event.create(d, &l->end, e);
}

void lane_close(struct lane *l)
{
    if (l->mark)
        l->backend->event.destroy(l->mark);
    if (l->end)
        l->backend->event.destroy(l->end);
    if (has_own_stream(l))
        l->backend->stream.destroy(l->q);
    *l = (struct lane){0};
}

int lane_mark(struct lane *l, struct err *e)
{
    return has_own_stream(l) ? l->backend->event.record(l->main, l->mark, e) : 0;
}

int lane_begin(struct lane *l, struct err *e)
{
    return has_own_stream(l) ? l->backend->event.wait(l->q, l->mark, e) : 0;
}

int lane_end(struct lane *l, struct err *e)
{
    return has_own_stream(l) ? l->backend->event.record(l->q, l->end, e) : 0;
}

int lane_join(struct lane *l, struct err *e)
{
    return has_own_stream(l) ? l->backend->event.wait(l->main, l->end, e) : 0;
}

int lane_done(struct lane *l, bool *done, struct err *e)
{
    *done = true;
    return has_own_stream(l) ? l->backend->event.query(l->end, done, e) : 0;
}

int lane_sync(struct lane *l, struct err *e)
{
    return has_own_stream(l) ? l->backend->event.sync(l->end, e) : 0;
}
