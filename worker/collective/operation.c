// SPDX-License-Identifier: Apache-2.0
// The operations: shared memory within a host, frames between hosts, the same bits either way.
//
// coll_start writes a note into this rank's page (and frames it to remote members); it moves no
// other data. coll_wait does the work when all notes are there:
//   - operands up to INLINE_MAX bytes lie in the notes: everyone computes the whole result itself,
//     one exchange of cache lines in all;
//   - larger ones are cut into one slice a member. A slice's owner reads it straight from its
//     host's windows (and from the pieces that remote members sent), sums in tree order and writes
//     the result into every window of its host, then sends it to the remote members. An operand
//     is so read once and written once. `done` in the page ends the operation.
// Remote operands go at most STAGE bytes ahead of the reduction (grants). While one operation
// waits, those open on other communicators are worked on too, so ranks may wait in any order.
#include <string.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "worker/collective/sum_tree.h"
#include "worker/collective/world.h"

enum { LINE = 64 };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

// Where this rank's operand lies.
static unsigned char *operand_of(const struct coll *o)
{
    return o->args.op == COLL_ALL_TO_ALL ? o->args.from : o->args.buf;
}

static void reduce(const struct coll *o, void *const *dst, int nd, const void *const *src, int n,
                   size_t bytes)
{
    (o->args.reduce == COLL_MAX ? tree_max : tree_sum)(o->args.dtype, dst, nd, src, n,
                                                       bytes / o->esize);
}

static unsigned char *buffer_of(struct comm *c, const struct coll *o, int member)
{
    if (member == c->me)
        return o->args.buf;
    return c->members[member]->window + op_note(c, o, member)->offset;
}

// ---- small ones, from the notes ----
static void finish_sum(struct comm *c, struct coll *o)
{
    struct span s = {0, o->bytes};
    if (o->args.op == COLL_REDUCE_SCATTER)
        s = op_slice(c, o, c->me);
    for (int i = 0; i < c->n; i++) {
        const unsigned char *from = i == c->me ? o->args.buf : op_note(c, o, i)->payload;
        c->src[i] = from + s.at;
    }
    void *to = (unsigned char *)o->args.buf + s.at;
    reduce(o, &to, 1, c->src, c->n, s.len);
}

static void finish_copy(struct comm *c, struct coll *o)
{
    for (int i = 0; i < c->n; i++) {
        struct span s = op_slice(c, o, i);
        if (i != c->me && s.len)
            memcpy((unsigned char *)o->args.buf + s.at, op_note(c, o, i)->payload, s.len);
    }
}

// Slice `me` of each member's operand, one after the other.
static void finish_exchange(struct comm *c, struct coll *o)
{
    size_t mine = op_slice(c, o, c->me).at;
    for (int i = 0; i < c->n; i++) {
        struct span s = op_slice(c, o, i);
        const unsigned char *from = i == c->me ? operand_of(o) : op_note(c, o, i)->payload;
        memcpy((unsigned char *)o->args.buf + s.at, from + mine, s.len);
    }
}

static void finish_nothing(struct comm *c, struct coll *o)
{
    (void)c;
    (void)o;
}

// ---- large ones ----
// Lets remote members send as far ahead as the stage holds.
static void grant(struct comm *c, struct coll *o, size_t len)
{
    size_t upto = least(len, o->ready + STAGE);
    for (int i = 0; i < c->n && c->remote; i++)
        if (!c->members[i]->local && o->allowed[i] < upto) {
            o->allowed[i] = upto;
            link_grant(c->members[i], c->slot, o->seq, upto);
        }
}

static bool operands_here(const struct comm *c, const struct coll *o, size_t upto)
{
    for (int i = 0; i < c->n && c->remote; i++)
        if (!c->members[i]->local && o->got[0][i] < upto)
            return false;
    return true;
}

