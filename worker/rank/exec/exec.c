// SPDX-License-Identifier: Apache-2.0
// Execution. See exec.h.
#include "worker/rank/exec/exec.h"

#include <stdlib.h>

#include "common/attempt/page.h"
#include "common/base/heap.h"
#include "common/compile/graph/optable.h"
#include "worker/rank/exec/loaded.h"
#include "worker/rank/exec/noise.h"

// This rank's stage: its programs and what they need.
static const struct program *find_program(const struct exec *x, enum program_kind k)
{
    return compiled_program(x->o.compiled, k, compiled_stage(x->o.compiled, x->o.rank));
}

static const struct memory *find_memory(const struct exec *x)
{
    return compiled_memory(x->o.compiled, compiled_stage(x->o.compiled, x->o.rank));
}

// ---- memory ------------------------------------------------------------------------------------

static void abort_fabric(void *ctx, const char *why)
{
    struct exec *x = ctx;
    x->transport->abort(x->fabric, why);
}

// Opens the transport. All ranks do this together, also those whose own stage has no collective.
static int open_fabric(struct exec *x, struct err *e)
{
    const struct transport *t = x->transport;
    const struct fabric_options o = {x->o.world, x->o.backend, x->o.device};
    PRE(x->o.world);
    int rc = t->open(&o, &x->fabric, e);
    if (rc)
        return rc;
    if (t->abort)
        world_on_abort(x->o.world, abort_fabric, x);
    return t->memory(x->fabric, find_memory(x)->region[REGION_SHARED], &x->region[REGION_SHARED],
                     e);
}

static void close_fabric(struct exec *x)
{
    if (!x->fabric)
        return;
    world_on_abort(x->o.world, NULL, NULL);
    x->transport->close(x->fabric);
}

static int zero_regions(struct exec *x, struct err *e)
{
    const struct memory *m = find_memory(x);
    int rc = 0;
    for (int r = 0; r < REGION_COUNT && !rc; r++)
        if (m->region[r])
            rc = x->o.backend->stream.fill_zero(x->stream, x->region[r], m->region[r], e);
    return rc;
}

static int open_regions(struct exec *x, struct err *e)
{
    uint64_t bytes = find_memory(x)->region[REGION_PRIVATE], shared = 0; // of all stages
    int rc = 0;
    for (int s = 0; s < x->o.compiled->nstages; s++)
        shared |= compiled_memory(x->o.compiled, s)->region[REGION_SHARED];
    if (bytes)
        rc = x->o.backend->memory.alloc(x->o.device, bytes, &x->region[REGION_PRIVATE], e);
    if (!rc && shared)
        rc = open_fabric(x, e);
    return rc ? rc : zero_regions(x, e);
}

int exec_check_memory(const struct exec *x, struct err *e)
{
    const struct memory *m = find_memory(x);
    struct device_info info;
    x->o.backend->device.info(x->o.device, &info);
    // A window that only mirrors the device's memory counts as the host's staging memory.
    bool window = !x->separate && x->region[REGION_SHARED];
    uint64_t have = info.allocated + (window ? m->region[REGION_SHARED] : 0);
    if (have == m->arena)
        return 0;
    return err_set(e, ERR_INTERNAL,
                   "the plan asks for %llu bytes of device memory, but %llu are taken",
                   (unsigned long long)m->arena, (unsigned long long)have);
}

static void *find_address(const struct exec *x, const struct program *p, struct view v)
{
    const struct buffer *b = &p->buffers[v.buffer];
    uint64_t place = v.step ? (uint64_t)cut_place(&p->mesh, x->o.rank, &v.by) : 0;
    return (char *)x->region[b->region] + b->offset + v.offset + place * v.step;
}

// ---- communicators -----------------------------------------------------------------------------

// A group's communicator is opened where the programs first use it. Ranks of other stages may open
// their own ones in another order.
static int find_communicator(struct exec *x, struct group group, int *out, struct err *e)
{
    for (*out = 0; *out < x->ngroups; ++*out)
        if (group_equal(&x->group[*out], &group))
            return 0;
    PRE(x->ngroups < COMMUNICATORS); // compile.c refuses such a program
    const struct mesh *m = &x->o.compiled->mesh;
    int *ranks = arena_array(&x->arena, int, group_size(&group, m));
    int n = group_ranks(&group, m, x->o.rank, ranks);
    struct buf name = {0};
    group_print(&group, m, &name);
    int rc = x->transport->communicator(x->fabric, buf_str(&name), ranks, n, out, e);
    buf_clear(&name);
    x->group[x->ngroups] = group;
    x->ngroups += !rc;
    return rc;
}

