// SPDX-License-Identifier: Apache-2.0
// Lowering. See lower.h.
#include "common/compile/program/lower.h"

#include <string.h>

#include "common/compile/graph/operand.h"
#include "common/compile/graph/optable.h"
#include "common/compile/layout/reshard_blocks.h"
#include "common/compile/program/sharing.h"

// The copy that brings what a collective delivered into the output of its reshard.
struct unpack {
    struct instr i;
    struct view got;
    int value, began; // the output; the count of scopes when the collective started
    struct op_block block;
};

struct pending { // a collective that runs
    int start;
    bool within;  // it goes with the one before it (bucket.h)
    bool carried; // so it does in a flat bucket, of which the first alone is a call
};

struct held { // a START of a bucket whose last is still to come
    struct instr i;
    struct view in, out;
};

struct lowering {
    const struct graph *g;
    const struct mesh *mesh;
    struct program *p;
    struct arena *arena;
    struct arena maps; // what is needed while lowering
    int microbatches, stage, axis;
    struct sharing sharing;
    const struct stage_part *part;
    int **buffers;     // [root][m] → 1 + buffer, 0 if none yet; null for roots of other stages
    int workspace;     // buffer, −1 before an op wants one
    uint64_t *scratch; // node → 1 + the scratch bytes that it needs; 0: not computed yet
    struct pending *pending;            // in the order of their starts
    int npending, pending_cap, ncalled; // `ncalled` are calls: not carried
    struct held *held;
    int nheld, held_cap;
    int *open, nopen, open_cap; // sends and receives that run
    struct unpack *unpacks;     // results of collectives that no instruction has read
    int nunpacks, unpacks_cap;
    int scope, nscopes; // the scope of the last op, and how many there were so far
    const struct schedule *schedule;
    // By phase and chunk, in the graph's order: this stage's nodes, and the sends to it.
    struct id_list *runs, *receives;
    int nreceived; // slots whose receives are started
};

// ---- buffers -----------------------------------------------------------------------------------

static enum buffer_kind choose_buffer_kind(const struct value *v)
{
    if (v->kind == VALUE_PARAM)
        return BUFFER_PARAM;
    if (v->kind == VALUE_STATE)
        return BUFFER_OPTIMIZER;
    if (v->kind == VALUE_COPY)
        return BUFFER_COPY;
    if (v->kind == VALUE_CACHE)
        return BUFFER_CACHE;
    return v->kind == VALUE_SUM && v->of >= 0 ? BUFFER_GRAD : BUFFER_TRANSIENT;
}

static int add_buffer(struct lowering *l)
{
    struct program *p = l->p;
    p->buffers = arena_grow(&l->maps, p->buffers, sizeof *p->buffers, p->nbuffers, &p->buffers_cap);
    return p->nbuffers++;
}

// Data is read in every cut that is asked for, each a buffer of its own: its cut is in its name. What
// a program adds up beside gradients is its own as well: a stage that adds nothing to an
// evaluation's loss must not find there what it added to the training's.
static const char *name_buffer(const struct lowering *l, const struct value *v)
{
    if (v->kind == VALUE_SUM && v->of < 0 && l->p->kind != PROGRAM_TRAIN)
        return arena_printf(l->arena, "%s %s", program_name(l->p->kind), v->name);
    if (v->kind != VALUE_INPUT || !spec_axes(&v->spec))
        return v->name;
    struct buf text = {0};
    spec_print(&v->spec, l->mesh, v->shape.n, &text);
    const char *name = arena_printf(l->arena, "%s %s", v->name, buf_str(&text));
    buf_clear(&text);
    return name;
}

