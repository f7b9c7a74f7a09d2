// SPDX-License-Identifier: Apache-2.0
// What a step costs. See cost.h.
#include "common/compile/cost.h"

#include <string.h>

#include "common/compile/optable.h"

const char *coll_row_name(const struct coll_row *r)
{
    return r->send ? "send" : reshard_kind_name(r->op);
}

static bool same_row(const struct coll_row *a, const struct coll_row *b)
{
    return a->send == b->send && a->op == b->op && a->axes == b->axes && a->group == b->group &&
           a->phase == b->phase && a->dtype == b->dtype && strcmp(a->tensor, b->tensor) == 0;
}

static struct coll_row row_of(const struct program *p, const struct instr *in)
{
    bool send = in->kind == INSTR_SEND, stages = in->stages != 0;
    const struct view *v = send ? in->in : in->out;
    axis_set along = send || stages ? (axis_set)(1u << in->axis) : dim_axes(&in->group);
    int group = stages ? __builtin_popcountll(in->stages) : dim_parts(&p->mesh, &in->group);
    return (struct coll_row){.send = send,
                             .op = in->coll,
                             .axes = along,
                             .group = send ? 2 : group,
                             .stages = (uint64_t)1 << p->stage,
                             .phase = in->phase,
                             .tensor = p->graph->nodes[in->node].what,
                             .dtype = p->buffers[v->buffer].dtype,
                             .count = 1,
                             .tensor_bytes = p->buffers[v->buffer].bytes};
}

// The rows of one stage, from `first` on; the list has room for all. Returns their end.
static int stage_rows(const struct program *p, struct coll_row *rows, int first)
{
    int n = first;
    for (int i = 0; i < p->ninstrs; i++) {
        const struct instr *in = &p->instrs[i];
        if (in->kind != INSTR_START && in->kind != INSTR_SEND)
            continue;
        struct coll_row one = row_of(p, in);
        int at = first;
        while (at < n && !same_row(&rows[at], &one))
            at++;
        if (at == n) {
            rows[n++] = one;
            continue;
        }
        rows[at].count++;
        rows[at].tensor_bytes += one.tensor_bytes;
    }
    return n;
}

// Rows that are alike on several stages become one.
static int rows_join(struct coll_row *rows, int first, int n)
{
    int kept = first;
    for (int i = first; i < n; i++) {
        int at = 0;
        while (at < first && !(same_row(&rows[at], &rows[i]) && rows[at].count == rows[i].count &&
                               rows[at].tensor_bytes == rows[i].tensor_bytes))
            at++;
        if (at < first)
            rows[at].stages |= rows[i].stages;
        else
            rows[kept++] = rows[i];
    }
    return kept;
}

static void count_collectives(const struct compiled *c, struct arena *a, struct cost *cost)
{
    int most = 0;
    for (int s = 0; s < c->nstages; s++)
        most += compiled_program(c, PROGRAM_TRAIN, s)->ninstrs;
    cost->colls = arena_array(a, struct coll_row, most);
    for (int s = 0; s < c->nstages; s++) {
        int end = stage_rows(compiled_program(c, PROGRAM_TRAIN, s), cost->colls, cost->ncolls);
        cost->ncolls = rows_join(cost->colls, cost->ncolls, end);
    }
    for (int i = 0; i < cost->ncolls; i++) {
        struct coll_row *r = &cost->colls[i];
        r->bytes =
            r->send ? r->tensor_bytes : reshard_ring_bytes(r->op, r->tensor_bytes, r->group);
    }
}

// An op's operands as one device sees them; `m` null: whole.
struct shapes {
    struct shape in[OP_MAX_IN], out[OP_MAX_OUT];
};

static void shapes_of(const struct graph *g, const struct mesh *m, const struct node *n,
                      struct shapes *s)
{
    for (int k = 0; k < n->nin + n->nout; k++) {
        const struct value *v = &g->values[k < n->nin ? n->in[k] : n->out[k - n->nin]];
        struct shape *to = k < n->nin ? &s->in[k] : &s->out[k - n->nin];
        *to = m ? spec_local(&v->spec, m, &v->shape) : v->shape;
    }
}

double cost_node_flops(const struct graph *g, const struct mesh *m, const struct node *n)
{
    struct shapes s;
    if (n->kind != NODE_OP || !op_row(n->op)->flops)
        return 0;
    shapes_of(g, m, n, &s);
    return op_row(n->op)->flops(n, s.in, s.out);
}

// FLOPs of one microbatch, those apart that are made again.
static double graph_flops(const struct graph *g, const struct mesh *m, bool forward_only)
{
    double total = 0;
    for (int i = 0; i < g->nnodes; i++) {
        if (!g->nodes[i].again && (!forward_only || g->nodes[i].phase == PHASE_FORWARD))
            total += cost_node_flops(g, m, &g->nodes[i]);
    }
    return total;
}

static double traffic(const struct program *p)
{
    double bytes = 0;
    for (int i = 0; i < p->ninstrs; i++) {
        struct shapes s;
        if (p->instrs[i].kind != INSTR_OP)
            continue;
        shapes_of(p->graph, &p->mesh, &p->graph->nodes[p->instrs[i].node], &s);
        bytes += op_bytes(p->graph, &p->graph->nodes[p->instrs[i].node], s.in, s.out);
    }
    return bytes;
}

// Each input once, whatever cuts it is read in.
uint64_t cost_batch_bytes(const struct program *p)
{
    int64_t first, rows;
    uint64_t bytes = 0;
    program_rows(p, 0, &first, &rows);
    for (int b = 0; b < p->nbuffers; b++) {
        const struct value *v = &p->graph->values[p->buffers[b].value];
        bool again = p->buffers[b].source != VALUE_INPUT;
        for (int k = 0; k < b && !again; k++)
            again = p->buffers[k].source == VALUE_INPUT &&
                    strcmp(p->graph->values[p->buffers[k].value].name, v->name) == 0;
        if (!again)
            bytes += (uint64_t)(shape_count(&v->shape) / v->shape.dim[0] * rows) *
                     dtype_size(v->dtype) * (uint64_t)p->microbatches;
    }
    return bytes;
}

void cost_count(const struct compiled *c, struct arena *a, struct cost *out)
{
    const struct program *p = compiled_program(c, PROGRAM_TRAIN, 0);
    *out = (struct cost){0};
    count_collectives(c, a, out);
    const struct graph *whole = c->global[PROGRAM_TRAIN];
    out->flops_per_step = 3 * graph_flops(whole, NULL, true) * p->microbatches;
    double all = graph_flops(p->graph, &c->mesh, false) * mesh_ranks(&c->mesh) / c->nstages;
    out->utilisation = all > 0 ? graph_flops(whole, NULL, false) / all : 1;
    for (int s = 0; s < c->nstages; s++) {
        double bytes = traffic(compiled_program(c, PROGRAM_TRAIN, s));
        out->traffic = bytes > out->traffic ? bytes : out->traffic;
    }
}