// `calls` live as long as `x`.
static int prepare_collective(struct exec *x, const struct program *p, struct bound *b,
                              const struct collective_args *calls, int n, struct err *e)
{
    int communicator;
    int rc = find_communicator(x, group_of(b->instr, p->stage), &communicator, e);
    return rc ? rc : x->transport->prepare(x->fabric, communicator, calls, n, &b->collective, e);
}

// ---- binding -----------------------------------------------------------------------------------

static struct tensor make_tensor(const struct exec *x, const struct program *p, struct view v)
{
    const struct buffer *b = &p->buffers[v.buffer];
    return (struct tensor){.data = find_address(x, p, v), .dtype = b->dtype, .shape = b->shape};
}

// An op sees the shape and type of its own value. A buffer that several values use in place has those
// of the first.
static struct tensor make_operand(const struct exec *x, const struct program *p, struct view v,
                                  int value)
{
    struct tensor t = make_tensor(x, p, v);
    const struct value *val = &p->graph->values[value];
    t.shape = spec_local(&val->spec, &p->mesh, &val->shape);
    t.dtype = val->dtype;
    return t;
}

static void bind_op(const struct exec *x, const struct program *p, struct bound *b)
{
    const struct instr *i = b->instr;
    const struct node *n = &p->graph->nodes[i->node];
    b->attr = op_attr_on(p->graph, n,
                         &(struct op_at){&p->mesh, x->o.rank, i->microbatch, p->microbatches});
    b->call = (struct op_call){
        .op = i->op, .attr = &b->attr, .nin = i->nin, .nout = i->nout, .accumulate = i->accumulate};
    if (i->workspace >= 0) {
        b->call.workspace = find_address(x, p, (struct view){.buffer = i->workspace});
        b->call.workspace_bytes = p->buffers[i->workspace].bytes;
    }
    for (int k = 0; k < i->nin; k++)
        b->call.in[k] = make_operand(x, p, i->in[k], n->in[k]);
    for (int k = 0; k < i->nout; k++)
        b->call.out[k] = make_operand(x, p, i->out[k], n->out[k]);
}

static void bind_copy(const struct exec *x, const struct program *p, struct bound *b)
{
    const struct instr *i = b->instr;
    b->call = (struct op_call){.op = i->op, .attr = i->attr, .nin = 1, .nout = 1};
    b->call.in[0] = make_tensor(x, p, i->in[0]);
    b->call.out[0] = make_tensor(x, p, i->out[0]);
}

static enum collective_op find_collective_op(const struct instr *i)
{
    static const enum collective_op ops[RESHARD_KINDS] = {
        [RESHARD_REDUCE_SCATTER] = COLLECTIVE_REDUCE_SCATTER,
        [RESHARD_ALL_GATHER] = COLLECTIVE_ALL_GATHER,
        [RESHARD_ALL_TO_ALL] = COLLECTIVE_ALL_TO_ALL,
        [RESHARD_ALL_REDUCE] = COLLECTIVE_ALL_REDUCE,
    };
    if (i->kind == INSTR_START)
        return ops[i->collective];
    return i->kind == INSTR_SEND ? COLLECTIVE_SEND : COLLECTIVE_RECV;
}

// Send and recv have one name, with the microbatch in it: two ranks that send and receive in different
// orders fail at once.
static int bind_collective(struct exec *x, const struct program *p, struct bound *b, struct err *e)
{
    const struct instr *first = b->instr;
    bool flat = instr_is_flat(first);
    int n = flat ? 1 : 1 + first->with;
    struct collective_args *calls = arena_array(&x->arena, struct collective_args, n);
    for (int k = 0; k < n; k++) {
        const struct instr *i = first + k;
        struct tensor t = make_tensor(x, p, i->kind == INSTR_SEND ? i->in[0] : i->out[0]);
        calls[k] =
            (struct collective_args){.op = find_collective_op(i),
                                     .reduce = i->max ? COLLECTIVE_MAX : COLLECTIVE_SUM,
                                     .dtype = t.dtype,
                                     .from = i->nin ? find_address(x, p, i->in[0]) : NULL,
                                     .buf = t.data,
                                     .count = flat ? program_span(p, i) : shape_count(&t.shape),
                                     .name = p->graph->nodes[i->node].what};
    }
    if (flat)
        calls->name = arena_printf(&x->arena, "%s and %d more", calls->name, first->with);
    else if (first->kind != INSTR_START)
        calls->name =
            arena_printf(&x->arena, "%s of microbatch %d", calls->name, first->microbatch);
    return prepare_collective(x, p, b, calls, n, e);
}

// Gathers, for each row of instructions that the backend runs by one call, the calls of all of them.
// With o.ran, which is called after each instruction, each is run by itself.
static void gather_calls(struct exec *x, struct loaded *l)
{
    for (int i = 0; i < l->program->ninstrs && !x->o.ran; i++) {
        const struct instr *first = &l->program->instrs[i];
        if (!first->with || !x->o.backend->op.run_many || !x->o.backend->op.run_many[first->op])
            continue;
        struct op_call *calls = arena_array(&x->arena, struct op_call, first->with + 1);
        for (int k = 0; k <= first->with; k++)
            calls[k] = l->bound[i + k].call;
        l->bound[i].calls = calls;
    }
}

