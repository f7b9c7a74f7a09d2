// SPDX-License-Identifier: Apache-2.0
// Workers' streams: who may speak for a host, and when a host is given up.
//
//   Hello ─► Challenge(nonce) ─► Register(nonce) ─► Registered, or FencedOut
//
// A registration counts once the worker has echoed the newest nonce of its host. A host that is not
// heard for a lease is fenced: its incarnation is never accepted again, durably, and its attempts
// there are over. A second incarnation that registers while the first lives fences the first.
// Inside coordinator/ only.
#pragma once
#include "coordinator/decide/coord_state.h"

void attach_up(struct coord *c, const struct coord_event *ev); // of kind COORD_EV_UP
void attach_found(struct coord *c, const struct coord_event *ev);
void attach_gone(struct coord *c, uint64_t conn); // the stream has ended
void attach_tick(struct coord *c);                // leases
void attach_free(struct coord *c);
