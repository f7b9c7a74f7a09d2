// SPDX-License-Identifier: Apache-2.0
// Frames on a stream socket: u32 little-endian length, then a packed weft.rank.Frame (rank.proto).
//
// One struct a connection: bytes that came in and were not taken yet, frames that wait to leave.
// Nothing here blocks. What waits is bounded: a step report not sent yet is replaced by the newest,
// and dropped when the queue is half full; any other frame that finds it full breaks the connection
// (ERR_LIMIT): its peer has not read for too long.
//
// Not thread-safe; the owner locks. What a peer sends is never trusted: lengths are bounded and
// whatever does not decode is ERR_DATA, after which the connection is of no use.
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "common/attempt/page.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/list.h"
#include "proto/rank.pb-c.h"

enum {
    FRAME_VERSION = 1,          // what a rank's Hello to its agent says
    FRAME_MAX = 16 << 20,       // bytes of one frame
    FRAME_QUEUE_MAX = 24 << 20, // bytes waiting to leave
};

struct frame_conn {
    int fd; // owned
    struct buf in;
    struct list out;
    size_t out_bytes; // waiting, the sent part of the first frame included
};

void frame_conn_init(struct frame_conn *c, int fd);  // takes fd, makes it non-blocking
void frame_conn_clear(struct frame_conn *c);         // closes; safe twice
bool frame_conn_pending(const struct frame_conn *c); // something waits to leave: poll for POLLOUT

int frame_queue(struct frame_conn *c, const Weft__Rank__Frame *f, struct err *e);
int frame_flush(struct frame_conn *c, struct err *e); // writes what the socket takes now
// Reads what is there, but not for ever: then the socket is still readable. ERR_PEER at its end.
int frame_fill(struct frame_conn *c, struct err *e);
// The next whole frame in *out (free with weft__rank__frame__free_unpacked(f, NULL)), or null.
int frame_next(struct frame_conn *c, Weft__Rank__Frame **out, struct err *e);

// From a Progress message to a rank's page and back; `out` borrows the texts.
void frame_to_view(const Weft__Rank__Progress *f, struct page_view *out);
void frame_from_view(const struct page_view *v, Weft__Rank__Progress *out);

// What a message points to without owning it: protobuf-c's structs have no const, and packing a
// message only reads through them.
static inline void *frame_borrow(const void *p)
{
    union {
        const void *from;
        void *to;
    } u = {.from = p};
    return u.to;
}

// A text for a frame. Null is "".
static inline char *frame_text(const char *s)
{
    return frame_borrow(s ? s : "");
}

// A speed of the reported step as that of the last steps together, where their mean is known yet.
static inline double frame_mean_speed(const Weft__Rank__StepReport *r, double of_step)
{
    return r->mean_ms > 0 ? of_step * r->step_ms / r->mean_ms : of_step;
}

// An empty message of the service: V1_NEW(Start, start, s). (The generated initialisers cast const
// away.)
#define V1_NEW(Type, type, name) \
    Weft__V1__##Type name;       \
    weft__v1__##type##__init(&name)
// An empty body: FRAME_BODY(put, KvPut, kv_put).
#define FRAME_BODY(name, Type, type) \
    Weft__Rank__##Type name;         \
    weft__rank__##type##__init(&name)
// A frame with one body: FRAME(f, KV_PUT, kv_put, &put).
#define FRAME(name, CASE, member, ptr)                \
    Weft__Rank__Frame name = WEFT__RANK__FRAME__INIT; \
    name.body_case = WEFT__RANK__FRAME__BODY_##CASE;  \
    name.member = (ptr)
