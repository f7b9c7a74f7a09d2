// SPDX-License-Identifier: Apache-2.0
// Frames between ranks of different hosts, over one TCP connection a pair that greet.c has proven.
//
//   0  u32 body   bytes after this header
//   4  u8  type   enum frame_type
//   5  u8  stage  DATA: 0 operands for the slice's owner, 1 results
//   6  u16 slot   the sender's communicator
//   8  u64 seq    operation in it
//  16  u64 value  DATA: offset in the slice; GRANT: bytes that may be sent; KEY: the slot's key
//
// Small frames queue in `out`; operands do not queue: when the socket has room the next chunk is
// taken straight from the window. So memory is bounded by what the peer's announcements and grants
// allow. Every field of an arriving frame is checked; one that does not fit ends the connection.
// Both ends are little-endian machines; there is no compression here.
//
// Unless the job trusts its network each frame travels sealed (seal.c): the head encrypted and its
// tag, then the body encrypted and its tag. A head is believed once its tag fits. A body is decrypted
// as it comes, where it belongs, and counts as there only once its tag fits; where it does not, the
// attempt is over and what lies there means nothing.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "common/base/buf.h"
#include "common/base/heap.h"
#include "worker/collective/world.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are little-endian");

// A bound, so that one fast peer cannot keep us from the others and from our own work.
enum { PARTS_A_TURN = 32 };

enum frame_type { FRAME_KEY = 1, FRAME_NOTE, FRAME_GRANT, FRAME_DATA, FRAME_BYE };

struct frame {
    uint32_t body;
    uint8_t type, stage;
    uint16_t slot;
    uint64_t seq, value;
};

struct note_body { // of FRAME_NOTE; the payload follows
    uint64_t number;
    int64_t count;
    uint32_t name;
    int32_t root;
    uint8_t op, dtype, inlined, pad[5];
    char text[TEXT];
};
enum { SMALL = sizeof(struct note_body) + INLINE_MAX }; // the longest body but DATA's

struct tcp_link {
    struct buf out;
    size_t out_sent;
    bool blocked;
    // the chunk that is going out: its header, then its bytes in the window
    struct frame chunk_head;
    size_t chunk_sent; // of header and bytes together
    struct chunk chunk;
    bool chunk_open;
    // the frame that is coming in
    struct frame in;
    size_t in_got; // of the header and its tag, then of the body and its tag
    bool in_body;
    unsigned char *to;
    struct chunk place; // of a DATA frame
    unsigned char small[SMALL];
    // where frames are sealed; null: they are plain
    struct seal *seals, *opens;
    unsigned char *sealed_chunk; // the chunk that is going out, with both tags
    unsigned char tag[SEAL_TAG]; // of what is coming in
};

struct tcp_link *tcp_link_new(const struct seal_keys *keys)
{
    struct tcp_link *l = heap_alloc(sizeof *l);
    if (!keys)
        return l;
    l->seals = seal_new(keys->sends, true);
    l->opens = seal_new(keys->receives, false);
    l->sealed_chunk = heap_alloc(sizeof(struct frame) + PIECE + 2 * SEAL_TAG);
    if (l->seals && l->opens)
        return l;
    tcp_link_free(l);
    return NULL;
}

void tcp_link_free(struct tcp_link *l)
{
    if (!l)
        return;
    buf_clear(&l->out);
    seal_free(l->seals);
    seal_free(l->opens);
    free(l->sealed_chunk);
    free(l);
}

#define NOT_SEALED "what goes to it cannot be encrypted"
#define NOT_OPENED                                                                               \
    "what came from it was changed, left out or sent again on the way: somebody on the network " \
    "meddles with it"

static void lose_peer(struct peer *p, const char *why)
{
    p->dead = true;
    snprintf(p->why, sizeof p->why, "%s", why);
}

// ---- out ----
// Frames are numbered as they are sealed, so they are sealed in the order in which they go out.
static void queue_part(struct peer *p, const void *part, size_t len)
{
    struct tcp_link *l = p->link;
    size_t at = l->out.len;
    static const unsigned char room[SEAL_TAG];
    buf_append(&l->out, part, len);
    if (!l->seals)
        return;
    buf_append(&l->out, room, sizeof room);
    unsigned char *here = (unsigned char *)l->out.data + at;
    if (!seal_part(l->seals, here, here, len))
        lose_peer(p, NOT_SEALED);
}

