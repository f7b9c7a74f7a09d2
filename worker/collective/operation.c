// SPDX-License-Identifier: Apache-2.0
// The operations: shared memory within a host, frames between hosts, the same bits either way.
//
// collective_start writes a note into this rank's page, and frames it to remote members; it moves
// no other data. Whoever steps the world (a wait, the progress thread) does the work when all notes
// are there:
//
//   small   operands up to INLINE_MAX bytes lie in the notes: everyone computes the whole result
//           itself, one exchange of cache lines in all.
//   large   operands are cut into one slice a member. A slice's owner reads it straight from its
//           host's windows, and from the pieces that remote members sent, sums in tree order,
//           writes the result into every window of its host, and sends it to the remote members.
//           So an operand is read once and written once. `done` in the page ends the operation.
//
// Remote operands go at most STAGE bytes ahead of the reduction (grants). While one operation is
// waited for, those open on other communicators are worked on too: ranks may wait in any order.
#include <string.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "worker/collective/sum_tree.h"
#include "worker/collective/world.h"

enum { LINE = 64 };

static size_t pick_least(size_t a, size_t b)
{
    return a < b ? a : b;
}

// Returns this rank's operand.
static unsigned char *find_operand(const struct operation *o)
{
    return o->args.op == COLLECTIVE_ALL_TO_ALL ? o->args.from : o->args.buf;
}

static void reduce_piece(const struct operation *o, void *const *dst, int nd,
                         const void *const *src, int n, size_t bytes)
{
    (o->args.reduce == COLLECTIVE_MAX ? tree_max : tree_sum)(o->args.dtype, dst, nd, src, n,
                                                             bytes / o->esize);
}

static unsigned char *find_buffer(struct communicator *c, const struct operation *o, int member)
{
    if (member == c->me)
        return o->args.buf;
    return c->members[member]->window + operation_note(c, o, member)->offset;
}

// ---- small ones, from the notes ----
static void finish_sum(struct communicator *c, struct operation *o)
{
    struct span s = {0, o->bytes};
    if (o->args.op == COLLECTIVE_REDUCE_SCATTER)
        s = operation_slice(c, o, c->me);
    for (int i = 0; i < c->n; i++) {
        const unsigned char *from = i == c->me ? o->args.buf : operation_note(c, o, i)->payload;
        c->src[i] = from + s.at;
    }
    void *to = (unsigned char *)o->args.buf + s.at;
    reduce_piece(o, &to, 1, c->src, c->n, s.len);
}

static void finish_copy(struct communicator *c, struct operation *o)
{
    for (int i = 0; i < c->n; i++) {
        struct span s = operation_slice(c, o, i);
        if (i != c->me && s.len)
            memcpy((unsigned char *)o->args.buf + s.at, operation_note(c, o, i)->payload, s.len);
    }
}

// Slice `me` of each member's operand, one after the other.
static void finish_exchange(struct communicator *c, struct operation *o)
{
    size_t mine = operation_slice(c, o, c->me).at;
    for (int i = 0; i < c->n; i++) {
        struct span s = operation_slice(c, o, i);
        const unsigned char *from = i == c->me ? find_operand(o) : operation_note(c, o, i)->payload;
        memcpy((unsigned char *)o->args.buf + s.at, from + mine, s.len);
    }
}

static void finish_nothing(struct communicator *c, struct operation *o)
{
    (void)c;
    (void)o;
}

// ---- large ones ----
// Lets remote members send as far ahead as the stage holds.
static void grant_stage(struct communicator *c, struct operation *o, size_t len)
{
    size_t upto = pick_least(len, o->ready + STAGE);
    for (int i = 0; i < c->n && c->remote; i++)
        if (!c->members[i]->local && o->allowed[i] < upto) {
            o->allowed[i] = upto;
            tcp_send_grant(c->members[i], c->slot, o->seq, upto);
        }
}

static bool have_operands(const struct communicator *c, const struct operation *o, size_t upto)
{
    for (int i = 0; i < c->n && c->remote; i++)
        if (!c->members[i]->local && o->got[0][i] < upto)
            return false;
    return true;
}