// One piece of this rank's slice: the sum goes to every window of the host (all-reduce) or to our
// own (reduce-scatter).
static void sum_piece(struct comm *c, struct coll *o, size_t at, size_t len)
{
    int nd = 0;
    for (int i = 0; i < c->n; i++) {
        if (!c->members[i]->local) {
            c->src[i] = c->stage + (size_t)i * STAGE + o->ready % STAGE;
            continue;
        }
        void *here = buffer_of(c, o, i) + at;
        c->src[i] = here;
        if (i == c->me || o->args.op == COLL_ALL_REDUCE)
            c->dst[nd++] = here;
    }
    reduce(o, c->dst, nd, c->src, c->n, len);
}

static bool work_sum(struct comm *c, struct coll *o)
{
    struct span s = op_slice(c, o, c->me);
    grant(c, o, s.len);
    if (!o->agreed && !op_agree(c, o))
        return false;
    if (o->ready < s.len) {
        size_t len = least(PIECE, s.len - o->ready);
        if (!operands_here(c, o, o->ready + len))
            return false;
        sum_piece(c, o, s.at + o->ready, len);
        o->ready += len;
        c->w->moved = true;
        grant(c, o, s.len);
    }
    return o->ready == s.len;
}

static bool work_copy(struct comm *c, struct coll *o)
{
    if (!o->agreed && !op_agree(c, o))
        return false;
    for (int i = 0; i < c->n; i++) {
        struct span s = op_slice(c, o, i);
        if (i != c->me && c->members[i]->local && s.len)
            memcpy((unsigned char *)o->args.buf + s.at, buffer_of(c, o, i) + s.at, s.len);
    }
    o->ready = op_slice(c, o, c->me).len;
    return true;
}

static bool work_exchange(struct comm *c, struct coll *o)
{
    if (!o->agreed && !op_agree(c, o))
        return false;
    size_t mine = op_slice(c, o, c->me).at;
    for (int i = 0; i < c->n; i++) {
        struct span s = op_slice(c, o, i);
        if (i == c->me || c->members[i]->local)
            memcpy((unsigned char *)o->args.buf + s.at,
                   (i == c->me ? operand_of(o) : buffer_of(c, o, i)) + mine, s.len);
    }
    o->ready = op_slice(c, o, c->me).len;
    return true;
}

const struct kind coll_kinds[] = {
    [COLL_ALL_REDUCE] = {"all_reduce", true, true, true, false, work_sum, finish_sum},
    [COLL_REDUCE_SCATTER] = {"reduce_scatter", true, false, true, true, work_sum, finish_sum},
    [COLL_ALL_GATHER] = {"all_gather", false, true, false, true, work_copy, finish_copy},
    [COLL_ALL_TO_ALL] = {"all_to_all", false, true, false, true, work_exchange, finish_exchange},
    [COLL_BROADCAST] = {"broadcast", false, true, false, false, work_copy, finish_copy},
    [COLL_SEND] = {"send", false, true, false, false, work_copy, finish_copy},
    [COLL_RECV] = {"recv", false, true, false, false, work_copy, finish_copy},
    [COLL_BARRIER] = {"barrier", false, false, false, false, NULL, finish_nothing},
};

const char *coll_op_name(enum coll_op op)
{
    return coll_kinds[op].name;
}

// ---- progress ----
static bool op_work(struct comm *c, struct coll *o)
{
    if (!o->inlined)
        return coll_kinds[o->args.op].work(c, o);
    if (!op_agree(c, o))
        return false;
    coll_kinds[o->args.op].finish(c, o);
    return true;
}

static void publish_done(struct comm *c, const struct coll *o)
{
    struct world *w = c->w;
    atomic_store_explicit(&w->page->comms[c->slot].done, o->seq, memory_order_release);
    for (int i = 0; i < c->n; i++)
        if (i != c->me && c->members[i]->local)
            world_wake(w, c->members[i]);
}