static void queue_frame(struct peer *p, const struct frame *f, const void *body)
{
    queue_part(p, f, sizeof *f);
    if (f->body)
        queue_part(p, body, f->body);
}

void tcp_send_key(struct peer *p, int slot, uint64_t key)
{
    queue_frame(p, &(struct frame){.type = FRAME_KEY, .slot = (uint16_t)slot, .value = key}, NULL);
}

void tcp_send_grant(struct peer *p, int slot, uint64_t seq, uint64_t upto)
{
    struct frame f = {.type = FRAME_GRANT, .slot = (uint16_t)slot, .seq = seq, .value = upto};
    queue_frame(p, &f, NULL);
}

void tcp_send_note(struct world *w, struct peer *p, int slot, const struct note *n)
{
    struct note_body b = {.number = n->number,
                          .count = n->count,
                          .name = n->name,
                          .root = n->root,
                          .op = n->op,
                          .dtype = n->dtype,
                          .inlined = n->inlined};
    uint32_t payload = n->inlined ? (uint32_t)n->offset : 0;
    unsigned char body[SMALL];
    peer_page_text(w->page, b.text);
    struct frame f = {.body = (uint32_t)sizeof b + payload,
                      .type = FRAME_NOTE,
                      .slot = (uint16_t)slot,
                      .seq = atomic_load_explicit(&n->seq, memory_order_relaxed)};
    memcpy(body, &b, sizeof b);
    memcpy(body + sizeof b, n->payload, payload);
    queue_frame(p, &f, body);
}

void tcp_send_bye(struct world *w, struct peer *p)
{
    struct err why = w->broken;
    struct frame f = {.type = FRAME_BYE, .value = (uint64_t)why.code};
    why.text[sizeof p->page->why - 1] = 0;
    f.body = why.code ? (uint32_t)strlen(why.text) : 0;
    queue_frame(p, &f, why.text);
    tcp_send(w, p);
}

bool tcp_is_flushed(const struct peer *p)
{
    return p->link->out_sent == p->link->out.len;
}

bool tcp_is_blocked(const struct peer *p)
{
    return p->link->blocked;
}

// Sends what the socket takes; −1: no more now (or never).
static ssize_t push_parts(struct peer *p, struct iovec *part, int n)
{
    struct msghdr m = {.msg_iov = part, .msg_iovlen = (size_t)n};
    for (;;) {
        ssize_t sent = sendmsg(p->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0)
            return sent;
        if (errno == EINTR)
            continue;
        if (errno == EAGAIN)
            p->link->blocked = true;
        else if (errno != EPIPE && errno != ECONNRESET)
            lose_peer(p, strerror(errno));
        // A reset connection may still hold messages for us, so it is read to its end.
        return -1;
    }
}

static bool push_queue(struct peer *p)
{
    struct tcp_link *l = p->link;
    struct iovec part = {l->out.data + l->out_sent, l->out.len - l->out_sent};
    ssize_t n = push_parts(p, &part, 1);
    if (n <= 0)
        return false;
    l->out_sent += (size_t)n;
    if (l->out_sent == l->out.len) {
        buf_reset(&l->out);
        l->out_sent = 0;
    }
    return true;
}

static bool open_chunk(struct world *w, struct peer *p)
{
    struct tcp_link *l = p->link;
    for (int i = 0; i < w->ncommunicators; i++) {
        struct communicator *c = w->communicators[i];
        if (!c->remote || c->freed || !next_chunk(c, p, &l->chunk))
            continue;
        const struct chunk *k = &l->chunk;
        l->chunk_head = (struct frame){.body = (uint32_t)k->len,
                                       .type = FRAME_DATA,
                                       .stage = (uint8_t)k->stage,
                                       .slot = (uint16_t)c->slot,
                                       .seq = k->op->seq,
                                       .value = k->offset};
        l->chunk_sent = 0;
        unsigned char *to = l->sealed_chunk;
        if (l->seals &&
            !(seal_part(l->seals, to, &l->chunk_head, sizeof l->chunk_head) &&
              seal_part(l->seals, to + sizeof l->chunk_head + SEAL_TAG, k->data, k->len)))
            lose_peer(p, NOT_SEALED);
        return l->chunk_open = !p->dead;
    }
    return false;
}

