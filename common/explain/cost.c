// SPDX-License-Identifier: Apache-2.0
// What a step costs. See cost.h.
#include "common/explain/cost.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/map.h"
#include "common/compile/graph/experts.h"
#include "common/compile/graph/node_work.h"
#include "common/compile/graph/optable.h"

const char *collective_row_name(const struct collective_row *r)
{
    return r->send ? "send" : reshard_kind_name(r->op);
}

// A row of what an instruction is, with nothing counted in it.
static struct collective_row make_row(const struct program *p, const struct instr *in)
{
    bool send = in->kind == INSTR_SEND, stages = in->stages != 0;
    const struct view *v = send ? in->in : in->out;
    axis_set along = send || stages ? (axis_set)(1u << in->axis) : dim_axes(&in->group);
    int group = stages ? __builtin_popcountll(in->stages) : dim_parts(&p->mesh, &in->group);
    return (struct collective_row){.send = send,
                                   .op = in->collective,
                                   .axes = along,
                                   .group = send ? 2 : group,
                                   .stages = (uint64_t)1 << p->stage,
                                   .phase = in->phase,
                                   .tensor = p->graph->nodes[in->node].what,
                                   .bucket = -1,
                                   .dtype = p->buffers[v->buffer].dtype};
}

static void print_key(const struct collective_row *r, char text[300])
{
    snprintf(text, 300, "%d %d %d %d %d %d %d %s", r->send, r->op, r->axes, r->group, r->phase,
             r->dtype, r->bucket, r->tensor);
}

// The row that a node's instructions are counted in: they are alike in all microbatches.
struct counted_in {
    int stage; // 1 + the stage whose row it is
    int row;
};

// The rows of one stage, from `rows` on; there is room for all. Returns their number.
static int count_stage_rows(const struct program *p, struct counted_in *of,
                            struct collective_row *rows)
{
    struct map known = {0};
    int n = 0, nbuckets = 0, left = 0; // `left` starts more are of the newest bucket
    for (int i = 0; i < p->ninstrs; i++) {
        const struct instr *in = &p->instrs[i];
        char key[300];
        if (in->kind != INSTR_START && in->kind != INSTR_SEND)
            continue;
        bool within = left > 0;
        struct counted_in *to = &of[in->node];
        left += within ? -1 : in->with;
        nbuckets += !within && in->with && to->stage != 1 + p->stage;
        const struct view *v = in->kind == INSTR_SEND ? in->in : in->out;
        if (to->stage != 1 + p->stage) {
            struct collective_row one = make_row(p, in), *r;
            one.bucket = within || in->with ? nbuckets - 1 : -1;
            print_key(&one, key);
            if (!(r = map_get(&known, key))) {
                rows[n] = one;
                map_put(&known, key, r = &rows[n++]);
            }
            *to = (struct counted_in){1 + p->stage, (int)(r - rows)};
        }
        rows[to->row].count++;
        rows[to->row].tensor_bytes += p->buffers[v->buffer].bytes;
    }
    map_clear(&known);
    return n;
}

// Rows that are alike on several stages become one. Returns how many of the `n` stay.
static int join_rows(struct map *known, struct collective_row *rows, int n)
{
    int kept = 0;
    for (int i = 0; i < n; i++) {
        char key[300], text[360];
        struct collective_row *r;
        print_key(&rows[i], key);
        snprintf(text, sizeof text, "%lld %llu %s", (long long)rows[i].count,
                 (unsigned long long)rows[i].tensor_bytes, key);
        if ((r = map_get(known, text))) {
            r->stages |= rows[i].stages;
            continue;
        }
        rows[kept] = rows[i];
        map_put(known, text, &rows[kept++]);
    }
    return kept;
}

static void count_collectives(const struct compiled *c, enum program_kind kind, struct arena *a,
                              struct cost *cost)
{
    struct map known = {0};
    struct arena scratch = {0};
    int most = 0;
    for (int s = 0; s < c->nstages; s++)
        most += compiled_program(c, kind, s)->ninstrs;
    struct counted_in *of =
        arena_array(&scratch, struct counted_in, compiled_program(c, kind, 0)->graph->nnodes);
    cost->collectives = arena_array(a, struct collective_row, most);
    for (int s = 0; s < c->nstages; s++) {
        struct collective_row *rows = cost->collectives + cost->ncollectives;
        int n = count_stage_rows(compiled_program(c, kind, s), of, rows);
        cost->ncollectives += join_rows(&known, rows, n);
    }
    for (int i = 0; i < cost->ncollectives; i++) {
        struct collective_row *r = &cost->collectives[i];
        r->bytes = r->send ? r->tensor_bytes : reshard_ring_bytes(r->op, r->tensor_bytes, r->group);
    }
    map_clear(&known);
    arena_clear(&scratch);
}