// Sums one piece of this rank's slice, into every window of the host (all-reduce) or into our own
// (reduce-scatter).
static void sum_piece(struct communicator *c, struct operation *o, size_t at, size_t len)
{
    int nd = 0;
    for (int i = 0; i < c->n; i++) {
        if (!c->members[i]->local) {
            c->src[i] = c->stage + (size_t)i * STAGE + o->ready % STAGE;
            continue;
        }
        void *here = find_buffer(c, o, i) + at;
        c->src[i] = here;
        if (i == c->me || o->args.op == COLLECTIVE_ALL_REDUCE)
            c->dst[nd++] = here;
    }
    reduce_piece(o, c->dst, nd, c->src, c->n, len);
}

static bool work_sum(struct communicator *c, struct operation *o)
{
    struct span s = operation_slice(c, o, c->me);
    grant_stage(c, o, s.len);
    if (!o->agreed && !operation_agrees(c, o))
        return false;
    if (o->ready < s.len) {
        size_t len = pick_least(PIECE, s.len - o->ready);
        if (!have_operands(c, o, o->ready + len))
            return false;
        sum_piece(c, o, s.at + o->ready, len);
        o->ready += len;
        c->w->moved = true;
        grant_stage(c, o, s.len);
    }
    return o->ready == s.len;
}

// Copies one piece of what members of this host have for this rank: their slice of the result or,
// in an all-to-all (exchange), this rank's slice of their operand. The result holds the slices in
// the order of the members. Returns false while there may be more.
// With a progress thread the copy is cut into pieces, so that no thread keeps the world to itself
// for long. Without one, nobody waits and a single long copy is faster.
static bool copy_piece(struct communicator *c, struct operation *o, bool exchange)
{
    size_t mine = operation_slice(c, o, c->me).at;
    for (; o->from < c->n; o->from++, o->copied = 0) {
        struct span s = operation_slice(c, o, o->from);
        bool own = o->from == c->me;
        if ((own && !exchange) || !c->members[o->from]->local || o->copied == s.len)
            continue;
        const unsigned char *from = own ? find_operand(o) : find_buffer(c, o, o->from);
        size_t len = s.len - o->copied;
        if (c->w->thread)
            len = pick_least(PIECE, len);
        memcpy((unsigned char *)o->args.buf + s.at + o->copied,
               from + (exchange ? mine : s.at) + o->copied, len);
        o->copied += len;
        c->w->moved = true;
        return false;
    }
    return true;
}

static bool work_copy(struct communicator *c, struct operation *o)
{
    if (!o->agreed && !operation_agrees(c, o))
        return false;
    o->ready = operation_slice(c, o, c->me).len;
    return copy_piece(c, o, o->args.op == COLLECTIVE_ALL_TO_ALL);
}

// Does a piece of a large operation, and returns whether that was the last. Null: always small.
static bool (*const work[])(struct communicator *c, struct operation *o) = {
    [COLLECTIVE_ALL_REDUCE] = work_sum,  [COLLECTIVE_REDUCE_SCATTER] = work_sum,
    [COLLECTIVE_ALL_GATHER] = work_copy, [COLLECTIVE_ALL_TO_ALL] = work_copy,
    [COLLECTIVE_BROADCAST] = work_copy,  [COLLECTIVE_SEND] = work_copy,
    [COLLECTIVE_RECV] = work_copy,       [COLLECTIVE_BARRIER] = NULL,
};

// The whole of a small one, from the notes' payloads.
static void (*const finish[])(struct communicator *c, struct operation *o) = {
    [COLLECTIVE_ALL_REDUCE] = finish_sum,  [COLLECTIVE_REDUCE_SCATTER] = finish_sum,
    [COLLECTIVE_ALL_GATHER] = finish_copy, [COLLECTIVE_ALL_TO_ALL] = finish_exchange,
    [COLLECTIVE_BROADCAST] = finish_copy,  [COLLECTIVE_SEND] = finish_copy,
    [COLLECTIVE_RECV] = finish_copy,       [COLLECTIVE_BARRIER] = finish_nothing,
};

// ---- progress ----
static bool work_on(struct communicator *c, struct operation *o)
{
    if (!o->inlined)
        return work[o->args.op](c, o);
    if (!operation_agrees(c, o))
        return false;
    finish[o->args.op](c, o);
    return true;
}

static void publish_done(struct communicator *c, const struct operation *o)
{
    struct world *w = c->w;
    atomic_store_explicit(&w->page->communicators[c->slot].done, o->seq, memory_order_release);
    for (int i = 0; i < c->n; i++)
        if (i != c->me && c->members[i]->local)
            world_wake(w, c->members[i]);
}

