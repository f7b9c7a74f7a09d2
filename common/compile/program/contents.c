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

static int64_t count_bytes(const struct program *p, int value)
{
    const struct value *v = &p->graph->values[value];
    struct shape local = spec_local(&v->spec, &p->mesh, &v->shape);
    return shape_count(&local) * (int64_t)dtype_size(v->dtype);
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
static bool holds_bytes(const struct program *p, const struct contents *c, struct content h)
{
    const struct graph *g = p->graph;
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
    for (int k = 0; k < n->nout && n->op == OP_SPLIT; k++, origin -= count_bytes(p, h.value))
        if (n->out[k] == h.value)
            return holds_bytes(p, c, (struct content){h.from, h.to, origin, n->in[0]});
    bool all = n->op == OP_STACK;
    for (int k = 0; k < n->nin && all; k++) {
        int64_t end = origin + count_bytes(p, n->in[k]);
        struct content piece = {h.from > origin ? h.from : origin, h.to < end ? h.to : end, origin,
                                n->in[k]};
        all = piece.from >= piece.to || holds_bytes(p, c, piece);
        origin = end;
    }
    return all;
}

static struct content locate_value(const struct program *p, struct view v, int value)
{
    int64_t at = (int64_t)v.offset;
    return (struct content){at, at + count_bytes(p, value), at, value};
}

static int check_op(const struct program *p, int at, struct contents *all, struct arena *a,
                    struct err *e)
{
    const struct instr *i = &p->instrs[at];
    const struct node *n = &p->graph->nodes[i->node];
    for (int k = 0; k < i->nin; k++) {
        const struct buffer *b = &p->buffers[i->in[k].buffer];
        if (!b->persistent &&
            !holds_bytes(p, &all[i->in[k].buffer], locate_value(p, i->in[k], n->in[k])))
            return err_set(e, ERR_INTERNAL, "%s: instruction %d reads something else than value %d",
                           program_name(p->kind), at, n->in[k]);
    }
    for (int k = 0; k < i->nout; k++) {
        const struct buffer *b = &p->buffers[i->out[k].buffer];
        struct content h = locate_value(p, i->out[k], n->out[k]);
        if (b->persistent)
            continue;
        if ((uint64_t)h.to > b->bytes)
            return err_set(e, ERR_INTERNAL, "%s: instruction %d writes beyond its buffer",
                           program_name(p->kind), at);
        put_content(&all[i->out[k].buffer], h, a);
    }
    return 0;
}

// Notes what a collective or a send brings: the whole of a value.
static void put_brought(const struct program *p, const struct instr *i, struct contents *all,
                        struct arena *a)
{
    const struct node *n = &p->graph->nodes[i->node];
    const struct buffer *b = &p->buffers[i->out[0].buffer];
    int value = n->kind == NODE_SEND ? n->in[0] : n->out[0];
    if (!b->persistent)
        put_content(&all[i->out[0].buffer], (struct content){0, (int64_t)b->bytes, 0, value}, a);
}

int contents_check(const struct program *p, struct err *e)
{
    struct arena scratch = {0};
    struct contents *all = arena_array(&scratch, struct contents, p->nbuffers);
    int rc = 0;
    for (int k = 0; k < p->ninstrs && !rc; k++) {
        const struct instr *i = &p->instrs[k];
        if (i->kind == INSTR_WAIT || i->kind == INSTR_MARK || !i->nout)
            continue;
        if (i->kind != INSTR_OP || p->graph->nodes[i->node].kind != NODE_OP)
            put_brought(p, i, all, &scratch);
        else
            rc = check_op(p, k, all, &scratch, e);
    }
    arena_clear(&scratch);
    return rc;
}