static int make_buffer(struct lowering *l, int root)
{
    struct program *p = l->p;
    const struct value *v = &l->g->values[root];
    int at = add_buffer(l);
    struct buffer *b = &p->buffers[at];
    *b = (struct buffer){.value = root,
                         .name = name_buffer(l, v),
                         .kind = choose_buffer_kind(v),
                         .source = v->kind,
                         .persistent = v->kind != VALUE_TEMP,
                         .dtype = v->dtype,
                         .shape = sharing_shape(&l->sharing, root),
                         .copies = v->kind == VALUE_INPUT ? l->microbatches : 1,
                         .first = p->ninstrs,
                         .last = p->ninstrs};
    b->bytes = (uint64_t)shape_count(&b->shape) * dtype_size(b->dtype) * (uint64_t)b->copies;
    return at;
}

static int get_buffer(struct lowering *l, int root, int m)
{
    int **of = &l->buffers[root];
    if (!*of)
        *of = arena_array(&l->maps, int, l->microbatches);
    if (!(*of)[m])
        (*of)[m] = 1 + make_buffer(l, root);
    return (*of)[m] - 1;
}

// A copy is made from its parameter, so the parameter has a buffer too, even if no instruction
// reads it (it is frozen). The parameter's comes first, since what is gathered of the copy has the
// same name (program_find).
static struct view make_view(struct lowering *l, int value, int m)
{
    uint64_t offset;
    int root = sharing_place(&l->sharing, value, &offset);
    enum value_kind kind = l->g->values[root].kind;
    if (kind == VALUE_COPY)
        get_buffer(l, l->g->values[root].of, 0);
    int b = get_buffer(l, root, sharing_all_microbatches(&l->sharing, root) ? 0 : m);
    struct buffer *buf = &l->p->buffers[b];
    buf->last = l->p->ninstrs;
    struct view v = {.buffer = b, .offset = offset};
    if (kind == VALUE_INPUT)
        v.offset = buf->bytes / (uint64_t)buf->copies * (uint64_t)m;
    return v;
}

// ---- instructions ------------------------------------------------------------------------------

static struct instr *add_instr(struct lowering *l, const struct instr *i)
{
    struct program *p = l->p;
    p->instrs = arena_grow(&l->maps, p->instrs, sizeof *p->instrs, p->ninstrs, &p->instrs_cap);
    p->instrs[p->ninstrs] = *i;
    return &p->instrs[p->ninstrs++];
}

// Keeps a copy of the views, which may be the caller's own.
static void emit_instr(struct lowering *l, const struct instr *i)
{
    struct instr *at = add_instr(l, i);
    at->in = arena_dup(l->arena, i->in, sizeof *i->in * (size_t)i->nin);
    at->out = arena_dup(l->arena, i->out, sizeof *i->out * (size_t)i->nout);
}

// Waits for the oldest collective, and for what it took along.
static void wait_oldest(struct lowering *l)
{
    do {
        struct instr w = l->p->instrs[l->pending[0].start];
        w.kind = INSTR_WAIT;
        w.start = l->pending[0].start;
        w.with = 0;
        l->p->buffers[w.in[0].buffer].last = l->p->ninstrs;
        l->p->buffers[w.out[0].buffer].last = l->p->ninstrs;
        add_instr(l, &w); // its views are those of the start
        l->ncalled -= !l->pending[0].carried;
        l->npending--;
        memmove(l->pending, l->pending + 1, sizeof *l->pending * (size_t)l->npending);
    } while (l->npending && l->pending[0].within);
}

static void wait_for_buffer(struct lowering *l, int buffer, bool writes);
static void unpack_value(struct lowering *l, int value, int m);

// ---- sends and receives ----

static bool same_stream(const struct instr *a, const struct instr *b)
{
    return a->kind == b->kind && a->phase == b->phase && a->peer == b->peer;
}