static bool is_complete(struct communicator *c, struct operation *o)
{
    if (o->inlined && !c->remote)
        return true;
    for (int i = 0; i < c->n; i++)
        if (operation_owes(c, o, i))
            return false;
    return true;
}

// The page counts the device's collectives as well (device_transport.c).
static void publish_left(struct world *w, const struct operation *o)
{
    struct progress_page *p = w->progress;
    if (!p || w->left >= o->number)
        return;
    atomic_fetch_add_explicit(&p->collective_left, o->number - w->left, memory_order_relaxed);
    w->left = o->number;
    atomic_store_explicit(&p->heartbeat_ns, (uint64_t)clock_mono_ns(), memory_order_relaxed);
}

static void step_communicator(struct communicator *c)
{
    struct world *w = c->w;
    while (c->worked < c->started && !w->broken.code) {
        struct operation *o = &c->ops[(c->worked + 1) % COLLECTIVES_OPEN];
        if (!work_on(c, o))
            break;
        c->worked++;
        w->moved = true;
        if (!o->inlined)
            publish_done(c, o);
    }
    while (c->completed < c->worked && !w->broken.code) {
        struct operation *o = &c->ops[(c->completed + 1) % COLLECTIVES_OPEN];
        if (!is_complete(c, o))
            break;
        c->completed++;
        w->moved = true;
        publish_left(w, o);
    }
}

bool communicators_step(struct world *w)
{
    w->moved = false;
    for (int i = 0; i < w->ncommunicators; i++)
        if (w->communicators[i]->completed < w->communicators[i]->started)
            step_communicator(w->communicators[i]);
    return w->moved;
}

// ---- between hosts ----
static bool find_chunk(struct communicator *c, struct operation *o, int member, int stage,
                       struct chunk *out)
{
    bool to_member = !stage || o->args.op == COLLECTIVE_ALL_TO_ALL;
    struct span s = operation_slice(c, o, to_member ? member : c->me);
    size_t sent = o->sent[stage][member];
    size_t upto = stage ? o->ready : pick_least(s.len, operation_note(c, o, member)->granted);
    if (sent >= upto)
        return false;
    *out = (struct chunk){.op = o,
                          .stage = stage,
                          .member = member,
                          .offset = sent,
                          .data = find_operand(o) + s.at + sent,
                          .len = pick_least(upto - sent, PIECE - sent % PIECE)};
    return true;
}

static int find_member(const struct communicator *c, const struct peer *p)
{
    int i = 0;
    while (i < c->n && c->members[i] != p)
        i++;
    return i < c->n ? i : -1;
}

bool next_chunk(struct communicator *c, const struct peer *p, struct chunk *out)
{
    int member = find_member(c, p);
    for (uint64_t seq = c->completed + 1; member >= 0 && seq <= c->started; seq++) {
        struct operation *o = &c->ops[seq % COLLECTIVES_OPEN];
        const struct operation_kind *k = &operation_kinds[o->args.op];
        // Nothing is sent before everyone announced the same: no wrong byte lands anywhere.
        if (o->inlined)
            continue;
        if (!o->agreed && !operation_agrees(c, o))
            return false;
        if (k->scatter && find_chunk(c, o, member, 0, out))
            return true;
        if (k->gather && find_chunk(c, o, member, 1, out))
            return true;
    }
    return false;
}

void chunk_went(struct world *w, const struct chunk *k)
{
    k->op->sent[k->stage][k->member] += k->len;
    w->moved = true;
}

unsigned char *place_chunk(struct communicator *c, const struct peer *p, int stage, uint64_t seq,
                           uint64_t offset, size_t len, struct chunk *out)
{
    int member = find_member(c, p);
    if (member < 0 || c->freed || seq <= c->completed || seq > c->started)
        return NULL;
    struct operation *o = &c->ops[seq % COLLECTIVES_OPEN];
    const struct operation_kind *k = &operation_kinds[o->args.op];
    struct span s = operation_slice(c, o, stage ? member : c->me);
    size_t upto = stage ? s.len : o->allowed[member];
    bool asked = !o->inlined && (stage ? k->gather : k->scatter);
    if (!asked || offset != o->got[stage][member] || offset > upto || len > upto - offset ||
        offset % PIECE + len > PIECE)
        return NULL;
    *out = (struct chunk){.op = o, .stage = stage, .member = member, .len = len};
    if (stage)
        return (unsigned char *)o->args.buf + s.at + offset;
    return c->stage + (size_t)member * STAGE + offset % STAGE;
}

