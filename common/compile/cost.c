// SPDX-License-Identifier: Apache-2.0
// What a step costs. See cost.h.
#include "common/compile/cost.h"

#include <stdio.h>
#include <string.h>

#include "common/base/map.h"
#include "common/compile/optable.h"

static struct coll_row *row_for(struct cost *cost, struct map *rows, const struct coll_row *key)
{
    char text[300];
    snprintf(text, sizeof text, "%d %d %d %d %s", key->op, key->axes, key->phase, key->dtype,
             key->tensor);
    struct coll_row *r = map_get(rows, text);
    if (r)
        return r;
    r = &cost->colls[cost->ncolls++];
    *r = *key;
    map_put(rows, text, r);
    return r;
}

static void count_collectives(const struct program *p, struct arena *a, struct cost *cost)
{
    struct map rows = {0};
    cost->colls = arena_array(a, struct coll_row, p->ninstrs);
    for (int i = 0; i < p->ninstrs; i++) {
        const struct instr *in = &p->instrs[i];
        if (in->kind != INSTR_START)
            continue;
        const struct buffer *b = &p->buffers[in->out[0].buffer];
        struct coll_row *r = row_for(cost, &rows,
                                     &(struct coll_row){.op = in->coll,
                                                        .axes = dim_axes(&in->group),
                                                        .group = dim_parts(&p->mesh, &in->group),
                                                        .phase = in->phase,
                                                        .tensor = p->graph->nodes[in->node].what,
                                                        .dtype = b->dtype});
        r->count++;
        r->tensor_bytes += b->bytes;
    }
    for (int i = 0; i < cost->ncolls; i++) {
        struct coll_row *r = &cost->colls[i];
        r->bytes = reshard_ring_bytes(r->op, r->tensor_bytes, r->group);
    }
    map_clear(&rows);
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

// What a rank reads of a step's data: whole samples, each input once whatever cuts it is read in.
static uint64_t batch_bytes(const struct program *p)
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
    count_collectives(p, a, out);
    const struct graph *whole = c->global[PROGRAM_TRAIN];
    out->flops_per_step = 3 * graph_flops(whole, NULL, true) * p->microbatches;
    double all = graph_flops(p->graph, &c->mesh, false) * mesh_ranks(&c->mesh);
    out->utilisation = all > 0 ? graph_flops(whole, NULL, false) / all : 1;
    out->traffic = traffic(p);
    out->batch_bytes = batch_bytes(p);
}
