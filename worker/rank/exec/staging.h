// SPDX-License-Identifier: Apache-2.0
// Staging: collectives of a device whose memory the host cannot touch. The world's window on the
// host mirrors the arena's shared region, at the same offsets. An operand is copied down into it,
// the ranks' hosts do the collective, what changed is copied up again.
//
//   bound ── start ──► on its way down ── (poll, wait) ──► begun ── wait ──► on its way up
//
//   computation  ─made──────────────────────────────────────────► waits for `up`
//   copies           └► down ─event─┐                  ┌► up ─event┘
//   host             start          poll: collective_start   wait: collective_wait
//
// The host waits only where it must: in staging_wait, until the operand is there and until the
// collective is done. What was started and has come down is announced as soon as the host passes by
// (poll), in the order of the starts, so that peers need not wait for it. All copies go through one
// stream, so a place in the window that is used anew is free again.
//
// The plan keeps an operand and a result alive on the device from START to WAIT. One thread.
#pragma once
#include "kernels/backend.h"
#include "worker/collective/collective.h"

struct staging;
struct staged; // a START, SEND or RECV of a program

struct staging_options {
    const struct backend *backend; // borrowed, as is all below
    struct device *device;
    struct stream_q *main; // the computation's
    char *region, *window; // the shared region on the device and its mirror; null when empty
    size_t bytes;
};

int staging_open(const struct staging_options *o, struct staging **out, struct err *e);
void staging_close(struct staging *s); // frees what was bound; null is fine

// `a` has the device's addresses.
int staging_bind(struct staging *s, struct communicator *c, const struct collective_args *a,
                 struct staged **out, struct err *e);

int staging_start(struct staging *s, struct staged *op, struct err *e);
int staging_poll(struct staging *s, struct err *e); // never waits
int staging_wait(struct staging *s, struct staged *op, struct err *e);