// Waits for open send or receive number `at`, after those of its stream that were started before
// it.
static void wait_sendrecv(struct lowering *l, int at)
{
    struct program *p = l->p;
    for (int i = 0; i <= at; i++) {
        struct instr w = p->instrs[l->open[i]];
        if (!same_stream(&w, &p->instrs[l->open[at]]))
            continue;
        bool last = i == at;
        const struct view *touched = w.kind == INSTR_SEND ? w.in : w.out;
        p->buffers[touched[0].buffer].last = p->ninstrs;
        w.kind = INSTR_WAIT;
        w.start = l->open[i];
        add_instr(l, &w); // its view is that of the start
        memmove(l->open + i, l->open + i + 1, sizeof *l->open * (size_t)(--l->nopen - i));
        if (last)
            return;
        i--;
        at--;
    }
}

// A buffer that is being received is touched by nobody, one that is being sent only read.
static void wait_sendrecvs(struct lowering *l, int buffer, bool writes)
{
    for (int i = l->nopen - 1; i >= 0; i--) {
        const struct instr *s = &l->p->instrs[l->open[i]];
        bool busy = s->kind == INSTR_RECV ? s->out[0].buffer == buffer
                                          : writes && s->in[0].buffer == buffer;
        if (!busy)
            continue;
        wait_sendrecv(l, i);
        i = l->nopen;
    }
}

static void start_sendrecv(struct lowering *l, const struct node *n, int m, enum instr_kind kind)
{
    bool sends = kind == INSTR_SEND;
    struct instr i = {.kind = kind,
                      .node = (int)(n - l->g->nodes),
                      .phase = n->phase,
                      .microbatch = m,
                      .workspace = -1,
                      .axis = l->axis,
                      .peer = sends ? n->peer : n->stage};
    if (sends)
        unpack_value(l, n->in[0], m);
    struct view v = make_view(l, n->in[0], m);
    if (sends)
        wait_for_buffer(l, v.buffer, false);
    v = make_view(l, n->in[0], m);
    l->p->buffers[v.buffer].region = REGION_SHARED;
    i.nin = sends;
    i.nout = !sends;
    i.in = i.out = &v;
    l->open = arena_grow(&l->maps, l->open, sizeof *l->open, l->nopen, &l->open_cap);
    l->open[l->nopen++] = l->p->ninstrs;
    emit_instr(l, &i);
}

static struct id_list *find_nodes(const struct lowering *l, struct id_list *of, enum phase phase,
                                  int chunk)
{
    return &of[(int)phase * l->schedule->chunks + chunk];
}

// Starts what slots receive from their neighbours, in the schedule's order. This is done when the slot
// `at` begins, before the one that needs it where the order of all starts allows that, so that the data
// travels while others compute.
static void start_receives(struct lowering *l, int at)
{
    const struct schedule *s = l->schedule;
    for (; l->nreceived < s->nreceives; l->nreceived++) {
        const struct slot *t = &s->slots[s->receives[l->nreceived]];
        const struct id_list *sends = find_nodes(l, l->receives, t->phase, t->chunk);
        if (t->receive > at)
            return;
        for (int k = 0; k < sends->n; k++)
            start_sendrecv(l, &l->g->nodes[sends->at[k]], t->microbatch, INSTR_RECV);
    }
}

// Waits for the sends of earlier slots of the same phase; before the update, for all sends.
static void end_sends(struct lowering *l, const struct slot *slot)
{
    for (int i = 0; i < l->nopen; i++) {
        const struct instr *s = &l->p->instrs[l->open[i]];
        if (s->kind != INSTR_SEND || (slot->phase != s->phase && slot->phase != PHASE_UPDATE))
            continue;
        wait_sendrecv(l, i);
        i = -1;
    }
}

// Waits, in the order of the starts, up to the last one that works on `buffer`.
static void wait_for_buffer(struct lowering *l, int buffer, bool writes)
{
    wait_sendrecvs(l, buffer, writes);
    int upto = 0;
    for (int i = 0; i < l->npending; i++) {
        const struct instr *s = &l->p->instrs[l->pending[i].start];
        if (s->out[0].buffer == buffer || s->in[0].buffer == buffer)
            upto = i + 1;
    }
    for (int others = l->npending - upto; l->npending > others;)
        wait_oldest(l);
}