// Sends more of the chunk: a plain one from the window.
static bool push_chunk(struct world *w, struct peer *p)
{
    struct tcp_link *l = p->link;
    struct iovec parts[2];
    int n = 0;
    size_t head = sizeof l->chunk_head, whole = head + l->chunk.len, from = l->chunk_sent;
    union { // an iovec's pointer is not const, but sending only reads
        const unsigned char *from;
        void *base;
    } data = {.from = l->chunk.data + (from > head ? from - head : 0)};
    if (l->seals) {
        whole += 2 * SEAL_TAG;
        parts[n++] = (struct iovec){l->sealed_chunk + from, whole - from};
    } else {
        if (from < head)
            parts[n++] = (struct iovec){(char *)&l->chunk_head + from, head - from};
        parts[n++] = (struct iovec){data.base, from > head ? whole - from : l->chunk.len};
    }
    ssize_t sent = push_parts(p, parts, n);
    if (sent <= 0)
        return false;
    l->chunk_sent += (size_t)sent;
    if (l->chunk_sent == whole) {
        l->chunk_open = false;
        chunk_went(w, &l->chunk);
    }
    return true;
}

bool tcp_send(struct world *w, struct peer *p)
{
    struct tcp_link *l = p->link;
    bool moved = false;
    l->blocked = false;
    for (int i = 0; i < PARTS_A_TURN && !p->dead && !l->blocked; i++) {
        if (!l->chunk_open && tcp_is_flushed(p) && (w->broken.code || !open_chunk(w, p)))
            break;
        if (!(l->chunk_open ? push_chunk(w, p) : push_queue(p)))
            break;
        moved = true;
    }
    return moved;
}

// ---- in ----
// The peer's communicator `slot`, if we have made it too.
static struct communicator *find_communicator(struct world *w, struct peer *p, int slot)
{
    uint64_t key = atomic_load(&p->page->communicators[slot].key);
    for (int i = 0; i < w->ncommunicators && !p->communicators[slot] && key; i++)
        if (w->communicators[i]->key == key)
            p->communicators[slot] = w->communicators[i];
    return p->communicators[slot];
}

static bool begin_data(struct world *w, struct peer *p)
{
    struct tcp_link *l = p->link;
    struct communicator *c = find_communicator(w, p, l->in.slot);
    if (!c || l->in.stage > 1 || l->in.body == 0 || l->in.body > PIECE)
        return false;
    l->to = place_chunk(c, p, l->in.stage, l->in.seq, l->in.value, l->in.body, &l->place);
    return l->to != NULL;
}

static bool begin_body(struct world *w, struct peer *p)
{
    struct tcp_link *l = p->link;
    size_t body = l->in.body;
    l->to = l->small;
    if (l->in.slot >= WORLD_COMMUNICATORS)
        return false;
    switch ((enum frame_type)l->in.type) {
    case FRAME_KEY:
    case FRAME_GRANT:
        return body == 0;
    case FRAME_NOTE:
        return body >= sizeof(struct note_body) && body <= sizeof l->small;
    case FRAME_BYE:
        return body < sizeof p->page->why;
    case FRAME_DATA:
        return begin_data(w, p);
    }
    return false;
}