static int compare_traffic(const void *x, const void *y)
{
    const struct axes_traffic *a = x, *b = y;
    return a->bytes != b->bytes ? (a->bytes > b->bytes ? -1 : 1) : a->axes - b->axes;
}

// Sums the collectives' bytes of each stage, and by axes those of the one that sends the most.
static void count_along(const struct compiled *c, enum program_kind kind, struct arena *a,
                        struct cost *cost)
{
    int most = 0;
    struct arena scratch = {0};
    uint64_t *of = arena_array(&scratch, uint64_t, c->nstages);
    for (int i = 0; i < cost->ncollectives; i++)
        for (int s = 0; s < c->nstages; s++)
            if (cost->collectives[i].stages >> s & 1)
                of[s] += cost->collectives[i].bytes;
    for (int s = 0; s < c->nstages; s++)
        most = of[s] > of[most] ? s : most;
    cost->sent = of[most];
    const struct program *p = compiled_program(c, kind, most);
    for (int i = 0; i < p->ninstrs; i++) {
        bool start = p->instrs[i].kind == INSTR_START;
        cost->launches += start || p->instrs[i].kind == INSTR_SEND;
        i += start ? p->instrs[i].with : 0;
    }
    arena_clear(&scratch);
    cost->along = arena_array(a, struct axes_traffic, cost->ncollectives);
    for (int i = 0, k; i < cost->ncollectives; i++) {
        const struct collective_row *r = &cost->collectives[i];
        if (!(r->stages >> most & 1))
            continue;
        for (k = 0; k < cost->nalong && cost->along[k].axes != r->axes; k++)
            ;
        cost->nalong += k == cost->nalong;
        cost->nsent += r->count;
        cost->along[k].axes = r->axes;
        cost->along[k].bytes += r->bytes;
    }
    if (cost->nalong)
        qsort(cost->along, (size_t)cost->nalong, sizeof *cost->along, compare_traffic);
}

// The forward FLOPs of a microbatch that places take which no choice can fill.
static double count_idle(const struct graph *g)
{
    const struct node *router = experts_find_router(g);
    double idle = 0;
    if (!router)
        return 0;
    const struct op_slots *s = &router->attr.slots;
    const struct shape *ids = &g->values[router->in[0]].shape;
    double filled =
        (double)(s->group * ids->dim[1] * ids->dim[2]) / (double)(s->experts * s->capacity);
    bool all_filled = filled >= 1;
    for (int i = 0; i < g->nnodes && !all_filled; i++) {
        const struct node *n = &g->nodes[i];
        if (n->phase == PHASE_FORWARD && value_find_dim(&g->values[n->out[0]], DIM_CAPACITY) >= 0)
            idle += (1 - filled) * node_flops(g, NULL, n);
    }
    return idle;
}

// Counts the FLOPs of one microbatch, without those of values that are computed a second time.
static double count_flops(const struct graph *g, const struct mesh *m, bool forward_only)
{
    double total = 0;
    for (int i = 0; i < g->nnodes; i++) {
        if (!g->nodes[i].again && (!forward_only || g->nodes[i].phase == PHASE_FORWARD))
            total += node_flops(g, m, &g->nodes[i]);
    }
    return total;
}

// The shares of a device's rates that kernels are taken to reach: those by which kernels/README.md
// expects a step of a GPU.
static const double product_share = 0.63, attention_share = 0.24, memory_share = 0.9;

// The seconds that a node takes: of its products, or of the bytes that pass, whichever is more.
static double node_seconds(const struct program *p, const struct node *n, double flops,
                           const struct device_model *d)
{
    double reached = flops * (op_is(n->op, OP_IS_ATTENTION) ? attention_share : product_share);
    double work = node_flops(p->graph, &p->mesh, n) / reached;
    double pass = node_bytes(p->graph, &p->mesh, n) / (d->bandwidth * memory_share);
    return work > pass ? work : pass;
}

