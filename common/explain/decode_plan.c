// SPDX-License-Identifier: Apache-2.0
// What generating costs. See decode_plan.h.
#include "common/explain/decode_plan.h"

#include "common/compile/graph/experts.h"
#include "common/explain/fit.h"
#include "common/explain/picture_draw.h"
#include "common/explain/plan_report.h"

// ---- counting ----

// The parameter, or its copy in another dtype, that a value has the numbers of, as it is or gathered,
// cut and cast on the way; −1: none.
static int find_weight(const struct graph *g, int v)
{
    for (int by; (by = g->values[v].producer) >= 0; v = g->nodes[by].in[0])
        if (g->nodes[by].kind != NODE_RESHARD && !node_casts_param(&g->nodes[by]))
            return -1;
    return g->values[v].kind == VALUE_PARAM || g->values[v].kind == VALUE_COPY ? v : -1;
}

static double count_bytes(const struct program *p, const struct value *v)
{
    const struct shape local = spec_local(&v->spec, &p->mesh, &v->shape);
    return (double)shape_count(&local) * (double)dtype_size(v->dtype);
}

// The share of a weight that a step reads. Of experts no more than all rows can choose.
static double find_share(const struct compiled *c, const struct program *p, const struct node *n,
                         int k)
{
    const struct graph *g = p->graph;
    const struct value *v = &g->values[n->in[k]];
    const struct node *router = experts_find_router(c->global[PROGRAM_STEP]);
    double share = 1;
    if (n->op == OP_EMBED) {
        const struct value *ids = &g->values[n->in[0]];
        const struct shape rows = spec_local(&ids->spec, &p->mesh, &ids->shape),
                           table = spec_local(&v->spec, &p->mesh, &v->shape);
        share = (double)shape_count(&rows) / (double)table.dim[0];
    } else if (router && value_find_dim(v, DIM_EXPERT) >= 0) {
        const struct shape *ids = &c->global[PROGRAM_STEP]->values[router->in[0]].shape;
        share = (double)shape_count(ids) / (double)router->attr.slots.experts;
    }
    return share < 1 ? share : 1;
}

// The bytes of weights that the ops of a stage read, each once.
static double count_weights(const struct compiled *c, const struct program *p)
{
    struct arena scratch = {0};
    const struct graph *g = p->graph;
    bool *read = arena_array(&scratch, bool, g->nvalues);
    double bytes = 0;
    for (int i = 0; i < p->ninstrs; i++) {
        const struct node *n = &g->nodes[p->instrs[i].node];
        for (int k = 0; p->instrs[i].kind == INSTR_OP && k < n->nin; k++) {
            const int v = n->in[k];
            const double share = read[v] || find_weight(g, v) < 0 ? 0 : find_share(c, p, n, k);
            read[v] = read[v] || share == 1;
            bytes += share * count_bytes(p, &g->values[v]);
        }
    }
    arena_clear(&scratch);
    return bytes;
}

static double count_keys(const struct program *p)
{
    double bytes = 0;
    for (int b = 0; b < p->nbuffers; b++)
        if (p->buffers[b].kind == BUFFER_CACHE)
            bytes += (double)p->buffers[b].bytes;
    return bytes;
}

static void count_gathered(struct decode_plan *d)
{
    const struct program *p = compiled_program(d->compiled, PROGRAM_STEP, 0);
    for (int i = 0; i < p->graph->nnodes; i++) {
        const struct node *n = &p->graph->nodes[i];
        if (n->kind != NODE_RESHARD || n->step.kind != RESHARD_ALL_GATHER ||
            find_weight(p->graph, n->in[0]) < 0)
            continue;
        d->ngathered++;
        d->gathered += (uint64_t)count_bytes(p, &p->graph->values[n->out[0]]);
    }
}

void decode_plan_make(struct decode_plan *d, const struct compiled *c,
                      const struct device_model *device, struct arena *a)
{
    const struct graph *g = c->global[PROGRAM_STEP];
    *d = (struct decode_plan){
        .compiled = c, .device = device, .rows = g->values[g->loss].shape.dim[0], .fit = -1};
    for (int v = 0; v < g->nvalues; v++) {
        const struct value *cache = &g->values[v];
        if (cache->kind != VALUE_CACHE)
            continue;
        const uint64_t bytes =
            (uint64_t)(shape_count(&cache->shape) / d->rows) * (uint64_t)dtype_size(cache->dtype);
        d->row += bytes;
        d->token += bytes / (uint64_t)cache->shape.dim[1];
    }
    for (int s = 0; s < c->nstages; s++) {
        const struct program *p = compiled_program(c, PROGRAM_STEP, s);
        const double weights = count_weights(c, p), keys = count_keys(p);
        d->read += weights + keys;
        if (weights + keys > (double)(d->weights + d->keys)) {
            d->weights = (uint64_t)weights;
            d->keys = (uint64_t)keys;
        }
        if (fit_need(&c->by_stage[s], device) > fit_need(&c->by_stage[d->fullest], device))
            d->fullest = s;
    }
    cost_count_sent(c, PROGRAM_STEP, a, &d->cost);
    count_gathered(d);
    d->seconds = device->bandwidth > 0 ? d->read / device->bandwidth : 0;
}

