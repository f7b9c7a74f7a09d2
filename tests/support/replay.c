// SPDX-License-Identifier: Apache-2.0
// Programs, carried out. See replay.h.
#include "tests/support/replay.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/compile/graph/optable.h"
#include "common/compile/program/group.h"
#include "tests/ops/reference.h"

// A number for every two bytes: elements lie one behind the other from where their buffer begins,
// so those of wider dtypes leave the end of it alone.
enum { ELEMENT = 2, GROUP = 64 };

struct actor { // a rank
    const struct program *p;
    double *region[REGION_COUNT];
    int at; // the instruction it has come to
    // By node and microbatch:
    int *started;     // 1 + the START or RECV that it has come to; 0: not yet
    bool *done;       // that collective
    double **arrived; // what was sent to it
};

static int key(const struct instr *i)
{
    return i->node * 64 + i->microbatch;
}

static double *place(const struct replay *r, int rank, struct view v)
{
    const struct actor *a = &r->actors[rank];
    const struct buffer *b = &a->p->buffers[v.buffer];
    uint64_t step = v.step ? (uint64_t)cut_place(&a->p->mesh, rank, &v.by) * v.step : 0;
    size_t each = dtype_size(b->dtype); // scratch has none
    return a->region[b->region] + b->offset / ELEMENT + (each ? (v.offset + step) / each : 0);
}

static size_t count_of(const struct buffer *b)
{
    return (size_t)shape_count(&b->shape);
}

static double *held(const struct interp *x, int rank, int value)
{
    return x->value[(size_t)rank * (size_t)x->g->nvalues + (size_t)value];
}

// Sums begin at zero, as on a device; all else that is not set is no number.
static void begin(struct replay *r, int rank, const struct interp *x)
{
    struct actor *a = &r->actors[rank];
    const struct memory *m = &r->memory[a->p->stage];
    for (int k = 0; k < REGION_COUNT; k++) {
        a->region[k] = malloc((m->region[k] / ELEMENT + 1) * sizeof(double));
        PRE(a->region[k]);
        for (uint64_t i = 0; i < m->region[k] / ELEMENT; i++)
            a->region[k][i] = (double)NAN;
    }
    for (int b = 0; b < a->p->nbuffers; b++) {
        const struct buffer *buf = &a->p->buffers[b];
        if (!buf->persistent || buf->value < 0 || buf->source == VALUE_INPUT)
            continue;
        double *to = place(r, rank, (struct view){.buffer = b});
        for (size_t i = 0; i < count_of(buf); i++)
            to[i] = buf->source == VALUE_SUM ? 0 : held(x, rank, buf->value)[i];
    }
}

void replay_init(struct replay *r, const struct program *stages, const struct memory *memory,
                 const struct interp *x)
{
    *r = (struct replay){.stages = stages, .memory = memory, .ranks = x->ranks};
    r->actors = calloc((size_t)r->ranks, sizeof *r->actors);
    size_t keys = (size_t)x->g->nnodes * 64;
    for (int k = 0; k < r->ranks; k++) {
        struct actor *a = &r->actors[k];
        int axis = x->mesh.stages ? __builtin_ctz(x->mesh.stages) : -1;
        a->p = &stages[axis < 0 ? 0 : mesh_coord(&x->mesh, k, axis)];
        a->started = calloc(keys, sizeof *a->started);
        a->done = calloc(keys, sizeof *a->done);
        a->arrived = calloc(keys, sizeof *a->arrived);
        begin(r, k, x);
    }
}

void replay_feed(struct replay *r, const struct interp *x, int microbatch)
{
    for (int k = 0; k < r->ranks; k++) {
        const struct program *p = r->actors[k].p;
        for (int b = 0; b < p->nbuffers; b++) {
            const struct buffer *buf = &p->buffers[b];
            if (buf->source != VALUE_INPUT)
                continue;
            struct view v = {.buffer = b,
                             .offset = buf->bytes / (uint64_t)buf->copies * (uint64_t)microbatch};
            memcpy(place(r, k, v), held(x, k, buf->value), count_of(buf) * sizeof(double));
        }
    }
}

// ---- ops ----

static struct ref_tensor operand(const struct replay *r, int rank, struct view v, int value)
{
    const struct program *p = r->actors[rank].p;
    const struct value *val = &p->graph->values[value];
    PRE(dtype_size(val->dtype) == dtype_size(p->buffers[v.buffer].dtype));
    return (struct ref_tensor){.shape = spec_local(&val->spec, &p->mesh, &val->shape),
                               .dtype = val->dtype,
                               .v = place(r, rank, v)};
}

