// SPDX-License-Identifier: Apache-2.0
// Execution. See exec.h.
#include "worker/rank/exec.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/page.h"
#include "common/compile/optable.h"
#include "worker/rank/crew.h"

struct bound {
    const struct instr *instr;
    struct op_call call; // OP
    struct op_attr attr; // OP, when the coordinate changes it
    struct comm *comm;   // START, SEND, RECV and their WAIT
    struct coll_args coll;
    struct coll_ticket ticket; // START, SEND, RECV: what its WAIT waits for
};

struct loaded {
    const struct program *program;
    struct bound *bound;
};

enum { EXEC_COMMS = 48 }; // a world has 64

struct exec {
    struct exec_options o;
    struct arena arena;
    struct stream_q *stream;
    void *region[REGION_COUNT];
    struct loaded loaded[PROGRAM_KINDS];
    struct crew crew[EXEC_COMMS];
    struct comm *comm[EXEC_COMMS];
    int ncomms;
};

// This rank's stage: its programs and what they need.
static const struct program *program_of(const struct exec *x, enum program_kind k)
{
    return compiled_program(x->o.compiled, k, compiled_stage(x->o.compiled, x->o.rank));
}

static const struct memory *memory_of(const struct exec *x)
{
    return compiled_memory(x->o.compiled, compiled_stage(x->o.compiled, x->o.rank));
}

// ---- memory ------------------------------------------------------------------------------------

static bool anyone_shares(const struct exec *x)
{
    for (int s = 0; s < x->o.compiled->nstages; s++)
        if (compiled_memory(x->o.compiled, s)->region[REGION_SHARED])
            return true;
    return false;
}

static int regions_open(struct exec *x, struct err *e)
{
    const struct memory *m = memory_of(x);
    if (m->region[REGION_PRIVATE]) {
        int rc = x->o.backend->alloc(x->o.device, m->region[REGION_PRIVATE],
                                     &x->region[REGION_PRIVATE], e);
        if (rc)
            return rc;
    }
    // All ranks open a window together, also one whose own stage puts nothing into it.
    if (anyone_shares(x)) {
        void *window;
        PRE(x->o.world);
        int rc = world_window(x->o.world, m->region[REGION_SHARED], &window, e);
        if (!rc && m->region[REGION_SHARED] && x->o.backend->adopt)
            rc = x->o.backend->adopt(x->o.device, window, m->region[REGION_SHARED], e);
        if (rc)
            return rc;
        x->region[REGION_SHARED] = m->region[REGION_SHARED] ? window : NULL;
    }
    for (int r = 0; r < REGION_COUNT; r++) {
        int rc =
            m->region[r] ? x->o.backend->fill_zero(x->stream, x->region[r], m->region[r], e) : 0;
        if (rc)
            return rc;
    }
    return 0;
}

static void *address(const struct exec *x, const struct program *p, struct view v)
{
    const struct buffer *b = &p->buffers[v.buffer];
    uint64_t place = v.step ? (uint64_t)cut_place(&p->mesh, x->o.rank, &v.by) : 0;
    return (char *)x->region[b->region] + b->offset + v.offset + place * v.step;
}

// ---- communicators -----------------------------------------------------------------------------

// One a crew, made as the programs come to it; ranks of other stages may come to theirs in another
// order (a communicator is known by its name and its ranks).
static int comm_get(struct exec *x, struct crew crew, struct comm **out, struct err *e)
{
    for (int i = 0; i < x->ncomms; i++)
        if (crew_equal(&x->crew[i], &crew)) {
            *out = x->comm[i];
            return 0;
        }
    PRE(x->o.world);
    if (x->ncomms == EXEC_COMMS)
        return err_set(e, ERR_LIMIT, "the programs use over %d groups of ranks", EXEC_COMMS);
    const struct mesh *m = &x->o.compiled->mesh;
    int *ranks = arena_array(&x->arena, int, crew_size(&crew, m));
    int n = crew_ranks(&crew, m, x->o.rank, ranks);
    struct buf name = {0};
    crew_print(&crew, m, &name);
    int rc = comm_new(x->o.world, buf_str(&name), ranks, n, out, e);
    buf_clear(&name);
    if (rc)
        return rc;
    x->crew[x->ncomms] = crew;
    x->comm[x->ncomms++] = *out;
    return 0;
}

// ---- binding -----------------------------------------------------------------------------------

static struct tensor tensor_at(const struct exec *x, const struct program *p, struct view v)
{
    const struct buffer *b = &p->buffers[v.buffer];
    return (struct tensor){.data = address(x, p, v), .dtype = b->dtype, .shape = b->shape};
}

// The shape an op sees is its value's own: a buffer shared in place keeps the first value's.
static struct tensor operand(const struct exec *x, const struct program *p, struct view v,
                             int value)
{
    struct tensor t = tensor_at(x, p, v);
    const struct value *val = &p->graph->values[value];
    t.shape = spec_local(&val->spec, &p->mesh, &val->shape);
    t.dtype = val->dtype;
    return t;
}