static bool op_complete(struct comm *c, struct coll *o)
{
    if (o->inlined && !c->remote)
        return true;
    for (int i = 0; i < c->n; i++)
        if (op_owes(c, o, i))
            return false;
    return true;
}

static void op_leave(struct world *w, const struct coll *o)
{
    struct progress_page *p = w->progress;
    if (!p || atomic_load_explicit(&p->coll_left, memory_order_relaxed) >= o->number)
        return;
    atomic_store_explicit(&p->coll_left, o->number, memory_order_relaxed);
    atomic_store_explicit(&p->heartbeat_ns, (uint64_t)clock_mono_ns(), memory_order_relaxed);
}

void comm_step(struct comm *c)
{
    struct world *w = c->w;
    while (c->worked < c->started && !w->broken.code) {
        struct coll *o = &c->ops[(c->worked + 1) % COLL_MAX_OPEN];
        if (!op_work(c, o))
            break;
        c->worked++;
        w->moved = true;
        if (!o->inlined)
            publish_done(c, o);
    }
    while (c->completed < c->worked && !w->broken.code) {
        struct coll *o = &c->ops[(c->completed + 1) % COLL_MAX_OPEN];
        if (!op_complete(c, o))
            break;
        c->completed++;
        w->moved = true;
        op_leave(w, o);
    }
}

bool comms_step(struct world *w)
{
    w->moved = false;
    for (int i = 0; i < w->ncomms; i++)
        if (w->comms[i]->completed < w->comms[i]->started)
            comm_step(w->comms[i]);
    return w->moved;
}

// ---- between hosts ----
static bool next_of_stage(struct comm *c, struct coll *o, int member, int stage, struct chunk *out)
{
    bool to_member = !stage || o->args.op == COLL_ALL_TO_ALL;
    struct span s = op_slice(c, o, to_member ? member : c->me);
    size_t sent = o->sent[stage][member];
    size_t upto = stage ? o->ready : least(s.len, op_note(c, o, member)->granted);
    if (sent >= upto)
        return false;
    *out = (struct chunk){.comm = c,
                          .op = o,
                          .stage = stage,
                          .member = member,
                          .offset = sent,
                          .data = operand_of(o) + s.at + sent,
                          .len = least(upto - sent, PIECE - sent % PIECE)};
    return true;
}

static int member_of(const struct comm *c, const struct peer *p)
{
    int i = 0;
    while (i < c->n && c->members[i] != p)
        i++;
    return i < c->n ? i : -1;
}

bool comm_next_chunk(struct comm *c, const struct peer *p, struct chunk *out)
{
    int member = member_of(c, p);
    for (uint64_t seq = c->completed + 1; member >= 0 && seq <= c->started; seq++) {
        struct coll *o = &c->ops[seq % COLL_MAX_OPEN];
        const struct kind *k = &coll_kinds[o->args.op];
        // Nothing is sent before everyone announced the same: no wrong byte lands anywhere.
        if (o->inlined)
            continue;
        if (!o->agreed && !op_agree(c, o))
            return false;
        if (k->scatter && next_of_stage(c, o, member, 0, out))
            return true;
        if (k->gather && next_of_stage(c, o, member, 1, out))
            return true;
    }
    return false;
}

void comm_sent(struct world *w, const struct chunk *k)
{
    k->op->sent[k->stage][k->member] += k->len;
    w->moved = true;
}

unsigned char *comm_place(struct comm *c, const struct peer *p, int stage, uint64_t seq,
                          uint64_t offset, size_t len, struct chunk *out)
{
    int member = member_of(c, p);
    if (member < 0 || c->freed || seq <= c->completed || seq > c->started)
        return NULL;
    struct coll *o = &c->ops[seq % COLL_MAX_OPEN];
    const struct kind *k = &coll_kinds[o->args.op];
    struct span s = op_slice(c, o, stage ? member : c->me);
    size_t upto = stage ? s.len : o->allowed[member];
    bool asked = !o->inlined && (stage ? k->gather : k->scatter);
    if (!asked || offset != o->got[stage][member] || offset > upto || len > upto - offset ||
        offset % PIECE + len > PIECE)
        return NULL;
    *out = (struct chunk){.comm = c, .op = o, .stage = stage, .member = member, .len = len};
    if (stage)
        return (unsigned char *)o->args.buf + s.at + offset;
    return c->stage + (size_t)member * STAGE + offset % STAGE;
}