static int bind_program(struct exec *x, const struct program *p, struct loaded *l, struct err *e)
{
    l->exec = x;
    l->program = p;
    l->bound = arena_array(&x->arena, struct bound, p->ninstrs);
    if (x->marks) {
        l->begins = arena_array(&x->arena, int, p->ninstrs);
        marks_plan(p, l->begins);
    }
    for (int i = 0; i < p->ninstrs; i++) {
        struct bound *b = &l->bound[i];
        b->instr = &p->instrs[i];
        int rc = 0;
        if (b->instr->kind == INSTR_OP && b->instr->attr)
            bind_copy(x, p, b);
        else if (b->instr->kind == INSTR_OP)
            bind_op(x, p, b);
        else if (b->instr->kind == INSTR_WAIT)
            b->collective = l->bound[b->instr->start].collective;
        else if (b->instr->kind != INSTR_MARK && !program_goes_with(p, b->instr))
            rc = bind_collective(x, p, b, e);
        if (rc)
            return rc;
    }
    gather_calls(x, l);
    if (x->separate)
        segments_of_program(&l->segments, x->o.backend, x->stream, &x->arena, p,
                            x->fabric && x->transport->captured);
    return 0;
}

static int check_ops(const struct exec *x, struct err *e)
{
    bool needed[OP_COUNT] = {false};
    for (int k = 0; k < PROGRAM_KINDS; k++) {
        if (!compiled_has(x->o.compiled, k))
            continue;
        const struct program *p = find_program(x, (enum program_kind)k);
        for (int i = 0; i < p->ninstrs; i++)
            if (p->instrs[i].kind == INSTR_OP)
                needed[p->instrs[i].op] = true;
        for (int b = 0; b < p->nbuffers; b++)
            needed[OP_CAST] |= p->buffers[b].kind == BUFFER_COPY;
    }
    return backend_check(x->o.backend, needed, e);
}

// The loss's cotangent is the constant one, and what a model's text adds is made of it.
static int set_constants(struct exec *x, struct err *e)
{
    void *one;
    for (int k = 0; k < PROGRAM_KINDS; k++) // to all programs it is one buffer
        if (exec_buffer(x, (enum program_kind)k, "one", &one))
            return exec_put(x, one, &(const float){1}, sizeof(float), e);
    return 0;
}

int exec_open(const struct exec_options *o, struct exec **out, struct err *e)
{
    struct exec *x = heap_alloc(sizeof *x);
    x->o = *o;
    x->transport = o->transport ? o->transport : &host_transport;
    x->last = -1;
    struct device_info info;
    o->backend->device.info(o->device, &info);
    x->separate = !info.shares_host;
    int rc = check_ops(x, e);
    rc = rc ? rc : o->backend->stream.create(o->device, STREAM_USUAL, &x->stream, e);
    rc = rc ? rc : lane_open(&x->inputs, o->backend, o->device, x->stream, e);
    rc = rc ? rc : lane_open(&x->saves, o->backend, o->device, x->stream, e);
    rc = rc ? rc : open_regions(x, e);
    if (!rc && x->separate)
        rc = marks_open(o->backend, o->device, o->page, &x->marks, e);
    for (int k = 0; k < PROGRAM_KINDS && !rc; k++)
        if (compiled_has(o->compiled, k))
            rc = bind_program(x, find_program(x, (enum program_kind)k), &x->loaded[k], e);
    if (!rc && x->fabric && x->transport->settle)
        rc = x->transport->settle(x->fabric, o->took, e);
    if (!rc)
        rc = set_constants(x, e);
    if (rc)
        exec_close(x);
    else
        *out = x;
    return rc;
}

static int tune_program(struct exec *x, const struct loaded *l, bool time, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < l->program->ninstrs && !rc; i++) {
        const struct bound *b = &l->bound[i];
        if (b->instr->kind != INSTR_OP)
            continue;
        rc = x->o.backend->choice->tune(x->stream, &b->call, time, e);
        if (rc)
            err_wrap(e, "choosing an algorithm of %s", op_name(b->instr->op));
        if (x->o.page)
            page_beat(x->o.page);
    }
    return rc;
}

static int fill_regions_with_noise(struct exec *x, struct err *e)
{
    const struct memory *m = find_memory(x);
    int rc = 0;
    for (int r = 0; r < REGION_COUNT && !rc; r++)
        if (m->region[r])
            rc = noise_fill(x->o.backend, x->stream, x->region[r], m->region[r], e);
    return rc;
}