static void bind_op(const struct exec *x, const struct program *p, struct bound *b)
{
    const struct instr *i = b->instr;
    const struct node *n = &p->graph->nodes[i->node];
    b->attr = op_attr_on(p->graph, n, &(struct op_at){&p->mesh, x->o.rank, i->microbatch});
    b->call = (struct op_call){
        .op = i->op, .attr = &b->attr, .nin = i->nin, .nout = i->nout, .accumulate = i->accumulate};
    if (i->workspace >= 0) {
        b->call.workspace = address(x, p, (struct view){.buffer = i->workspace});
        b->call.workspace_bytes = p->buffers[i->workspace].bytes;
    }
    for (int k = 0; k < i->nin; k++)
        b->call.in[k] = operand(x, p, i->in[k], n->in[k]);
    for (int k = 0; k < i->nout; k++)
        b->call.out[k] = operand(x, p, i->out[k], n->out[k]);
}

static void bind_copy(const struct exec *x, const struct program *p, struct bound *b)
{
    const struct instr *i = b->instr;
    b->call = (struct op_call){.op = i->op, .attr = i->attr, .nin = 1, .nout = 1};
    b->call.in[0] = tensor_at(x, p, i->in[0]);
    b->call.out[0] = tensor_at(x, p, i->out[0]);
}

static int bind_start(struct exec *x, const struct program *p, struct bound *b, struct err *e)
{
    static const enum coll_op ops[RESHARD_KINDS] = {
        [RESHARD_REDUCE_SCATTER] = COLL_REDUCE_SCATTER,
        [RESHARD_ALL_GATHER] = COLL_ALL_GATHER,
        [RESHARD_ALL_TO_ALL] = COLL_ALL_TO_ALL,
        [RESHARD_ALL_REDUCE] = COLL_ALL_REDUCE,
    };
    const struct instr *i = b->instr;
    struct tensor t = tensor_at(x, p, i->out[0]);
    b->coll = (struct coll_args){.op = ops[i->coll],
                                 .reduce = i->max ? COLL_MAX : COLL_SUM,
                                 .dtype = t.dtype,
                                 .from = address(x, p, i->in[0]),
                                 .buf = t.data,
                                 .count = shape_count(&t.shape),
                                 .name = p->graph->nodes[i->node].what};
    return comm_get(x, i->stages ? crew_of_stages(i) : crew_of_axes(&i->group), &b->comm, e);
}

// A message's name is the same on both sides, and another one for each microbatch: an order that
// the sides do not share is told at once.
static int bind_message(struct exec *x, const struct program *p, struct bound *b, struct err *e)
{
    const struct instr *i = b->instr;
    bool sends = i->kind == INSTR_SEND;
    struct tensor t = tensor_at(x, p, sends ? i->in[0] : i->out[0]);
    b->coll =
        (struct coll_args){.op = sends ? COLL_SEND : COLL_RECV,
                           .dtype = t.dtype,
                           .buf = t.data,
                           .count = shape_count(&t.shape),
                           .name = arena_printf(&x->arena, "%s of microbatch %d",
                                                p->graph->nodes[i->node].what, i->microbatch)};
    return comm_get(x, crew_of_message(i, p->stage), &b->comm, e);
}

static int program_bind(struct exec *x, const struct program *p, struct loaded *l, struct err *e)
{
    l->program = p;
    l->bound = arena_array(&x->arena, struct bound, p->ninstrs);
    for (int i = 0; i < p->ninstrs; i++) {
        struct bound *b = &l->bound[i];
        b->instr = &p->instrs[i];
        int rc = 0;
        if (b->instr->kind == INSTR_OP && b->instr->attr)
            bind_copy(x, p, b);
        else if (b->instr->kind == INSTR_OP)
            bind_op(x, p, b);
        else if (b->instr->kind == INSTR_START)
            rc = bind_start(x, p, b, e);
        else if (b->instr->kind == INSTR_SEND || b->instr->kind == INSTR_RECV)
            rc = bind_message(x, p, b, e);
        else if (b->instr->kind == INSTR_WAIT)
            b->comm = l->bound[b->instr->start].comm;
        if (rc)
            return rc;
    }
    return 0;
}

static int ops_check(const struct exec *x, struct err *e)
{
    bool needed[OP_COUNT] = {false};
    for (int k = 0; k < x->o.compiled->nprograms; k++) {
        const struct program *p = program_of(x, (enum program_kind)k);
        for (int i = 0; i < p->ninstrs; i++)
            if (p->instrs[i].kind == INSTR_OP)
                needed[p->instrs[i].op] = true;
    }
    return backend_check(x->o.backend, needed, e);
}

// The loss's cotangent is one, for ever.
static int constants_set(struct exec *x, struct err *e)
{
    void *one;
    const float value = 1;
    if (!exec_buffer(x, PROGRAM_TRAIN, "one", &one))
        return 0;
    return exec_put(x, one, &value, sizeof value, e);
}