// ---- reshards ----

// Starts what is held: one after the other, and the first says how many go with it.
static void start_held(struct lowering *l)
{
    int n = l->nheld;
    if (!n)
        return;
    l->held[0].i.with = n - 1;
    bool flat = instr_is_flat(&l->held[0].i);
    while (l->ncalled && l->ncalled + (flat ? 1 : n) > COLLECTIVES_OPEN)
        wait_oldest(l);
    for (int k = 0; k < n; k++) {
        wait_sendrecvs(l, l->held[k].in.buffer, true);
        wait_sendrecvs(l, l->held[k].out.buffer, true);
    }
    for (int k = 0; k < n; k++) {
        struct held *h = &l->held[k];
        struct buffer *touched[2] = {&l->p->buffers[h->in.buffer], &l->p->buffers[h->out.buffer]};
        for (int t = 0; t < 2; t++) {
            touched[t]->region = REGION_SHARED;
            touched[t]->last = l->p->ninstrs;
        }
        bool carried = flat && k;
        l->pending =
            arena_grow(&l->maps, l->pending, sizeof *l->pending, l->npending, &l->pending_cap);
        l->pending[l->npending++] = (struct pending){l->p->ninstrs, k > 0, carried};
        l->ncalled += !carried;
        h->i.in = &h->in;
        h->i.out = &h->out;
        emit_instr(l, &h->i);
    }
    l->nheld = 0;
}

// What is in a bucket is held until all of it is packed.
static void start_collective(struct lowering *l, const struct node *n, struct instr i)
{
    bool stages = n->kind == NODE_STAGE_SUM;
    i.kind = INSTR_START;
    i.collective = stages ? RESHARD_ALL_REDUCE : n->step.kind;
    i.axis = l->axis;
    i.stages = stages ? n->stages : 0;
    i.group = n->step.cut;
    i.max = (l->g->values[n->in[0]].spec.partial_max & dim_axes(&i.group)) != 0;
    i.nin = i.nout = 1;
    l->held = arena_grow(&l->maps, l->held, sizeof *l->held, l->nheld, &l->held_cap);
    l->held[l->nheld++] = (struct held){i, i.in[0], i.out[0]};
    if (!n->bucket)
        start_held(l);
}

// A buffer for what a collective takes or leaves in the order of its coordinates.
static struct view add_payload_buffer(struct lowering *l, int value, int64_t count)
{
    int at = add_buffer(l);
    struct buffer *b = &l->p->buffers[at];
    *b = (struct buffer){.value = value,
                         .kind = BUFFER_TRANSIENT,
                         .source = VALUE_TEMP,
                         .dtype = l->g->values[value].dtype,
                         .shape = {1, {count}},
                         .copies = 1,
                         .first = l->p->ninstrs,
                         .last = l->p->ninstrs};
    b->bytes = (uint64_t)count * dtype_size(b->dtype);
    return (struct view){.buffer = at};
}

static void emit_copy(struct lowering *l, struct instr i, struct view from, struct view to,
                      const struct op_block *block)
{
    struct op_attr *attr = arena_new(l->arena, struct op_attr);
    attr->block = *block;
    wait_for_buffer(l, from.buffer, false);
    wait_for_buffer(l, to.buffer, true);
    l->p->buffers[from.buffer].last = l->p->buffers[to.buffer].last = l->p->ninstrs;
    i.kind = INSTR_OP;
    i.op = OP_COPY;
    i.attr = attr;
    i.in = &from;
    i.out = &to;
    emit_instr(l, &i);
}

// A result is unpacked where it is first read or written, or two layers on: until then the
// collective has time, and its payload takes memory.
static void unpack_at(struct lowering *l, int at)
{
    struct unpack u = l->unpacks[at];
    memmove(l->unpacks + at, l->unpacks + at + 1, sizeof u * (size_t)(--l->nunpacks - at));
    emit_copy(l, u.i, u.got, make_view(l, u.value, u.i.microbatch), &u.block);
}