static void copy(struct replay *r, int rank, const struct instr *i)
{
    struct ref_tensor from = {.dtype = DT_F32, .v = place(r, rank, i->in[0])};
    struct ref_tensor to = {.dtype = DT_F32, .v = place(r, rank, i->out[0])};
    ref_op(OP_COPY, i->attr, &from, 1, &to, 1, false);
}

// An output lies over no input, or over the whole of one that is walked in the same order, if the
// op may write there.
static bool covers_well(const struct instr *i, const struct node *n, const struct ref_tensor *in,
                        const struct ref_tensor *out)
{
    for (int o = 0; o < i->nout; o++)
        for (int k = 0; k < i->nin; k++) {
            const double *from = in[k].v, *to = out[o].v;
            int64_t reads = shape_count(&in[k].shape), writes = shape_count(&out[o].shape);
            bool apart = from + reads <= to || to + writes <= from;
            bool alike = from == to && reads == writes && op_is(i->op, OP_IN_PLACE) &&
                         !memcmp(n->attr.label[k], n->attr.label[i->nin + o],
                                 (size_t)in[k].shape.n * sizeof n->attr.label[k][0]);
            if (!apart && !alike)
                return false;
        }
    return true;
}

static void run_op(struct replay *r, int rank, const struct instr *i)
{
    const struct program *p = r->actors[rank].p;
    const struct node *n = &p->graph->nodes[i->node];
    struct ref_tensor in[OP_MAX_IN], out[OP_MAX_OUT];
    double *to[OP_MAX_OUT];
    struct op_attr attr =
        op_attr_on(p->graph, n, &(struct op_at){&p->mesh, rank, i->microbatch, p->microbatches});
    for (int k = 0; k < i->nin; k++)
        in[k] = operand(r, rank, i->in[k], n->in[k]);
    if (i->workspace >= 0) {
        double *scratch = place(r, rank, (struct view){.buffer = i->workspace});
        for (uint64_t k = 0; k < p->buffers[i->workspace].bytes / ELEMENT; k++)
            scratch[k] = (double)NAN;
    }
    for (int k = 0; k < i->nout; k++)
        out[k] = operand(r, rank, i->out[k], n->out[k]);
    PRE(covers_well(i, n, in, out));
    for (int k = 0; k < i->nout; k++) {
        size_t bytes = (size_t)shape_count(&out[k].shape) * sizeof(double);
        to[k] = out[k].v;
        out[k].v = calloc(1, bytes);
        PRE(out[k].v);
        memcpy(out[k].v, to[k], bytes);
    }
    ref_op(i->op, &attr, in, i->nin, out, i->nout, i->accumulate);
    for (int k = 0; k < i->nout; k++) {
        memcpy(to[k], out[k].v, (size_t)shape_count(&out[k].shape) * sizeof(double));
        free(out[k].v);
    }
}

// ---- collectives ----

// The sum, or the maximum, of what all brought for one element.
static double combined(double *const *data, int n, size_t at, bool max)
{
    double v = data[0][at];
    for (int k = 1; k < n; k++)
        v = max ? fmax(v, data[k][at]) : v + data[k][at];
    return v;
}

static void collective(const struct instr *i, double *const *from, double *const *buf, int n,
                       size_t count)
{
    bool whole = i->collective == RESHARD_ALL_REDUCE; // no slices
    size_t slice = whole ? count : count / (size_t)n;
    double *made = malloc(count * sizeof *made * (size_t)n); // what each member leaves
    PRE(made && (whole || slice * (size_t)n == count));
    for (int m = 0; m < n; m++)
        for (size_t k = 0; k < count; k++) {
            size_t owner = k / slice, within = k % slice;
            double *to = &made[(size_t)m * count + k];
            if (i->collective == RESHARD_ALL_GATHER)
                *to = buf[owner][k];
            else if (i->collective == RESHARD_ALL_TO_ALL)
                *to = from[owner][(size_t)m * slice + within];
            else if (whole || owner == (size_t)m)
                *to = combined(buf, n, k, i->max);
            else
                *to = (double)NAN; // of a reduce-scatter's others nothing is known
        }
    for (int m = 0; m < n; m++)
        memcpy(buf[m], made + (size_t)m * count, count * sizeof *made);
    free(made);
}

