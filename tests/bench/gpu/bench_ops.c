// SPDX-License-Identifier: Apache-2.0
// What each op of a job's training step takes on a device, alone: through backend.h, on whatever
// backend the job names, at the shapes, dtypes and places in memory that the compiler gave it.
//
//   bench_ops [--runs N] [--run-ms MS] [--square N] [--only TEXT,..] [--cache DIR] [--about | --list]
//             [-s KEY=VALUE]... JOB
//
// --only: ops with one of the texts in their names.
// Calls that are alike in all but their place are timed once, in the memory of the first, and
// counted. Inputs are drawn again: small random numbers, ids as rare as words are, positions in
// order. A run is so many calls, one behind the other, that it takes MS (10); where the backend can
// capture, they are one graph, so that nothing waits for the host. The median, the tenth and the
// ninetieth of a hundred of RUNS (15) runs are over those calls. Inputs larger than the device's
// cache come from memory each time; smaller ones do not.
//
// Prints lines of fields between tabs, for bench.py to read:
//   device  model isa libraries       about  parameters arena_bytes
//   op  name dtype calls p50 p10 p90 flops bytes how      times in us; how: graph, queued or listed
// First comes a copy within the device and a product of N (8192) cubed, with 0 calls: what the
// device gives at best. FLOPs are those of products and attention (causal: half; the gradient twice
// the forward), bytes those of the operands, each read or written once. --about ends after the
// first two lines, without a device's memory; --list says what would be timed, without a device.
//
// Not here: meshes of several devices. What a fraction is of is bench.py's.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/compile/graph/node_work.h"
#include "common/compile/graph/optable.h"
#include "common/job/threads.h"
#include "common/op/chain.h"
#include "common/op/gemm.h"
#include "common/plan/plan.h"
#include "common/plan/schema_list.h"
#include "kernels/backend.h"

enum { SETS = 64, MAX_RUNS = 1000, MAX_CALLS = 1000, PATTERN = 1 << 20 };

static struct {
    const char *job, *set[SETS], *only, *cache;
    int nset, runs;
    double run_ms;
    int64_t square;
    bool about, list;
} o = {.runs = 15, .run_ms = 10, .square = 8192};

struct bench {
    struct arena arena;
    struct job job;
    struct compiled compiled;
    const struct program *program;
    const struct backend *backend;
    struct device *device;
    struct device_info info;
    struct stream_q *q;
    char *region[REGION_COUNT];
    void *pattern[DT_COUNT]; // random numbers of a dtype, in memory that copies fast
};

// What is timed: calls that the backend is given in one go, most often one.
struct unit {
    struct op_call *calls;
    struct op_attr *attrs;
    int n;
    const struct instr *first;
    double flops, bytes;
};

struct times {
    double p50, p10, p90; // us
    const char *how;
};

// ---- from a program to calls -------------------------------------------------------------------

static struct tensor operand(const struct bench *b, struct view v, int value)
{
    const struct buffer *at = &b->program->buffers[v.buffer];
    const struct value *val = &b->program->graph->values[value];
    char *region = b->region[at->region]; // null: nobody asked for memory
    return (struct tensor){.data = region ? region + at->offset + v.offset : NULL,
                           .dtype = val->dtype,
                           .shape = val->shape};
}

static void bind(const struct bench *b, const struct instr *i, struct op_attr *attr,
                 struct op_call *c)
{
    const struct graph *g = b->program->graph;
    const struct node *n = &g->nodes[i->node];
    *attr = op_attr_on(
        g, n, &(struct op_at){&b->program->mesh, 0, i->microbatch, b->program->microbatches});
    *c = (struct op_call){
        .op = i->op, .attr = attr, .nin = i->nin, .nout = i->nout, .accumulate = i->accumulate};
    if (i->workspace >= 0) {
        const struct buffer *w = &b->program->buffers[i->workspace];
        c->workspace = o.list ? NULL : b->region[w->region] + w->offset;
        c->workspace_bytes = w->bytes;
    }
    for (int k = 0; k < i->nin; k++)
        c->in[k] = operand(b, i->in[k], n->in[k]);
    for (int k = 0; k < i->nout; k++)
        c->out[k] = operand(b, i->out[k], n->out[k]);
}