static void unpack_value(struct lowering *l, int value, int m)
{
    for (int i = 0; i < l->nunpacks; i++)
        if (l->sharing.root[l->unpacks[i].value] == l->sharing.root[value] &&
            (l->unpacks[i].i.microbatch == m ||
             sharing_all_microbatches(&l->sharing, l->sharing.root[value])))
            unpack_at(l, i--);
}

static void unpack_old(struct lowering *l, int scopes)
{
    for (int i = 0; i < l->nunpacks; i++)
        if (l->unpacks[i].began + scopes <= l->nscopes)
            unpack_at(l, i--);
}

enum { PAYLOAD_SCOPES = 4 }; // a layer's, its neighbour's, and those of what lies between them

static struct view step_view(struct view v, const struct node *n, int64_t elements, size_t elem)
{
    if (elements) {
        v.by = n->step.cut;
        v.step = (uint64_t)elements * elem;
    }
    return v;
}

// [copy →] collective [→ copy]. No copy is needed where the collective may work in the input's
// buffer, since it is read last here, or in the output's.
static void emit_reshard(struct lowering *l, const struct node *n, struct instr i, int m)
{
    if (n->kind == NODE_STAGE_SUM || n->step.kind == RESHARD_ALL_REDUCE) {
        start_collective(l, n, i);
        return;
    }
    int in = l->sharing.root[n->in[0]];
    struct shape shape = sharing_shape(&l->sharing, n->in[0]);
    struct reshard_blocks t = reshard_blocks_of(&n->step, l->mesh, &shape);
    size_t elem = dtype_size(l->g->values[n->in[0]].dtype);
    if (!t.payload) {
        emit_copy(l, i, step_view(make_view(l, n->in[0], m), n, t.pack_from, elem),
                  make_view(l, n->out[0], m), &t.pack);
        return;
    }
    bool exchange = n->step.kind == RESHARD_ALL_TO_ALL;
    // A sum's last reader may have its buffer: the next step's first contribution overwrites it.
    bool spent = l->g->values[in].kind == VALUE_SUM && n->when == LAST_MICROBATCH;
    bool dead =
        (spent || !sharing_all_microbatches(&l->sharing, in)) && l->sharing.last_read[in] == i.node;
    struct view send = i.in[0], got;
    if (!t.packed || !dead) {
        bool own = t.unpacked && !exchange;
        send = own ? make_view(l, n->out[0], m) : add_payload_buffer(l, n->out[0], t.payload);
        emit_copy(l, i, make_view(l, n->in[0], m), step_view(send, n, t.pack_to, elem), &t.pack);
    }
    got = send;
    if (exchange)
        got = t.unpacked ? make_view(l, n->out[0], m) : add_payload_buffer(l, n->out[0], t.payload);
    i.in = &send;
    i.out = &got;
    start_collective(l, n, i);
    if (t.unpacked)
        return;
    l->unpacks = arena_grow(&l->maps, l->unpacks, sizeof *l->unpacks, l->nunpacks, &l->unpacks_cap);
    l->unpacks[l->nunpacks++] = (struct unpack){.i = i,
                                                .got = step_view(got, n, t.unpack_from, elem),
                                                .value = n->out[0],
                                                .block = t.unpack,
                                                .began = l->nscopes};
}

static struct tensor make_operand(const struct lowering *l, int value)
{
    return (struct tensor){.dtype = l->g->values[value].dtype,
                           .shape = sharing_shape(&l->sharing, value)};
}

static uint64_t find_scratch(const struct lowering *l, const struct node *n)
{
    struct op_attr attr = n->attr;
    struct op_call c = {.op = n->op, .attr = &attr, .nin = n->nin, .nout = n->nout};
    attr.scratch = l->g->scratch;
    for (int k = 0; k < n->nin; k++)
        c.in[k] = make_operand(l, n->in[k]);
    for (int k = 0; k < n->nout; k++)
        c.out[k] = make_operand(l, n->out[k]);
    return op_workspace(&c, l->g->backend);
}