void comm_got(struct world *w, const struct chunk *k)
{
    k->op->got[k->stage][k->member] += k->len;
    w->moved = true;
}

// ---- start and wait ----
static bool in_window(const struct world *w, const void *p, size_t esize, int64_t count)
{
    size_t at = (size_t)((const unsigned char *)p - w->window);
    return w->window && esize && at <= w->window_size && at % esize == 0 &&
           (size_t)count <= (w->window_size - at) / esize;
}

static int check_args(const struct comm *c, const struct coll_args *a, struct err *e)
{
    const struct world *w = c->w;
    size_t esize = dtype_size(a->dtype);
    const struct kind *k = &coll_kinds[a->op];
    if (a->op == COLL_BARRIER)
        return 0;
    if (k->sums && a->dtype != DT_F32 && a->dtype != DT_BF16)
        return err_set(e, ERR_UNSUPPORTED, "sums are of f32 or bf16, not of %s",
                       dtype_name(a->dtype));
    if (op_counterpart(a->op) != a->op && c->n != 2)
        return err_set(e, ERR_INVALID, "it goes between two ranks, '%s' has %d", c->name, c->n);
    if (a->count < 0 || (k->even && a->count % c->n))
        return err_set(e, ERR_INVALID, "%lld elements do not divide over %d ranks",
                       (long long)a->count, c->n);
    if (a->op == COLL_BROADCAST && (a->root < 0 || a->root >= c->n))
        return err_set(e, ERR_INVALID, "there is no coordinate %d", a->root);
    if (!in_window(w, a->buf, esize, a->count) ||
        (a->op == COLL_ALL_TO_ALL && !in_window(w, a->from, esize, a->count)))
        return err_set(e, ERR_INVALID, "the buffer lies outside this rank's window");
    return 0;
}

static void op_init(struct comm *c, struct coll *o, const struct coll_args *a)
{
    const struct kind *k = &coll_kinds[a->op];
    size_t n = (size_t)c->n, esize = a->op == COLL_BARRIER ? 1 : dtype_size(a->dtype);
    uint64_t *arrays = o->sent[0];
    if (c->remote)
        memset(arrays, 0, (size_t)(o->allowed + n - arrays) * sizeof *arrays);
    o->args = *a;
    o->esize = esize;
    if (a->op == COLL_BARRIER)
        o->args.count = 0;
    o->bytes = (size_t)o->args.count * esize;
    // Slices end at cache lines where that is ours to choose.
    size_t step = k->even ? 1 : LINE / esize;
    o->per = (int64_t)(((size_t)o->args.count + n * step - 1) / (n * step) * step);
    size_t operand = a->op == COLL_ALL_GATHER ? (size_t)o->per * esize : o->bytes;
    o->inlined = operand <= INLINE_MAX;
    o->agreed = false;
    o->seen = 0;
    o->ready = 0;
}

static size_t put_payload(struct comm *c, const struct coll *o, unsigned char *to)
{
    struct span s = {0, o->bytes};
    if (!coll_kinds[o->args.op].scatter && o->args.op != COLL_ALL_TO_ALL)
        s = op_slice(c, o, c->me);
    if (s.len)
        memcpy(to, operand_of(o) + s.at, s.len);
    return s.len;
}

