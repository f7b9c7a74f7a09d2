// SPDX-License-Identifier: Apache-2.0
// The completion queue's loop. See rpc_loop.h.
//
// The core has no alarm for C, and no descriptor of ours can join its poll set. But an empty batch
// on a call that was never started puts its tag into the queue at once, from any thread. That call
// is the bell.
#include "common/rpc/rpc_loop.h"

#include "common/base/clock.h"
#include "common/base/err.h"

void loop_init(struct loop *l)
{
    *l = (struct loop){.queue = grpc_completion_queue_create_for_next(NULL)};
    l->nowhere = grpc_lame_client_channel_create("bell", GRPC_STATUS_UNAVAILABLE, "a bell");
    l->bell = grpc_channel_create_call(l->nowhere, NULL, 0, l->queue,
                                       grpc_slice_from_static_string("/bell"), NULL,
                                       gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
}

void loop_wake(struct loop *l, struct loop_tag *t)
{
    grpc_call_error rc = grpc_call_start_batch(l->bell, NULL, 0, t, NULL);
    PRE(rc == GRPC_CALL_OK);
}

static gpr_timespec find_next_alarm(const struct loop *l)
{
    if (!l->alarm_ns)
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    int64_t left = l->alarm_ns - clock_mono_ns();
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                        gpr_time_from_nanos(left > 0 ? left : 0, GPR_TIMESPAN));
}

void loop_run(struct loop *l)
{
    while (!l->stop) {
        grpc_event ev = grpc_completion_queue_next(l->queue, find_next_alarm(l), NULL);
        if (ev.type == GRPC_OP_COMPLETE) {
            struct loop_tag *t = ev.tag;
            t->landed(t, ev.success);
        }
        // Also after an event, since a busy queue never times out.
        if (l->alarm_ns && clock_mono_ns() >= l->alarm_ns) {
            l->alarm_ns = 0;
            l->on_alarm(l);
        }
    }
}

void loop_clear(struct loop *l)
{
    grpc_call_unref(l->bell);
    grpc_channel_destroy(l->nowhere);
    grpc_completion_queue_shutdown(l->queue); // it must be drained before it is destroyed
    gpr_timespec never = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    while (grpc_completion_queue_next(l->queue, never, NULL).type != GRPC_QUEUE_SHUTDOWN)
        ;
    grpc_completion_queue_destroy(l->queue);
}