void chunk_came(struct world *w, const struct chunk *k)
{
    k->op->got[k->stage][k->member] += k->len;
    w->moved = true;
}

// ---- start and wait ----
static bool is_in_window(const struct world *w, const void *p, size_t esize, int64_t count)
{
    size_t at = (size_t)((const unsigned char *)p - w->window);
    return w->window && at <= w->window_size && at % esize == 0 &&
           (size_t)count <= (w->window_size - at) / esize;
}

static int check_args(const struct communicator *c, const struct collective_args *a, struct err *e)
{
    size_t esize = dtype_size(a->dtype);
    const struct operation_kind *k = &operation_kinds[a->op];
    if (a->op == COLLECTIVE_BARRIER)
        return 0;
    if (k->sums && a->dtype != DT_F32 && a->dtype != DT_BF16)
        return err_set(e, ERR_UNSUPPORTED, "sums are of f32 or bf16, not of %s",
                       dtype_name(a->dtype));
    if (collective_counterpart(a->op) != a->op && c->n != 2)
        return err_set(e, ERR_INVALID, "it goes between two ranks, '%s' has %d", c->name, c->n);
    if (!esize || a->count < 0 || a->count > PTRDIFF_MAX / (int64_t)esize ||
        (k->even && a->count % c->n))
        return err_set(e, ERR_INVALID, "%lld elements do not divide over %d ranks",
                       (long long)a->count, c->n);
    if (a->op == COLLECTIVE_BROADCAST && (a->root < 0 || a->root >= c->n))
        return err_set(e, ERR_INVALID, "the root is member %d of %d", a->root, c->n);
    return 0;
}

static void init_operation(struct communicator *c, struct operation *o,
                           const struct collective_args *a)
{
    const struct operation_kind *k = &operation_kinds[a->op];
    size_t n = (size_t)c->n, esize = a->op == COLLECTIVE_BARRIER ? 1 : dtype_size(a->dtype);
    uint64_t *arrays = o->sent[0];
    if (c->remote)
        memset(arrays, 0, (size_t)(o->allowed + n - arrays) * sizeof *arrays);
    o->args = *a;
    o->esize = esize;
    if (a->op == COLLECTIVE_BARRIER)
        o->args.count = 0;
    o->bytes = (size_t)o->args.count * esize;
    // Slices end at cache lines where that is ours to choose.
    size_t step = k->even ? 1 : LINE / esize;
    o->per = (int64_t)(((size_t)o->args.count + n * step - 1) / (n * step) * step);
    size_t operand = a->op == COLLECTIVE_ALL_GATHER ? (size_t)o->per * esize : o->bytes;
    o->inlined = operand <= INLINE_MAX;
    o->agreed = false;
    o->seen = o->from = 0;
    o->ready = o->copied = 0;
}

static size_t put_payload(struct communicator *c, const struct operation *o, unsigned char *to)
{
    struct span s = {0, o->bytes};
    if (!operation_kinds[o->args.op].scatter && o->args.op != COLLECTIVE_ALL_TO_ALL)
        s = operation_slice(c, o, c->me);
    if (s.len)
        memcpy(to, find_operand(o) + s.at, s.len);
    return s.len;
}

static void announce_operand(struct communicator *c, struct operation *o, uint32_t hash)
{
    struct world *w = c->w;
    struct note *n = &w->page->communicators[c->slot].notes[o->seq % NOTES];
    n->number = o->number;
    n->count = o->args.count;
    n->name = hash;
    n->root = o->args.op == COLLECTIVE_BROADCAST ? o->args.root : (int)o->args.reduce;
    n->op = (uint8_t)o->args.op;
    n->dtype = o->args.op == COLLECTIVE_BARRIER ? 0 : (uint8_t)o->args.dtype;
    n->inlined = o->inlined;
    if (o->inlined)
        n->offset = put_payload(c, o, n->payload);
    else
        n->offset = (size_t)(find_operand(o) - w->window);
    atomic_store_explicit(&n->seq, o->seq, memory_order_release);
    for (int i = 0; i < c->n; i++) {
        struct peer *p = c->members[i];
        if (p->link && !p->dead) {
            tcp_send_note(w, p, c->slot, n);
            tcp_send(w, p);
        } else if (i != c->me && p->page)
            world_wake(w, p);
    }
}