int exec_tune(struct exec *x, bool time, struct err *e)
{
    int rc = time ? fill_regions_with_noise(x, e) : 0;
    for (int k = 0; k < PROGRAM_KINDS && !rc; k++)
        rc = compiled_has(x->o.compiled, k) ? tune_program(x, &x->loaded[k], time, e) : 0;
    if (!rc)
        rc = zero_regions(x, e);
    return rc ? rc : set_constants(x, e);
}

static int make_copy(struct exec *x, const struct program *p, int copy, struct err *e)
{
    const struct graph *g = p->graph;
    const char *param = g->values[g->values[p->buffers[copy].value].of].name;
    const struct op_attr attr = {.labels = 1, .scale = 1};
    struct op_call c = {.op = OP_CAST, .attr = &attr, .nin = 1, .nout = 1};
    int from = program_find(p, param);
    PRE(from >= 0);
    c.in[0] = make_tensor(x, p, (struct view){.buffer = from});
    c.out[0] = make_tensor(x, p, (struct view){.buffer = copy});
    c.in[0].shape = c.out[0].shape = (struct shape){1, {shape_count(&c.in[0].shape)}};
    int rc = x->o.backend->op.run[OP_CAST](x->stream, &c, e);
    if (rc)
        err_wrap(e, "copying %s", param);
    return rc;
}

int exec_copies(struct exec *x, struct err *e)
{
    const struct program *p = find_program(x, x->o.compiled->holder);
    int rc = 0;
    for (int b = 0; b < p->nbuffers && !rc; b++)
        if (p->buffers[b].kind == BUFFER_COPY)
            rc = make_copy(x, p, b, e);
    return rc;
}

void exec_close(struct exec *x)
{
    if (!x)
        return;
    if (x->stream && x->separate) // nothing runs on when its memory goes
        (void)x->o.backend->stream.sync(x->stream, NULL);
    marks_close(x->marks);
    lane_close(&x->inputs);
    lane_close(&x->saves);
    for (int k = 0; k < PROGRAM_KINDS; k++)
        segments_clear(&x->loaded[k].segments);
    close_fabric(x);
    if (x->region[REGION_PRIVATE])
        x->o.backend->memory.free(x->o.device, x->region[REGION_PRIVATE]);
    if (x->stream)
        x->o.backend->stream.destroy(x->stream);
    arena_clear(&x->arena);
    free(x);
}

// ---- access ------------------------------------------------------------------------------------

const struct buffer *exec_buffer(const struct exec *x, enum program_kind kind, const char *name,
                                 void **device_pointer)
{
    const struct program *p = x->loaded[kind].program;
    int b = p ? program_find(p, name) : -1;
    if (b < 0)
        return NULL;
    *device_pointer = find_address(x, p, (struct view){.buffer = b});
    return &p->buffers[b];
}

struct stream_q *exec_stream(struct exec *x)
{
    return x->stream;
}

int64_t exec_communication_ns(const struct exec *x)
{
    return x->separate && x->fabric ? -1 : x->communication_ns;
}

int exec_put(struct exec *x, void *device_to, const void *from, size_t bytes, struct err *e)
{
    return exec_get(x, device_to, from, bytes, e); // a copy knows where its memory lies
}

int exec_get(struct exec *x, void *to, const void *device_from, size_t bytes, struct err *e)
{
    int rc = x->o.backend->stream.copy(x->stream, to, device_from, bytes, e);
    rc = rc ? rc : x->o.backend->stream.sync(x->stream, e);
    return rc ? rc : exec_check(x, e);
}

// ---- beside the computation --------------------------------------------------------------------

// The inputs of a training step may change once their last reader has run, while the rest of the step
// runs. Programs share input buffers: where another program ran before, its end is waited for.
int exec_inputs_begin(struct exec *x, enum program_kind kind, struct err *e)
{
    int rc = kind == PROGRAM_TRAIN && x->last == (int)kind ? 0 : lane_mark(&x->inputs, e);
    return rc ? rc : lane_begin(&x->inputs, e);
}

int exec_inputs_end(struct exec *x, struct err *e)
{
    int rc = lane_end(&x->inputs, e);
    return rc ? rc : lane_join(&x->inputs, e);
}

struct lane *exec_inputs(struct exec *x)
{
    return &x->inputs;
}

int exec_saves_begin(struct exec *x, struct err *e)
{
    int rc = lane_mark(&x->saves, e);
    return rc ? rc : lane_begin(&x->saves, e);
}

int exec_save(struct exec *x, void *to, const void *device_from, size_t bytes, struct err *e)
{
    return x->o.backend->stream.copy(x->saves.q, to, device_from, bytes, e);
}

int exec_saves_end(struct exec *x, struct err *e)
{
    x->saving = x->separate;
    return lane_end(&x->saves, e);
}

struct lane *exec_saves(struct exec *x)
{
    return &x->saves;
}
