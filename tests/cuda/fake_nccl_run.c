// SPDX-License-Identifier: Apache-2.0
// What calls of the tests' NCCL do when their stream comes to them. See fake_nccl.h.
#include <string.h>
#include <unistd.h>

#include "tests/cuda/fake_nccl.h"

const char *const call_names[] = {"all-reduce", "reduce-scatter", "all-gather", "all-to-all",
                                  "broadcast",  "send",           "receive"};

size_t type_size(ncclDataType_t t)
{
    return t == ncclFloat32 || t == ncclInt32 ? 4 : t == ncclBfloat16 ? 2 : 1;
}

// ---- bytes between members ---------------------------------------------------------------------

struct head {
    enum kind kind;
    ncclDataType_t type;
    ncclRedOp_t reduce;
    int root;
    uint64_t count, number;
};

// One direction to or from one peer: a head, then bytes.
struct flow {
    struct ring *ring; // null: there is none
    struct head *head;
    char *bytes;
    size_t n, at;
};

enum { STILL = 500 }; // so many looks without a move make one doubt

static size_t less(size_t a, size_t b)
{
    return a < b ? a : b;
}

// Moves what can be moved of n bytes, and returns how many that were.
static size_t move_bytes(struct ring *r, char *bytes, size_t n, bool sends)
{
    uint64_t sent = atomic_load(&r->sent), taken = atomic_load(&r->taken);
    uint64_t at = sends ? sent : taken;
    n = less(n, sends ? RING - (sent - taken) : sent - taken);
    for (size_t done = 0, part; done < n; done += part) {
        unsigned char *place = r->bytes + (at + done) % RING;
        part = less(n - done, RING - (at + done) % RING);
        if (sends)
            memcpy(place, bytes + done, part);
        else
            memcpy(bytes + done, place, part);
    }
    atomic_store(sends ? &r->sent : &r->taken, at + n);
    return n;
}

static bool move_flow(struct flow *f, bool sends)
{
    size_t moved = 0;
    if (!f->ring)
        return false;
    if (f->at < sizeof *f->head)
        moved = move_bytes(f->ring, (char *)f->head + f->at, sizeof *f->head - f->at, sends);
    else if (f->at < sizeof *f->head + f->n)
        moved = move_bytes(f->ring, f->bytes + (f->at - sizeof *f->head),
                           f->n - (f->at - sizeof *f->head), sends);
    f->at += moved;
    return moved > 0;
}

// What was sent is done when it was taken: NCCL may buffer it, and does not promise to.
static bool is_done(const struct flow *f, bool sends)
{
    return !f->ring || (f->at == sizeof *f->head + f->n &&
                        (!sends || atomic_load(&f->ring->taken) == atomic_load(&f->ring->sent)));
}

static enum kind find_counterpart(enum kind k)
{
    return k == SEND ? RECV : k == RECV ? SEND : k;
}

static void print_head(char text[200], const struct head *h)
{
    snprintf(text, 200, "call %llu, %s of %llu elements of type %d, reduction %d, root %d",
             (unsigned long long)h->number, call_names[h->kind], (unsigned long long)h->count,
             (int)h->type, (int)h->reduce, h->root);
}

static void compare_heads(const struct ncclComm *c, int peer, const struct head *own,
                          const struct head *got)
{
    char here[200], there[200];
    if (got->kind != find_counterpart(own->kind) || got->type != own->type ||
        got->count != own->count || got->reduce != own->reduce || got->root != own->root ||
        got->number != own->number) {
        print_head(here, own);
        print_head(there, got);
        END_PROGRAM(c, "%s; of rank %d %s", here, peer, there);
    }
}

// Until all have moved; false: the communicator was aborted.
static bool move_all(const struct ncclComm *c, struct flow *out, struct flow *in,
                     const struct head *own)
{
    int still = 0;
    for (bool done = false; !done;) {
        bool moved = false;
        done = true;
        if (c->aborted)
            return false;
        for (int k = 0; k < c->n; k++) {
            moved |= move_flow(&out[k], true);
            bool had = in[k].at >= sizeof(struct head);
            moved |= move_flow(&in[k], false);
            if (in[k].ring && !had && in[k].at >= sizeof(struct head))
                compare_heads(c, k, &own[k], in[k].head);
            done = done && is_done(&out[k], true) && is_done(&in[k], false);
        }
        still = moved ? 0 : still + 1;
        if (still && !done)
            usleep(20);
        if (still % STILL == STILL - 1)
            wait_check(c);
    }
    return true;
}

// ---- what a call does --------------------------------------------------------------------------

static float read_number(const char *p, ncclDataType_t t)
{
    uint32_t bits = 0;
    float f;
    if (t == ncclFloat32) {
        memcpy(&f, p, 4);
        return f;
    }
    memcpy((char *)&bits + 2, p, 2);
    memcpy(&f, &bits, 4);
    return f;
}