int exec_open(const struct exec_options *o, struct exec **out, struct err *e)
{
    struct exec *x = calloc(1, sizeof *x);
    if (!x)
        return err_set(e, ERR_NOMEM, "no memory to load programs");
    x->o = *o;
    int rc = ops_check(x, e);
    rc = rc ? rc : o->backend->stream_new(o->device, &x->stream, e);
    rc = rc ? rc : regions_open(x, e);
    for (int k = 0; k < o->compiled->nprograms && !rc; k++)
        rc = program_bind(x, program_of(x, (enum program_kind)k), &x->loaded[k], e);
    rc = rc ? rc : constants_set(x, e);
    if (rc) {
        exec_close(x);
        return rc;
    }
    *out = x;
    return 0;
}

void exec_close(struct exec *x)
{
    if (!x)
        return;
    for (int i = 0; i < x->ncomms; i++)
        comm_free(x->comm[i]);
    if (x->region[REGION_PRIVATE])
        x->o.backend->free(x->o.device, x->region[REGION_PRIVATE]);
    if (x->stream)
        x->o.backend->stream_free(x->stream);
    arena_clear(&x->arena);
    free(x);
}

// ---- running -----------------------------------------------------------------------------------

static int run_one(struct exec *x, struct loaded *l, struct bound *b, struct err *e)
{
    switch (b->instr->kind) {
    case INSTR_MARK:
        if (x->o.page)
            page_phase(x->o.page, (int)b->instr->phase, b->instr->microbatch);
        return 0;
    case INSTR_OP:
        return x->o.backend->ops[b->instr->op](x->stream, &b->call, e);
    case INSTR_START:
    case INSTR_SEND:
    case INSTR_RECV: {
        // The operand must be there before peers may read it; what is received overwrites only
        // what was read.
        int rc = x->o.backend->stream_sync(x->stream, e);
        return rc ? rc : coll_start(b->comm, &b->coll, &b->ticket, e);
    }
    case INSTR_WAIT:
        return coll_wait(b->comm, &l->bound[b->instr->start].ticket, e);
    }
    return 0;
}

static int fail(const struct bound *b, int rc, struct err *e)
{
    if (b->instr->kind == INSTR_OP)
        err_wrap(e, "%s of microbatch %d: %s", phase_name(b->instr->phase), b->instr->microbatch,
                 op_name(b->instr->op));
    return rc;
}

static int run_watched(struct exec *x, struct loaded *l, struct bound *b, struct err *e)
{
    int rc = run_one(x, l, b, e);
    rc = rc ? rc : x->o.backend->stream_sync(x->stream, e);
    if (!rc)
        x->o.ran(x->o.ctx, (int)(b - l->bound));
    return rc;
}

int exec_run(struct exec *x, enum program_kind kind, struct err *e)
{
    struct loaded *l = &x->loaded[kind];
    struct progress_page *page = x->o.page;
    bool watched = x->o.ran && kind == PROGRAM_TRAIN;
    PRE(l->program);
    for (int i = 0; i < l->program->ninstrs; i++) {
        struct bound *b = &l->bound[i];
        if (page)
            atomic_fetch_add_explicit(&page->ops, 1, memory_order_relaxed);
        int rc = watched ? run_watched(x, l, b, e) : run_one(x, l, b, e);
        if (rc)
            return fail(b, rc, e);
    }
    return 0;
}

int exec_check_memory(const struct exec *x, struct err *e)
{
    const struct memory *m = memory_of(x);
    struct device_info info;
    x->o.backend->device_info(x->o.device, &info);
    uint64_t have = info.allocated + (x->region[REGION_SHARED] ? m->region[REGION_SHARED] : 0);
    if (have == m->arena)
        return 0;
    return err_set(e, ERR_INTERNAL, "the plan asks for %llu bytes of device memory, %llu are taken",
                   (unsigned long long)m->arena, (unsigned long long)have);
}

// ---- access ------------------------------------------------------------------------------------

const struct buffer *exec_buffer(const struct exec *x, enum program_kind kind, const char *name,
                                 void **device_pointer)
{
    const struct program *p = x->loaded[kind].program;
    int b = p ? program_find(p, name) : -1;
    if (b < 0)
        return NULL;
    *device_pointer = address(x, p, (struct view){.buffer = b});
    return &p->buffers[b];
}

struct stream_q *exec_stream(struct exec *x)
{
    return x->stream;
}

int exec_put(struct exec *x, void *device_to, const void *from, size_t bytes, struct err *e)
{
    int rc = x->o.backend->copy(x->stream, device_to, from, bytes, e);
    return rc ? rc : x->o.backend->stream_sync(x->stream, e);
}

int exec_get(struct exec *x, void *to, const void *device_from, size_t bytes, struct err *e)
{
    int rc = x->o.backend->copy(x->stream, to, device_from, bytes, e);
    return rc ? rc : x->o.backend->stream_sync(x->stream, e);
}