static bool take_note(struct peer *p)
{
    struct tcp_link *l = p->link;
    struct note_body b;
    memcpy(&b, l->small, sizeof b);
    struct note *n = &p->page->communicators[l->in.slot].notes[l->in.seq % NOTES];
    uint64_t before = atomic_load(&n->seq);
    // Each note follows its predecessor: a later one would overwrite what was not read yet.
    if (l->in.seq == 0 || (l->in.seq > NOTES ? before + NOTES != l->in.seq : before != 0))
        return false;
    size_t payload = l->in.body - sizeof b;
    memcpy(n->payload, l->small + sizeof b, payload);
    n->number = b.number;
    n->count = b.count;
    n->offset = payload;
    n->name = b.name;
    n->root = b.root;
    n->op = b.op;
    n->dtype = b.dtype;
    n->inlined = b.inlined;
    n->granted = 0;
    atomic_store_explicit(&n->seq, l->in.seq, memory_order_release);
    b.text[TEXT - 1] = 0;
    for (int i = 0; i < TEXT / 8; i++) {
        uint64_t part;
        memcpy(&part, b.text + 8 * i, 8);
        atomic_store_explicit(&p->page->text[i], part, memory_order_relaxed);
    }
    atomic_store(&p->page->entered, b.number);
    return true;
}

static bool take_grant(struct peer *p)
{
    const struct frame *f = &p->link->in;
    struct note *n = &p->page->communicators[f->slot].notes[f->seq % NOTES];
    if (atomic_load(&n->seq) != f->seq || f->value <= n->granted)
        return false;
    n->granted = f->value;
    return true;
}

static bool take_bye(struct peer *p)
{
    struct tcp_link *l = p->link;
    if (l->in.value >= ERR_COUNT || atomic_load(&p->page->state) != PEER_OPEN)
        return false;
    memcpy(p->page->why, l->small, l->in.body);
    p->page->why[l->in.body] = 0;
    p->page->code = (uint32_t)l->in.value;
    atomic_store(&p->page->state, p->page->code ? PEER_BROKEN : PEER_LEFT);
    return true;
}

static bool end_frame(struct world *w, struct peer *p)
{
    struct tcp_link *l = p->link;
    switch ((enum frame_type)l->in.type) {
    case FRAME_KEY:
        if (atomic_load(&p->page->communicators[l->in.slot].key) || !l->in.value)
            return false;
        atomic_store(&p->page->communicators[l->in.slot].key, l->in.value);
        return true;
    case FRAME_NOTE:
        return take_note(p);
    case FRAME_GRANT:
        return take_grant(p);
    case FRAME_DATA:
        chunk_came(w, &l->place);
        return true;
    case FRAME_BYE:
        return take_bye(p);
    }
    return false;
}

// Decrypts what has come of a part since `before`, and at its end checks the tag.
static bool open_part(struct tcp_link *l, unsigned char *to, size_t len, size_t before)
{
    size_t after = l->in_got < len ? l->in_got : len;
    if (before < len && !seal_open(l->opens, to + before, after - before, before == 0))
        return false;
    return l->in_got < len + SEAL_TAG || seal_check(l->opens, l->tag);
}

// Reads once. Returns false when nothing more is there to read.
static bool pull_part(struct world *w, struct peer *p)
{
    struct tcp_link *l = p->link;
    unsigned char *to = l->in_body ? l->to : (unsigned char *)&l->in;
    size_t len = l->in_body ? l->in.body : sizeof l->in, before = l->in_got;
    size_t want = len + (l->opens ? SEAL_TAG : 0), of_tag = before > len ? before - len : 0;
    struct iovec parts[] = {{to + before - of_tag, len - (before - of_tag)},
                            {l->tag + of_tag, want - len - of_tag}};
    struct msghdr m = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t n = recvmsg(p->fd, &m, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        lose_peer(p, n < 0 && errno != ECONNRESET ? strerror(errno) : "");
        return false;
    }
    l->in_got += (size_t)n;
    if (l->opens && !open_part(l, to, len, before)) {
        lose_peer(p, NOT_OPENED);
        return false;
    }
    if (l->in_got < want)
        return true;
    l->in_got = 0;
    bool whole = l->in_body || l->in.body == 0;
    bool fine = l->in_body || begin_body(w, p);
    l->in_body = !whole;
    if (fine && whole)
        fine = end_frame(w, p);
    if (!fine)
        lose_peer(p, "it sent a frame that does not fit");
    return fine;
}

bool tcp_receive(struct world *w, struct peer *p)
{
    bool moved = false;
    for (int i = 0; i < PARTS_A_TURN && pull_part(w, p); i++)
        moved = true;
    return moved;
}