static void write_number(char *p, ncclDataType_t t, float f)
{
    uint32_t bits;
    if (t == ncclFloat32) {
        memcpy(p, &f, 4);
        return;
    }
    memcpy(&bits, &f, 4);
    if (f == f)
        bits += 0x7fff + (bits >> 16 & 1); // to the nearest even
    memcpy(p, (char *)&bits + 2, 2);
}

// In the order of the ranks, rounded at each.
static void reduce_parts(const struct ncclComm *c, const struct call *k, char *const *part,
                         char *to)
{
    const size_t size = type_size(k->type);
    for (size_t i = 0; i < k->count; i++) {
        float sum = read_number(part[0] + i * size, k->type);
        write_number(to + i * size, k->type, sum);
        for (int r = 1; r < c->n; r++) {
            float x = read_number(part[r] + i * size, k->type);
            if (k->reduce == ncclSum)
                sum += x;
            else
                sum = x > sum || sum != sum ? x : sum;
            write_number(to + i * size, k->type, sum);
            sum = read_number(to + i * size, k->type);
        }
    }
}

// What goes to a peer, and where what comes from it is put; `parts` is what is reduced.
static void plan_flows(const struct ncclComm *c, const struct call *k, char *const *parts, int peer,
                       struct flow *out, struct flow *in)
{
    const size_t bytes = k->count * type_size(k->type);
    char *from = (char *)(uintptr_t)k->from;
    bool reduces = k->kind == ALL_REDUCE || k->kind == REDUCE_SCATTER;
    out->n = in->n = bytes;
    out->bytes =
        k->kind == REDUCE_SCATTER || k->kind == ALL_TO_ALL ? from + (size_t)peer * bytes : from;
    in->bytes = reduces                                          ? parts[peer]
                : k->kind == ALL_GATHER || k->kind == ALL_TO_ALL ? k->to + (size_t)peer * bytes
                                                                 : k->to;
    if (k->kind == BROADCAST && c->rank != k->peer)
        out->n = 0;
    if ((k->kind == BROADCAST && peer != k->peer) || k->kind == SEND)
        in->n = 0;
    if (k->kind == RECV)
        out->n = 0;
}

static struct head make_head(const struct group *g, int i)
{
    const struct call *k = &g->call[i];
    struct head h = {.kind = k->kind,
                     .type = k->type,
                     .reduce = k->reduce,
                     .root = k->kind == BROADCAST ? k->peer : 0,
                     .count = k->count,
                     .number = g->number + (uint64_t)i};
    if (k->kind == SEND || k->kind == RECV)
        h.number = g->number; // those of a group have no order
    return h;
}

bool perform_calls(const struct group *g, int i, int end)
{
    const struct ncclComm *c = g->comm;
    const size_t bytes = g->call[i].count * type_size(g->call[i].type);
    struct head *heads = calloc(3 * MOST_RANKS, sizeof *heads), *got = heads + MOST_RANKS;
    struct head *sent = got + MOST_RANKS;
    struct flow out[MOST_RANKS] = {{0}}, in[MOST_RANKS] = {{0}};
    char *parts[MOST_RANKS] = {0};
    bool reduces = g->call[i].kind == ALL_REDUCE || g->call[i].kind == REDUCE_SCATTER;
    for (int r = 0; r < c->n && reduces; r++)
        parts[r] = malloc(bytes + 1);
    for (int j = i; j < end; j++) {
        const struct call *k = &g->call[j];
        for (int r = 0; r < c->n; r++) {
            struct flow o = {0}, n = {0};
            if ((k->kind == SEND || k->kind == RECV) && r != k->peer)
                continue;
            plan_flows(c, k, parts, r, &o, &n);
            if (r == c->rank && k->kind != SEND && k->kind != RECV) {
                memmove(n.bytes, o.bytes, n.n);
                continue;
            }
            if (k->kind != RECV) {
                if (out[r].ring)
                    END_PROGRAM(c, "two sends to rank %d in one group are not emulated", r);
                out[r] = o;
                out[r].ring = &c->shared->ring[c->rank][r];
                sent[r] = make_head(g, j);
                out[r].head = &sent[r];
            }
            if (k->kind != SEND) {
                in[r] = n;
                in[r].ring = &c->shared->ring[r][c->rank];
                in[r].head = &got[r];
                heads[r] = make_head(g, j);
            }
        }
    }
    bool peers[MOST_RANKS];
    for (int r = 0; r < c->n; r++)
        peers[r] = out[r].ring || in[r].ring;
    wait_enter(c, g->number + (uint64_t)i, g->number + (uint64_t)end, peers);
    bool moved = move_all(c, out, in, heads);
    wait_leave();
    if (moved && reduces)
        reduce_parts(c, &g->call[i], parts, g->call[i].to);
    for (int r = 0; r < c->n; r++)
        free(parts[r]);
    free(heads);
    return moved;
}
