// SPDX-License-Identifier: Apache-2.0
// Frames on a stream socket; see frame.h.
//
// A frame that waits is one heap block: the link, and the bytes with their length in front, so that a
// write is one pointer and a length.
#include "common/attempt/frame.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PORTION = 64 << 10 }; // bytes of one read, and about those of one frame_fill()

struct frame_wait {
    struct list link;
    bool replaceable; // by the next report
    size_t len, sent;
    unsigned char bytes[];
};

void frame_conn_init(struct frame_conn *c, int fd)
{
    memset(c, 0, sizeof *c);
    c->fd = fd;
    list_init(&c->out);
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0)
        (void)fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

static void wait_free(struct frame_conn *c, struct frame_wait *w)
{
    list_remove(&w->link);
    c->out_bytes -= w->len;
    free(w);
}

void frame_conn_clear(struct frame_conn *c)
{
    if (!c->out.next) // zeroed: never opened
        return;
    list_for_each (it, &c->out)
        wait_free(c, list_entry(it, struct frame_wait, link));
    buf_clear(&c->in);
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

bool frame_conn_pending(const struct frame_conn *c)
{
    return !list_empty(&c->out);
}

int frame_queue(struct frame_conn *c, const Weft__Rank__Frame *f, struct err *e)
{
    size_t len = weft__rank__frame__get_packed_size(f);
    if (len > FRAME_MAX)
        return err_set(e, ERR_LIMIT, "a frame of %zu bytes is over the limit of %d", len,
                       FRAME_MAX);
    const bool report = f->body_case == WEFT__RANK__FRAME__BODY_STEP_REPORT;
    if (report && c->out_bytes > FRAME_QUEUE_MAX / 2)
        return 0;
    if (c->out_bytes + len + 4 > FRAME_QUEUE_MAX)
        return err_set(e, ERR_LIMIT, "the peer does not read: %zu bytes wait for it", c->out_bytes);
    // Only the newest report is worth sending, unless it has an evaluation.
    const bool newest = report && !f->step_report->evaluated;
    if (newest) {
        list_for_each (it, &c->out) {
            struct frame_wait *w = list_entry(it, struct frame_wait, link);
            if (w->replaceable && w->sent == 0)
                wait_free(c, w);
        }
    }
    struct frame_wait *w = malloc(sizeof *w + 4 + len);
    if (!w)
        return err_set(e, ERR_NOMEM, "no memory for a frame of %zu bytes", len);
    *w = (struct frame_wait){.replaceable = newest, .len = len + 4};
    for (int i = 0; i < 4; i++)
        w->bytes[i] = (unsigned char)(len >> (8 * i));
    weft__rank__frame__pack(f, w->bytes + 4);
    list_append(&c->out, &w->link);
    c->out_bytes += w->len;
    return 0;
}

int frame_flush(struct frame_conn *c, struct err *e)
{
    while (!list_empty(&c->out)) {
        struct frame_wait *w = list_entry(c->out.next, struct frame_wait, link);
        ssize_t n = send(c->fd, w->bytes + w->sent, w->len - w->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (n < 0)
            return err_errno(e, ERR_PEER, "cannot send");
        w->sent += (size_t)n;
        if (w->sent == w->len)
            wait_free(c, w);
    }
    return 0;
}

static uint32_t get_u32(const char *p)
{
    const unsigned char *b = (const unsigned char *)p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

// Whether frame_next() finds something: a frame, or that there will be none.
static bool has_frame(const struct frame_conn *c)
{
    size_t len = c->in.len < 4 ? 0 : get_u32(c->in.data);
    return c->in.len >= 4 && (len > FRAME_MAX || c->in.len >= 4 + len);
}

int frame_fill(struct frame_conn *c, struct err *e)
{
    // A peer may send without a pause: what is beyond a portion waits in the socket.
    for (size_t taken = 0; taken < PORTION || !has_frame(c);) {
        buf_reserve(&c->in, PORTION);
        ssize_t n = recv(c->fd, c->in.data + c->in.len, PORTION, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (n < 0)
            return err_errno(e, ERR_PEER, "cannot receive");
        if (n == 0)
            return err_set(e, ERR_PEER, "the connection was closed");
        c->in.len += (size_t)n;
        taken += (size_t)n;
    }
    return 0;
}

int frame_next(struct frame_conn *c, Weft__Rank__Frame **out, struct err *e)
{
    *out = NULL;
    if (c->in.len < 4)
        return 0;
    size_t len = get_u32(c->in.data);
    if (len > FRAME_MAX)
        return err_set(e, ERR_DATA, "a frame claims %zu bytes, the limit is %d", len, FRAME_MAX);
    if (c->in.len < 4 + len)
        return 0;
    Weft__Rank__Frame *f = weft__rank__frame__unpack(NULL, len, (const uint8_t *)c->in.data + 4);
    if (!f)
        return err_set(e, ERR_DATA, "a frame of %zu bytes does not decode", len);
    if (f->body_case == WEFT__RANK__FRAME__BODY__NOT_SET) {
        weft__rank__frame__free_unpacked(f, NULL);
        return err_set(e, ERR_DATA, "a frame of an unknown kind");
    }
    memmove(c->in.data, c->in.data + 4 + len, c->in.len - 4 - len);
    c->in.len -= 4 + len;
    *out = f;
    return 0;
}

void frame_to_view(const Weft__Rank__Progress *f, struct page_view *out)
{
    *out = (struct page_view){.rank = f->rank,
                              .step = f->step,
                              .phase = f->phase,
                              .microbatch = f->microbatch,
                              .state = f->state,
                              .ops = f->ops,
                              .collective_entered = f->collective_entered,
                              .collective_left = f->collective_left,
                              .heartbeat_ns = f->heartbeat_ns,
                              .awaits = f->awaits,
                              .awaits_entered = f->awaits_entered,
                              .stopped = f->stopped};
    snprintf(out->collective_text, sizeof out->collective_text, "%s", f->collective_text);
}

void frame_from_view(const struct page_view *v, Weft__Rank__Progress *out)
{
    weft__rank__progress__init(out);
    out->rank = v->rank;
    out->step = v->step;
    out->phase = v->phase;
    out->microbatch = v->microbatch;
    out->state = v->state;
    out->ops = v->ops;
    out->collective_entered = v->collective_entered;
    out->collective_left = v->collective_left;
    out->collective_text = frame_text(v->collective_text);
    out->heartbeat_ns = v->heartbeat_ns;
    out->awaits = v->awaits;
    out->awaits_entered = v->awaits_entered;
    out->stopped = v->stopped;
}