// Makes room in the one buffer that serves all ops of a program, one after the other: it is as
// large as the largest needs.
static int reserve_workspace(struct lowering *l, const struct node *n)
{
    struct program *p = l->p;
    uint64_t *known = &l->scratch[n - l->g->nodes];
    *known = *known ? *known : 1 + find_scratch(l, n);
    uint64_t bytes = *known - 1;
    if (!bytes)
        return -1;
    int b = l->workspace;
    if (b < 0) {
        b = l->workspace = add_buffer(l);
        p->buffers[b] = (struct buffer){.value = -1,
                                        .name = "workspace",
                                        .kind = BUFFER_WORKSPACE,
                                        .source = VALUE_TEMP,
                                        .persistent = true,
                                        .copies = 1};
    }
    if (bytes > p->buffers[b].bytes)
        p->buffers[b].bytes = bytes;
    return b;
}

static void emit_node(struct lowering *l, int node, int m)
{
    const struct node *n = &l->g->nodes[node];
    if ((n->when == LAST_MICROBATCH && m != l->microbatches - 1) ||
        (n->when == FIRST_MICROBATCH && m != 0))
        return;
    if (l->nheld && l->g->nodes[l->held[0].i.node].bucket != n->bucket)
        start_held(l);
    if (n->kind == NODE_SEND) {
        start_sendrecv(l, n, m, INSTR_SEND);
        return;
    }
    struct view in[OP_MAX_IN] = {{0}}, out[OP_MAX_OUT] = {{0}};
    struct instr i = {.node = node,
                      .phase = n->phase,
                      .microbatch = m,
                      .op = n->op,
                      .nin = n->nin,
                      .nout = n->nout,
                      .in = in,
                      .out = out,
                      .owner = n->owner};
    if (n->kind == NODE_OP && n->scope != l->scope) {
        l->scope = n->scope;
        l->nscopes++;
        unpack_old(l, PAYLOAD_SCOPES);
    }
    for (int k = 0; k < n->nin + n->nout; k++)
        unpack_value(l, operand_id(n, k), m);
    i.workspace = -1;
    if (sharing_in_pieces(&l->sharing, n))
        return;
    // A wait may emit instructions and so change the index that this one gets. Making a view records
    // that index, so all waits come first. A staged reshard's output gets its view where it is
    // written.
    for (int k = 0; k < n->nin; k++)
        wait_for_buffer(l, make_view(l, n->in[k], m).buffer, false);
    bool staged = n->kind == NODE_RESHARD && n->step.kind != RESHARD_ALL_REDUCE;
    for (int k = 0; k < n->nout && !staged; k++)
        wait_for_buffer(l, make_view(l, n->out[k], m).buffer, true);
    for (int k = 0; k < n->nin; k++)
        in[k] = make_view(l, n->in[k], m);
    for (int k = 0; k < n->nout && !staged; k++)
        out[k] = make_view(l, n->out[k], m);
    int contribution = 0;
    for (int k = 0; k < n->nout && !contribution; k++)
        contribution = l->sharing.first_of[n->out[k]];
    i.accumulate = contribution == 2 || (contribution == 1 && m > 0 && n->phase != PHASE_UPDATE);
    if (n->kind != NODE_OP) {
        emit_reshard(l, n, i, m);
        return;
    }
    i.workspace = reserve_workspace(l, n);
    emit_instr(l, &i);
}

static void add_node(struct lowering *l, struct id_list *to, int node)
{
    to->at = arena_grow(&l->maps, to->at, sizeof *to->at, to->n, &to->cap);
    to->at[to->n++] = node;
}