static double tensor_bytes(const struct tensor *t)
{
    return (double)shape_count(&t->shape) * (double)dtype_size(t->dtype);
}

// Of a table only the rows that ids name are read; what is added to is read, too.
static double call_bytes(const struct op_call *c)
{
    double bytes = c->accumulate ? tensor_bytes(&c->out[0]) : 0;
    for (int k = 0; k < c->nin; k++)
        bytes += tensor_bytes(c->op == OP_EMBED && k == 1 ? &c->out[0] : &c->in[k]);
    for (int k = 0; k < c->nout; k++)
        bytes += tensor_bytes(&c->out[k]);
    return bytes;
}

// The instruction and those that the backend runs with it.
static struct unit unit_make(struct bench *b, const struct instr *i)
{
    bool many = i->with && (o.list || (b->backend->op.run_many && b->backend->op.run_many[i->op]));
    struct unit u = {.first = i, .n = many ? i->with + 1 : 1};
    u.calls = arena_array(&b->arena, struct op_call, u.n);
    u.attrs = arena_array(&b->arena, struct op_attr, u.n);
    for (int k = 0; k < u.n; k++) {
        const struct node *n = &b->program->graph->nodes[i[k].node];
        bind(b, &i[k], &u.attrs[k], &u.calls[k]);
        u.flops += node_flops(b->program->graph, NULL, n);
        u.bytes += call_bytes(&u.calls[k]);
    }
    return u;
}

// How many ids operand k of an op may name; 0: its numbers are positions.
static int64_t ids_below(const struct op_call *c, int k)
{
    const struct shape *x = &c->in[0].shape, *y = &c->out[0].shape;
    switch (c->op) {
    case OP_EMBED:
        return c->in[1].shape.dim[0];
    case OP_EMBED_GRAD:
        return y->dim[0];
    case OP_PICK_GRAD:
        return k == 0 ? y->dim[y->n - 1] : 0;
    case OP_PICK:
    case OP_ROW_LOSS:
    case OP_ROW_LOSS_GRAD:
    case OP_ROW_LOSS_BOTH:
        return x->dim[x->n - 1];
    default:
        return 0;
    }
}

// ---- names -------------------------------------------------------------------------------------

static void shape_print(const struct shape *s, struct buf *to)
{
    for (int d = 0; d < s->n; d++)
        buf_printf(to, "%s%lld", d ? "x" : "", (long long)s->dim[d]);
}

static void name_product(const struct op_call *c, struct buf *to)
{
    struct op_attr labels = c->op == OP_LINEAR ? linear_product(c->attr, c->nin) : *c->attr;
    struct gemm g;
    if (!gemm_from_labels(&labels, &c->in[0].shape, &c->in[1].shape, &c->out[0].shape, &g))
        return;
    buf_printf(to, " %lldx%lldx%lld %c%c", (long long)g.m, (long long)g.n, (long long)g.k,
               g.trans_a ? 'T' : 'N', g.trans_b ? 'T' : 'N');
    if (g.batch > 1)
        buf_printf(to, " x%lld", (long long)g.batch);
}

// The largest operand is what an op passes over; of a table it is the rows that are named.
static const struct tensor *widest(const struct op_call *c)
{
    const struct tensor *t = c->op == OP_EMBED_GRAD ? &c->in[1] : &c->out[0];
    if (c->op == OP_EMBED || c->op == OP_EMBED_GRAD)
        return t;
    for (int k = 0; k < c->nin; k++)
        if (c->in[k].dtype != DT_I32 && tensor_bytes(&c->in[k]) > tensor_bytes(t))
            t = &c->in[k];
    return t;
}