static void announce(struct comm *c, struct coll *o, uint32_t hash)
{
    struct world *w = c->w;
    struct note *n = &w->page->comms[c->slot].notes[o->seq % NOTES];
    n->number = o->number;
    n->count = o->args.count;
    n->name = hash;
    n->root = o->args.op == COLL_BROADCAST ? o->args.root : (int)o->args.reduce;
    n->op = (uint8_t)o->args.op;
    n->dtype = o->args.op == COLL_BARRIER ? 0 : (uint8_t)o->args.dtype;
    n->inlined = o->inlined;
    if (o->inlined)
        n->offset = put_payload(c, o, n->payload);
    else
        n->offset = (size_t)(operand_of(o) - w->window);
    atomic_store_explicit(&n->seq, o->seq, memory_order_release);
    for (int i = 0; i < c->n; i++) {
        struct peer *p = c->members[i];
        if (p->link && !p->dead) {
            link_note(w, p, c->slot, n);
            link_out(w, p);
        } else if (i != c->me && p->page)
            world_wake(w, p);
    }
}

int coll_start(struct comm *c, const struct coll_args *a, struct coll_ticket *out, struct err *e)
{
    struct world *w = c->w;
    struct err own;
    if (!e)
        e = &own;
    int rc = world_look(w, e);
    if (rc)
        return world_break(w, e);
    rc = check_args(c, a, e);
    if (rc)
        return err_wrap(e, "%s (%s)", coll_op_name(a->op), a->name ? a->name : "");
    if (c->started - c->completed == COLL_MAX_OPEN) {
        comm_step(c);
        if (c->started - c->completed == COLL_MAX_OPEN)
            return err_set(e, ERR_LIMIT, "%d operations are open in '%s'", COLL_MAX_OPEN, c->name);
    }
    uint64_t seq = c->started + 1;
    struct coll *o = &c->ops[seq % COLL_MAX_OPEN];
    uint32_t hash = a->name ? hash_fnv1a32(a->name) : 0;
    op_init(c, o, a);
    o->seq = seq;
    o->number = ++w->number;
    page_enter(w, o->number, a->name, hash);
    c->started = seq;
    announce(c, o, hash);
    *out = (struct coll_ticket){.number = o->number, .slot = (int)(seq % COLL_MAX_OPEN)};
    return 0;
}

struct awaited {
    struct comm *c;
    uint64_t seq;
};

static bool completed(void *arg)
{
    const struct awaited *a = arg;
    if (a->c->completed < a->seq)
        comm_step(a->c);
    return a->c->completed >= a->seq;
}

int coll_wait(struct comm *c, struct coll_ticket *t, struct err *e)
{
    struct world *w = c->w;
    struct coll *o = &c->ops[t->slot];
    struct err own;
    if (!e)
        e = &own;
    if (o->number != t->number) // its place was given to a later one: it is complete
        return world_look(w, e);
    struct awaited a = {c, o->seq};
    w->waits = c;
    int rc = world_wait(w, completed, &a, w->deadline_ns, e);
    w->waits = NULL;
    if (rc == ERR_TIMEOUT && !w->broken.code) {
        op_late(c, &c->ops[(c->completed + 1) % COLL_MAX_OPEN], e);
        return world_break(w, e);
    }
    if (rc && rc != ERR_INTERNAL)
        err_wrap(e, "%s #%llu (%s) in '%s'", coll_op_name(o->args.op),
                 (unsigned long long)o->number, o->args.name ? o->args.name : "", c->name);
    return rc;
}

int coll_try(struct comm *c, const struct coll_ticket *t, bool *done, bool *moved, struct err *e)
{
    struct world *w = c->w;
    const struct coll *o = &c->ops[t->slot];
    struct err own;
    if (!e)
        e = &own;
    if (world_look(w, e))
        return world_break(w, e);
    bool went = world_step(w);
    if (moved)
        *moved = went;
    *done = o->number != t->number || c->completed >= o->seq;
    return 0;
}

int coll_run(struct comm *c, const struct coll_args *a, struct err *e)
{
    struct coll_ticket t = {0};
    int rc = coll_start(c, a, &t, e);
    return rc ? rc : coll_wait(c, &t, e);
}