static void init_lowering(struct lowering *l)
{
    l->workspace = l->scope = -1;
    l->scratch = arena_array(&l->maps, uint64_t, l->g->nnodes);
    l->buffers = arena_array(&l->maps, int *, l->g->nvalues);
    // A slot looks only at what it runs and receives.
    const struct graph *g = l->g;
    l->runs = arena_array(&l->maps, struct id_list, PHASE_COUNT * l->schedule->chunks);
    l->receives = arena_array(&l->maps, struct id_list, PHASE_COUNT * l->schedule->chunks);
    for (int i = 0; i < l->part->nodes.n; i++) {
        int at = l->part->nodes.at[i];
        const struct node *n = &g->nodes[at];
        bool sends = n->kind == NODE_SEND;
        if (sends && n->peer == l->stage)
            add_node(l, find_nodes(l, l->receives, n->phase, n->peer_chunk), at);
        if (!sends || n->stage == l->stage)
            add_node(l, find_nodes(l, l->runs, n->phase, n->chunk), at);
    }
    sharing_find(&l->sharing, l->g, l->mesh, l->part, l->stage, &l->maps);
}

// What is in one flat bucket lies in one place, and so lives as long.
static void join_lifetimes(struct program *p)
{
    for (int i = 0; i < p->ninstrs; i++) {
        const struct instr *s = &p->instrs[i];
        int n = instr_is_flat(s) ? s->with + 1 : 0, first = i, last = i;
        for (int k = 0; k < n; k++) {
            const struct buffer *b = &p->buffers[s[k].out[0].buffer];
            first = b->first < first ? b->first : first;
            last = b->last > last ? b->last : last;
        }
        for (int k = 0; k < n; k++) {
            p->buffers[s[k].out[0].buffer].first = first;
            p->buffers[s[k].out[0].buffer].last = last;
        }
    }
}

void lower_stage(const struct graph *g, const struct mesh *m, const struct stage_part *part,
                 const struct schedule *s, int stage, enum program_kind kind, struct arena *a,
                 struct program *out)
{
    *out = (struct program){
        .kind = kind, .mesh = *m, .stage = stage, .graph = g, .microbatches = s->microbatches};
    struct lowering l = {.g = g,
                         .mesh = m,
                         .p = out,
                         .arena = a,
                         .part = part,
                         .microbatches = s->microbatches,
                         .schedule = s,
                         .stage = stage,
                         .axis = m->stages ? __builtin_ctz(m->stages) : -1};
    init_lowering(&l);
    for (int i = 0; i < s->n; i++) {
        struct slot slot = s->slots[i];
        emit_instr(&l, &(struct instr){.kind = INSTR_MARK,
                                       .node = -1,
                                       .workspace = -1,
                                       .phase = slot.phase,
                                       .microbatch = slot.microbatch});
        start_receives(&l, i);
        end_sends(&l, &slot);
        const struct id_list *runs = find_nodes(&l, l.runs, slot.phase, slot.chunk);
        for (int k = 0; k < runs->n; k++)
            emit_node(&l, runs->at[k], slot.microbatch);
        start_held(&l);
        unpack_old(&l, 0);
    }
    while (l.npending)
        wait_oldest(&l);
    for (int b = 0; b < out->nbuffers; b++) {
        struct buffer *buf = &out->buffers[b];
        enum phase made = out->instrs[buf->first].phase, read = out->instrs[buf->last].phase;
        if (!buf->persistent && made < read && read != PHASE_UPDATE)
            buf->kind = BUFFER_STASH;
    }
    join_lifetimes(out);
    out->metrics = make_view(&l, g->metrics, s->microbatches - 1).buffer;
    out->instrs = arena_dup(a, out->instrs, sizeof *out->instrs * (size_t)out->ninstrs);
    out->buffers = arena_dup(a, out->buffers, sizeof *out->buffers * (size_t)out->nbuffers);
    out->instrs_cap = out->ninstrs;
    out->buffers_cap = out->nbuffers;
    arena_clear(&l.maps);
}