// "linear 65536x3072x768 NN add gelu", "norm 64x1024x768", "adam of 148".
static const char *unit_name(struct bench *b, const struct unit *u)
{
    const struct op_call *c = &u->calls[0];
    struct buf name = {0};
    buf_puts(&name, op_name(c->op));
    if (u->n > 1) {
        buf_printf(&name, " of %d", u->n);
    } else if (op_is(c->op, OP_IS_PRODUCT)) {
        name_product(c, &name);
    } else {
        buf_putc(&name, ' ');
        shape_print(&widest(c)->shape, &name);
    }
    if (c->op == OP_EMBED || c->op == OP_EMBED_GRAD)
        buf_printf(&name, " of %lld", (long long)ids_below(c, 0));
    const struct op_chain *chain = c->attr->chain;
    for (int k = 0; chain && k < chain->steps; k++)
        buf_printf(&name, " %s", op_name(chain->step[k].op));
    if (c->accumulate)
        buf_puts(&name, " added");
    const char *kept = arena_strdup(&b->arena, buf_str(&name));
    buf_clear(&name);
    return kept;
}

// All of a call that its speed may depend on, but for its place.
static const char *unit_key(struct bench *b, const struct unit *u)
{
    const struct op_call *c = &u->calls[0];
    const struct op_chain *chain = c->attr->chain;
    struct buf key = {0};
    buf_printf(&key, "%d %d %d", (int)c->op, u->n, c->accumulate);
    for (int k = 0; k < c->nin + c->nout; k++) {
        const struct tensor *t = k < c->nin ? &c->in[k] : &c->out[k - c->nin];
        buf_printf(&key, " %s ", dtype_name(t->dtype));
        shape_print(&t->shape, &key);
        for (int d = 0; d < t->shape.n; d++)
            buf_printf(&key, ".%d", c->attr->label[k][d]);
    }
    for (int k = 0; chain && k < chain->steps; k++)
        buf_printf(&key, " %d(%d,%d)", (int)chain->step[k].op, chain->step[k].in[0],
                   chain->step[k].in[1]);
    const char *kept = arena_strdup(&b->arena, buf_str(&key));
    buf_clear(&key);
    return kept;
}

static const char *unit_dtype(const struct unit *u)
{
    const struct op_call *c = &u->calls[0];
    for (int k = 0; k < c->nin; k++)
        if (c->in[k].dtype != DT_I32)
            return c->attr->tf32 && c->in[k].dtype == DT_F32 ? "tf32" : dtype_name(c->in[k].dtype);
    return dtype_name(c->out[0].dtype);
}

// ---- what operands hold ------------------------------------------------------------------------

static int patterns_make(struct bench *b, struct err *e)
{
    uint32_t seed = 1;
    int rc =
        b->backend->memory.host_alloc(b->device, PATTERN * sizeof(float), &b->pattern[DT_F32], e);
    rc = rc ? rc
            : b->backend->memory.host_alloc(b->device, PATTERN * sizeof(uint16_t),
                                            &b->pattern[DT_BF16], e);
    for (int i = 0; i < PATTERN && !rc; i++) {
        seed = seed * 1664525u + 1013904223u;
        float x = (float)(int32_t)seed * 0x1p-32f; // [-1/2, 1/2)
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        ((float *)b->pattern[DT_F32])[i] = x;
        ((uint16_t *)b->pattern[DT_BF16])[i] = (uint16_t)(bits >> 16);
    }
    return rc;
}

static int fill_numbers(const struct bench *b, const struct tensor *t, struct err *e)
{
    size_t left = (size_t)tensor_bytes(t), piece = PATTERN * dtype_size(t->dtype);
    int rc = 0;
    for (char *to = t->data; left > 0 && !rc; to += piece, left -= piece) {
        piece = left < piece ? left : piece;
        rc = b->backend->stream.copy(b->q, to, b->pattern[t->dtype], piece, e);
    }
    return rc;
}

// Ids of which the n-th is as rare as 1/n; or the row's own order.
static int fill_ids(const struct bench *b, const struct tensor *t, int64_t below, struct err *e)
{
    int64_t count = shape_count(&t->shape), row = t->shape.n ? t->shape.dim[t->shape.n - 1] : 1;
    void *host;
    uint32_t seed = 2;
    int rc = b->backend->memory.host_alloc(b->device, (size_t)count * sizeof(int32_t), &host, e);
    if (rc)
        return rc;
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        double u = (double)seed * 0x1p-32;
        ((int32_t *)host)[i] = (int32_t)(below ? exp(u * log((double)below)) - 1 : i % row);
    }
    rc = b->backend->stream.copy(b->q, t->data, host, (size_t)count * sizeof(int32_t), e);
    rc = rc ? rc : b->backend->stream.sync(b->q, e);
    b->backend->memory.host_free(b->device, host);
    return rc;
}

