// SPDX-License-Identifier: Apache-2.0
// The rpc thread's loop. Inside common/rpc/ only. There is one completion queue, in which every
// operation's tag is a struct loop_tag inside whatever started it. Everything runs on the thread
// inside loop_run(); other threads may only loop_wake(). One alarm is enough here: deadlines of
// calls are the core's.
#pragma once
#include <grpc/grpc.h>
#include <stdbool.h>
#include <stdint.h>

struct loop_tag {
    void (*landed)(struct loop_tag *t, bool ok);
};

struct loop {
    grpc_completion_queue *queue;
    grpc_channel *nowhere;               // never connects: it only holds the bell
    grpc_call *bell;                     // never started: empty batches on it wake the queue
    int64_t alarm_ns;                    // on clock_mono_ns; 0: none
    void (*on_alarm)(struct loop *loop); // once, when that time is over
    bool stop;                           // loop_run returns
};

void loop_init(struct loop *l); // after grpc_init
void loop_run(struct loop *l);
void loop_wake(struct loop *l, struct loop_tag *t); // any thread: t lands once for each call
void loop_clear(struct loop *l);                    // calls, channels, servers are gone
