// SPDX-License-Identifier: Apache-2.0
// Inside worker/collective/ only. Staging: collectives of a device whose memory the host cannot
// touch. The world's window on the host mirrors the device's region of shared buffers, at the same
// offsets. An operand is copied down into it, the ranks' hosts do the collective, what changed is
// copied up again.
//
//   prepared ── start ──► on its way down ── (try, wait) ──► announced ── wait ──► on its way up
//
//   computation  ─made──────────────────────────────────────────► waits for `up`
//   copies           └► down ─event─┐                  ┌► up ─event┘
//   host             start          try: announce      wait: the collective
//
// The host waits only where it must: in staging_wait, until the operand is there and until the
// collective is done. What was started and has come down is announced as soon as the host passes by
// (try), in the order of the starts, so that peers need not wait for it. All copies go through one
// stream, so a place in the window that is used again is free.
#pragma once
#include "worker/collective/transport.h"

struct staging;
struct staged; // one prepared collective

int staging_open(const struct fabric_options *o, struct staging **out, struct err *e);
void staging_close(struct staging *s); // frees what was prepared, and the region; null is fine

// The device's region that `window` mirrors, null for 0 bytes.
int staging_mirror(struct staging *s, void *window, uint64_t bytes, void **region, struct err *e);

// `a` names buffers by their addresses on the device.
int staging_prepare(struct staging *s, struct communicator *c, const struct collective_args *a,
                    struct staged **out, struct err *e);

int staging_start(struct staged *op, struct stream_q *q, struct err *e);
int staging_try(struct staging *s, struct err *e); // never waits
int staging_wait(struct staged *op, struct stream_q *q, struct err *e);