// An update that is to be dropped reads nothing: it would be timed as nothing. A second moment is
// no less than 0.
static int fill_update(const struct bench *b, const struct op_call *c, struct err *e)
{
    static const float clip[CLIP_SLOTS] = {[CLIP_SCALE] = 1};
    static const float hyper[HYPER_SLOTS] = {1e-4f, 1, 1};
    if (c->op != OP_ADAM)
        return 0;
    int rc = b->backend->stream.fill_zero(b->q, c->in[3].data, (size_t)tensor_bytes(&c->in[3]), e);
    rc = rc ? rc : b->backend->stream.copy(b->q, c->in[4].data, clip, sizeof clip, e);
    rc = rc ? rc : b->backend->stream.copy(b->q, c->in[5].data, hyper, sizeof hyper, e);
    return rc ? rc : b->backend->stream.sync(b->q, e);
}

static bool is_positions(const struct bench *b, const struct unit *u, int call, int k)
{
    const char *name = b->program->buffers[u->first[call].in[k].buffer].name;
    return name && strncmp(name, "positions", strlen("positions")) == 0;
}

static int unit_fill(const struct bench *b, const struct unit *u, struct err *e)
{
    int rc = 0;
    for (int n = 0; n < u->n && !rc; n++) {
        const struct op_call *c = &u->calls[n];
        for (int k = 0; k < c->nin && !rc; k++)
            rc = c->in[k].dtype != DT_I32   ? fill_numbers(b, &c->in[k], e)
                 : is_positions(b, u, n, k) ? fill_ids(b, &c->in[k], 0, e)
                                            : fill_ids(b, &c->in[k], ids_below(c, k), e);
        rc = rc ? rc : fill_update(b, c, e);
    }
    return rc ? rc : b->backend->stream.sync(b->q, e);
}

// ---- timing ------------------------------------------------------------------------------------

typedef int (*issue_fn)(const struct bench *b, const void *ctx, struct err *e);

static int issue_unit(const struct bench *b, const void *ctx, struct err *e)
{
    const struct unit *u = ctx;
    enum op op = u->calls[0].op;
    return u->n > 1 ? b->backend->op.run_many[op](b->q, u->calls, u->n, e)
                    : b->backend->op.run[op](b->q, &u->calls[0], e);
}

struct copy {
    char *to, *from;
    size_t bytes;
};

static int issue_copy(const struct bench *b, const void *ctx, struct err *e)
{
    const struct copy *c = ctx;
    return b->backend->stream.copy(b->q, c->to, c->from, c->bytes, e);
}

static int issue_times(const struct bench *b, issue_fn issue, const void *ctx, int times,
                       struct err *e)
{
    int rc = 0;
    for (int i = 0; i < times && !rc; i++)
        rc = issue(b, ctx, e);
    return rc;
}

// Null where the backend cannot, or not this: then it is queued call by call.
static void *captured(const struct bench *b, issue_fn issue, const void *ctx, int times)
{
    const struct backend *k = b->backend;
    void *graph = NULL;
    if (!k->graph || k->graph->begin(b->q, NULL))
        return NULL;
    int rc = issue_times(b, issue, ctx, times, NULL);
    if (k->graph->end(b->q, &graph, NULL))
        return NULL;
    if (rc && graph) {
        k->graph->destroy(graph);
        return NULL;
    }
    return graph;
}

// Nanoseconds until the device is done with so many calls.
static int run_once(const struct bench *b, issue_fn issue, const void *ctx, int times, void *graph,
                    double *ns, struct err *e)
{
    int64_t began = clock_mono_ns();
    int rc =
        graph ? b->backend->graph->launch(b->q, graph, e) : issue_times(b, issue, ctx, times, e);
    rc = rc ? rc : b->backend->stream.sync(b->q, e);
    *ns = (double)(clock_mono_ns() - began);
    return rc;
}