// What the ops of the busiest stage come to: the seconds that they take on such a device, or with
// none the bytes that they read and write. A node is asked for once, and is alike on all stages.
static double weigh_stages(const struct compiled *c, double flops, const struct device_model *d)
{
    struct arena scratch = {0};
    double most = 0, *of = arena_array(&scratch, double,
                                       compiled_program(c, PROGRAM_TRAIN, 0)->graph->nnodes);
    for (int s = 0; s < c->nstages; s++) {
        const struct program *p = compiled_program(c, PROGRAM_TRAIN, s);
        double sum = 0;
        for (int i = 0; i < p->ninstrs; i++) {
            int node = p->instrs[i].node;
            if (p->instrs[i].kind != INSTR_OP)
                continue;
            const struct node *n = &p->graph->nodes[node];
            if (of[node] == 0)
                of[node] = d ? node_seconds(p, n, flops, d) : node_bytes(p->graph, &p->mesh, n);
            sum += of[node];
        }
        most = sum > most ? sum : most;
    }
    arena_clear(&scratch);
    return most;
}

// Counts each input once, even where the program reads it in several cuts.
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

uint64_t cost_saved(const struct program *p, enum buffer_kind kind)
{
    uint64_t saved = 0;
    for (int b = 0; b < p->nbuffers; b++) {
        const struct buffer *buf = &p->buffers[b];
        if (buf->kind != kind)
            continue;
        const struct value *v = &p->graph->values[buf->value];
        struct shape own = spec_local(&p->graph->values[v->of].spec, &p->mesh, &v->shape);
        saved += (uint64_t)shape_count(&own) * dtype_size(v->dtype) - buf->bytes;
    }
    return saved;
}

void cost_count_sent(const struct compiled *c, enum program_kind kind, struct arena *a,
                     struct cost *out)
{
    *out = (struct cost){0};
    count_collectives(c, kind, a, out);
    count_along(c, kind, a, out);
}

void cost_count(const struct compiled *c, struct arena *a, struct cost *out)
{
    const struct program *p = compiled_program(c, PROGRAM_TRAIN, 0);
    cost_count_sent(c, PROGRAM_TRAIN, a, out);
    const struct graph *whole = c->global[PROGRAM_TRAIN];
    out->flops_per_step = 3 * count_flops(whole, NULL, true) * p->microbatches;
    out->flops_active = out->flops_per_step - 3 * count_idle(whole) * p->microbatches;
    // Counts all parameters, and those that one token uses: of the experts as many as it chooses. All
    // layers of experts are taken to be like the first.
    const struct node *router = experts_find_router(whole);
    for (int i = 0; i < whole->nvalues; i++) {
        const struct value *v = &whole->values[i];
        if (v->kind != VALUE_PARAM || v->alias >= 0)
            continue;
        int64_t n = shape_count(&v->shape);
        out->params += n;
        bool dealt = router && value_find_dim(v, DIM_EXPERT) >= 0;
        out->params_active +=
            dealt ? n / router->attr.slots.experts * whole->values[router->in[0]].shape.dim[2] : n;
    }
    double all = count_flops(p->graph, &c->mesh, false) * mesh_ranks(&c->mesh) / c->nstages;
    out->utilisation = all > 0 ? count_flops(whole, NULL, false) / all : 1;
    out->traffic = weigh_stages(c, 0, NULL);
}

struct estimate cost_estimate(const struct job *job, const struct compiled *c,
                              const struct cost *cost, const struct device_model *d)
{
    static const double tf32 = 0.5; // of bf16's peak, on all devices that have it
    double share = job->precision.compute == JOB_BF16   ? 1
                   : job->precision.compute == JOB_TF32 ? tf32
                                                        : d->f32;
    struct estimate e = {0};
    if (d->flops <= 0 || d->bandwidth <= 0)
        e.unknown = "its flops and bandwidth are not known";
    else if (share <= 0)
        e.unknown = "of its peak that of f32 is not known";
    else if (cost->sent && d->link <= 0)
        e.unknown = "its link is not known";
    if (e.unknown)
        return e;
    e.compute_s = weigh_stages(c, d->flops * share, d) / (1 - c->schedule_cost.bubble);
    e.send_s = cost->sent ? (double)cost->sent / d->link : 0;
    return e;
}