bool decode_plan_fits(const struct decode_plan *d)
{
    return fit_fits(d->compiled, d->device);
}

// ---- as text ----

static void put_bytes(struct buf *out, const char *before, uint64_t bytes, const char *behind)
{
    buf_puts(out, before);
    buf_bytes(out, bytes);
    buf_puts(out, behind);
}

static void print_memory(const struct decode_plan *d, int width, struct buf *out)
{
    const struct memory *m = compiled_memory(d->compiled, d->fullest);
    const uint64_t all = fit_need(m, d->device), has = d->device->memory,
                   of = has > all ? has : all;
    put_bytes(out, "memory of a device: ", all, "");
    if (has)
        put_bytes(out, " of ", has, all > has ? ": it does not fit" : "");
    if (has && all > has && d->fit > 0)
        buf_printf(out, ", --batch %lld does", (long long)d->fit);
    else if (has && all > has && d->fit_context)
        buf_printf(out, ", --batch 1 --context %lld does", (long long)d->fit_context);
    buf_putc(out, '\n');
    picture_categories(m, of, width, out);
    report_beside_text(m, d->device, of, width, out);
}

static void print_step(const struct decode_plan *d, struct buf *out)
{
    put_bytes(out, "a step, a token of each text: a device reads ", d->weights, " of weights and ");
    put_bytes(out, "", d->keys, " of keys at full context, and sends ");
    if (d->cost.sent) {
        buf_bytes(out, d->cost.sent);
        buf_printf(out, " in %lld collective%s\n", (long long)d->cost.nsent,
                   d->cost.nsent == 1 ? "" : "s");
    } else {
        buf_puts(out, "nothing\n");
    }
    if (d->ngathered)
        buf_printf(
            out,
            "warning: %d weights are gathered from other devices at each step: fsdp and what "
            "cuts weights alike is for training, try tp, pp or dp\n",
            d->ngathered);
    if (d->seconds > 0)
        buf_printf(out, "at %.4g GB/s, the rate of %s's memory: %.4g tokens/s, %.4g of a text\n",
                   d->device->bandwidth / 1e9, d->device->name, (double)d->rows / d->seconds,
                   1 / d->seconds);
    else
        buf_printf(out,
                   "tokens/s: not estimated for %s: its bandwidth is not known (--device "
                   "%s:bandwidth=50GB)\n",
                   d->device->name, d->device->name);
}

void decode_plan_text(const struct decode_plan *d, const char *name, int width, struct buf *out)
{
    const struct compiled *c = d->compiled;
    const int devices = mesh_ranks(&c->mesh);
    buf_printf(out, "%s generates on mesh ", name);
    mesh_print(&c->mesh, out);
    buf_printf(out,
               ", %d device%s (%s)\n%lld text%s side by side, of up to %lld tokens; %lld of a "
               "prompt at once\n",
               devices, devices == 1 ? "" : "s", d->device->name, (long long)d->rows,
               d->rows == 1 ? "" : "s", (long long)c->context, (long long)c->rows);
    put_bytes(out, "keys: ", d->token, " a token, ");
    put_bytes(out, "", d->row, " a text; a device keeps ");
    buf_bytes(out, compiled_memory(c, d->fullest)->cache);
    if (d->fit >= 0)
        buf_printf(out, ", and %lld text%s fit%s", (long long)d->fit, d->fit == 1 ? "" : "s",
                   d->fit == 1 ? "s" : "");
    buf_putc(out, '\n');
    print_memory(d, width, out);
    print_step(d, out);
}

// ---- as JSON ----

void decode_plan_json(const struct decode_plan *d, struct json_out *w)
{
    const struct compiled *c = d->compiled;
    json_object(w, "mesh");
    for (int i = 0; i < c->mesh.n; i++)
        json_int(w, c->mesh.axis[i].name, c->mesh.axis[i].size);
    json_end(w);
    json_int(w, "devices", mesh_ranks(&c->mesh));
    json_int(w, "rows", d->rows);
    json_int(w, "context", c->context);
    json_int(w, "chunk", c->rows);
    json_uint(w, "token_bytes", d->token);
    json_uint(w, "row_bytes", d->row);
    json_known_int(w, "rows_that_fit", d->fit >= 0, d->fit);
    json_object(w, "memory");
    report_memory_json(compiled_memory(c, d->fullest), d->device, w);
    json_end(w);
    json_uint(w, "weights_read", d->weights);
    json_uint(w, "keys_read", d->keys);
    report_sent_json(&d->cost, c, w);
    json_int(w, "gathered_weights", d->ngathered);
    json_uint(w, "gathered_bytes", d->gathered);
    json_known_double(w, "tokens_per_s", d->seconds > 0, (double)d->rows / d->seconds);
    json_bool(w, "fits", decode_plan_fits(d));
    json_str(w, "device_model", d->device->name);
    json_str(w, "hash", c->hash);
}