static int ascending(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static int measure(const struct bench *b, issue_fn issue, const void *ctx, struct times *t,
                   struct err *e)
{
    double run[MAX_RUNS], one = 0;
    int rc = 0;
    for (int i = 0; i < 2 && !rc; i++) // the first call makes what the library has not made yet
        rc = run_once(b, issue, ctx, 1, NULL, &one, e);
    if (rc)
        return rc;
    double wanted = o.run_ms * CLOCK_MS / one;
    int times = wanted < 1 ? 1 : wanted > MAX_CALLS ? MAX_CALLS : (int)wanted;
    void *graph = captured(b, issue, ctx, times);
    for (int r = -1; r < o.runs && !rc; r++) {
        double ns = 0;
        rc = run_once(b, issue, ctx, times, graph, &ns, e);
        if (r >= 0)
            run[r] = ns / 1e3 / times;
    }
    if (graph)
        b->backend->graph->destroy(graph);
    qsort(run, (size_t)o.runs, sizeof *run, ascending);
    *t = (struct times){run[o.runs / 2], run[o.runs / 10], run[o.runs * 9 / 10],
                        graph ? "graph" : "queued"};
    return rc;
}

static void row_print(const char *name, const char *dtype, int calls, const struct times *t,
                      double flops, double bytes)
{
    printf("op\t%s\t%s\t%d\t%.3f\t%.3f\t%.3f\t%.0f\t%.0f\t%s\n", name, dtype, calls, t->p50, t->p10,
           t->p90, flops, bytes, t->how);
    fflush(stdout);
}

// ---- what the device gives at best -------------------------------------------------------------

static int bench_copy(const struct bench *b, struct err *e)
{
    uint64_t most = (uint64_t)2 << 30, half = b->compiled.memory.region[REGION_PRIVATE] / 2;
    struct copy c = {.bytes = (size_t)(half < most ? half : most)};
    struct times t;
    c.to = b->region[REGION_PRIVATE];
    c.from = c.to + half;
    int rc = measure(b, issue_copy, &c, &t, e);
    if (!rc)
        row_print("copy", "bytes", 0, &t, 0, 2 * (double)c.bytes);
    return rc;
}

static int bench_square(struct bench *b, enum dtype dtype, struct err *e)
{
    const struct shape s = {2, {o.square, o.square}};
    struct op_attr attr = {.label = {{0, 2}, {2, 1}, {0, 1}},
                           .labels = 3,
                           .scratch = b->compiled.global[PROGRAM_TRAIN]->scratch,
                           .tf32 = b->compiled.global[PROGRAM_TRAIN]->tf32};
    struct op_call c = {.op = OP_MATMUL, .attr = &attr, .nin = 2, .nout = 1};
    struct unit u = {.calls = &c, .n = 1};
    struct times t;
    size_t bytes = (size_t)shape_count(&s) * dtype_size(dtype);
    struct tensor *operands[] = {&c.in[0], &c.in[1], &c.out[0]};
    int rc = 0;
    for (int k = 0; k < 3; k++)
        *operands[k] = (struct tensor){.dtype = dtype, .shape = s};
    c.workspace_bytes = op_workspace(&c, b->compiled.global[PROGRAM_TRAIN]->backend);
    for (int k = 0; k < 3 && !rc; k++)
        rc = b->backend->memory.alloc(b->device, bytes, &operands[k]->data, e);
    if (!rc && c.workspace_bytes)
        rc = b->backend->memory.alloc(b->device, c.workspace_bytes, &c.workspace, e);
    for (int k = 0; k < 2 && !rc; k++) // first: algorithms that multiply zeros take other times
        rc = fill_numbers(b, &c.in[k], e);
    if (!rc && b->backend->choice)
        rc = b->backend->choice->tune(b->q, &c, true, e);
    rc = rc ? rc : measure(b, issue_unit, &u, &t, e);
    if (!rc)
        row_print(arena_printf(&b->arena, "square %lld", (long long)o.square), unit_dtype(&u), 0,
                  &t, 2 * pow((double)o.square, 3), call_bytes(&c));
    for (int k = 0; k < 3; k++)
        if (operands[k]->data)
            b->backend->memory.free(b->device, operands[k]->data);
    if (c.workspace)
        b->backend->memory.free(b->device, c.workspace);
    return rc;
}

// ---- the step ----------------------------------------------------------------------------------

static int unit_tune(const struct bench *b, const struct unit *u, struct err *e)
{
    int rc = 0;
    for (int k = 0; b->backend->choice && k < u->n && !rc; k++)
        rc = b->backend->choice->tune(b->q, &u->calls[k], true, e);
    return rc;
}

// One that fails is reported, and the rest run, unless the device has failed for good.
static int bench_unit(struct bench *b, const struct unit *u, const char *name, int calls,
                      struct err *e)
{
    struct times t = {.how = "listed"};
    struct err why = {0};
    int rc = o.list ? 0 : unit_fill(b, u, &why); // algorithms that multiply zeros take other times
    if (!rc && !o.list) {
        rc = unit_tune(b, u, &why);
        rc = rc ? rc : unit_fill(b, u, &why);
        rc = rc ? rc : measure(b, issue_unit, u, &t, &why);
    }
    if (!rc)
        row_print(name, unit_dtype(u), calls, &t, u->flops, u->bytes);
    else
        printf("failed\t%s\t%s\n", name, why.text);
    fflush(stdout);
    bool over = rc && b->backend->stream.sync(b->q, NULL);
    return over ? err_set(e, rc, "%s: %s", name, why.text) : 0;
}

static bool is_asked_for(const char *name)
{
    char texts[256], *save = NULL;
    snprintf(texts, sizeof texts, "%s", o.only ? o.only : "");
    for (char *t = strtok_r(texts, ",", &save); t; t = strtok_r(NULL, ",", &save))
        if (strstr(name, t))
            return true;
    return !o.only;
}

static int bench_step(struct bench *b, struct err *e)
{
    const struct program *p = b->program;
    struct unit *units = arena_array(&b->arena, struct unit, p->ninstrs + 1);
    const char **keys = arena_array(&b->arena, const char *, p->ninstrs + 1);
    int *calls = arena_array(&b->arena, int, p->ninstrs + 1), n = 0, rc = 0;
    for (int i = 0; i < p->ninstrs; i++) {
        if (p->instrs[i].kind != INSTR_OP || p->instrs[i].attr)
            continue;
        units[n] = unit_make(b, &p->instrs[i]);
        keys[n] = unit_key(b, &units[n]);
        i += units[n].n - 1;
        int at = 0;
        while (strcmp(keys[at], keys[n]) != 0)
            at++;
        calls[at]++;
        n += at == n;
    }
    for (int k = 0; k < n && !rc; k++) {
        const char *name = unit_name(b, &units[k]);
        if (is_asked_for(name))
            rc = bench_unit(b, &units[k], name, calls[k], e);
    }
    return rc;
}

// ---- the whole ---------------------------------------------------------------------------------

static int64_t parameters(const struct bench *b)
{
    const struct graph *g = b->compiled.global[PROGRAM_TRAIN];
    int64_t n = 0;
    for (int v = 0; v < g->nvalues; v++)
        if (g->values[v].kind == VALUE_PARAM && g->values[v].alias < 0)
            n += shape_count(&g->values[v].shape);
    return n;
}

static int open_job(struct bench *b, struct err *e)
{
    struct job_errors errs = {0};
    if (job_load(&b->arena, &weft_schema, o.job, o.set, o.nset, &b->job, &errs))
        return err_set(e, ERR_INVALID, "%s: %s", o.job, errs.items[0].message);
    int rc = plan_compile(&b->job, NULL, &b->arena, &b->compiled, NULL, e);
    if (!rc && mesh_ranks(&b->compiled.mesh) != 1)
        return err_set(e, ERR_INVALID, "the mesh has %d devices: ops are timed on one",
                       mesh_ranks(&b->compiled.mesh));
    if (!rc)
        b->program = compiled_program(&b->compiled, PROGRAM_TRAIN, 0);
    return rc;
}

static int open_device(struct bench *b, struct err *e)
{
    struct device_options d = {.threads = threads_of(&b->job),
                               .deterministic = b->job.precision.deterministic,
                               .cache = o.cache};
    int rc = backend_load(job_device_kind(b->job.resources.kind), &b->backend, e);
    rc = rc ? rc : b->backend->device.open(&d, &b->device, e);
    if (rc)
        return rc;
    b->backend->device.info(b->device, &b->info);
    printf("device\t%s\t%s\t%s\n", b->info.model, b->info.isa, b->info.libraries);
    printf("about\t%lld\t%llu\n", (long long)parameters(b),
           (unsigned long long)b->compiled.memory.arena);
    fflush(stdout);
    return 0;
}

static int open_memory(struct bench *b, struct err *e)
{
    int rc = b->backend->stream.create(b->device, STREAM_USUAL, &b->q, e);
    for (int r = 0; r < REGION_COUNT && !rc; r++) {
        uint64_t bytes = b->compiled.memory.region[r];
        void *p = NULL;
        rc = bytes ? b->backend->memory.alloc(b->device, bytes, &p, e) : 0;
        rc = rc || !bytes ? rc : b->backend->stream.fill_zero(b->q, p, bytes, e);
        b->region[r] = p;
    }
    return rc ? rc : patterns_make(b, e);
}

static int run(struct bench *b, struct err *e)
{
    int rc = open_job(b, e);
    if (!rc && o.list)
        return bench_step(b, e);
    rc = rc ? rc : open_device(b, e);
    if (rc || o.about)
        return rc;
    rc = open_memory(b, e);
    rc = rc ? rc : bench_copy(b, e);
    enum dtype compute = b->compiled.global[PROGRAM_TRAIN]->compute == DT_BF16 ? DT_BF16 : DT_F32;
    rc = rc || !o.square ? rc : bench_square(b, compute, e);
    return rc ? rc : bench_step(b, e);
}

static bool takes(const char *name, const char *arg, const char *value, const char **out)
{
    if (strcmp(name, arg) != 0 || !value)
        return false;
    *out = value;
    return true;
}

static int arguments(int argc, char **argv)
{
    const char *runs = NULL, *ms = NULL, *square = NULL, *set = NULL;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        set = NULL;
        if (strcmp(argv[i], "--about") == 0)
            o.about = true;
        else if (strcmp(argv[i], "--list") == 0)
            o.list = true;
        else if (takes("--runs", argv[i], value, &runs) || takes("--run-ms", argv[i], value, &ms) ||
                 takes("--square", argv[i], value, &square) ||
                 takes("--only", argv[i], value, &o.only) ||
                 takes("--cache", argv[i], value, &o.cache) || takes("-s", argv[i], value, &set))
            i++;
        else if (argv[i][0] != '-' && !o.job)
            o.job = argv[i];
        else
            return -1;
        if (set && o.nset == SETS)
            return -1;
        if (set)
            o.set[o.nset++] = set;
    }
    o.runs = runs ? atoi(runs) : o.runs;
    o.run_ms = ms ? atof(ms) : o.run_ms;
    o.square = square ? atoll(square) : o.square;
    return o.job && o.runs > 0 && o.runs <= MAX_RUNS && o.run_ms >= 0 && o.square >= 0 ? 0 : -1;
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct err e = {0};
    if (arguments(argc, argv)) {
        fprintf(stderr, "usage: bench_ops [--runs N] [--run-ms MS] [--square N] [--only TEXT,..] "
                        "[--cache DIR] [--about | --list] [-s K=V]... JOB\n");
        return 2;
    }
    int rc = run(&b, &e);
    if (rc)
        fprintf(stderr, "bench_ops: %s\n", e.text);
    if (b.device) // which gives back its memory
        b.backend->device.close(b.device);
    arena_clear(&b.arena);
    return rc != 0;
}
