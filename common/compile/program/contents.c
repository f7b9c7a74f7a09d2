// SPDX-License-Identifier: Apache-2.0
// What lies in the buffers of temporaries. See contents.h.
#include "common/compile/program/contents.h"

// Bytes [from, to) of a buffer hold those of a value that begins at `origin`.
struct content {
    int64_t from, to, origin;
    int value;
};
struct contents {
    struct content *all;
    int n, cap;
};
struct contents_checker {
    const struct program *p;
    struct contents *all; // a buffer's each
    int64_t *bytes;       // of each value's shard, as far as asked for; 0: not yet
    struct arena scratch;
};

static int64_t count_bytes(const struct contents_checker *c, int value)
{
    const struct program *p = c->p;
    const struct value *v = &p->graph->values[value];
    if (c->bytes[value])
        return c->bytes[value];
    struct shape local = spec_local(&v->spec, &p->mesh, &v->shape);
    return c->bytes[value] = shape_count(&local) * (int64_t)dtype_size(v->dtype);
}

static void add_content(struct contents *c, struct content h, struct arena *a)
{
    if (h.from >= h.to)
        return;
    c->all = arena_grow(a, c->all, sizeof *c->all, c->n, &c->cap);
    c->all[c->n++] = h;
}

// Notes what is written to a range; it takes the place of what was there.
static void put_content(struct contents *c, struct content h, struct arena *a)
{
    int n = c->n;
    for (int i = 0; i < n; i++) {
        struct content old = c->all[i], below = old, above = old;
        below.to = h.from < old.to ? h.from : old.to;
        above.from = h.to > old.from ? h.to : old.from;
        bool whole = below.to <= below.from;
        c->all[i] = whole ? above : below;
        if (!whole)
            add_content(c, above, a);
    }
    add_content(c, h, a);
    for (int i = c->n; i-- > 0;)
        if (c->all[i].from >= c->all[i].to)
            c->all[i] = c->all[--c->n];
}

// Whether all bytes of `h` are there: as the value's own, as those of the whole that a SPLIT takes it
// from, or of the pieces that a STACK makes it of.
static bool holds_bytes(const struct contents_checker *k, const struct contents *c,
                        struct content h)
{
    const struct graph *g = k->p->graph;
    int64_t found = 0;
    for (int i = 0; i < c->n; i++) {
        const struct content *x = &c->all[i];
        int64_t from = x->from > h.from ? x->from : h.from, to = x->to < h.to ? x->to : h.to;
        if (x->value == h.value && x->origin == h.origin && from < to)
            found += to - from;
    }
    if (found == h.to - h.from)
        return true;
    int at = g->values[h.value].producer;
    const struct node *n = at < 0 ? NULL : &g->nodes[at];
    if (!n || n->kind != NODE_OP)
        return false;
    int64_t origin = h.origin;
    bool split = op_is(n->op, OP_MAKES_PIECES), all = op_is(n->op, OP_TAKES_PIECES);
    for (int o = 0; o < n->nout && split; o++, origin -= count_bytes(k, h.value))
        if (n->out[o] == h.value)
            return holds_bytes(k, c, (struct content){h.from, h.to, origin, n->in[0]});
    for (int i = 0; i < n->nin && all; i++) {
        int64_t end = origin + count_bytes(k, n->in[i]);
        struct content piece = {h.from > origin ? h.from : origin, h.to < end ? h.to : end, origin,
                                n->in[i]};
        all = piece.from >= piece.to || holds_bytes(k, c, piece);
        origin = end;
    }
    return all;
}

static struct content locate_value(const struct contents_checker *c, struct view v, int value)
{
    int64_t at = (int64_t)v.offset;
    return (struct content){at, at + count_bytes(c, value), at, value};
}

static int check_op(struct contents_checker *c, int at, struct err *e)
{
    const struct program *p = c->p;
    struct contents *all = c->all;
    const struct instr *i = &p->instrs[at];
    const struct node *n = &p->graph->nodes[i->node];
    for (int k = 0; k < i->nin; k++) {
        const struct buffer *b = &p->buffers[i->in[k].buffer];
        if (!b->persistent &&
            !holds_bytes(c, &all[i->in[k].buffer], locate_value(c, i->in[k], n->in[k])))
            return err_set(e, ERR_INTERNAL, "%s: instruction %d reads something else than value %d",
                           program_name(p->kind), at, n->in[k]);
    }
    for (int k = 0; k < i->nout; k++) {
        const struct buffer *b = &p->buffers[i->out[k].buffer];
        struct content h = locate_value(c, i->out[k], n->out[k]);
        if (b->persistent)
            continue;
        if ((uint64_t)h.to > b->bytes)
            return err_set(e, ERR_INTERNAL, "%s: instruction %d writes beyond its buffer",
                           program_name(p->kind), at);
        put_content(&all[i->out[k].buffer], h, &c->scratch);
    }
    return 0;
}

// Notes what a collective or a send brings: the whole of a value.
static void put_brought(struct contents_checker *c, const struct instr *i)
{
    const struct program *p = c->p;
    const struct node *n = &p->graph->nodes[i->node];
    const struct buffer *b = &p->buffers[i->out[0].buffer];
    int value = n->kind == NODE_SEND ? n->in[0] : n->out[0];
    if (!b->persistent)
        put_content(&c->all[i->out[0].buffer], (struct content){0, (int64_t)b->bytes, 0, value},
                    &c->scratch);
}

int contents_check(const struct program *p, struct err *e)
{
    struct contents_checker c = {.p = p};
    c.all = arena_array(&c.scratch, struct contents, p->nbuffers);
    c.bytes = arena_array(&c.scratch, int64_t, p->graph->nvalues);
    int rc = 0;
    for (int k = 0; k < p->ninstrs && !rc; k++) {
        const struct instr *i = &p->instrs[k];
        if (i->kind == INSTR_WAIT || i->kind == INSTR_MARK || !i->nout)
            continue;
        if (i->kind != INSTR_OP || p->graph->nodes[i->node].kind != NODE_OP)
            put_brought(&c, i);
        else
            rc = check_op(&c, k, e);
    }
    arena_clear(&c.scratch);
    return rc;
}