// Whether the group of a START has come to it and it is done.
static bool join(struct replay *r, int rank, const struct instr *i)
{
    const struct program *p = r->actors[rank].p;
    struct group of = group_of(i, p->stage);
    double *from[GROUP], *buf[GROUP];
    int group[GROUP], n = group_ranks(&of, &p->mesh, rank, group);
    if (r->actors[rank].done[key(i)])
        return true;
    for (int m = 0; m < n; m++) {
        const struct actor *a = &r->actors[group[m]];
        if (!a->started[key(i)])
            return false;
        const struct instr *other = &a->p->instrs[a->started[key(i)] - 1];
        from[m] = place(r, group[m], other->in[0]);
        buf[m] = place(r, group[m], other->out[0]);
    }
    collective(i, from, buf, n, count_of(&p->buffers[i->out[0].buffer]));
    for (int m = 0; m < n; m++)
        r->actors[group[m]].done[key(i)] = true;
    return true;
}

static void send(struct replay *r, int rank, const struct instr *i)
{
    const struct program *p = r->actors[rank].p;
    struct group of = group_of(i, p->stage);
    int pair[2];
    PRE(group_ranks(&of, &p->mesh, rank, pair) == 2);
    double **box = &r->actors[pair[0] == rank ? pair[1] : pair[0]].arrived[key(i)];
    size_t bytes = count_of(&p->buffers[i->in[0].buffer]) * sizeof(double);
    PRE(!*box);
    *box = malloc(bytes);
    PRE(*box);
    memcpy(*box, place(r, rank, i->in[0]), bytes);
}

static bool receive(struct replay *r, int rank, const struct instr *i)
{
    const struct actor *a = &r->actors[rank];
    const double *box = a->arrived[key(i)];
    if (box)
        memcpy(place(r, rank, i->out[0]), box,
               count_of(&a->p->buffers[i->out[0].buffer]) * sizeof *box);
    return box != NULL;
}

// ---- ranks in turn ----

static bool wait_over(struct replay *r, int rank, const struct instr *start)
{
    if (start->kind == INSTR_START)
        return join(r, rank, start);
    return start->kind == INSTR_SEND || receive(r, rank, start);
}

// False: it waits.
static bool run_one(struct replay *r, int rank)
{
    struct actor *a = &r->actors[rank];
    const struct instr *i = &a->p->instrs[a->at];
    if (i->kind == INSTR_WAIT && !wait_over(r, rank, &a->p->instrs[i->start]))
        return false;
    if (i->kind == INSTR_START)
        a->started[key(i)] = a->at + 1;
    if (i->kind == INSTR_SEND)
        send(r, rank, i);
    if (i->kind == INSTR_OP && i->attr)
        copy(r, rank, i);
    else if (i->kind == INSTR_OP)
        run_op(r, rank, i);
    a->at++;
    return true;
}

int replay_run(struct replay *r)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int k = 0; k < r->ranks; k++)
            while (r->actors[k].at < r->actors[k].p->ninstrs && run_one(r, k))
                moved = true;
    }
    for (int k = 0; k < r->ranks; k++)
        if (r->actors[k].at < r->actors[k].p->ninstrs) {
            printf("rank %d waits at instruction %d for ever\n", k, r->actors[k].at);
            return 1;
        }
    return 0;
}

static int compare_one(const struct replay *r, const struct interp *x, int rank, int buffer,
                       int value, double most)
{
    const double *got = place(r, rank, (struct view){.buffer = buffer});
    const double *want = held(x, rank, value);
    double size = 1e-6, far = 0;
    for (size_t i = 0; i < count_of(&r->actors[rank].p->buffers[buffer]); i++) {
        size = fmax(size, fabs(want[i]));
        far = isfinite(want[i]) && !isfinite(got[i]) ? INFINITY : fmax(far, fabs(want[i] - got[i]));
    }
    if (far <= most * size)
        return 0;
    const char *name = x->g->values[value].name;
    printf("on rank %d the program's %s differs from its graph's by %.3g of its size\n", rank,
           name ? name : "metrics", far / size);
    return 1;
}

int replay_compare(const struct replay *r, const struct interp *x, double most)
{
    int bad = 0;
    for (int k = 0; k < r->ranks; k++) {
        const struct program *p = r->actors[k].p;
        for (int b = 0; b < p->nbuffers; b++)
            if (p->buffers[b].kind == BUFFER_PARAM || p->buffers[b].kind == BUFFER_OPTIMIZER)
                bad |= compare_one(r, x, k, b, p->buffers[b].value, most);
        bad |= compare_one(r, x, k, p->metrics, x->g->metrics, most);
    }
    return bad;
}

void replay_clear(struct replay *r)
{
    for (int k = 0; k < r->ranks; k++) {
        struct actor *a = &r->actors[k];
        for (int i = 0; i < REGION_COUNT; i++)
            free(a->region[i]);
        for (int i = 0; i < a->p->graph->nnodes * 64; i++)
            free(a->arrived[i]);
        free(a->started);
        free(a->done);
        free(a->arrived);
    }
    free(r->actors);
}