static int start_operation(struct communicator *c, const struct collective_args *a,
                           struct collective_ticket *out, struct err *e)
{
    struct world *w = c->w;
    int rc = world_look(w, e);
    if (rc)
        return world_break(w, e);
    rc = check_args(c, a, e);
    if (rc)
        return err_wrap(e, "%s (%s)", collective_op_name(a->op), a->name ? a->name : "");
    if (c->started - c->completed == COLLECTIVES_OPEN) {
        step_communicator(c);
        if (c->started - c->completed == COLLECTIVES_OPEN)
            return err_set(e, ERR_LIMIT, "%d operations are open in '%s'", COLLECTIVES_OPEN,
                           c->name);
    }
    uint64_t seq = c->started + 1;
    struct operation *o = &c->ops[seq % COLLECTIVES_OPEN];
    uint32_t hash = a->name ? hash_fnv1a32(a->name) : 0;
    init_operation(c, o, a);
    if (!o->inlined &&
        (!is_in_window(w, a->buf, o->esize, a->count) ||
         (a->op == COLLECTIVE_ALL_TO_ALL && !is_in_window(w, a->from, o->esize, a->count))))
        return err_set(e, ERR_INVALID, "%s (%s): the buffer lies outside this rank's window",
                       collective_op_name(a->op), a->name ? a->name : "");
    o->seq = seq;
    o->number = ++w->number;
    peer_page_enter(w, o->number, a->name, hash);
    c->started = seq;
    announce_operand(c, o, hash);
    progress_begin(w);
    *out = (struct collective_ticket){.number = o->number, .slot = (int)(seq % COLLECTIVES_OPEN)};
    return 0;
}

int collective_start(struct communicator *c, const struct collective_args *a,
                     struct collective_ticket *out, struct err *e)
{
    struct err own;
    world_lock(c->w);
    int rc = start_operation(c, a, out, e ? e : &own);
    world_unlock(c->w);
    return rc;
}

struct completion {
    struct communicator *c;
    uint64_t seq;
};

static bool is_completed(void *arg)
{
    const struct completion *a = arg;
    if (a->c->completed < a->seq)
        step_communicator(a->c);
    return a->c->completed >= a->seq;
}

static int wait_for_operation(struct communicator *c, const struct collective_ticket *t,
                              struct err *e)
{
    struct world *w = c->w;
    struct operation *o = &c->ops[t->slot];
    if (o->number != t->number) // a later operation has its slot, so this one is complete
        return world_look(w, e);
    struct completion a = {c, o->seq};
    w->waits = c;
    int rc = world_wait(w, is_completed, &a, w->deadline_ns, e);
    w->waits = NULL;
    if (rc == ERR_TIMEOUT && !w->broken.code) {
        operation_late(c, &c->ops[(c->completed + 1) % COLLECTIVES_OPEN], e);
        return world_break(w, e);
    }
    if (rc && rc != ERR_INTERNAL)
        err_wrap(e, "%s #%llu (%s) in '%s'", collective_op_name(o->args.op),
                 (unsigned long long)o->number, o->args.name ? o->args.name : "", c->name);
    return rc;
}

int collective_wait(struct communicator *c, const struct collective_ticket *t, struct err *e)
{
    struct err own;
    world_lock(c->w);
    int rc = wait_for_operation(c, t, e ? e : &own);
    world_unlock(c->w);
    return rc;
}

int collective_try(struct communicator *c, const struct collective_ticket *t, bool *done,
                   bool *moved, struct err *e)
{
    struct world *w = c->w;
    const struct operation *o = &c->ops[t->slot];
    struct err own;
    if (!e)
        e = &own;
    world_lock(w);
    int rc = world_look(w, e);
    bool went = !rc && world_step(w);
    *done = o->number != t->number || c->completed >= o->seq;
    if (!rc && !went && !*done)
        rc = world_look_at_peers(w, e);
    if (rc)
        rc = world_break(w, e);
    if (moved)
        *moved = went;
    world_unlock(w);
    return rc;
}
